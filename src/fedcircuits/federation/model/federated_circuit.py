"""`FederatedCircuit`: the model that a federation makes, itself a density (Definition 4).

Its parts are the clients' models, its sums and products are at the server. All queries are those of
a circuit over whole densities (`circuits.over_parts`); where every part is a circuit in this
process, the merged circuit gives the same answers faster.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
import pandas as pd

from fedcircuits.arrays import FloatArray
from fedcircuits.circuits import Circuit, Composite
from fedcircuits.circuits.structure_builder import StructureBuilder
from fedcircuits.density import Density
from fedcircuits.density.evidence import without_id
from fedcircuits.density.hooks import Hooks
from fedcircuits.density.queries.explanation import Explanation
from fedcircuits.encoding import Record
from fedcircuits.errors import FederationError, unknown_name
from fedcircuits.federation.agreement.base import GluesAgain, Rule, revealed
from fedcircuits.federation.model.definition4 import (
    MIXTURE,
    PRODUCT,
    Operation,
    Placed,
    placement,
)
from fedcircuits.federation.model.run import AnyLearner, HoldsClients, Run
from fedcircuits.federation.server.circuit_builder import SERVER, CircuitBuilder, without_parts
from fedcircuits.federation.server.fitted_parts import FittedParts, Reports
from fedcircuits.federation.server.why import Why
from fedcircuits.federation.wire.ledger import Ledger
from fedcircuits.federation.wire.steps import Setting
from fedcircuits.schema import Data, Schema, Table
from fedcircuits.schema.events import Region
from fedcircuits.schema.shown import some
from fedcircuits.schema.table import Unknown


@dataclass(frozen=True, eq=False, repr=False)
class FederatedCircuit(Composite, HoldsClients):
    """One density over the variables of all clients.

    Attributes:
        owners: psi of the leaves, the client each part came from ("server" for indicators of the
            label).
        setting: horizontal, vertical or hybrid.
        rule: the agreement rule.
        fitted: what was fitted, for gluing again.
        ledger: bytes of every message between server and clients.
        dropped: why a client is no longer in the federation, by client.
        n_rows: rows of each client.
        id: the column that aligns rows; ignored in the rows of a query where models are gathered.
        run: the run that made it; None where it was loaded from a file.
        why: which rules were considered, their scores, and why this one was taken.
    """

    owners: tuple[str, ...] = ()
    setting: Setting = "horizontal"
    rule: Rule | None = None
    fitted: FittedParts | None = None
    ledger: Ledger = field(default_factory=Ledger)
    dropped: dict[str, str] = field(default_factory=dict)
    n_rows: dict[str, int] = field(default_factory=dict)
    id: str | None = None
    run: Run | None = None
    why: Why | None = None

    def __repr__(self) -> str:
        rule = "no rule" if self.rule is None else f"rule {self.rule.name!r}"
        return (
            f"{type(self).__name__}({len(self.schema)} variables, {self.setting}, {rule}, clients "
            f"{some(self.clients)}; {self.n_parameters} parameters, {self.ledger.n_bytes:,} bytes)"
        )

    def _facts_shown(self) -> list[tuple[str, str]]:
        rows = [f"{c} ({self.n_rows.get(c, '?')} rows)" for c in self.clients]
        facts = [("clients", some(rows, 12)), ("bytes that crossed", f"{self.ledger.n_bytes:,}")]
        if self.why is not None:
            facts.append((f"why {self.why.rule}", self.why.reason))
        facts += [(f"left out: {client}", why) for client, why in self.dropped.items()]
        return [*super()._facts_shown(), *facts]

    @classmethod
    def glue(cls, rule: Rule, fitted: FittedParts, **facts: Any) -> Self:
        """Returns the model that a rule makes of fitted parts; facts are the other attributes."""
        builder, root = rule.glue(fitted)
        return cls._assembled(builder, root, rule=rule, fitted=fitted, **facts)

    @classmethod
    def _assembled(
        cls, builder: CircuitBuilder, root: int, fitted: FittedParts, **facts: Any
    ) -> Self:
        made = builder, builder.parts, builder.owners
        return cls._of_graph(*made, root, fitted, **facts)

    @classmethod
    def _of_graph(
        cls,
        graph: StructureBuilder,
        parts: Sequence[Density],
        owners: Sequence[str],
        root: int,
        fitted: FittedParts,
        **facts: Any,
    ) -> Self:
        """What is reached from the root of a graph whose first numbers are the parts, in order."""
        structure, kept = graph.below(root, len(parts))
        names = {name for at in kept for name in parts[at].schema.names}
        return cls(
            Schema(tuple(v for v in fitted.schema if v.name in names)),
            tuple(parts[at] for at in kept),
            structure,
            None,
            owners=tuple(owners[at] for at in kept),
            fitted=fitted,
            **facts,
        )

    def _facts(self) -> dict[str, Any]:
        """Attributes that a federation made from this one takes over."""
        names = ("setting", "rule", "ledger", "dropped", "n_rows", "id", "run", "why")
        return {name: getattr(self, name) for name in names}

    # --- Definition 4 -----------------------------------------------------------------------------

    @property
    def clients(self) -> tuple[str, ...]:
        """Sorted names of the clients whose rows are in the model."""
        made = set() if self.fitted is None else {key.client for key in self.fitted.models}
        return tuple(sorted((set(self.owners) | made) - {SERVER}))

    @property
    def reveals(self) -> tuple[str, ...]:
        """Who learned what in this federation, and at which level, in words."""
        if self.rule is None:
            return ()
        labelled = self.fitted is not None and self.fitted.label is not None
        return revealed(self.rule, self.setting, labelled)

    @property
    def fit_reports(self) -> Reports:
        """Reports of the clients' learners about their fits, by client and job."""
        return {} if self.fitted is None else self.fitted.reports

    @property
    def psi(self) -> tuple[Placed, ...]:
        """The machine of every node, leaves first (psi of Definition 4)."""
        return placement(self.structure, self.owners)

    @property
    def omega(self) -> tuple[Operation | None, ...]:
        """The operation of every node, None for a leaf (omega of Definition 4)."""
        kinds = [MIXTURE if s else PRODUCT for s in self.structure.is_sum]
        return (None,) * len(self.parts) + tuple(kinds)

    # --- hooks: the merged circuit where there is one ---------------------------------------------

    @cached_property
    def _one(self) -> Density | None:
        """This distribution as one circuit; None unless every part is a circuit here."""
        if all(isinstance(part, Circuit) for part in self.parts):
            return self.merged()
        return None

    def log_prob_table(self, table: Table) -> FloatArray:
        one = self._one
        return super().log_prob_table(table) if one is None else one.log_prob_table(table)

    def sample_table(self, table: Table, rng: np.random.Generator) -> FloatArray:
        one = self._one
        return super().sample_table(table, rng) if one is None else one.sample_table(table, rng)

    def moment_table(self, table: Table, order: int) -> FloatArray:
        one = self._one
        return super().moment_table(table, order) if one is None else one.moment_table(table, order)

    def variance_table(self, table: Table) -> FloatArray:
        one = self._one
        return super().variance_table(table) if one is None else one.variance_table(table)

    def _moments(self, table: Table, order: int) -> FloatArray:
        return (
            super()._moments(table, order)
            if self._one is None
            else Hooks._moments(self, table, order)
        )

    def _conditional_means(self, table: Table) -> FloatArray:
        if self._one is None:
            return super()._conditional_means(table)
        return Hooks._conditional_means(self, table)

    def posterior_table(self, table: Table, column: int) -> FloatArray:
        one = self._one
        if one is None:
            return super().posterior_table(table, column)
        return one.posterior_table(table, column)

    def masses_table(self, table: Table, column: int, regions: list[Region]) -> FloatArray:
        one = self._one
        if one is None:
            return super().masses_table(table, column, regions)
        return one.masses_table(table, column, regions)

    def quantile_table(self, table: Table, column: int, shares: FloatArray) -> FloatArray | None:
        one = self._one
        return None if one is None else one.quantile_table(table, column, shares)

    def _rows(
        self,
        data: Data,
        unknown: Unknown = "error",
        without: str | None = None,
        asked: str | None = None,
    ) -> Table:
        shown = without_id(data, self.id, self.schema.names)
        return super()._rows(shown, unknown, without, asked)

    # --- clients come and go ----------------------------------------------------------------------

    def without(
        self, client: str | Iterable[str], *, rebuild_grid: bool = False
    ) -> FederatedCircuit:
        """Returns the federation without some clients, made of the others' fitted parts.

        Where rows are split this equals one-pass training of the others on the agreed schema and
        grid. In the other settings the variables that only this client held leave the model. Its
        share in the agreed categories and grids stays; `dropped` lists what.

        Args:
            client: who leaves: a name, or a list of names.
            rebuild_grid: train the others again, so that nothing of this client stays.
        """
        if isinstance(client, Iterable) and not isinstance(client, str):
            left: FederatedCircuit = self
            for name in client:
                left = left.without(name, rebuild_grid=rebuild_grid)
            return left
        if client not in self.clients or self.rule is None or self.fitted is None:
            raise FederationError(unknown_name("client", client, self.clients, "this federation"))
        others = [c for c in self.clients if c != client]
        if not others:
            raise FederationError(f"{client!r} is the only client: nothing would be left")
        if rebuild_grid:
            return self._run("rebuild_grid=True").retrain(others)
        again = isinstance(self.rule, GluesAgain) and self.rule.glues_again
        if self.setting != "horizontal" and (self.fitted.tilts or not again):
            return self.without_parts({client: "left"})
        if self.rule.name == "joint" and self.setting == "horizontal":
            raise FederationError(
                f"the model was made by all clients together: the rows of {client!r} are in every "
                "number of it. Train the others again (rebuild_grid=True)"
            )
        dropped = {**self.dropped, client: f"left; {self._stays(client)}"}
        rest = self.fitted.without(client)
        facts = {**self._facts(), "dropped": dropped}
        return type(self).glue(facts.pop("rule"), rest, **facts)

    def _stays(self, client: str) -> str:
        """A sentence on what stays in the model of a client that left."""
        held = {
            name
            for part, owner in zip(self.parts, self.owners, strict=True)
            if owner == client
            for name in part.schema.names
        }
        names = ", ".join(repr(v.name) for v in self.schema if v.name in held)
        return f"its share in the agreed categories and grids stays ({names})"

    def without_parts(self, away: Mapping[str, str]) -> Self:
        """Returns the model with the private parts of some clients summed out.

        Their share of mixtures goes to the clients that hold the same variables.

        Args:
            away: why each client is left out.
        """
        owners = set(self.owners) - {SERVER}
        if (owners and owners <= set(away)) or set(self.clients) <= set(away):
            raise FederationError("no client is left: " + "; ".join(away.values()))
        rest = self.fitted or FittedParts(self.schema, None)
        made = self.structure, self.plan, self.parts, self.owners
        builder, root = without_parts(*made, away, rest.models)
        for client in away:
            rest = rest.without(client)
        rest = replace(rest, schema=self.schema)
        reasons = {c: f"{why}; {self._stays(c)}" for c, why in away.items()}
        facts = {**self._facts(), "dropped": {**self.dropped, **reasons}}
        return type(self)._assembled(builder, root, rest, **facts)

    def with_client(
        self, name: str, data: Data, learner: AnyLearner | None = None
    ) -> FederatedCircuit:
        """Returns the federation with one client more, or with other rows of one that it has.

        The others are not asked again: where the label has a head, its weights follow from what the
        newcomer scores of them, not from what they would score of it. For rows split, under the
        rules `independent` and `product`; the table must fit the agreed schema: a category that no
        client had before is an error. A model that was loaded needs an engine:
        `fc.load(path, engine="local")`.

        Args:
            name: of the new client, or of the one whose rows are replaced.
            data: its rows.
            learner: by default that of the run.
        """
        if self.setting != "horizontal" or self.rule is None:
            raise FederationError(
                f"a client can join where rows are split; this federation is {self.setting}, and "
                "what its clients fitted depends on rows that they hold together: train it again"
            )
        if self.rule.name not in ("independent", "product"):
            raise FederationError(
                f"a client can join under the rules independent and product, not under "
                f"{self.rule.name!r}: train again"
            )
        run = self._run("with_client")
        if name not in self.clients:
            return run.join(self, name, data, learner)
        if self.clients == (name,):
            raise FederationError(f"{name!r} is the only client: call federate with its new rows")
        return run.join(self.without(name), name, data, learner)

    def _run(self, what: str) -> Run:
        if self.run is None:
            raise FederationError(
                f"{what} needs the run that made this model; it was loaded: "
                "fc.load(path, engine=...) gives it an engine"
            )
        return self.run

    @property
    def column_groups(self) -> dict[str, tuple[str, ...]]:
        """Variables by the clients that hold them; none where all clients hold the same ones."""
        if self.setting == "horizontal":
            return {}
        holders: dict[str, set[str]] = {}
        for part, owner in zip(self.parts, self.owners, strict=True):
            for name in part.schema.names:
                holders.setdefault(name, set()).add(owner)
        groups: dict[str, list[str]] = {}
        for name in self.schema.names:
            groups.setdefault(" + ".join(sorted(holders[name])), []).append(name)
        return {group: tuple(names) for group, names in groups.items()}

    def explain(
        self, rows: Data, target: str, value: object | None = None, *, unknown: Unknown = "error"
    ) -> Explanation:
        """As `Density.explain`, with the evidence of each client.

        Where columns are split, a client's evidence is that of its columns together. Where rows
        are split, it is the change of the log-odds when the client leaves; `clients` is None
        where nobody can leave (`without`).
        """
        found = super().explain(rows, target, value, unknown=unknown)
        if self.setting != "horizontal":
            return found
        from fedcircuits.federation.model.client_evidence import by_leaving

        return by_leaving(self, found, rows, unknown)

    def contributions(self, rows: Data, label: str | None = None) -> pd.DataFrame:
        """Returns what each client adds to the scores of held-out rows (`contributions`)."""
        from fedcircuits.federation.model.contributions import contributions

        return contributions(self, rows, label or (self.fitted.label if self.fitted else None))

    def draw(self, path: str | Path) -> None:
        """Write a picture of Algorithm 1's network: sums, products, and the clients below them."""
        from fedcircuits.report import about_federation, networks

        nodes = about_federation.network(self)
        rule = "" if self.rule is None else f", rule {self.rule.name!r}"
        networks.save(
            path,
            networks.network_size(nodes),
            f"{self.setting} federation of {len(self.clients)} clients{rule}\n{networks.SYMBOLS}",
            lambda axes: networks.paint_network(axes, nodes),
        )

    def communication(self, **options: Any) -> pd.DataFrame:
        """Returns the bytes of the run beside the paper's formulas (`communication_cost`)."""
        from fedcircuits.federation.model.communication_cost import communication

        return communication(self, **options)

    def to_record(self) -> Record:
        """As `composite`, with owners, rule, fitted parts and the ledger's totals."""
        from fedcircuits.federation.model.storage import to_record

        return to_record(self, super().to_record())

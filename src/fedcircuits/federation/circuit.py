"""`FederatedCircuit`: the result, itself a Density (Definition 4: a graph, psi and omega)."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from fedcircuits.circuits import Circuit, Composite
from fedcircuits.circuits.passes import sum_product, up
from fedcircuits.circuits.queries.restrict import fold_evidence
from fedcircuits.density import Density
from fedcircuits.errors import FederationError
from fedcircuits.federation.agreement.base import Rule
from fedcircuits.federation.glue import Network
from fedcircuits.federation.ledger import Ledger
from fedcircuits.federation.server import Setting
from fedcircuits.federation.training import Ingredients, class_log_probs
from fedcircuits.schema import Schema, Table
from fedcircuits.schema.grid import FloatArray


@dataclass(frozen=True, eq=False, repr=False)
class FederatedCircuit(Composite):
    """One density over the variables of all clients.

    Attributes:
        owners: psi, the client each part came from ("server" for indicators of the label).
        setting: horizontal, vertical or hybrid.
        rule: the agreement rule.
        ingredients: what was fitted, for gluing again.
        ledger: every byte that crossed the network.
        dropped: clients that fell out, and why.
    """

    owners: tuple[str, ...] = ()
    setting: Setting = "horizontal"
    rule: Rule | None = None
    ingredients: Ingredients | None = None
    ledger: Ledger = field(default_factory=Ledger)
    dropped: dict[str, str] = field(default_factory=dict)

    @staticmethod
    def glue(
        rule: Rule,
        ingredients: Ingredients,
        setting: Setting,
        ledger: Ledger,
        dropped: dict[str, str],
    ) -> FederatedCircuit:
        """Glue ingredients by a rule."""
        network, root = rule.glue(ingredients)
        return _assemble(network, root, ingredients, rule, setting, ledger, dropped)

    @property
    def clients(self) -> tuple[str, ...]:
        """Clients with a part in the model."""
        return tuple(sorted(set(self.owners) - {"server"}))

    @cached_property
    def _one(self) -> Density | None:
        """The same distribution as one circuit, where all parts are here and are circuits."""
        if all(isinstance(part, Circuit) for part in self.parts):
            return self.merged()
        return None

    def log_prob_table(self, table: Table) -> FloatArray:
        one = self._one
        return super().log_prob_table(table) if one is None else one.log_prob_table(table)

    def sample_table(self, table: Table, rng: np.random.Generator) -> FloatArray:
        one = self._one
        return super().sample_table(table, rng) if one is None else one.sample_table(table, rng)

    def mpe_table(self, table: Table) -> FloatArray:
        one = self._one
        return super().mpe_table(table) if one is None else one.mpe_table(table)

    def moment_table(self, table: Table, order: int) -> FloatArray:
        one = self._one
        return super().moment_table(table, order) if one is None else one.moment_table(table, order)

    def posterior_table(self, table: Table, column: int) -> FloatArray:
        """Of the label, the calibrated posterior where one was kept; else the exact conditional."""
        calibrated = self._calibrated(table, column)
        if calibrated is not None:
            return calibrated
        one = self._one
        if one is None:
            return super().posterior_table(table, column)
        return one.posterior_table(table, column)

    def _calibrated(self, table: Table, column: int) -> FloatArray | None:
        found = self.ingredients
        if found is None or found.calibration is None or self.schema.names[column] != found.label:
            return None
        log_probs = class_log_probs(found, table)
        return None if log_probs is None else np.exp(found.calibration.log_posterior(log_probs))

    def without(self, client: str) -> FederatedCircuit:
        """The federation without one client: glued again from what the others sent.

        Horizontally this is one-pass training of the others on the agreed schema and grid. In the
        other settings the variables that only the leaver held leave the model.
        """
        if client not in self.clients or self.rule is None or self.ingredients is None:
            raise FederationError(
                f"no client {client!r} in this federation; it has {', '.join(self.clients)}"
            )
        if len(self.clients) == 1:
            raise FederationError(f"{client!r} is the only client: nothing would be left")
        dropped = {**self.dropped, client: "left"}
        if self.setting == "horizontal":
            rest = self.ingredients.without(client)
            return FederatedCircuit.glue(self.rule, rest, self.setting, self.ledger, dropped)
        return self._without_parts(client, dropped)

    def _without_parts(self, client: str, dropped: dict[str, str]) -> FederatedCircuit:
        """Private parts of the leaver are summed out; its share of mixtures goes to the others."""
        held_by_others = {
            name
            for part, owner in zip(self.parts, self.owners, strict=True)
            if owner != client
            for name in part.schema.names
        }
        values = np.zeros((self.structure.n_nodes, 1))
        network = Network()
        leaves = np.full(len(self.parts), -1, dtype=np.int64)
        for at, (part, owner) in enumerate(zip(self.parts, self.owners, strict=True)):
            if owner != client:
                network.register([(part, owner)])
                leaves[at] = network.part(part)
            elif set(part.schema.names) <= held_by_others:
                values[at] = -np.inf  # another holder speaks for these variables
        up(self.plan, values, sum_product)
        root = fold_evidence(self.structure, values[:, 0], leaves, network.graph)
        assert self.ingredients is not None
        assert self.rule is not None
        rest = self.ingredients.without(client)
        return _assemble(network, root, rest, self.rule, self.setting, self.ledger, dropped)


def _assemble(
    network: Network,
    root: int,
    ingredients: Ingredients,
    rule: Rule,
    setting: Setting,
    ledger: Ledger,
    dropped: dict[str, str],
) -> FederatedCircuit:
    alive = network.graph.reached(root)
    kept = np.flatnonzero(alive[: len(network.parts)])
    new = np.full(alive.size, -1, dtype=np.int64)
    new[kept] = np.arange(kept.size)
    parts = tuple(network.parts[i] for i in kept)
    names = {n for part in parts for n in part.schema.names}
    schema = Schema(tuple(v for v in ingredients.schema if v.name in names))
    return FederatedCircuit(
        schema,
        parts,
        network.graph.structure(alive, new, kept.size),
        None,
        tuple(network.owners[i] for i in kept),
        setting,
        rule,
        ingredients,
        ledger,
        dropped,
    )

"""A federation whose models stay at the clients: every query, one message a client where it can be.

A client that gives no answer is away: its private variables are marginalised, its share of mixtures
goes to the others, and the answer says who spoke (`answer.attrs["spoke"]`, `["away"]`).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import wraps
from typing import Any

import numpy as np
import pandas as pd

from fedcircuits.arrays import FloatArray, IntArray
from fedcircuits.circuits.passes import sum_product, up
from fedcircuits.circuits.queries.restrict import fold_evidence
from fedcircuits.density import Density, Given
from fedcircuits.errors import FedcircuitsError, FedcircuitsWarning, QueryError
from fedcircuits.federation.model.circuit import FederatedCircuit
from fedcircuits.federation.server.circuit_builder import CircuitBuilder
from fedcircuits.federation.server.fitted_parts import class_log_probs
from fedcircuits.federation.server.remote import AskedById, ClientsAwayError, RemoteDensity, ask
from fedcircuits.federation.wire.ids import digests
from fedcircuits.schema import Data, Table, read
from fedcircuits.schema.table import Unknown

ROWS_PER_MESSAGE = 65_536
HIDDEN = "fedcircuits.hidden"  # key in a frame's attrs: columns that must not be looked up
Query = Callable[..., Any]


def _tolerant(query: Query) -> Query:
    """A query that goes on without the clients that are away, and says so."""

    @wraps(query)
    def asked(self: RemoteCircuit, *args: Any, **options: Any) -> Any:
        present = self
        away: dict[str, str] = {}
        while True:
            try:
                with warnings.catch_warnings():
                    if away:  # cells of variables that are away are ignored, and that is said below
                        warnings.filterwarnings("ignore", "ignored", FedcircuitsWarning)
                    answer = query(present, *args, **options)
                break
            except ClientsAwayError as error:
                away |= error.why
                present = present.without_parts(error.why)
            except QueryError as error:
                if not away:
                    raise
                raise QueryError(f"{error}; {'; '.join(away.values())}") from None
        if away:
            warnings.warn(
                f"answered by {', '.join(present.clients)} alone; {'; '.join(away.values())}",
                FedcircuitsWarning,
                stacklevel=2,
            )
        if isinstance(answer, (pd.Series, pd.DataFrame)) and "spoke" not in answer.attrs:
            answer.attrs |= {"spoke": present.clients, "away": dict(away)}
        return answer

    return asked


@dataclass(frozen=True, eq=False, repr=False)
class RemoteCircuit(FederatedCircuit):
    """A `FederatedCircuit` with references for parts.

    Attributes:
        secret: mixed into digests of ids in queries, as at the clients.
        gone: variables of clients that are away; evidence on them is ignored.
    """

    secret: str = ""
    gone: frozenset[str] = frozenset()

    def _facts(self) -> dict[str, Any]:
        return super()._facts() | {"secret": self.secret, "gone": self.gone}

    @property
    def _one(self) -> Density | None:
        return None

    # --- hooks, one message a client --------------------------------------------------------------

    def _calibrated(self, table: Table, column: int) -> FloatArray | None:
        found = self.fitted
        if found is None or found.calibration is None or self.schema.names[column] != found.label:
            return None
        keys = sorted(found.models)
        models = [p for k in keys if isinstance(p := found.models[k], RemoteDensity)]
        told = dict(zip(keys, ask(models, "log_prob", table), strict=True))
        log_probs = class_log_probs(found, table, lambda key, _: told[key])
        return None if log_probs is None else np.exp(found.calibration.log_posterior(log_probs))

    def _ask(
        self,
        what: str,
        wanted: list[int],
        rows: Table,
        subsets: dict[int, IntArray] | None = None,
        **options: Any,
    ) -> dict[int, FloatArray]:
        """Answers of some parts that stay at clients, by number."""
        remote = [(at, p) for at in wanted if isinstance(p := self.parts[at], RemoteDensity)]
        if not remote:
            return {}
        chosen = None if subsets is None else [subsets[at] for at, _ in remote]
        answers = ask([p for _, p in remote], what, rows, subsets=chosen, **options)
        return {at: answer for (at, _), answer in zip(remote, answers, strict=True)}

    def _values(self, rows: Table) -> FloatArray:
        values = np.zeros((self.structure.n_nodes, len(rows)))
        by_id = isinstance(rows, AskedById)
        wanted = []
        for at, part in enumerate(self.parts):
            if not isinstance(part, RemoteDensity):
                mine = self.part_table(at, rows)
                if mine.observed.any():
                    values[at] = part.log_prob_table(mine)
            elif by_id or rows.observed[:, self.columns[at]].any():
                wanted.append(at)
        for at, answer in self._ask("log_prob", wanted, rows).items():
            values[at] = answer
        up(self.plan, values, sum_product)
        return values

    def log_prob_table(self, table: Table) -> FloatArray:
        answer = np.empty(len(table))
        for where, rows in table.chunks(ROWS_PER_MESSAGE):
            answer[where] = self._values(rows)[-1]
        return answer

    def moment_table(self, table: Table, order: int) -> FloatArray:
        answer = np.zeros((len(table), len(self.schema)))
        for where, rows in table.chunks(ROWS_PER_MESSAGE):
            flows = self._flows(rows)
            live = {at: np.flatnonzero(flows[at] > 0) for at in range(len(self.parts))}
            live = {at: mine for at, mine in live.items() if mine.size}
            found = self._ask("moment", list(live), rows, live, order=order)
            total = np.zeros((len(rows), len(self.schema)))
            for at, mine in live.items():
                if at not in found:
                    own = self.part_table(at, rows.rows(mine))
                    found[at] = self.parts[at].moment_table(own, order)
                with np.errstate(invalid="ignore"):  # infinite to both sides: no such moment
                    total[np.ix_(mine, self.columns[at])] += flows[at, mine, None] * found[at]
            answer[where] = total
        return answer

    def posterior_table(self, table: Table, column: int) -> FloatArray:
        variable = self.schema.variables[column]
        calibrated = self._calibrated(table, column)
        if calibrated is not None:
            return calibrated
        if not variable.is_coded or variable.missing_state:
            return super().posterior_table(table, column)
        observed = table.observed.copy()
        observed[:, column] = False
        table = replace(table, observed=observed)
        answer = np.zeros((len(table), len(variable.categories)))
        for where, rows in table.chunks(ROWS_PER_MESSAGE):
            flows = self._flows(rows, column)
            live = {
                at: np.flatnonzero(flows[at] > 0)
                for at in range(len(self.parts))
                if column in self.columns[at]
            }
            live = {at: mine for at, mine in live.items() if mine.size}
            found = self._ask("posterior", list(live), rows, live, target=variable.name)
            total = np.zeros((len(rows), answer.shape[1]))
            for at, mine in live.items():
                if at not in found:
                    own = int(np.flatnonzero(self.columns[at] == column)[0])
                    part = self.part_table(at, rows.rows(mine))
                    found[at] = self.parts[at].posterior_table(part, own)
                total[mine] += flows[at, mine, None] * found[at]
            answer[where] = total
        with np.errstate(invalid="ignore"):
            return np.asarray(answer / answer.sum(axis=1, keepdims=True))

    def restrict(self, keep: tuple[str, ...], evidence: Table) -> Density:
        log_prob = self._values(evidence)[:, 0]
        builder, new = CircuitBuilder(), np.full(len(self.parts), -1, dtype=np.int64)
        for at, (part, owner) in enumerate(zip(self.parts, self.owners, strict=True)):
            kept = tuple(name for name in part.schema.names if name in keep)
            if not kept or np.isneginf(log_prob[at]):
                continue
            mine = self.part_table(at, evidence)
            whole = len(kept) == len(part.schema) and not mine.observed.any()
            left = part if whole else part.restrict(kept, mine)
            builder.register([(left, owner)])
            new[at] = builder.part(left)
        root = fold_evidence(self.structure, log_prob, new, builder.graph)
        rest = replace(_fitted(self), schema=self.schema.select(keep), calibration=None)
        return type(self)._assembled(builder, root, rest, **self._facts())

    # --- rows -------------------------------------------------------------------------------------

    def without_parts(self, away: Mapping[str, str]) -> RemoteCircuit:
        rest = super().without_parts(away)
        gone = self.gone | (set(self.schema.names) - set(rest.schema.names))
        return replace(rest, gone=frozenset(gone))

    def _rows(self, data: Data, unknown: Unknown = "error", without: str | None = None) -> Table:
        frame = read(data)
        table = super()._rows(frame, unknown, without)
        if self.id is None or self.id not in frame.columns or self.id in self.schema:
            return table
        server = next(p.server for p in self.parts if isinstance(p, RemoteDensity))
        hidden = {*frame.attrs.get(HIDDEN, ()), *([without] if without else [])}
        return AskedById(
            table.schema,
            table.values,
            table.observed,
            table.index,
            digests=digests(frame[self.id], server.salt, self.secret, "query"),
            hidden=tuple(sorted(hidden)),
        )

    def _evidence(self, given: Given | None, unknown: Unknown = "error") -> Table:
        if isinstance(given, Mapping):
            given = {name: value for name, value in given.items() if name not in self.gone}
        return super()._evidence(given, unknown)

    def moment(self, name: str, order: int, given: Given | None = None, **options: Any) -> Any:
        """As of any density; `name` itself is not looked up in rows asked by id."""
        return super().moment(name, order, _hiding(given, name), **options)

    def variance(self, name: str, given: Given | None = None, **options: Any) -> Any:
        """As of any density; `name` itself is not looked up in rows asked by id."""
        return super().variance(name, _hiding(given, name), **options)


def _hiding(given: Given | None, name: str) -> Given | None:
    if given is None or isinstance(given, Mapping):
        return given
    frame = read(given).copy(deep=False)
    frame.attrs = {**frame.attrs, HIDDEN: (name,)}
    return frame


def _fitted(fed: FederatedCircuit) -> Any:
    if fed.fitted is None:
        raise FedcircuitsError("a remote federation has no fitted parts")
    return fed.fitted


for _name in (
    "log_prob", "mean_log_prob", "marginal", "condition", "predict_proba", "predict", "mpe",
    "sample", "impute", "moment", "expectation", "variance", "covariance",
):  # fmt: skip
    setattr(RemoteCircuit, _name, _tolerant(getattr(RemoteCircuit, _name)))

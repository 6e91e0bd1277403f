"""A model that stays at its client: every hook is a message, only vectors travel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcircuits.arrays import Arrays, FloatArray, IntArray
from fedcircuits.density import Density
from fedcircuits.encoding import Record
from fedcircuits.errors import FederationError, StorageError
from fedcircuits.federation.server.server import Server
from fedcircuits.federation.wire import messages as m
from fedcircuits.federation.wire.transport import ClientAwayError
from fedcircuits.schema import Schema, Table


class ClientsAwayError(FederationError):
    """Clients that a query needs gave no answer.

    Attributes:
        why: reason by client.
    """

    def __init__(self, why: Mapping[str, str]) -> None:
        self.why = dict(why)
        super().__init__("; ".join(self.why.values()))


@dataclass(frozen=True)
class AskedById(Table):
    """Rows whose cells the clients also look up themselves.

    Attributes:
        digests: (n, 12) of the rows' ids.
        hidden: columns that are not to be looked up, because they are asked for.
    """

    digests: NDArray[np.uint8] = field(default_factory=lambda: np.zeros((0, 12), dtype=np.uint8))
    hidden: tuple[str, ...] = ()

    def rows(self, which: Any) -> Table:
        """Some of the rows."""
        return replace(super().rows(which), digests=self.digests[which])  # type: ignore[call-arg]


@dataclass(frozen=True, eq=False)
class RemoteDensity(Density):
    """A reference to a client's model, or to it given some values.

    Attributes:
        server: who asks.
        client: where it is.
        key: its name there.
        schema: its variables that remain.
        parameters: how many it has.
        evidence: one row of the whole model's variables, None where nothing is restricted.
    """

    server: Server = field(repr=False)
    client: str
    key: str
    schema: Schema = field(repr=False)
    parameters: int
    evidence: Table | None = field(default=None, repr=False)

    def _ask(self, what: str, table: Table, **options: Any) -> FloatArray:
        return ask([self], what, table, **options)[0]

    def log_prob_table(self, table: Table) -> FloatArray:
        return self._ask("log_prob", table)

    def sample_table(self, table: Table, rng: np.random.Generator) -> FloatArray:
        return self._ask("sample", table, seed=int(rng.integers(2**62)))

    def mpe_table(self, table: Table) -> FloatArray:
        return self._ask("mpe", table)

    def moment_table(self, table: Table, order: int) -> FloatArray:
        return self._ask("moment", table, order=order)

    def variance_table(self, table: Table) -> FloatArray:
        return self._ask("variance", table)

    def posterior_table(self, table: Table, column: int) -> FloatArray:
        return self._ask("posterior", table, target=self.schema.names[column])

    def covariance_table(self, evidence: Table, columns: list[int]) -> FloatArray:
        return self._ask("covariance", evidence)[np.ix_(columns, columns)]

    def restrict(self, keep: tuple[str, ...], evidence: Table) -> Density:
        """The client conditions its model when it is asked: nothing is sent now."""
        whole = self.evidence if self.evidence is not None else Table.empty(self.schema, 1)
        values, observed = whole.values.copy(), whole.observed.copy()
        for at, name in enumerate(self.schema.names):
            if evidence.observed[0, at]:
                column = whole.schema.position(name)
                values[0, column], observed[0, column] = evidence.values[0, at], True
        given = replace(whole, values=values, observed=observed)
        return replace(self, schema=self.schema.select(keep), evidence=given)

    @property
    def n_parameters(self) -> int:
        """As the client said."""
        return self.parameters

    @property
    def mpe_is_exact(self) -> bool:
        """Not known from here."""
        return False

    def to_record(self) -> Record:
        raise StorageError(
            f"the model {self.key!r} stays at client {self.client!r} and cannot be saved here; "
            "federate with placement='gathered' to save"
        )


def ask(
    parts: Sequence[RemoteDensity],
    what: str,
    table: Table,
    *,
    subsets: Sequence[IntArray] | None = None,
    order: int = 0,
    target: str = "",
    seed: int = 0,
) -> list[FloatArray]:
    """Put one question to many models at once: one message to each client.

    Args:
        parts: the models; those of one client are restricted alike.
        what: log_prob, posterior, moment, variance, covariance, sample or mpe.
        table: rows, over all variables of the parts or more.
        subsets: the rows meant for each part, all by default.
        order: of a moment.
        target: of a posterior.
        seed: of a sample.
    """
    groups: dict[tuple[int, str], list[int]] = {}
    for at, part in enumerate(parts):
        groups.setdefault((id(part.server), part.client), []).append(at)
    by_server: dict[int, dict[str, list[int]]] = {}
    for (server, client), members in groups.items():
        by_server.setdefault(server, {})[client] = members
    answers: dict[int, FloatArray] = {}
    away: dict[str, str] = {}
    for clients in by_server.values():
        server_ = parts[next(iter(clients.values()))[0]].server
        requests = {
            client: _request(
                [parts[i] for i in members],
                what,
                table,
                None if subsets is None else [subsets[i] for i in members],
                server_.salt,
                (order, target, seed),
            )
            for client, members in clients.items()
        }
        told, failures = server_.try_call("query", "query", requests, m.Answers)
        for client, error in failures.items():
            if not isinstance(error, ClientAwayError):
                raise error
            away[client] = str(error)
        for client, answer in told.items():
            for i in clients[client]:
                answers[i] = answer.values[parts[i].key]
    if away:
        raise ClientsAwayError(away)
    return [answers[i] for i in range(len(parts))]


def _request(
    parts: list[RemoteDensity],
    what: str,
    table: Table,
    subsets: list[IntArray] | None,
    salt: str,
    options: tuple[int, str, int],
) -> m.Query:
    names = list(dict.fromkeys(name for part in parts for name in part.schema.names))
    at = [table.schema.position(name) for name in names]
    values, observed = table.values[:, at], table.observed[:, at]
    rows: Arrays = {}
    if subsets is not None:
        rows = {p.key: s.astype(np.int32) for p, s in zip(parts, subsets, strict=True)}
    given: dict[str, float] = {}
    restricted = any(part.evidence is not None for part in parts)
    for part in parts:
        if part.evidence is not None:
            known = np.flatnonzero(part.evidence.observed[0])
            for column in known:
                given[part.evidence.schema.names[column]] = part.evidence.values[0, column]
    by_id = isinstance(table, AskedById)
    order, target, seed = options
    return m.Query(
        what=what,
        models=[part.key for part in parts],
        columns=names,
        values=np.where(observed, values, 0.0),
        observed=observed,
        order=order,
        target=target,
        seed=seed,
        restricted=restricted,
        keep=names if restricted else [],
        given=sorted(given),
        given_values=np.array([given[name] for name in sorted(given)], dtype=float),
        salt=salt if by_id else "",
        hidden=list(table.hidden) if isinstance(table, AskedById) else [],
        digests=table.digests if isinstance(table, AskedById) else np.zeros((0, 12), np.uint8),
        rows=rows,
    )

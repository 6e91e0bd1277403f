"""Models that stay at their clients, and the message that puts questions to them.

A `RemoteDensity` stands for one such model. All questions of one step of a query travel together:
one message to each client (`AtClients.answer`), whatever the number of its models.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fedcircuits.arrays import Arrays, FloatArray
from fedcircuits.density import Density
from fedcircuits.density.batched import Question, ask
from fedcircuits.density.conditioned import Conditioned
from fedcircuits.density.tilt import Tilt, by_column
from fedcircuits.encoding import Record
from fedcircuits.errors import ClientError, FederationError, StorageError, warn
from fedcircuits.federation.client.label.tilting import tables_of
from fedcircuits.federation.server.server import Server
from fedcircuits.federation.wire import requests as m
from fedcircuits.federation.wire.ids import digests, fingerprint
from fedcircuits.federation.wire.names import ModelName
from fedcircuits.federation.wire.transport import ClientAwayError
from fedcircuits.schema import Schema, Table
from fedcircuits.schema.events import Region
from fedcircuits.schema.shown import some


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
        """Return chosen rows with their digests."""
        return replace(super().rows(which), digests=self.digests[which])  # type: ignore[call-arg]


def asked_by_id(
    table: Table, ids: pd.Series[Any], server: Server, secret: str, hidden: Iterable[str]
) -> AskedById:
    """Returns rows whose missing cells the clients look up by id, but for the hidden columns.

    Args:
        table: the cells that are known here.
        ids: (n,) of the rows.
        server: whose salt the digests of ids have.
        secret: mixed into the digests, as at the clients.
        hidden: names of variables.
    """
    found = digests(ids, server.salt, secret, "query")
    known = table.schema, table.values, table.observed, table.index
    return AskedById(*known, events=table.events, digests=found, hidden=tuple(sorted(hidden)))


def warn_of_away(answered: Iterable[str], away: Mapping[str, str]) -> None:
    """Warns that some clients alone answered a query, and why the others did not."""
    why = "; ".join(away.values())
    warn(f"answered by {', '.join(answered)} alone; {why}")


@dataclass(frozen=True, eq=False, repr=False)
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
    key: ModelName
    schema: Schema = field(repr=False)
    parameters: int
    evidence: Table | None = field(default=None, repr=False)

    def __repr__(self) -> str:
        return f"RemoteDensity({some(self.schema.names)}; at client {self.client!r})"

    @property
    def place(self) -> AtClients:
        """With the clients of the server."""
        return AtClients(self.server)

    def log_prob_table(self, table: Table) -> FloatArray:
        return ask([Question(self, "log_prob", table)])[0]

    def sample_table(self, table: Table, rng: np.random.Generator) -> FloatArray:
        return ask([Question(self, "sample", table, seed=int(rng.integers(2**62)))])[0]

    def mpe_table(self, table: Table) -> FloatArray:
        return self.completed_table(table)[0]

    def completed_table(self, table: Table) -> tuple[FloatArray, FloatArray]:
        found = ask([Question(self, "mpe", table)])[0]
        return found[:, :-1], found[:, -1]

    def moment_table(self, table: Table, order: int) -> FloatArray:
        return ask([Question(self, "moment", table, order=order)])[0]

    def variance_table(self, table: Table) -> FloatArray:
        return ask([Question(self, "variance", table)])[0]

    def posterior_table(self, table: Table, column: int) -> FloatArray:
        return ask([Question(self, "posterior", table, columns=(self.schema.names[column],))])[0]

    def covariance_table(self, evidence: Table, columns: list[int]) -> FloatArray:
        names = tuple(self.schema.names[column] for column in columns)
        return ask([Question(self, "covariance", evidence, columns=names)])[0]

    def restrict(self, keep: tuple[str, ...], evidence: Table) -> Density:
        """The client conditions its model when it is asked: nothing is sent now."""
        if evidence.events is not None and (evidence.known & ~evidence.observed).any():
            return Conditioned(self, keep, evidence)
        whole = self.evidence if self.evidence is not None else Table.empty(self.schema, 1)
        values, observed = whole.values.copy(), whole.observed.copy()
        for at, name in enumerate(self.schema.names):
            if evidence.observed[0, at]:
                column = whole.schema.position(name)
                values[0, column], observed[0, column] = evidence.values[0, at], True
        given = replace(whole, values=values, observed=observed)
        return replace(self, schema=self.schema.select(keep), evidence=given)

    @property
    def given(self) -> dict[str, float]:
        """Encoded values the model is conditioned on, by name."""
        if self.evidence is None:
            return {}
        known = np.flatnonzero(self.evidence.observed[0])
        return {self.evidence.schema.names[c]: self.evidence.values[0, c] for c in known}

    @property
    def n_parameters(self) -> int:
        """Number of parameters, as the client has reported it."""
        return self.parameters

    @property
    def mpe_is_exact(self) -> bool:
        """Return False: whether completions are exact is known at the client alone."""
        return False

    @property
    def answers_events(self) -> bool:
        """A client whose model does not refuses the query."""
        return True

    def to_record(self) -> Record:
        raise StorageError(
            f"the model {str(self.key)!r} stays at client {self.client!r} and cannot be saved "
            "here; federate with placement='gathered' to save"
        )


def masses_remotely(
    models: Sequence[RemoteDensity], tilt: Tilt
) -> list[tuple[FloatArray, dict[str, FloatArray]]]:
    """As `masses_by_class` for models that stay, one message to each client."""
    by_client = _by_client(models)
    requests = {}
    for client, numbers in by_client.items():
        held = {name for at in numbers for name in models[at].schema.names}
        tables = tables_of(tilt.select(sorted(held)))
        requests[client] = m.AskMasses(tuple(models[at].key for at in numbers), tables)
    answer: dict[int, tuple[FloatArray, dict[str, FloatArray]]] = {}
    for client, reply in models[0].server.call(m.MASSES, requests).items():
        for number, at in enumerate(by_client[client]):
            mine = tilt.select(models[at].schema.names)
            cells = reply.cells[str(number)]
            if cells.shape != mine.flat.shape:
                raise FederationError(f"client {client!r} gave masses {cells.shape}")
            parts = by_column(cells, mine.widths)
            answer[at] = reply.log_z[number], dict(zip(mine.columns, parts, strict=True))
    return [answer[at] for at in range(len(models))]


def _by_client(models: Sequence[RemoteDensity]) -> dict[str, list[int]]:
    """Numbers of the models that stay at each client."""
    by_client: dict[str, list[int]] = {}
    for at, model in enumerate(models):
        by_client.setdefault(model.client, []).append(at)
    return by_client


def tilted_remotely(
    models: Sequence[RemoteDensity], tilt: Tilt
) -> tuple[list[list[Density]], FloatArray]:
    """Tilted models that stay: references for every class, and (models, Y) logs of normalisers.

    Tables are sent to each client once, and it answers with the normalisers of its models.
    """
    server, by_client = models[0].server, _by_client(models)
    names: dict[str, str] = {}
    for client, numbers in by_client.items():
        columns = {name for at in numbers for name in models[at].schema.names}
        tables = tables_of(tilt.select(sorted(columns)))
        request = m.TakeTilt("", tables)
        names[client] = fingerprint(request.to_bytes())[:16]
        server.call(m.TAKE_TILT, {client: replace(request, name=names[client])})
    asked = {
        client: m.AskNormalisers(names[client], tuple(models[at].key for at in numbers))
        for client, numbers in by_client.items()
    }
    log_z = np.empty((len(models), tilt.n_classes))
    made: list[list[Density]] = [[] for _ in models]
    for client, reply in server.call(m.NORMALISERS, asked).items():
        if reply.log_z.shape != (len(by_client[client]), tilt.n_classes):
            raise FederationError(f"client {client!r} gave {reply.log_z.shape} normalisers")
        log_z[by_client[client]] = reply.log_z
        for at in by_client[client]:
            key = replace(models[at].key, tilt=names[client])
            made[at] = [
                replace(models[at], key=replace(key, tilted_class=y)) for y in range(tilt.n_classes)
            ]
    return made, log_z


@dataclass(frozen=True)
class AtClients:
    """The models that stay at the clients of a server: one message to each client a batch."""

    server: Server

    def answer(self, questions: Sequence[Question]) -> list[FloatArray]:
        """Answers in the order of the questions; models of one client are restricted alike."""
        answers: dict[int, FloatArray] = {}
        by_client: dict[str, list[int]] = {}
        for at, question in enumerate(questions):
            assert isinstance(question.model, RemoteDensity)
            if _has_no_evidence(question):
                answers[at] = np.zeros(_size(question))
            else:
                by_client.setdefault(question.model.client, []).append(at)
        if by_client:
            requests = {
                client: _query([questions[at] for at in numbers], self.server.salt)
                for client, numbers in by_client.items()
            }
            failures: dict[str, ClientError] = {}
            replies = self.server.call(m.QUERY, requests, failures)
            for error in failures.values():
                if not isinstance(error, ClientAwayError):
                    raise error
            if failures:
                raise ClientsAwayError({client: str(error) for client, error in failures.items()})
            for client, reply in replies.items():
                found = [reply.values[str(i)] for i in range(len(by_client[client]))]
                answers |= dict(zip(by_client[client], found, strict=True))
        return [answers[at] for at in range(len(questions))]


def _size(question: Question) -> int:
    return len(question.rows) if question.which is None else question.which.size


def _has_no_evidence(question: Question) -> bool:
    """Whether no row has evidence for the model, so that its log-density is 0 without asking."""
    rows = question.rows
    if question.what != "log_prob" or isinstance(rows, AskedById):
        return False
    known = rows.known
    return not any(known[:, rows.schema.position(n)].any() for n in question.model.schema.names)


def _query(questions: list[Question], salt: str) -> m.Query:
    """One message to one client; of the rows only those that some question means are sent."""
    models = [q.model for q in questions if isinstance(q.model, RemoteDensity)]
    names = list(dict.fromkeys(name for model in models for name in model.schema.names))
    tables = {id(question.rows): question.rows for question in questions}
    used = {key: np.zeros(len(table), dtype=bool) for key, table in tables.items()}
    for question in questions:
        used[id(question.rows)][slice(None) if question.which is None else question.which] = True
    number, total = {}, 0  # (n,) of each table: the number of every row in the message
    for key, mask in used.items():
        number[key] = total - 1 + np.cumsum(mask)
        total += int(mask.sum())
    rows: Arrays = {}
    for at, question in enumerate(questions):
        which = slice(None) if question.which is None else question.which
        meant = number[id(question.rows)][which]
        if not np.array_equal(meant, np.arange(total)):
            rows[str(at)] = meant.astype(np.int32)
    sent = [table.rows(used[key]).columns(names) for key, table in tables.items()]
    observed = np.concatenate([table.observed for table in sent])
    values = np.concatenate([table.values for table in sent])
    events, event_of = _sent_events(sent)
    by_id = [table for table in sent if isinstance(table, AskedById)]
    given: dict[str, float] = {}
    for model in models:
        given |= model.given
    restricted = any(model.evidence is not None for model in models)
    asked = tuple(
        m.ModelQuestion(model.key, q.what, q.order, q.columns, q.seed)
        for model, q in zip(models, questions, strict=True)
    )
    return m.Query(
        questions=asked,
        columns=names,
        values=np.where(observed, values, 0.0),
        observed=observed,
        rows=rows,
        restricted=restricted,
        keep=names if restricted else [],
        given=sorted(given),
        given_values=np.array([given[name] for name in sorted(given)], dtype=float),
        salt=salt if by_id else "",
        hidden=list(by_id[0].hidden) if by_id else [],
        digests=np.concatenate([t.digests for t in by_id] or [np.zeros((0, 12), np.uint8)]),
        events=events,
        event_of=event_of,
    )


def _sent_events(tables: list[Table]) -> tuple[list[str], NDArray[np.int32]]:
    """The different sets that cells are known to lie in, and (n, d) the set of each cell."""
    numbers: dict[Region, int] = {}
    places = []
    for table in tables:
        place = np.full(table.values.shape, -1, dtype=np.int32)
        for column in range(len(table.schema)):
            for region, rows in table.regions_at(column):
                place[rows, column] = numbers.setdefault(region, len(numbers))
        places.append(place)
    if not numbers:
        return [], np.zeros((0, 0), dtype=np.int32)
    return [json.dumps(region.to_json()) for region in numbers], np.concatenate(places)

"""Fitting at the clients, and the fitted parts that a circuit is glued from.

Rules differ in which jobs they send and in how they glue the models; both are here in plain form.
A `FittedParts` value holds all that gluing needs, so that a federation without one of its clients
is glued again from what is there rather than trained again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from fedcircuits.arrays import Arrays, FloatArray
from fedcircuits.circuits import Circuit, build
from fedcircuits.density import Density
from fedcircuits.density.fit_report import FitReport
from fedcircuits.density.tilt import Tilt, spread_over_states
from fedcircuits.errors import MALFORMED, ClientError, FedcircuitsError
from fedcircuits.federation.server.gauge import CLOSE
from fedcircuits.federation.server.heads import ClientHead
from fedcircuits.federation.server.server import Reply, Request, Server
from fedcircuits.federation.wire import requests as m
from fedcircuits.federation.wire.names import NONE, Job, JobId, ModelKey, ModelName
from fedcircuits.federation.wire.transport import RefusedError
from fedcircuits.federation.wire.verbs import Verb
from fedcircuits.schema import Schema

Reports = dict[str, dict[str, tuple[FitReport, ...]]]


@dataclass(frozen=True)
class TakeModels:
    """How the models of a run are taken: as bytes, or as references to where they stay.

    Attributes:
        keep: whether models stay at the clients.
        decode: bytes of a model, and the arrays of a large one, to the model.
        remote: client, name, schema and number of parameters to a model that stays.
    """

    keep: bool
    decode: Callable[[bytes, Arrays], Density]
    remote: Callable[[str, ModelName, Schema, int], Density]

    def model(self, client: str, found: m.FittedModel, schema: Schema) -> Density:
        """Return a model that a client fitted; one that is none over these columns is its error."""
        if self.keep:
            return self.remote(client, found.name, schema, found.parameters)
        try:
            made = self.decode(m.model_bytes(found.model), found.arrays)
        except FedcircuitsError as error:
            raise ClientError(client, f"a model that cannot be read: {error}") from None
        if sorted(made.schema.names) != sorted(schema.names):
            asked = ", ".join(map(repr, schema.names[:5]))
            raise ClientError(client, f"a model of other columns than asked for, which are {asked}")
        return made


@dataclass(frozen=True)
class FittedParts:
    """All that a rule has fitted: client models, the rows behind each, tables of counts.

    Attributes:
        schema: agreed.
        label: its name, or None.
        models: what every client fitted.
        rows: rows behind each model.
        tables: counts that weights are made of, by name.
        seconds: CPU time of each client's fits.
        tilts: tables of the label's tilt, by client; empty where models are of classes.
        heads: boosted trees of the label, by client; empty where there are none.
        head_scores: what each client's rows score under the others' heads, where rows are split.
        reports: of learners about their fits, by client and job.
        close: how near marginals of p(x) come to those of m(x), where there are tilts (`gauge.py`).
    """

    schema: Schema
    label: str | None
    models: dict[ModelKey, Density] = field(default_factory=dict)
    rows: dict[ModelKey, float] = field(default_factory=dict)
    tables: dict[str, FloatArray] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    tilts: dict[str, Tilt] = field(default_factory=dict)
    heads: dict[str, ClientHead] = field(default_factory=dict)
    head_scores: dict[str, m.HeadScores] = field(default_factory=dict)
    reports: Reports = field(default_factory=dict)
    close: float = CLOSE

    def __repr__(self) -> str:
        """Return how many models of which clients these are."""
        clients = ", ".join(sorted({key.client for key in self.models}))
        return f"FittedParts({len(self.models)} models of {clients or 'no client'})"

    def without(self, client: str) -> FittedParts:
        """Return the fitted parts without one client's models."""
        return replace(
            self,
            models={k: v for k, v in self.models.items() if k.client != client},
            rows={k: v for k, v in self.rows.items() if k.client != client},
            seconds={k: v for k, v in self.seconds.items() if k != client},
            reports={k: v for k, v in self.reports.items() if k != client},
            tilts={k: v for k, v in self.tilts.items() if k != client},
            heads={k: v for k, v in self.heads.items() if k != client},
            head_scores={k: v for k, v in self.head_scores.items() if k != client},
        )


def fit(
    server: Server, jobs: list[tuple[str, Job]], take: TakeModels, fitted: FittedParts
) -> FittedParts:
    """Have clients fit jobs, all of a client in one message; a client that fails is dropped.

    Args:
        server: the run.
        jobs: what to fit, and at which client.
        take: how models are taken.
        fitted: added to.
    """
    by_client: dict[str, list[Job]] = {}
    for client, job in jobs:
        by_client.setdefault(client, []).append(job)
    requests = {client: m.Fit(tuple(own), take.keep) for client, own in by_client.items()}
    failures: dict[str, ClientError] = {}
    answers = server.call(m.FIT, requests, failures)
    for client, error in failures.items():
        drop_or_raise(server, client, error)
    models, rows = dict(fitted.models), dict(fitted.rows)
    seconds, reports = dict(fitted.seconds), dict(fitted.reports)
    for client in list(answers):
        reply = answers.pop(client)  # models of gigabytes are not held twice for all clients
        reports[client] = {**reports.get(client, {}), **read_reports(client, reply.reports)}
        seconds[client] = seconds.get(client, 0.0) + float(reply.seconds.sum())
        columns = {job.id: job.columns for job in by_client[client]}
        try:
            made = _models(server, take, client, reply, columns)
        except ClientError as error:
            drop_or_raise(server, client, error)
            continue
        models |= made
        rows |= {ModelKey(client, e.name.job, e.name.cls): e.rows for e in reply.models}
    return replace(fitted, models=models, rows=rows, seconds=seconds, reports=reports)


def _models(
    server: Server,
    take: TakeModels,
    client: str,
    reply: m.Fitted,
    columns: Mapping[JobId, tuple[str, ...]],
) -> dict[ModelKey, Density]:
    """The models of a client's reply; one that was not asked for is an error."""
    found = {}
    for each in reply.models:
        key = ModelKey(client, each.name.job, each.name.cls)
        if key.job not in columns:
            raise ClientError(client, f"a model {str(key.job)!r} that nobody asked for")
        mine = columns[key.job]
        kept = [name for name in mine if key.cls == NONE or name != server.label]
        found[key] = take.model(client, each, server.schema.select(kept or list(mine)))
    return found


def read_reports(client: str, found: tuple[m.JobReports, ...]) -> dict[str, tuple[FitReport, ...]]:
    """Return what a client's learner reports about its fits, by the text of the job."""
    try:
        return {str(f.job): tuple(FitReport.from_json(r) for r in f.reports) for f in found}
    except MALFORMED as error:
        raise ClientError(client, f"a fit report that cannot be read: {error!r}") from None


class LostClientError(ClientError):
    """A client failed that alone holds some variables."""


def drop_or_raise(server: Server, client: str, error: ClientError) -> None:
    """Go on without a client only if others hold all it holds."""
    others = {name for c in server.clients if c != client for name in server.held[c]}
    alone = [name for name in server.held[client] if name not in others]
    if len(server.clients) == 1 or (alone and isinstance(error, RefusedError)):
        raise error  # of a refusal, so that `auto` can choose another rule
    if alone:
        why = str(error).removeprefix(f"client {client!r}: ")
        names = ", ".join(map(repr, alone[:5])) + (", ..." if len(alone) > 5 else "")
        raise LostClientError(client, f"{why}; it alone holds {names}")
    server.drop(client, str(error))


def call_or_drop(
    server: Server, verb: Verb[Request, Reply], requests: Mapping[str, Request]
) -> dict[str, Reply]:
    """As `Server.call`, going on without a client that fails where others hold all it holds.

    A refusal is an error: the step is left out or another rule is chosen, no client.
    """
    failures: dict[str, ClientError] = {}
    answers = server.call(verb, requests, failures)
    for error in failures.values():
        if isinstance(error, RefusedError):
            raise error
    for client, error in failures.items():
        drop_or_raise(server, client, error)
    return answers


def label_leaves(schema: Schema, label: str, rows: FloatArray) -> dict[int, Circuit]:
    """Return the label's densities in the classes that have rows, by class; they are disjoint.

    Each is one at its class; the states of a number in which no row is counted are a neighbour's.
    """
    variable, alone = schema[label], schema.select([label])
    shares = spread_over_states(variable, rows)
    classes = map(int, np.flatnonzero(rows > 0))
    return {y: build.circuit(alone, build.states(variable, shares[y])) for y in classes}

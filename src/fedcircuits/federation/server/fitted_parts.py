"""Fitting at the clients, and the fitted parts that a circuit is glued from.

Rules differ in which jobs they send and in how they glue the models; both are here in plain form.
An `FittedParts` value holds all that gluing needs, so that a federation without one of its clients
is glued again from what is there rather than trained again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from fedcircuits.arrays import FloatArray
from fedcircuits.circuits import Circuit, build
from fedcircuits.density import Density
from fedcircuits.density.fit_report import FitReport
from fedcircuits.errors import ClientError
from fedcircuits.federation.client.calibration import Calibration
from fedcircuits.federation.plan.weights import label_skew, log_shares
from fedcircuits.federation.server.server import Server
from fedcircuits.federation.wire import messages as m
from fedcircuits.schema import Schema, Table

Decode = Any  # Callable[[bytes], Density]
Reports = dict[str, dict[str, tuple[FitReport, ...]]]


@dataclass(frozen=True)
class Job:
    """One thing to fit at one client.

    Attributes:
        client: where.
        name: unique at the client.
        columns: the variables.
        group: name of a grouping of its rows, None for all rows.
        value: which part of the grouping.
        per_label: whether to give one model p(x | y) for each class of the label.
        classes: name of a grouping, to give one model p(x | l) for each of its classes.
        mixed: whether the models will be averaged with those of clients that hold other rows.
    """

    client: str
    name: str
    columns: tuple[str, ...]
    group: str | None = None
    value: int = 0
    per_label: bool = False
    classes: str | None = None
    mixed: bool = False


@dataclass(frozen=True)
class FittedParts:
    """What was fitted.

    Attributes:
        schema: agreed.
        label: its name, or None.
        models: by (client, job name, class or -1).
        rows: rows behind each model.
        tables: counts that weights are made of, by name.
        seconds: CPU time of each client's fits.
        calibration: of the label's posterior, where one was fitted and helps.
        scores: validation log-loss of the rules that `auto` compared.
        reports: what learners said about their fits, by client and job.
    """

    schema: Schema
    label: str | None
    models: dict[tuple[str, str, int], Density] = field(default_factory=dict)
    rows: dict[tuple[str, str, int], float] = field(default_factory=dict)
    tables: dict[str, FloatArray] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    calibration: Calibration | None = None
    scores: dict[str, float] = field(default_factory=dict)
    reports: Reports = field(default_factory=dict)

    def without(self, client: str) -> FittedParts:
        """The same without one client's models."""
        rest = replace(
            self,
            models={k: v for k, v in self.models.items() if k[0] != client},
            rows={k: v for k, v in self.rows.items() if k[0] != client},
            seconds={k: v for k, v in self.seconds.items() if k != client},
            reports={k: v for k, v in self.reports.items() if k != client},
            calibration=None,
        )
        return rebased(rest)


def fit(
    server: Server, jobs: list[Job], take: Mapping[str, Any], fitted: FittedParts
) -> FittedParts:
    """Have clients fit jobs, all of a client in one message; a client that fails is dropped.

    Args:
        server: the run.
        jobs: what to fit.
        take: {"keep": whether models stay at the clients, "decode": bytes to Density,
            "remote": (client, model key, schema, parameters) to Density}.
        fitted: added to.
    """
    by_client: dict[str, list[Job]] = {}
    for job in jobs:
        by_client.setdefault(job.client, []).append(job)
    requests = {
        client: m.Fit(
            [
                {
                    "job": j.name,
                    "columns": list(j.columns),
                    "group": j.group,
                    "value": j.value,
                    "per_label": j.per_label,
                    "classes": j.classes,
                    "mixed": j.mixed,
                }
                for j in own
            ],
            bool(take["keep"]),
        )
        for client, own in by_client.items()
    }
    answers, failures = server.try_call("training", "fit", requests, m.Fitted)
    for client, error in failures.items():
        drop_or_raise(server, client, error)
    models, rows = dict(fitted.models), dict(fitted.rows)
    seconds, reports = dict(fitted.seconds), dict(fitted.reports)
    for client, reply in answers.items():
        told = {job: read_reports(client, found) for job, found in reply.reports.items()}
        reports[client] = {**reports.get(client, {}), **told}
        seconds[client] = seconds.get(client, 0.0) + float(reply.seconds.sum())
        columns = {j.name: j.columns for j in by_client[client]}
        for key, count in reply.rows.items():
            name, _, code = key.partition("|")
            label_code = int(code) if code else -1
            rows[client, name, label_code] = count
            if take["keep"]:
                kept = [c for c in columns[name] if label_code < 0 or c != server.label]
                schema = server.schema.select(kept or list(columns[name]))
                models[client, name, label_code] = take["remote"](
                    client, key, schema, reply.parameters[key]
                )
            else:
                models[client, name, label_code] = take["decode"](m.model_bytes(reply.models[key]))
    return replace(fitted, models=models, rows=rows, seconds=seconds, reports=reports)


def read_reports(client: str, told: list[Any]) -> tuple[FitReport, ...]:
    """What a client's learner said about the fits of a job."""
    try:
        return tuple(FitReport.from_json(report) for report in told)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ClientError(client, f"a fit report that cannot be read: {error!r}") from None


class LostClientError(ClientError):
    """A client failed that alone holds some variables."""


def drop_or_raise(server: Server, client: str, error: ClientError) -> None:
    """Go on without a client only if others hold all it holds."""
    others = {name for c in server.clients if c != client for name in server.held[c]}
    alone = [name for name in server.held[client] if name not in others]
    if len(server.clients) == 1:
        raise error
    if alone:
        why = str(error).removeprefix(f"client {client!r}: ")
        names = ", ".join(map(repr, alone[:5])) + (", ..." if len(alone) > 5 else "")
        raise LostClientError(client, f"{why}; it alone holds {names}")
    server.drop(client, str(error))


def indicator_leaf(schema: Schema, label: str, code: int) -> Circuit:
    """The density that is one at a class of the label; it lives at the server."""
    probs = np.zeros(schema[label].n_codes)
    probs[code] = 1.0
    return build.circuit(schema.select([label]), build.categorical(label, probs))


LogProbs = Callable[[tuple[str, str, int], Table], FloatArray]
# A table of this name allows posteriors re-based to the global prior, from this skew on: how far
# (total variation) the spread of a class over the clients is from that of all rows, the mean over
# classes. So a rare class counts like a common one; clients drawn at random stay well below.
REBASE, SKEWED = "rebase", 0.15


def class_log_probs(fitted: FittedParts, table: Table, ask: LogProbs) -> FloatArray | None:
    """(n, S, Y) log p(x_S | y) of rows; None where a class is unknown to a whole subspace.

    Args:
        fitted: of the rule `product`.
        table: rows over the agreed schema.
        ask: log-density of the rows under the model of a key.
    """
    assert fitted.label is not None
    codes = list(range(fitted.schema[fitted.label].n_codes))
    spaces = sorted({job for _, job, _ in fitted.models})
    if REBASE in fitted.tables:
        return _rebased_evidence(fitted, table, ask)
    answer = np.empty((len(table), len(spaces), len(codes)))
    for s, space in enumerate(spaces):
        for y, code in enumerate(codes):
            keys = [k for k in sorted(fitted.models) if k[1:] == (space, code)]
            if not keys:
                return None
            weights = log_shares([fitted.rows[k] for k in keys])
            terms = [ask(k, table) + w for k, w in zip(keys, weights, strict=True)]
            answer[:, s, y] = np.logaddexp.reduce(terms, axis=0)
    return answer


def _class_rows(fitted: FittedParts) -> tuple[list[str], FloatArray]:
    """Clients, and (C, Y) rows of each class at each of them."""
    assert fitted.label is not None
    clients = sorted({client for client, _, _ in fitted.rows})
    rows = np.zeros((len(clients), fitted.schema[fitted.label].n_codes))
    for (client, _, code), count in fitted.rows.items():
        rows[clients.index(client), code] += count
    return clients, rows


def rebased(fitted: FittedParts) -> FittedParts:
    """Re-based posteriors where rows are split and class shares lie far apart; else unchanged.

    Under label skew a mixture compares densities across clients, while only a client's own
    comparison of classes can be trusted: the posterior becomes the average of the clients', each
    under the prior of all rows. The density is not touched.
    """
    if REBASE not in fitted.tables or not fitted.rows:
        return fitted
    _, rows = _class_rows(fitted)
    tells = (rows > 0).all(axis=1)  # (C,) clients that can compare the classes
    told = rows[tells].sum(axis=0) / rows.sum(axis=0)  # (Y,) share of a class they hold
    if label_skew(rows) <= SKEWED or told.mean() < 0.5:
        return fitted
    log_prior = log_shares(rows.sum(axis=0))
    return replace(fitted, calibration=Calibration(np.ones(1), log_prior, 0.0))


def _rebased_evidence(fitted: FittedParts, table: Table, ask: LogProbs) -> FloatArray | None:
    """(n, 1, Y) log of sum_c h_c p_c(x | y) / p_c(x), p_c(x) under the prior q of all rows.

    h_c is the harmonic mean of a client's class counts: one with few rows of a class knows little
    about telling it apart. With the bias log q this is sum_c h_c p_c(y | x).
    """
    clients, rows = _class_rows(fitted)
    log_q = log_shares(rows.sum(axis=0))
    terms, weights = [], []
    for client, counts in zip(clients, rows, strict=True):
        if (counts == 0).any():
            continue
        job = next(name for holder, name, _ in fitted.models if holder == client)
        evidence = [ask((client, job, code), table) for code in range(counts.size)]
        log_probs = np.stack(evidence, axis=1)  # (n, Y)
        log_total = np.logaddexp.reduce(log_probs + log_q, axis=1, keepdims=True)
        terms.append(log_probs - np.where(np.isfinite(log_total), log_total, 0.0))
        weights.append(counts.size / (1.0 / counts).sum())
    if not terms:
        return None
    mixed = [t + w for t, w in zip(terms, log_shares(weights), strict=True)]
    return np.asarray(np.logaddexp.reduce(mixed, axis=0)[:, None, :])

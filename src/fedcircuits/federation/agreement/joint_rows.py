"""`joint` where rows are split: the model of all rows together, in rounds of sums.

Structure follows from summed counts of pairs of states, the start from the seed and those counts;
every round clients send expected counts (later gradients) summed over their rows, the server adds
them up and sends the sum back, and all clients take the same step. Up to rounding the result is
centralised training under the same schedule. One pass (`product`, `independent`) is the cheap end
of the same scale.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import replace

from fedcircuits.arrays import Array
from fedcircuits.errors import ClientError, FederationError
from fedcircuits.federation.client.rounds import add_up
from fedcircuits.federation.server.circuit_builder import CircuitBuilder
from fedcircuits.federation.server.fitted_parts import (
    FittedParts,
    TakeModels,
    drop_or_raise,
    read_reports,
)
from fedcircuits.federation.server.server import Server
from fedcircuits.federation.wire import requests as m
from fedcircuits.federation.wire.names import JobId, JobKind, ModelKey, ModelName
from fedcircuits.federation.wire.transport import RefusedError

SHARED = JobId(JobKind.ALL_ROWS)  # the job whose model is that of all clients
MOST_ROUNDS = 10_000


def train_in_rounds(server: Server, take: TakeModels) -> FittedParts:
    """Rounds until the model is made; a client that fails is left out and the rest begin again.

    Clients mask their terms (`wire/masking.py`), so that the server can read sums alone.

    Args:
        server: rows split over its clients.
        take: as for `Rule.train`.
    """
    # A mask is used once: with the same one for other rows, the difference would show.
    nonce = secrets.token_hex(16)
    if server.label_holders and not server.label_is_shared:
        without = [c for c in server.clients if c not in server.label_holders]
        raise FederationError(
            f"'joint' over split rows needs the label at every client or at none; "
            f"{', '.join(map(repr, without))} lack(s) it: leave label= out, or use 'independent'"
        )
    attempt, seconds = 0, dict.fromkeys(server.clients, 0.0)
    while True:
        made = _rounds(server, replace(SHARED, attempt=attempt), take, seconds, nonce)
        if made is not None:
            return replace(made, seconds={c: seconds[c] for c in server.clients})
        attempt += 1


def _rounds(
    server: Server, job: JobId, take: TakeModels, seconds: dict[str, float], nonce: str
) -> FittedParts | None:
    """One series of rounds; None where a client was lost on the way."""
    columns, sums = list(server.schema.names), dict[str, Array]()
    masked = len(server.clients) > 1
    if masked:
        server.share_keys()
    masked_with = list(server.clients) if masked else []
    for number in range(MOST_ROUNDS):
        requests = {
            client: m.Round(
                job, columns, number, at == 0 and not take.keep, masked_with, nonce, sums
            )
            for at, client in enumerate(server.clients)
        }
        failures: dict[str, ClientError] = {}
        replies = server.call(m.ROUND, requests, failures)
        for client, reply in replies.items():
            seconds[client] += float(reply.seconds.sum())
        if failures:
            _raise_refusals(server, failures)
            for client, error in failures.items():
                drop_or_raise(server, client, error)
            return None
        made = [client for client, reply in replies.items() if reply.made]
        if len(made) == len(replies):
            try:
                return _fitted(server, job, take, replies)
            except ClientError as error:
                drop_or_raise(server, error.client, error)
                return None
        if made:
            raise ClientError(
                made[0], "it has its model rounds before the others: all clients need the same "
                "learner with the same options",
            )  # fmt: skip
        sums = add_up({c: reply.sums for c, reply in replies.items()}, masked=masked)
    raise FederationError(f"no model after {MOST_ROUNDS} rounds: the clients' learner does not end")


def _raise_refusals(server: Server, failures: Mapping[str, ClientError]) -> None:
    """A client that refuses is not left out; where one was lost before, the error says so.

    With a policy, sums are not masked among fewer clients than before: the difference would show.
    """
    for client, error in failures.items():
        if isinstance(error, RefusedError):
            why = str(error).removeprefix(f"client {client!r}: ")
            lost = "".join(f"; client {c!r} was lost: {text}" for c, text in server.dropped.items())
            raise RefusedError(client, why + lost) from None


def _fitted(
    server: Server, job: JobId, take: TakeModels, replies: Mapping[str, m.RoundDone]
) -> FittedParts:
    """The model under the name of every client, all of which hold it."""
    rows = {ModelKey(client, job): reply.rows for client, reply in replies.items()}
    if take.keep:
        models = {
            ModelKey(client, job): take.remote(
                client, ModelName(job), server.schema, reply.parameters
            )
            for client, reply in replies.items()
        }
    else:
        sender, sent = next((c, reply) for c, reply in replies.items() if reply.model.size)
        found = m.FittedModel(ModelName(job), sent.rows, sent.parameters, sent.model)
        models = dict.fromkeys(rows, take.model(sender, found, server.schema))
    reports = {
        client: read_reports(client, (m.JobReports(job, reply.reports),))
        for client, reply in replies.items()
    }
    return FittedParts(server.schema, server.label, models, rows, reports=reports)


def glue_shared(fitted: FittedParts) -> tuple[CircuitBuilder, int]:
    """The model; where it stays at the clients a mixture of its copies: one may be away."""
    builder = CircuitBuilder()
    rows: dict[int, float] = {}
    for key in sorted(fitted.models):
        model = fitted.models[key]
        if id(model) not in rows:
            builder.register([(model, key.client)])
        rows[id(model)] = rows.get(id(model), 0.0) + fitted.rows[key]
    distinct = {id(model): model for model in fitted.models.values()}
    parts = [builder.part(distinct[number]) for number in rows]
    return builder, builder.mixture(parts, list(rows.values()))

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
from typing import Any

from fedcircuits.arrays import Array
from fedcircuits.errors import ClientError, FederationError
from fedcircuits.federation.client.rounds import add_up
from fedcircuits.federation.server.circuit_builder import CircuitBuilder
from fedcircuits.federation.server.fitted_parts import FittedParts, drop_or_raise, read_reports
from fedcircuits.federation.server.server import Server
from fedcircuits.federation.wire import messages as m

PHASE = "training"
SHARED = "R"  # the job whose model is everyone's
MOST_ROUNDS = 10_000


def train_in_rounds(
    server: Server, take: Mapping[str, Any], *, masked: bool = False
) -> FittedParts:
    """Rounds until the model is made; a client that fails is left out and the rest begin again.

    Args:
        server: rows split over its clients.
        take: as for `Rule.train`.
        masked: whether the server is to see sums alone (`federation/masking.py`).
    """
    # A mask is used once: with the same one for other rows, the difference would show.
    nonce = secrets.token_hex(16) if masked else ""
    if server.label_holders and not server.label_is_shared:
        without = [c for c in server.clients if c not in server.label_holders]
        raise FederationError(
            f"'joint' over split rows needs the label at every client or at none; "
            f"{', '.join(map(repr, without))} lack(s) it: leave label= out, or use 'independent'"
        )
    attempt, seconds = 0, dict.fromkeys(server.clients, 0.0)
    while True:
        job = SHARED if attempt == 0 else f"{SHARED}@{attempt}"
        made = _rounds(server, job, take, seconds, nonce)
        if made is not None:
            return replace(made, seconds={c: seconds[c] for c in server.clients})
        attempt += 1


def _rounds(
    server: Server, job: str, take: Mapping[str, Any], seconds: dict[str, float], nonce: str
) -> FittedParts | None:
    """One series of rounds; None where a client was lost on the way."""
    columns, sums = list(server.schema.names), dict[str, Array]()
    masked_with = list(server.clients) if nonce else []
    for number in range(MOST_ROUNDS):
        requests = {
            client: m.Round(
                job, columns, number, at == 0 and not take["keep"], masked_with, nonce, sums
            )
            for at, client in enumerate(server.clients)
        }
        told, failures = server.try_call(PHASE, "round", requests, m.RoundDone)
        for client, reply in told.items():
            seconds[client] += float(reply.seconds.sum())
        if failures:
            for client, error in failures.items():
                drop_or_raise(server, client, error)
            return None
        made = [client for client, reply in told.items() if reply.made]
        if len(made) == len(told):
            return _fitted(server, job, take, told)
        if made:
            raise ClientError(
                made[0], "it has its model rounds before the others: all clients need the same "
                "learner with the same options",
            )  # fmt: skip
        sums = add_up({c: reply.sums for c, reply in told.items()}, masked=bool(nonce))
    raise FederationError(f"no model after {MOST_ROUNDS} rounds: the clients' learner does not end")


def _fitted(
    server: Server, job: str, take: Mapping[str, Any], told: Mapping[str, m.RoundDone]
) -> FittedParts:
    """The model under the name of every client, all of which hold it."""
    keys = {client: (client, job, -1) for client in told}
    rows = {keys[client]: reply.rows for client, reply in told.items()}
    if take["keep"]:
        models = {
            keys[c]: take["remote"](c, job, server.schema, reply.parameters)
            for c, reply in told.items()
        }
    else:
        sent = next(reply for reply in told.values() if reply.model.size)
        models = dict.fromkeys(keys.values(), take["decode"](m.model_bytes(sent.model)))
    reports = {client: {job: read_reports(client, reply.reports)} for client, reply in told.items()}
    return FittedParts(server.schema, server.label, models, rows, reports=reports)


def glue_shared(fitted: FittedParts) -> tuple[CircuitBuilder, int]:
    """The model; where it stays at the clients a mixture of its copies: one may be away."""
    builder = CircuitBuilder()
    rows: dict[int, float] = {}
    for key in sorted(fitted.models):
        model = fitted.models[key]
        if id(model) not in rows:
            builder.register([(model, key[0])])
        rows[id(model)] = rows.get(id(model), 0.0) + fitted.rows[key]
    distinct = {id(model): model for model in fitted.models.values()}
    parts = [builder.part(distinct[number]) for number in rows]
    return builder, builder.mixture(parts, list(rows.values()))

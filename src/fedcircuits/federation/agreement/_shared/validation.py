"""Validation rows: left out of fits, scored where the label is, no cell and no label in transit.

A circuit is scored on aligned rows by number: every client computes how likely its part of a row is
under each of its models and seals the numbers for the label's owner, who carries them up through
sums and products and compares the outcome with its label. The server relays ciphertext.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import numpy as np

from fedcircuits.arrays import FloatArray, IntArray
from fedcircuits.density.tilt import log_within_states, n_states_of, state_values
from fedcircuits.errors import ClientError
from fedcircuits.federation.agreement._shared.aligned import name_rows
from fedcircuits.federation.agreement._shared.keys import KEYS
from fedcircuits.federation.server.circuit_builder import CircuitBuilder
from fedcircuits.federation.server.remote import RemoteDensity
from fedcircuits.federation.server.server import Server
from fedcircuits.federation.wire import requests as m
from fedcircuits.federation.wire.names import ModelKey, ModelName
from fedcircuits.federation.wire.steps import MANY, step
from fedcircuits.schema import Table

TRIES = 3
# What sealed evidence about named rows takes, before whoever holds the label is asked to use it.
EVIDENCE = (*KEYS, step(m.NAME_ROWS), step(m.ASK_SEALED, MANY))
Reply = TypeVar("Reply", bound=m.Judged)


def ask_by_number(
    server: Server, key: ModelKey, numbers: IntArray, what: str, *, label_in_evidence: bool
) -> FloatArray:
    """A client's answer about aligned rows of its own: "log_prob" (n,) or "label" (n, Y)."""
    rows = name_rows(server, key.client, numbers)
    request = m.Ask(key.name, what, rows, numbers.size, label_in_evidence)
    return np.asarray(server.call(m.ASK, {key.client: request})[key.client].values)


@contextmanager
def only_rows(server: Server, numbers: IntArray, share: float) -> Iterator[None]:
    """Fits inside use these aligned rows and a share of the others; afterwards all rows again."""
    everything = dict.fromkeys(server.clients, m.UseRows("", 1.0))
    some = {c: m.UseRows(name_rows(server, c, numbers), share) for c in server.clients}
    server.call(m.USE_ROWS, some)
    before, server.in_use = server.in_use, numbers
    try:
        yield
    finally:
        server.in_use = before
        here = {c: request for c, request in everything.items() if c in server.clients}
        server.call(m.USE_ROWS, here)


def sealed_by_number(
    server: Server,
    client: str,
    models: tuple[ModelName, ...],
    numbers: IntArray,
    key: str,
    step: str,
) -> m.ModelsPiece:
    """A client's log-likelihoods of its aligned rows, sealed for a client and a step."""
    rows = name_rows(server, client, numbers)
    request = m.AskSealed(models, rows, numbers.size, key, step)
    reply = server.call(m.ASK_SEALED, {client: request})[client]
    return m.ModelsPiece(models, m.Piece(reply.values, client))


def scorer(server: Server, clients: Sequence[str]) -> str | None:
    """The one of some clients that evidence is sealed for: the label's owner, or one by the seed.

    None where there is a label and none of them has it.
    """
    if not server.label_holders:
        return clients[server.seed % len(clients)]
    having = [c for c in (*server.label_owners, *server.label_holders) if c in clients]
    return having[0] if having else None


def judge(server: Server, builder: CircuitBuilder, root: int, numbers: IntArray) -> m.Judged:
    """Mean log-loss of the label and log p(x, y), from its owner; without a label -log p(x).

    A row that some client does not hold is scored without that client: its own columns are summed
    out, its share of mixtures goes to those that hold the row.

    Args:
        server: the run.
        builder: glued from models that stay at their clients.
        root: its root.
        numbers: (n,) aligned rows.
    """
    found = []
    for clients, rows in by_holders(server, numbers):
        client = scorer(server, clients)
        if client is not None and rows.size >= server.min_rows:
            away = [c for c in server.clients if c not in clients]
            made = builder.without_clients(root, away) if away else (builder, root)
            found.append(_judge(server, client, *made, rows))
    n_rows = sum(each.n_rows for each in found)
    if not n_rows:
        return m.Judged(float("inf"), float("-inf"), 0, "")
    log_loss, log_prob = (
        sum(getattr(each, name) * each.n_rows for each in found if each.n_rows) / n_rows
        for name in ("log_loss", "log_prob")
    )
    return m.Judged(log_loss, log_prob, n_rows, found[0].key)


def by_holders(server: Server, numbers: IntArray) -> list[tuple[tuple[str, ...], IntArray]]:
    """Rows (n,) by which clients hold them."""
    held = np.stack([np.isin(numbers, server.aligned[c]) for c in server.clients], axis=1)
    groups, group = np.unique(held, axis=0, return_inverse=True)
    names = np.array(server.clients)
    return [
        (tuple(map(str, names[who])), numbers[group.reshape(-1) == at])
        for at, who in enumerate(groups)
    ]


def scored(server: Server, client: str, ask: Callable[[str, str], Reply]) -> Reply:
    """Return what the scorer replies to sealed evidence; again where it has a new key by then.

    A client that was started anew between two messages has another key.

    Args:
        server: the run.
        client: the scorer.
        ask: sends sealed evidence, given the scorer's name and its public key.
    """
    for _ in range(TRIES):
        server.share_keys()
        key = server.keys[client]
        reply = ask(client, key)
        if reply.key == key:
            return reply
        server.keys.clear()
    raise ClientError(client, f"it had another key after each of {TRIES} messages: start it again")


def _judge(
    server: Server, client: str, builder: CircuitBuilder, root: int, numbers: IntArray
) -> m.Judged:
    """Scores by one client, of rows (n,) that every client with a part in the circuit holds."""
    n_classes = 1 if server.label is None else n_states_of(server.schema[server.label])
    structure, kept = builder.below(root, len(builder.parts))

    piece_of, place = np.full((2, kept.size), -1, dtype=np.int64)
    constants = np.zeros((kept.size, n_classes))
    models: dict[str, list[ModelName]] = {}
    owners = [getattr(builder.parts[part], "client", "") for part in kept]
    others = sorted(set(owners) - {client, ""})
    for at, part in enumerate(kept):
        model = builder.parts[part]
        if isinstance(model, RemoteDensity):
            mine = models.setdefault(model.client, [])
            piece_of[at] = [*others, client].index(model.client)
            place[at] = len(mine)
            mine.append(model.key)
        else:  # the label's indicator, which lives here
            every = Table.empty(model.schema, n_classes)
            variable = model.schema.variables[0]
            values = state_values(variable)
            every.values[:, 0], every.observed[:, 0] = values, True
            constants[at] = model.log_prob_table(every) - log_within_states(variable, values)

    def ask(client: str, key: str) -> m.Judged:
        turn = server.next_step()
        pieces = tuple(
            sealed_by_number(
                server, other, tuple(models[other]), numbers, key, m.piece_step(turn, at)
            )
            for at, other in enumerate(others)
        )
        rows = name_rows(server, client, numbers)
        request = m.Judge(
            rows,
            numbers.size,
            key,
            turn,
            pieces,
            tuple(models.get(client, ())),
            piece_of,
            place,
            constants,
            **structure.arrays(),
        )
        return server.call(m.JUDGE, {client: request})[client]

    return scored(server, client, ask)

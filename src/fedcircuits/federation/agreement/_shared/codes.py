"""Tilt and head of a label that is used and not sent: its owners fit them to codes of others' rows.

A code is of at most 8 bits a row, once. Where one client owns the label it boosts trees over its
columns and what others' codes add to the log-odds; those stand for the outputs
of the others' trees, which are boosted to have the same outputs on their columns.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fedcircuits.arrays import FloatArray, IntArray
from fedcircuits.density.tilt import Tilt, n_states_of
from fedcircuits.errors import ClientError
from fedcircuits.federation.agreement._shared.aligned import aligned_rows, name_rows
from fedcircuits.federation.agreement._shared.heads_across import (
    columns_of,
    groups_of,
    n_classes_of,
)
from fedcircuits.federation.agreement._shared.keys import KEYS
from fedcircuits.federation.client.label.tilting import tilt_of
from fedcircuits.federation.server.heads import ClientHead, gains_for_certain, no_trees
from fedcircuits.federation.server.server import Server
from fedcircuits.federation.wire import requests as m
from fedcircuits.federation.wire.steps import MANY, Step, step
from fedcircuits.federation.wire.transport import RefusedError

ROWS_PER_CODE, FEWEST_CODES = 40, 8
TRIES, LEAST_ROWS = 3, 60
CODE_STEPS: tuple[Step, ...] = (
    step(m.NAME_ROWS),
    *KEYS,
    step(m.CODES, MANY, n_codes=m.MOST_CODES),
    step(m.FIT_BY_CODES, 2 * TRIES),
    step(m.SPREAD_CODES, TRIES),
)


def fit_by_codes(
    server: Server, *, head: bool
) -> tuple[dict[str, Tilt], dict[str, ClientHead]] | None:
    """Every client's tilt and head, the label staying with its owners; None where there is no tilt.

    That is where a learner has none, a client holds no row with an owner, or hardly one. There are
    no heads where trees are refused, do not gain for certain, or several clients own the label.

    Args:
        server: the run.
        head: whether one is wanted.
    """
    owners = server.label_owners
    others = [client for client in server.clients if client not in owners]
    if not others or not all(server.tilts[c] for c in server.clients):
        return None
    n_codes = aligned_rows(server).size // ROWS_PER_CODE
    n_codes = int(np.clip(n_codes, FEWEST_CODES, m.MOST_CODES))
    tilts: dict[str, Tilt] = {}
    effects: dict[str, list[tuple[float, FloatArray]]] = {client: [] for client in others}
    made: m.FittedByCodes | None = None
    groups = [g for g in groups_of(server).values() if not set(g) & set(owners)]
    for owner in owners:
        rows = {c: np.intersect1d(server.aligned[owner], server.aligned[c]) for c in others}
        rows = {c: r for c, r in rows.items() if r.size >= max(LEAST_ROWS, server.min_rows)}
        if not rows:
            return None
        able = head and server.schema[server.label or ""].is_coded  # trees compare classes
        wanted = groups if able and len(owners) == 1 and len(rows) == len(others) else []
        try:
            made = _fit_at(server, owner, rows, n_codes, wanted)
        except RefusedError:
            if not wanted:
                raise
            made = _fit_at(server, owner, rows, n_codes, [])
        tilts[owner] = tilt_of(made.tables)
        for client, effect in zip(rows, made.effects, strict=True):
            effects[client].append((float(rows[client].size), effect))
    if not all(effects.values()) or made is None:
        return None
    counts = np.sum([tilts[owner].counts for owner in owners], axis=0)
    gains = made.pool is not None and gains_for_certain(
        made.pool.gain, made.pool.error, made.pool.log_loss
    )
    requests = {}
    for client, sent in effects.items():
        effect = np.average([e for _, e in sent], axis=0, weights=[w for w, _ in sent])
        requests[client] = m.SpreadCodes(
            columns_of(server, client),
            effect,
            tilts[owners[0]].c,
            counts,
            server.min_rows if gains else 0,
        )
    spread: dict[str, m.CodesSpread] = {}
    if gains:
        try:
            spread = server.call(m.SPREAD_CODES, requests)
        except RefusedError:
            requests = {c: replace(asked, min_rows=0) for c, asked in requests.items()}
    spread = spread or server.call(m.SPREAD_CODES, requests)
    tilts |= {client: tilt_of(reply.tables) for client, reply in spread.items()}
    if not all(reply.trees for reply in spread.values()):
        return tilts, {}
    return tilts, _heads(server, owners[0], groups, made, spread)


def _heads(
    server: Server,
    owner: str,
    groups: list[list[str]],
    made: m.FittedByCodes,
    spread: dict[str, m.CodesSpread],
) -> dict[str, ClientHead]:
    """The owner's trees, and trees whose outputs are what the others' codes add."""
    assert made.pool is not None
    found = {}
    n_classes = n_classes_of(server)
    group_of = {client: at for at, group in enumerate(groups) for client in group}
    for client in server.clients:
        columns = columns_of(server, client)
        none = no_trees(len(columns), 1 if n_classes == 2 else n_classes)
        leaf = no_trees(len(columns), 1)
        if client == owner:
            kept = (none, leaf, 1.0)
            sees = [group[0] for group in groups]
            trees, pool, group = made.trees, made.pool, owner
        else:
            at = group_of[client]
            kept = (spread[client].trees, leaf, float(made.widths[at]))
            trees, group, sees = none, groups[at][0], []
            pool = replace(made.pool, trees=np.zeros(1))
        found[client] = ClientHead.of(
            columns, trees, pool, n_classes, 1 + len(groups), group, sees, kept
        )
    return found


def _fit_at(
    server: Server,
    owner: str,
    rows: dict[str, IntArray],
    n_codes: int,
    groups: list[list[str]],
) -> m.FittedByCodes:
    """An owner's tilt and trees of its own columns and of the codes of rows that others hold too.

    Args:
        server: the run.
        owner: of the label.
        rows: (n,) that each client holds too.
        n_codes: K.
        groups: clients with the same columns, where a head is wanted.
    """
    assert server.label is not None
    every = np.unique(np.concatenate(list(rows.values())))
    for _ in range(TRIES):
        server.share_keys()
        key, turn = server.keys[owner], server.next_step()
        pieces: list[m.ScorePiece] = []
        for client, both in rows.items():
            there = name_rows(server, client, both)
            place = m.piece_step(turn, len(pieces))
            ask = m.AskCodes(columns_of(server, client), n_codes, there, both.size, key, place)
            sealed = server.call(m.CODES, {client: ask})[client]
            piece = m.Piece(sealed.values, client)
            pieces.append(m.ScorePiece(name_rows(server, owner, both), both.size, piece))
        request = m.FitByCodes(
            columns_of(server, owner),
            n_states_of(server.schema[server.label]),
            name_rows(server, owner, every),
            key,
            turn,
            tuple(pieces),
            n_codes,
            server.min_rows,
            len(server.features),
            tuple(at for client in rows for at, g in enumerate(groups) if client in g),
        )
        reply = server.call(m.FIT_BY_CODES, {owner: request})[owner]
        if reply.key == key:
            return reply
        server.keys.clear()
    raise ClientError(owner, f"it had another key after each of {TRIES} messages: start it again")

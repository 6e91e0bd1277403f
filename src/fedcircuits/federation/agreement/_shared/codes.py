"""The tilt of a label that is used and not sent: its owners fit it to codes of others' rows."""

from __future__ import annotations

import numpy as np

from fedcircuits.arrays import FloatArray, IntArray
from fedcircuits.density.tilt import Tilt
from fedcircuits.errors import ClientError
from fedcircuits.federation.agreement._shared.aligned import aligned_rows, name_rows
from fedcircuits.federation.agreement._shared.keys import KEYS
from fedcircuits.federation.client.label.tilting import tilt_of
from fedcircuits.federation.server.server import Server
from fedcircuits.federation.wire import requests as m
from fedcircuits.federation.wire.steps import MANY, Step, step

ROWS_PER_CODE, FEWEST_CODES = 40, 8
TRIES, LEAST_ROWS = 3, 60
CODE_STEPS: tuple[Step, ...] = (
    step(m.NAME_ROWS),
    *KEYS,
    step(m.CODES, MANY, n_codes=m.MOST_CODES),
    step(m.FIT_BY_CODES, TRIES),
    step(m.SPREAD_CODES, TRIES),
)


def fit_tilts_by_codes(server: Server) -> dict[str, Tilt] | None:
    """Every client's tilt, the label staying with its owners; None where there can be none.

    That is where a learner has none, a client holds no row with an owner, or hardly one.
    """
    owners = server.label_owners
    others = [client for client in server.clients if client not in owners]
    if not others or not all(server.tilts[c] for c in server.clients):
        return None
    n_codes = aligned_rows(server).size // ROWS_PER_CODE
    n_codes = int(np.clip(n_codes, FEWEST_CODES, m.MOST_CODES))
    tilts: dict[str, Tilt] = {}
    effects: dict[str, list[tuple[float, FloatArray]]] = {client: [] for client in others}
    for owner in owners:
        rows = {c: np.intersect1d(server.aligned[owner], server.aligned[c]) for c in others}
        rows = {c: r for c, r in rows.items() if r.size >= max(LEAST_ROWS, server.min_rows)}
        if not rows:
            return None
        found = _fit_at(server, owner, rows, n_codes)
        tilts[owner] = tilt_of(found.tables)
        for client, effect in zip(rows, found.effects, strict=True):
            effects[client].append((float(rows[client].size), effect))
    if not all(effects.values()):
        return None
    counts = np.sum([tilts[owner].counts for owner in owners], axis=0)
    requests = {}
    for client, told in effects.items():
        effect = np.average([e for _, e in told], axis=0, weights=[w for w, _ in told])
        requests[client] = m.SpreadCodes(
            _columns(server, client), effect, tilts[owners[0]].c, counts
        )
    for client, reply in server.call(m.SPREAD_CODES, requests).items():
        tilts[client] = tilt_of(reply.tables)
    return tilts


def _fit_at(server: Server, owner: str, rows: dict[str, IntArray], n_codes: int) -> m.FittedByCodes:
    """An owner's tilt of its own columns and of the codes of rows that others hold too."""
    assert server.label is not None
    every = np.unique(np.concatenate(list(rows.values())))
    for _ in range(TRIES):
        server.share_keys()
        key, turn = server.keys[owner], server.next_step()
        pieces: list[m.ScorePiece] = []
        for client, both in rows.items():
            there = name_rows(server, client, both)
            place = m.piece_step(turn, len(pieces))
            ask = m.AskCodes(_columns(server, client), n_codes, there, both.size, key, place)
            sealed = server.call(m.CODES, {client: ask})[client]
            piece = m.Piece(sealed.values, client)
            pieces.append(m.ScorePiece(name_rows(server, owner, both), both.size, piece))
        request = m.FitByCodes(
            _columns(server, owner),
            server.schema[server.label].n_codes,
            name_rows(server, owner, every),
            key,
            turn,
            tuple(pieces),
            n_codes,
            server.min_rows,
            len(server.features),
        )
        reply = server.call(m.FIT_BY_CODES, {owner: request})[owner]
        if reply.key == key:
            return reply
        server.keys.clear()
    raise ClientError(owner, f"it had another key after each of {TRIES} messages: start it again")


def _columns(server: Server, client: str) -> list[str]:
    return [column for column in server.held[client] if column != server.label]

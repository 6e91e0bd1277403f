"""Fitting the tilt of the label at the clients: at once where rows are split, else in turns.

The objective is convex and additive over columns. A client whose turn it is fits the tables of its
own columns, and what the other clients' columns say of the same rows is a fixed offset: two turns
each end close to the tables of all columns in one place. Scores pass the server sealed.
"""

from __future__ import annotations

from fedcircuits.arrays import IntArray
from fedcircuits.density.tilt import Tilt
from fedcircuits.errors import ClientError
from fedcircuits.federation.agreement._shared.aligned import (
    common_rows,
    name_rows,
)
from fedcircuits.federation.client.tilting import tables_of, tilt_of
from fedcircuits.federation.server.server import Server
from fedcircuits.federation.wire import requests as m
from fedcircuits.federation.wire.steps import MANY, Facts, Step, step

TURNS, TRIES = 2, 3
# Aligned rows from which tables are fitted to them alone.
LEAST_ROWS = 60


def tilt_steps(facts: Facts) -> tuple[Step, ...]:
    """Messages of a tilt: fitted, in turns where columns differ, applied to models that stay."""
    applied = (step(m.DRAW), step(m.TAKE_TILT, MANY), step(m.NORMALISERS, MANY))
    if facts.setting == "horizontal":
        return (step(m.FIT_TILT), *applied)
    turns = (step(m.NAME_ROWS), step(m.PUBLIC_KEY), step(m.SCORE_TILT, MANY))
    return (*turns, step(m.FIT_TILT, TURNS * TRIES), *applied)


def fit_tilts(server: Server, *, mixed: bool = False) -> dict[str, Tilt] | None:
    """Every client's tilt; None where a client lacks the label, or its learner has none.

    Nor is there one where columns are split and hardly a row is aligned.

    Args:
        server: the run.
        mixed: whether tables of a single client will be averaged with others'.
    """
    assert server.label is not None
    if not server.label_is_shared or not all(server.tilts[c] for c in server.clients):
        return None
    if server.setting == "horizontal" or len(server.clients) == 1:
        mixed = mixed or len(server.clients) > 1
        requests = {c: _request(server, c, mixed=mixed) for c in server.clients}
        found = server.call(m.FIT_TILT, requests)
        if not all(reply.tilts for reply in found.values()):
            return None
        return {client: tilt_of(reply.tables) for client, reply in found.items()}
    rows = common_rows(server)
    if rows.size < max(LEAST_ROWS, server.min_rows):
        return None
    tilts: dict[str, Tilt] = {}
    for _ in range(TURNS):
        for client in server.clients:
            made = _turn(server, client, tilts, rows)
            if made is None:
                return None
            tilts[client] = made
    return tilts


def _turn(server: Server, client: str, tilts: dict[str, Tilt], rows: IntArray) -> Tilt | None:
    """One client's tables, given what the others' say of the aligned rows (n,)."""
    name = name_rows(server, client, rows)
    for _ in range(TRIES):
        key = server.call(m.PUBLIC_KEY, {client: m.AskKey()})[client].key
        pieces = []
        for other in sorted(tilts):
            tables = tilts[other].select(
                [column for column in tilts[other].columns if column not in server.held[client]]
            )
            if other == client or not tables.columns:
                continue
            there = name_rows(server, other, rows)
            request = m.ScoreTilt(tables_of(tables), there, rows.size, key)
            sealed = server.call(m.SCORE_TILT, {other: request})[other]
            pieces.append(m.Piece(sealed.values, sealed.context))
        asked = _request(server, client, name=name, n_rows=rows.size, key=key, pieces=pieces)
        reply = server.call(m.FIT_TILT, {client: asked})[client]
        if not reply.tilts:
            return None
        if not pieces or reply.key == key:
            return tilt_of(reply.tables)
    raise ClientError(client, f"it had another key after each of {TRIES} messages: start it again")


def _request(
    server: Server,
    client: str,
    *,
    mixed: bool = False,
    name: str = "",
    n_rows: int = 0,
    key: str = "",
    pieces: list[m.Piece] | None = None,
) -> m.FitTilt:
    assert server.label is not None
    return m.FitTilt(
        [column for column in server.held[client] if column != server.label],
        server.schema[server.label].n_codes,
        name,
        n_rows,
        False,
        key,
        tuple(pieces or ()),
        mixed,
        server.min_rows,
        len(server.features),
    )

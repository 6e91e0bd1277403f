"""Fitting the tilt of the label at the clients: at once where rows are split, else in turns.

The objective is convex and additive over columns. A client whose turn it is fits the tables of its
own columns; the scores of the same rows from other clients' columns are a fixed offset. Two turns
each end close to the tables of all columns in one place. Scores pass the server sealed. Where no
row is at all clients, each fits to the rows that another one holds too. Tables of some of the rows
are made in one turn each (two where clients share columns), and those of all rows go on from them
with one more.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

from fedcircuits.arrays import IntArray
from fedcircuits.density.tilt import Tilt, n_states_of
from fedcircuits.errors import ClientError
from fedcircuits.federation.agreement._shared.aligned import (
    aligned_rows,
    common_rows,
    name_rows,
)
from fedcircuits.federation.agreement._shared.keys import KEYS
from fedcircuits.federation.client.label.tilting import tables_of, tilt_of
from fedcircuits.federation.server.fitted_parts import call_or_drop, drop_or_raise
from fedcircuits.federation.server.server import Server
from fedcircuits.federation.wire import requests as m
from fedcircuits.federation.wire.steps import MANY, Facts, Step, step
from fedcircuits.federation.wire.transport import RefusedError

TURNS, TRIES = 2, 3
# Aligned rows from which tables are fitted to them alone.
LEAST_ROWS = 60


# A tilt applied to models that stay.
APPLIED = (step(m.MASSES, MANY), step(m.TAKE_TILT, MANY), step(m.NORMALISERS, MANY))


def tilt_steps(facts: Facts) -> tuple[Step, ...]:
    """Messages of a tilt: fitted, in turns where columns differ, applied to models that stay."""
    if facts.setting == "horizontal":
        return (step(m.FIT_TILT), *APPLIED)
    turns = (*KEYS, step(m.NAME_ROWS), step(m.SCORE_TILT, MANY))
    return (*turns, step(m.FIT_TILT, TURNS * TRIES), *APPLIED)


def fit_tilts(
    server: Server, *, mixed: bool = False, within: IntArray | None = None
) -> dict[str, Tilt] | None:
    """Every client's tilt; None where a client lacks the label, or its learner has none.

    Nor is there one where columns are split and hardly a row is aligned. A client that is lost in a
    turn is left out where others hold its columns, and the turns begin again.

    Args:
        server: the run.
        mixed: whether tables of a single client will be averaged with others'.
        within: (n,) rows to fit to, where clients hold different columns; None for all.
    """
    assert server.label is not None
    if not server.label_is_shared or not all(server.tilts[c] for c in server.clients):
        return None
    if server.setting == "horizontal" or len(server.clients) == 1:
        mixed = mixed or len(server.clients) > 1
        requests = {c: _request(server, c, mixed=mixed) for c in server.clients}
        found = call_or_drop(server, m.FIT_TILT, requests)
        if not all(reply.tilts for reply in found.values()):
            return None
        return {client: tilt_of(reply.tables) for client, reply in found.items()}
    common, some = common_rows(server), aligned_rows(server)
    rows = common if 2 * common.size >= some.size else some
    for only in (server.in_use, within):  # nothing is sent about the others
        rows = rows if only is None else np.intersect1d(rows, only)
    some_rows = server.in_use is not None or within is not None
    turns = 1 if some_rows and server.setting == "vertical" else TURNS
    nowhere = np.zeros(0, dtype=np.int64)  # without an id nothing is aligned
    while True:
        mine = {c: np.intersect1d(server.aligned.get(c, nowhere), rows) for c in server.clients}
        if min(each.size for each in mine.values()) < max(LEAST_ROWS, server.min_rows):
            return None
        asked = (tuple(server.clients), np.ascontiguousarray(rows).tobytes())
        if asked in server.fitted_tilts:
            return server.fitted_tilts[asked]
        try:
            server.fitted_tilts[asked] = _in_turns(
                server, mine, _fitted_before(server, rows), turns
            )
        except RefusedError:
            raise
        except ClientError as error:  # tables were fitted in view of its own: they begin again
            drop_or_raise(server, error.client, error)


def _fitted_before(server: Server, rows: IntArray) -> dict[str, Tilt]:
    """Tilts of the same clients, fitted to the most of these rows (n,) and no others."""
    found: dict[str, Tilt] = {}
    most = 0
    for (clients, name), tilts in server.fitted_tilts.items():
        some = np.frombuffer(name, dtype=np.int64)
        fits = bool(tilts) and clients == tuple(server.clients) and some.size > most
        if fits and np.isin(some, rows).all():
            found, most = tilts or {}, some.size
    return found


def _in_turns(
    server: Server, mine: Mapping[str, IntArray], before: Mapping[str, Tilt], turns: int
) -> dict[str, Tilt] | None:
    """Every client's tilt.

    Args:
        server: the run.
        mine: rows (n,) that each client fits to.
        before: tilts to go on from with one turn each, fitted to some of the rows.
        turns: of each client where there are none.
    """
    tilts = dict(before)
    for _ in range(1 if before else turns):
        for client in server.clients:
            made = _turn(server, client, tilts, mine[client])
            if made is None:
                return None
            tilts[client] = made
    return tilts


def _turn(server: Server, client: str, tilts: dict[str, Tilt], rows: IntArray) -> Tilt | None:
    """One client's tables, given the others' scores of the rows (n,) that they hold too."""
    name = name_rows(server, client, rows)
    for _ in range(TRIES):
        server.share_keys()
        key, turn = server.keys[client], server.next_step()
        pieces: list[m.ScorePiece] = []
        for other, columns, both in scored_by_others(server, client, tilts, rows):
            there = name_rows(server, other, both)
            tables = tables_of(tilts[other].select(columns))
            place = m.piece_step(turn, len(pieces))
            request = m.ScoreTilt(tables, there, both.size, key, place)
            sealed = server.call(m.SCORE_TILT, {other: request})[other]
            piece = m.Piece(sealed.values, other)
            pieces.append(m.ScorePiece(name_rows(server, client, both), both.size, piece))
        asked = _request(server, client, name=name, n_rows=rows.size)
        asked = replace(asked, key=key, step=turn, pieces=tuple(pieces))
        reply = server.call(m.FIT_TILT, {client: asked})[client]
        if not reply.tilts:
            return None
        if not pieces or reply.key == key:
            return tilt_of(reply.tables)
        server.keys.clear()
    raise ClientError(client, f"it had another key after each of {TRIES} messages: start it again")


def scored_by_others(
    server: Server, client: str, tilts: dict[str, Tilt], rows: IntArray
) -> Iterator[tuple[str, list[str], IntArray]]:
    """Yield other clients, their columns and rows (n,) to score, so that every cell counts once."""
    others = [other for other in sorted(tilts) if other != client]
    for at, other in enumerate(others):
        groups: dict[tuple[str, ...], list[str]] = {}
        for column in tilts[other].columns:
            if column not in server.held[client]:
                before = tuple(o for o in others[:at] if column in tilts[o].columns)
                groups.setdefault(before, []).append(column)
        for before, columns in groups.items():
            both = np.intersect1d(rows, server.aligned[other])
            for each in before:
                both = np.setdiff1d(both, server.aligned[each])
            if both.size >= server.min_rows:
                yield other, columns, both


def _request(
    server: Server,
    client: str,
    *,
    mixed: bool = False,
    name: str = "",
    n_rows: int = 0,
) -> m.FitTilt:
    assert server.label is not None
    return m.FitTilt(
        [column for column in server.held[client] if column != server.label],
        n_states_of(server.schema[server.label]),
        name,
        n_rows,
        False,
        "",
        "",
        (),
        mixed,
        server.min_rows,
        len(server.features),
    )

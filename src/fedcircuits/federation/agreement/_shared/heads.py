"""Heads of the label over clients: boosted trees of each, pooled with the tilt on left-out rows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fedcircuits.errors import ClientError
from fedcircuits.federation.agreement._shared.aligned import common_rows, name_rows
from fedcircuits.federation.agreement._shared.keys import KEYS
from fedcircuits.federation.agreement._shared.tilts import TRIES, fit_tilts
from fedcircuits.federation.agreement._shared.validation import only_rows, scorer
from fedcircuits.federation.client.tilting import tables_of
from fedcircuits.federation.server.fitted_parts import FittedParts, TakeModels, call_or_drop
from fedcircuits.federation.server.heads import ClientHead
from fedcircuits.federation.server.server import Server
from fedcircuits.federation.server.tilts import combined
from fedcircuits.federation.wire import requests as m
from fedcircuits.federation.wire.seeds import named_rng
from fedcircuits.federation.wire.steps import MANY, Facts, Step, step
from fedcircuits.federation.wire.transport import RefusedError

HELD_SHARE, MOST_HELD, LEAST_HELD = 0.2, 10_000, 200


def head_steps(facts: Facts) -> tuple[Step, ...]:
    """Messages of a head: trees, and where columns are split their pool at the label's owner."""
    if facts.setting == "horizontal":
        return (step(m.FIT_HEAD),)
    return (*KEYS, step(m.USE_ROWS, 2), step(m.FIT_HEAD, TRIES), step(m.POOL_HEADS, MANY))


def with_heads(server: Server, fitted: FittedParts, take: TakeModels, head: bool) -> FittedParts:
    """The fitted parts with trees of every client, where models are gathered and a tilt is there.

    A client whose policy lets no trees leave is no error: then there is no head. One that is lost
    here leaves with its models.
    """
    if not head or take.keep or not fitted.tilts or combined(fitted) is None:
        return fitted
    try:
        heads = _rows(server) if server.setting == "horizontal" else _columns(server)
    except RefusedError:
        return fitted
    for client in set(fitted.tilts) - set(server.clients):
        fitted = fitted.without(client)
    return replace(fitted, heads={c: made for c, made in heads.items() if c in fitted.tilts})


def _asked(
    server: Server, client: str, name: str = "", n_rows: int = 0, key: str = "", place: str = ""
) -> m.FitHead:
    assert server.label is not None
    columns = [column for column in server.held[client] if column != server.label]
    n_classes = server.schema[server.label].n_codes
    return m.FitHead(columns, n_classes, name, n_rows, key, place, server.min_rows)


def _rows(server: Server) -> dict[str, ClientHead]:
    """Every client's trees, and its own pool."""
    found = call_or_drop(server, m.FIT_HEAD, {c: _asked(server, c) for c in server.clients})
    return {
        client: ClientHead.of(_asked(server, client).columns, reply.trees, reply.pool, 0)
        for client, reply in found.items()
        if reply.pool is not None
    }


def _columns(server: Server) -> dict[str, ClientHead]:
    """Every client's trees over its own columns, pooled by the label's owner."""
    common = common_rows(server)
    n_held = min(MOST_HELD, int(HELD_SHARE * common.size))
    if n_held < max(LEAST_HELD, server.min_rows) or server.setting != "vertical":
        return {}
    held = np.sort(named_rng(server.seed, "head").permutation(common)[:n_held])
    with only_rows(server, np.setdiff1d(common, held), 0.0):
        tilts = fit_tilts(server)
    if tilts is None:
        return {}
    tilt = combined(FittedParts(server.schema, server.label, tilts=tilts))
    if tilt is None or not np.isfinite(tilt.c).all():
        return {}
    owner = scorer(server, server.clients)
    if owner is None:
        return {}
    names = {client: name_rows(server, client, held) for client in server.clients}
    for _ in range(TRIES):
        server.share_keys()
        key, turn, n_clients = server.keys[owner], server.next_step(), len(server.clients)
        places = {
            c: (m.piece_step(turn, at), m.piece_step(turn, n_clients + at))
            for at, c in enumerate(sorted(server.clients))
        }
        asked = {c: _asked(server, c, names[c], n_held, key, places[c][1]) for c in server.clients}
        found = server.call(m.FIT_HEAD, asked)
        if not all(reply.trees for reply in found.values()):
            return {}
        scores = {
            c: m.ScoreTilt(
                tables_of(tilt.select(_own(server, c))), names[c], n_held, key, places[c][0]
            )
            for c in server.clients
        }
        sealed = server.call(m.SCORE_TILT, scores)
        request = m.PoolHeads(
            names[owner],
            n_held,
            key,
            turn,
            tilt.c,
            tuple(m.Piece(sealed[c].values, c) for c in sorted(sealed)),
            tuple(m.Piece(found[c].values, c) for c in sorted(found)),
        )
        reply = server.call(m.POOL_HEADS, {owner: request})[owner]
        if reply.pool is not None and reply.key == key:
            pool = reply.pool
            return {
                c: ClientHead.of(
                    asked[c].columns,
                    found[c].trees,
                    replace(pool, trees=pool.trees[at : at + 1]),
                    len(found),
                )
                for at, c in enumerate(sorted(found))
            }
        server.keys.clear()
    raise ClientError(owner, f"it had another key after each of {TRIES} messages: start it again")


def _own(server: Server, client: str) -> list[str]:
    """Columns that count as this client's: those that no client before it holds."""
    before = {n for c in server.clients if c < client for n in server.held[c]}
    return [n for n in server.held[client] if n not in before and n != server.label]

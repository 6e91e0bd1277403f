"""Federated k-means on columns that several clients share: sums are masked, counts are the model's.

Clients begin with centres of their own clusters; every round the server learns sums and counts over
all of them, and moves the centres. How many rows of each client are around the last ones is part of
the model.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedcircuits.arrays import FloatArray
from fedcircuits.federation.agreement._shared.masked_sums import call_all, masked_sum
from fedcircuits.federation.client.clustering import clusters_per_stratum
from fedcircuits.federation.server.server import Server
from fedcircuits.federation.wire import requests as m
from fedcircuits.federation.wire.names import Grouping
from fedcircuits.federation.wire.packing import pack_choice
from fedcircuits.federation.wire.seeds import named_rng

MIN_ROWS = 5


@dataclass(frozen=True)
class Space:
    """A shared subspace.

    Attributes:
        names: its columns.
        holders: its clients.
        group: the clients' name for its anchors.
    """

    names: tuple[str, ...]
    holders: tuple[str, ...]
    group: Grouping


def agreed_centres(
    server: Server, space: Space, n_anchors: int, n_rounds: int, within: bool
) -> FloatArray:
    """(K, 1 + F) stratum and agreed centre: from the holders' own, then rounds of sums.

    Args:
        server: the run, keys shared.
        space: shared columns.
        n_anchors: K, at most.
        n_rounds: of federated k-means.
        within: whether clusters are within the label's classes.
    """
    centres = _start(server, space, n_anchors, within)
    for _ in range(n_rounds):
        at = centres

        def ask(masked_with: list[str], nonce: str, at: FloatArray = at) -> m.AskCentres:
            return m.AskCentres(space.group, list(space.names), at, within, masked_with, nonce)

        around = masked_sum(server, m.CENTRES, space.holders, ask, lambda reply: reply.sums)
        total, sums = np.asarray(around["rows"]), np.asarray(around["sums"])  # (K,), (K, F)
        means = sums / np.maximum(total, 1.0)[:, None]
        moved = np.where(total[:, None] > 0, means, centres[:, 1:])
        centres = np.column_stack([centres[:, 0], moved])
    return centres


def rows_around(
    server: Server, space: Space, centres: FloatArray, within: bool
) -> dict[str, m.AnchorRows]:
    """Rows around the centres, by client; a row of two clients counts at the first."""
    requests, seen = {}, np.zeros(0, dtype=np.int64)
    for client in space.holders:
        mine = server.aligned.get(client, seen[:0])
        requests[client] = m.AskAnchorRows(
            space.group, list(space.names), centres, within, pack_choice(np.isin(mine, seen))
        )
        seen = np.union1d(seen, mine)
    return call_all(server, m.ANCHOR_ROWS, requests)


def _start(server: Server, space: Space, n_anchors: int, within: bool) -> FloatArray:
    """(K, 1 + F) centres of the holders' own centres, in each stratum."""
    from sklearn.cluster import KMeans  # slow to import

    ask = m.AskStart(list(space.names), n_anchors, within, max(MIN_ROWS, server.min_rows))
    starts = call_all(server, m.START, dict.fromkeys(space.holders, ask))
    points = np.concatenate([start.centres for start in starts.values()])
    rows = np.concatenate([start.rows for start in starts.values()])
    rng = named_rng(server.seed, "anchors", space.group)
    strata = points[:, 0].astype(np.int64)
    per = clusters_per_stratum(np.bincount(strata, rows).astype(float), n_anchors)
    found = []
    for stratum, k in enumerate(per):
        mine = strata == stratum
        if not mine.any():
            continue
        k = min(int(k), len(np.unique(points[mine, 1:].round(9), axis=0)))
        means = KMeans(k, n_init=4, random_state=int(rng.integers(2**31)))
        means.fit(points[mine, 1:], sample_weight=rows[mine])
        found.append(np.column_stack([np.full(k, stratum), means.cluster_centers_]))
    return np.concatenate(found)

"""Clustering a client's own rows: what the latent classes of the agreement rules start from."""

from __future__ import annotations

import numpy as np

from fedcircuits.arrays import BoolArray, FloatArray, IntArray
from fedcircuits.density.tilt import n_states_of, states_of
from fedcircuits.federation.client.kmeans import centres_of, nearest
from fedcircuits.schema import Table

MOST_ONE_HOT = 30  # categories beyond these share one indicator
ROWS_FOR_KMEANS = 12_000


def features(table: Table) -> FloatArray:
    """(n, F) numbers in [0, 1] that k-means can compare, the same at every holder of the columns.

    A number becomes the position of its state on the agreed grid, so that heavy tails do not
    decide; a category becomes indicators; a missing cell lies in the middle.
    """
    blocks = []
    for at, variable in enumerate(table.schema):
        seen = table.observed[:, at]
        if variable.is_coded:
            width = min(variable.n_codes, MOST_ONE_HOT)
            codes = np.minimum(table.values[:, at].astype(np.int64), width - 1)
            block = np.eye(width)[codes] / np.sqrt(2.0)
            block[~seen] = 1.0 / (width * np.sqrt(2.0))
        elif variable.grid is None:
            low, high = variable.domain or (0.0, 1.0)
            block = np.clip((table.values[:, [at]] - low) / ((high - low) or 1.0), 0.0, 1.0)
            block[~seen] = 0.5
        else:
            states = variable.grid.encode(table.values[:, at])[:, None]
            block = np.maximum(states, 0) / max(variable.grid.n_states - 1, 1)
            block[~seen] = 0.5
        blocks.append(block)
    return np.concatenate(blocks, axis=1)


def clusters_per_stratum(rows: FloatArray, n_clusters: int) -> IntArray:
    """How many clusters each stratum gets: in proportion to the square root of its rows.

    Even shares would starve the minority class; shares by rows would split only the majority. There
    are no more than `n_clusters` in all, unless there are more strata than that.
    """
    root = np.sqrt(rows)
    per = np.where(rows > 0, np.maximum(1, np.round(n_clusters * root / root.sum())), 0)
    while per.sum() > n_clusters and per.max() > 1:
        per[per.argmax()] -= 1
    return per.astype(np.int64)


def cluster_rows(
    table: Table,
    strata: IntArray,
    n_clusters: int,
    rng: np.random.Generator,
    least: int = 1,
    use: BoolArray | None = None,
) -> tuple[IntArray, IntArray]:
    """Cluster of every row (n,), and the stratum of every cluster (K,).

    Args:
        table: the columns to cluster on.
        strata: (n,) rows of different strata are never in one cluster (label classes, say).
        n_clusters: K in all, shared out over the strata.
        rng: source of the starts.
        least: rows of a cluster: a smaller one goes to its neighbours, as long as it has one.
        use: (n,) rows that centres are fitted to, None for all; the others go to the nearest.
    """
    X = features(table)
    counts = np.bincount(strata).astype(float)
    small = (counts > 0) & (counts < least)
    if small.any():  # rows whose label is not known, say: clusters of so few may not be told
        strata = np.where(small[strata], counts.argmax(), strata)
        counts = np.bincount(strata).astype(float)
    index = np.zeros(len(table), dtype=np.int64)
    stratum_of: list[int] = []
    for stratum, k in enumerate(clusters_per_stratum(counts, n_clusters)):
        rows = np.flatnonzero(strata == stratum)
        if rows.size == 0:
            continue
        some = rows if use is None or not use[rows].any() else rows[use[rows]]
        k = int(min(k, np.unique(X[some[:1000]], axis=0).shape[0]))
        some = some if some.size <= ROWS_FOR_KMEANS else rng.choice(some, ROWS_FOR_KMEANS, False)
        C = centres_of(X[some], k, rng)
        own, k = _without_small(X[rows], C, nearest(X[rows], C), least)
        index[rows] = len(stratum_of) + own
        stratum_of += [stratum] * k
    return index, np.array(stratum_of, dtype=np.int64)


def _without_small(
    X: FloatArray, centres: FloatArray, index: IntArray, least: int
) -> tuple[IntArray, int]:
    """Clusters (n,) with enough rows each, numbered anew, and how many there are.

    The smallest cluster is given up first, its rows to the nearest of the others, until all that
    are left have enough rows or one is left.
    """
    kept, index = list(range(len(centres))), index.astype(np.int64)
    while len(kept) > 1 and least > 1:
        counts = np.bincount(index, minlength=len(centres))[kept]
        if counts.min() >= least:
            break
        gone = kept.pop(int(counts.argmin()))
        rows = np.flatnonzero(index == gone)
        C = centres[kept]
        apart = ((X[rows, None] - C[None]) ** 2).sum(axis=2)  # (rows, clusters left)
        index[rows] = np.array(kept)[apart.argmin(axis=1)]
    return np.searchsorted(kept, index).astype(np.int64), len(kept)


def strata_of_label(table: Table, label: str | None, unknown: bool = False) -> IntArray:
    """(n,) label code of every row, 0 where there is no label.

    Args:
        table: the rows.
        label: its name, or None.
        unknown: whether rows without a known label are a stratum of their own, after the others.
    """
    if label is None or label not in table.schema:
        return np.zeros(len(table), dtype=np.int64)
    at = table.schema.position(label)
    variable, known = table.schema.variables[at], table.observed[:, at]
    strata = np.full(len(table), n_states_of(variable) if unknown else 0)
    strata[known] = states_of(variable, table.values[known, at])
    return strata


def unnamed(strata: IntArray) -> IntArray:
    """Strata numbered by size of code only: which clusters belong together, not to which label."""
    numbers = np.unique(strata, return_inverse=True)[1]
    return numbers.astype(np.uint8 if numbers.max(initial=0) < 256 else np.int32)


def drawn_classes(
    table: FloatArray, clusters: IntArray | None, n_rows: int, rng: np.random.Generator
) -> IntArray:
    """(n,) a latent class of each row drawn from r(l | k) of its cluster.

    The likeliest class would do where clusters separate classes; where they do not, it would give
    all rows of a cluster to one class and starve the rest.

    Args:
        table: (K, R) r(l | k).
        clusters: (n,) k of each row; without them, or with an empty table, every class is -1.
        n_rows: n.
        rng: source of the draws.
    """
    if clusters is None or not table.size:
        return np.full(n_rows, -1, dtype=np.int64)
    upto = np.cumsum(table, axis=1, dtype=float)[clusters]  # (n, R)
    at = rng.random(len(clusters))[:, None] * upto[:, -1:]
    return np.asarray((at >= upto).sum(axis=1).clip(max=table.shape[1] - 1), dtype=np.int64)


def nearest_centres(
    X: FloatArray, strata: IntArray, centres: FloatArray
) -> tuple[IntArray, FloatArray]:
    """Nearest centre (n,) of each row among those of its stratum, and the squared distance (n,).

    Args:
        X: (n, F).
        strata: (n,).
        centres: (K, 1 + F), the first column saying the stratum.
    """
    index, distance = np.zeros(len(X), dtype=np.int64), np.zeros(len(X))
    for stratum in np.unique(strata):
        rows = np.flatnonzero(strata == stratum)
        own = np.flatnonzero(centres[:, 0] == stratum)
        own = own if own.size else np.arange(len(centres))
        C = centres[own, 1:]
        squared = (X[rows] ** 2).sum(axis=1)[:, None] - 2 * X[rows] @ C.T + (C**2).sum(axis=1)
        index[rows] = own[squared.argmin(axis=1)]
        distance[rows] = np.maximum(squared.min(axis=1), 0.0)
    return index, distance

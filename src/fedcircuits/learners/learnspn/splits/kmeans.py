"""K-means on the current scope: standardised ranks for numbers, indicators for categories."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from sklearn import config_context
from sklearn.cluster import KMeans

from fedcircuits.arrays import FloatArray, IntArray
from fedcircuits.learners.learnspn.coded import Coded

# Centres are found on this many rows, every row goes to the nearest: two centres need no more.
MAX_ROWS = 10_000
MAX_ITERATIONS = 100
MAX_INDICATORS = 64  # of one column; rarer categories have none


def encode_rows(data: Coded, tables: list[FloatArray]) -> NDArray[np.float32]:
    """(n, f) rows as points: every column has a variance of about one, missing cells its mean.

    Args:
        data: rows of states.
        tables: of `column_tables`.
    """
    width = np.concatenate([[0], np.cumsum([t.shape[1] for t in tables])])
    points = np.empty((data.n_rows, int(width[-1])), dtype=np.float32)
    for at, table in enumerate(tables):
        padded = np.concatenate([table, np.zeros((1, table.shape[1]))]).astype(np.float32)
        points[:, width[at] : width[at + 1]] = padded[data.states[at]]
    return points


def column_tables(data: Coded) -> list[FloatArray]:
    """The point of every state, (s, f) a column."""
    return [_column_table(data, at) for at in range(data.n_columns)]


def _column_table(data: Coded, column: int) -> FloatArray:
    """(s, f) point of every state, with mean zero over the rows in which it is observed."""
    counts = data.column_counts(column)
    total = counts.sum()
    if total == 0:
        return np.zeros((counts.size, 1))
    if data.ordered[column]:
        rank = ((np.cumsum(counts) - counts / 2) / total)[:, None]
        if data.has_missing[column]:  # no number: neither high nor low, but apart
            here = counts.copy()
            here[-1] = 0.0
            rank[-1] = (here @ rank)[0] / here.sum() if here.any() else 0.0
            last = np.arange(counts.size) == counts.size - 1
            rank = np.concatenate([rank, last[:, None]], axis=1)
        table = rank
    elif counts.size == 2:
        table = np.array([[0.0], [1.0]])
    else:
        frequent = np.sort(np.argsort(-counts, kind="stable")[:MAX_INDICATORS])
        table = (np.arange(counts.size)[:, None] == frequent).astype(float)
    centred = table - (counts @ table) / total
    variance = float((counts @ centred**2).sum() / total)
    return np.asarray(centred / np.sqrt(variance) if variance > 0 else centred)


def kmeans_rows(data: Coded, n_clusters: int, rng: np.random.Generator) -> IntArray:
    """(n,) cluster of every row; fewer clusters come back where points coincide."""
    tables = column_tables(data)
    fitted = data.sample(MAX_ROWS, rng)
    points = encode_rows(fitted, tables)
    start = _spread_out(points, fitted.weights, n_clusters, rng)
    if len(start) == 1:
        return np.zeros(data.n_rows, dtype=np.int64)
    # tol=0: until no row changes sides. A tolerance would be relative to a variance that takes
    # longer to compute than the few iterations it saves.
    model = KMeans(len(start), init=start, n_init=1, max_iter=MAX_ITERATIONS, tol=0.0)
    # Small slices are many, and checks of what is known to be right cost more than the work.
    with config_context(assume_finite=True, skip_parameter_validation=True):
        model.fit(points, sample_weight=fitted.weights)
    centres = np.asarray(model.cluster_centers_, dtype=np.float32)  # (K, f)
    # The nearest centre: |x - c|^2 = |x|^2 - 2 x c + |c|^2, of which the first does not matter.
    length = (centres**2).sum(axis=1)
    if fitted is data:
        return np.asarray((length - 2 * (points @ centres.T)).argmin(axis=1))
    ends = np.cumsum([t.shape[1] for t in tables])[:-1]
    by_state = [
        part @ table.T for part, table in zip(np.split(centres, ends, axis=1), tables, strict=True)
    ]
    product = data.additive_scores(np.concatenate(by_state, axis=1).astype(float))  # (K, n)
    return np.asarray((length[:, None] - 2 * product).argmin(axis=0))


def _spread_out(
    points: NDArray[np.float32], weights: FloatArray, k: int, rng: np.random.Generator
) -> NDArray[np.float32]:
    """(<= k, f) first centres by k-means++: far from each other in proportion, never equal."""
    picked = [int(rng.choice(len(points), p=weights / weights.sum()))]
    distance = np.full(len(points), np.inf)
    while len(picked) < k:
        apart = points - points[picked[-1]]
        distance = np.minimum(distance, np.einsum("nf,nf->n", apart, apart)) * (weights > 0)
        chance = np.cumsum(distance * weights)
        if not chance[-1] > 0:
            break
        at = int(np.searchsorted(chance, rng.random() * chance[-1], side="right"))
        picked.append(min(at, len(points) - 1))
    return points[picked]

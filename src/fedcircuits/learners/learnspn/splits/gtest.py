"""G-test of independence for all pairs of columns, from one product of indicator matrices.

G = 2 sum_ab n_ab log(n_ab n / (n_a n_b)) is chi-squared with (states - 1)(states - 1) degrees of
freedom when two columns are independent and cells are well filled. Columns with many states are
therefore coarsened first: neighbours of an ordered column are joined to groups of about equal
weight, rare categories to one.
"""

from __future__ import annotations

import numpy as np
from scipy.special import xlogy
from scipy.stats import chi2

from fedcircuits.arrays import BoolArray, FloatArray, IntArray
from fedcircuits.learners.learnspn.coded import Coded
from fedcircuits.learners.learnspn.splits.indicators import Indicators

MAX_GROUPS = 12
ROWS_PER_CELL = 5  # the usual rule for a chi-squared test: that many expected in a cell


def coarsen(data: Coded) -> Coded:
    """The same rows with at most 12 states a column, fewer where rows are few."""
    limit = int(np.clip(np.sqrt(data.weights.sum() / ROWS_PER_CELL), 2, MAX_GROUPS))
    if (data.cards <= limit).all():
        return data
    states, cards = data.states.copy(), data.cards.copy()
    for at in np.flatnonzero(data.cards > limit).tolist():
        counts = data.column_counts(at)
        group = _by_order(counts, limit) if data.ordered[at] else _by_weight(counts, limit)
        lookup = np.append(group, -1).astype(np.int32)  # state -1 looks up the last entry
        states[at] = lookup[data.states[at]]
        cards[at] = limit
    return Coded(states, cards, data.ordered, data.has_missing, data.weights)


def _by_order(counts: FloatArray, n_groups: int) -> IntArray:
    """(s,) neighbouring states in groups of about equal weight."""
    middle = (np.cumsum(counts) - counts / 2) / counts.sum()
    return np.asarray(np.minimum((middle * n_groups).astype(np.int64), n_groups - 1))


def _by_weight(counts: FloatArray, n_groups: int) -> IntArray:
    """(s,) the most frequent states each by itself, the others together."""
    rank = np.empty(counts.size, dtype=np.int64)
    rank[np.argsort(-counts, kind="stable")] = np.arange(counts.size)
    return np.minimum(rank, n_groups - 1)


def g_statistics(data: Coded) -> tuple[FloatArray, FloatArray]:
    """(d, d) G of every pair and (d, d) its degrees of freedom, 0 where a column is constant.

    Every pair uses the rows in which both columns are observed.
    """
    if data.is_binary and data.complete:
        return _binary_statistics(data)
    starts = data.offsets[:-1]
    pairs = Indicators.of(data).pair_counts()  # (W, W)
    by_column = np.add.reduceat(pairs, starts, axis=1)  # (W, d): n_a where the other is observed
    total = np.add.reduceat(by_column, starts, axis=0)  # (d, d)
    cells = np.add.reduceat(np.add.reduceat(xlogy(pairs, pairs), starts, axis=0), starts, axis=1)
    margins = np.add.reduceat(xlogy(by_column, by_column), starts, axis=0)
    g = 2 * (cells - margins - margins.T + xlogy(total, total))
    occupied = np.add.reduceat((by_column > 0).astype(float), starts, axis=0)  # (d, d)
    freedom = np.maximum(occupied - 1, 0) * np.maximum(occupied.T - 1, 0)
    return np.maximum(g, 0.0), freedom


def _binary_statistics(data: Coded) -> tuple[FloatArray, FloatArray]:
    """The same for two states and no missing cell: all four counts follow from one."""
    n11 = Indicators.of(data).pair_counts()  # (d, d)
    n1 = np.diag(n11)
    total = float(data.weights.sum())
    n10, n01 = n1[:, None] - n11, n1[None, :] - n11
    n00 = total - n1[:, None] - n01
    g = xlogy(n11, n11) + xlogy(total, total)
    for part in (n10, n01, n00):
        np.maximum(part, 0.0, out=part)  # rounding of weighted counts
        g += xlogy(part, part)
    margin = xlogy(n1, n1) + xlogy(total - n1, total - n1)
    g -= margin[:, None] + margin[None, :]
    varies = ((n1 > 0) & (n1 < total)).astype(float)
    return np.maximum(2 * g, 0.0), np.outer(varies, varies)


def dependent_by_gtest(data: Coded, significance: float) -> BoolArray:
    """(d, d) which pairs of columns are dependent: a p-value below `significance`."""
    g, freedom = g_statistics(coarsen(data))
    degrees, which = np.unique(freedom, return_inverse=True)
    # No G can exceed the critical value of a pair without freedom: one column is constant.
    critical = np.where(degrees > 0, chi2.isf(significance, np.maximum(degrees, 1)), np.inf)
    answer = np.asarray(g > critical[which.reshape(freedom.shape)])
    np.fill_diagonal(answer, False)
    return answer

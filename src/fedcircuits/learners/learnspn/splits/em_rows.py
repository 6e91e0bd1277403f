"""Clusters by EM: a mixture of factorised tables on the current scope (Gens and Domingos 2013).

Missing cells are marginalised. A few short runs from different seeds compete, the best goes on.
"""

from __future__ import annotations

import numpy as np

from fedcircuits.arrays import FloatArray, IntArray
from fedcircuits.learners.learnspn.coded import Coded
from fedcircuits.learners.learnspn.splits.indicators import Indicators

MAX_ROWS = 50_000  # tables are fitted to this many rows; every row is then assigned
SHORT_RUN = 8
MAX_ITERATIONS = 60
TOLERANCE = 1e-4  # nats per row between iterations
SEED_SHARE = 0.3  # how much of a component's first table is the row it starts from
PSEUDO_ROWS = 1.0  # with the column's marginal, so that no table has a zero


def em_rows(data: Coded, n_clusters: int, rng: np.random.Generator, *, n_init: int = 3) -> IntArray:
    """(n,) the likeliest component of every row.

    Args:
        data: a slice of the table.
        n_clusters: components; fewer may come back, where one takes no row.
        rng: picks the rows that components start from.
        n_init: how many short runs compete.
    """
    n_clusters = min(n_clusters, data.n_rows)
    if n_clusters < 2:
        return np.zeros(data.n_rows, dtype=np.int64)
    fitted = data.sample(MAX_ROWS, rng)
    mixture = _Mixture(fitted)
    runs = [mixture.run(*mixture.start(n_clusters, rng), SHORT_RUN) for _ in range(n_init)]
    _, tables, weights = max(runs, key=lambda run: run[0])
    _, tables, weights = mixture.run(tables, weights, MAX_ITERATIONS)
    if fitted is data:
        joint = _log_joint(mixture.rows, tables, weights)
    else:
        with np.errstate(divide="ignore"):
            joint = data.additive_scores(np.log(tables)) + np.log(weights)[:, None]
    return np.asarray(joint.argmax(axis=0))


def _log_joint(rows: Indicators, tables: FloatArray, weights: FloatArray) -> FloatArray:
    """(K, n) log-probability of component and row."""
    with np.errstate(divide="ignore"):  # a component that lost its last row has weight zero
        return rows.log_likelihood(np.log(tables)) + np.log(weights)[:, None]


class _Mixture:
    """What the runs on one slice share. Arrays over components come first: (K, ...)."""

    def __init__(self, data: Coded) -> None:
        self.data = data
        self.rows = Indicators.of(data)
        self.starts = data.offsets[:-1]
        total = np.repeat(data.observed, data.cards)
        flat = np.repeat(1.0 / data.cards, data.cards)
        share = np.divide(data.counts, total, out=flat.copy(), where=total > 0)
        # A grain of the uniform keeps states of the grid that do not occur here possible.
        self.marginal = 0.99 * share + 0.01 * flat

    def start(self, n_clusters: int, rng: np.random.Generator) -> tuple[FloatArray, FloatArray]:
        """(K, W) tables around K different rows, and equal weights (K,)."""
        picked = rng.choice(self.data.n_rows, size=n_clusters, replace=False)
        tables = np.repeat(self.marginal[None, :], n_clusters, axis=0)
        for k, row in enumerate(picked):
            states = self.data.states[:, row]
            seen = states >= 0
            tables[k, np.repeat(seen, self.data.cards)] *= 1 - SEED_SHARE
            tables[k, (self.starts + states)[seen]] += SEED_SHARE
        return tables, np.full(n_clusters, 1.0 / n_clusters)

    def run(
        self, tables: FloatArray, weights: FloatArray, n_iterations: int
    ) -> tuple[float, FloatArray, FloatArray]:
        """Mean log-likelihood before the last step, tables (K, W) and weights (K,) after it."""
        row_weights = self.data.weights
        before = score = -np.inf
        for _ in range(n_iterations):
            joint = _log_joint(self.rows, tables, weights)  # (K, n)
            top = joint.max(axis=0)
            shares = np.exp(joint - top)
            total = shares.sum(axis=0)
            shares /= total
            score = float(row_weights @ (np.log(total) + top) / row_weights.sum())
            counts = self.rows.state_counts(shares)  # (K, W)
            counts += PSEUDO_ROWS * self.marginal
            columns = np.add.reduceat(counts, self.starts, axis=1)  # (K, d)
            tables = counts / np.repeat(columns, self.data.cards, axis=1)
            weights = shares @ row_weights / row_weights.sum()
            if score - before < TOLERANCE:
                break
            before = score
        return score, tables, weights

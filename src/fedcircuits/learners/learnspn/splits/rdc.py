"""Randomised dependence coefficient (Lopez-Paz et al. 2013), all pairs of columns at once.

The coefficient of two columns is the first canonical correlation of random features of their ranks.
A CCA for every pair repeats the same work; here every column's features are whitened once by a thin
SVD, and the canonical correlations of a pair are the singular values of one small cross-product.

The features of a column depend on its state alone, so the SVD is of a table with one row a state,
scaled by the square root of its weight: the same U as of the n rows, at a fraction of the price.
"""

from __future__ import annotations

import numpy as np

from fedcircuits.arrays import BoolArray, FloatArray
from fedcircuits.learners.learnspn.coded import Coded

# Features of one rank are smooth and nearly collinear: their singular values fall fast, and the
# small ones carry edges. 1e-7 loses some; 1e-10 is what float64 can tell from rounding.
RELATIVE_TOLERANCE = 1e-10
N_FEATURES = 20
FEATURE_VARIANCE = 1 / 6
# Rows that decide a test. A canonical correlation of independent columns with r and s features
# is about (sqrt(r) + sqrt(s)) / sqrt(n), and one that is not zero has a standard error below
# 1 / sqrt(n): at 10,000 rows an estimate is within .03 (three standard errors) of the true one.
MAX_ROWS = 10_000


def column_features(
    data: Coded, column: int, rng: np.random.Generator, n_features: int = N_FEATURES
) -> FloatArray:
    """(s, k) random features sin(x w + b) of every state of a column.

    x is the rank of the state (share of rows at or below it) for ordered columns, with an
    indicator beside it where missing is a state; the indicator of the state for the others.
    """
    counts = data.column_counts(column)
    if not data.ordered[column]:
        # The product of an indicator and w is a row of w.
        spread = np.sqrt(FEATURE_VARIANCE / counts.size)
        w = spread * rng.standard_normal((counts.size, n_features))
        return np.asarray(np.sin(w + spread * rng.standard_normal(n_features)))
    x = (np.cumsum(counts) / counts.sum())[:, None]  # (s, 1)
    if data.has_missing[column]:
        x = np.concatenate([x, _last(counts.size)], axis=1)
    spread = np.sqrt(FEATURE_VARIANCE / x.shape[1])
    w = spread * rng.standard_normal((x.shape[1], n_features))
    return np.asarray(np.sin(x @ w + spread * rng.standard_normal(n_features)))


def _last(n: int) -> FloatArray:
    """(n, 1) indicator of the last state."""
    return np.eye(n, 1, 1 - n)


def whiten(features: FloatArray, counts: FloatArray) -> FloatArray:
    """(s, r) combinations of features with mean zero and, summed over the rows, unit norm.

    Args:
        features: (s, k) of every state.
        counts: (s,) weight of every state.
    """
    there = np.flatnonzero(counts > 0)
    answer = np.zeros((counts.size, 0))
    if there.size < 2:
        return answer
    root = np.sqrt(counts[there])[:, None]
    centred = features[there] - (counts[there] @ features[there]) / counts.sum()
    u, s, _ = np.linalg.svd(root * centred, full_matrices=False)
    rank = int((s > RELATIVE_TOLERANCE * s[0]).sum()) if s[0] > 0 else 0
    # Centring leaves one direction less than states; what the SVD finds beyond that is rounding.
    rank = min(rank, there.size - 1)
    answer = np.zeros((counts.size, rank))
    answer[there] = u[:, :rank] / root
    return answer


def cross_products(
    data: Coded, rng: np.random.Generator, n_features: int = N_FEATURES
) -> FloatArray:
    """(d, d, r, r) cross-products of whitened features, zero-padded to the largest rank r.

    A pair in which cells are missing uses the rows where both are observed; the norms of all rows
    of each column are rescaled to those.
    """
    whitened = [
        whiten(column_features(data, at, rng, n_features), data.column_counts(at))
        for at in range(data.n_columns)
    ]
    ranks = np.array([w.shape[1] for w in whitened], dtype=np.int64)
    first = np.concatenate([[0], np.cumsum(ranks)])
    rows = np.empty((int(first[-1]), data.n_rows))  # (sum of ranks, n)
    for at, table in enumerate(whitened):
        # State -1 (not observed) looks up the extra last entry, which is zero.
        padded = np.concatenate([table.T, np.zeros((table.shape[1], 1))], axis=1)
        np.take(padded, data.states[at], 1, rows[first[at] : first[at + 1]], mode="wrap")
    if not (data.weights == 1).all():
        rows *= np.sqrt(data.weights)
    rank = max(1, int(ranks.max()))
    place = np.concatenate([at * rank + np.arange(r) for at, r in enumerate(ranks)])
    flat = np.zeros((data.n_columns * rank, data.n_columns * rank))
    flat[place[:, None], place] = rows @ rows.T
    shape = (data.n_columns, rank, data.n_columns, rank)
    cross: FloatArray = flat.reshape(shape).transpose(0, 2, 1, 3)
    if not data.complete:
        seen = (data.states >= 0).astype(float)
        both = (seen * data.weights) @ seen.T  # (d, d)
        scale = np.sqrt(np.outer(data.observed, data.observed))
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.where(both > 0, scale / both, 0.0)
        cross = cross * ratio[:, :, None, None]
    return np.asarray(cross)


def rdc_matrix(data: Coded, rng: np.random.Generator, n_features: int = N_FEATURES) -> FloatArray:
    """(d, d) randomised dependence coefficients, 1 on the diagonal, 0 for a constant column."""
    cross = cross_products(data, rng, n_features)
    answer = np.eye(data.n_columns)
    i, j = np.triu_indices(data.n_columns, 1)
    answer[i, j] = answer[j, i] = np.minimum(_largest_singular_value(cross[i, j]), 1.0)
    return answer


def dependent_by_rdc(
    data: Coded, threshold: float, rng: np.random.Generator, n_features: int = N_FEATURES
) -> BoolArray:
    """(d, d) which pairs of columns have a coefficient above the threshold.

    The same edges as `rdc_matrix(...) > threshold`; a singular value is computed only where
    simple bounds (largest row or column norm below it, Frobenius norm above it) leave it open.
    """
    cross = cross_products(data.sample(MAX_ROWS, rng), rng, n_features)
    i, j = np.triu_indices(data.n_columns, 1)
    pairs = cross[i, j]  # (p, r, r)
    square = pairs**2
    by_row, by_column = square.sum(axis=2), square.sum(axis=1)  # (p, r)
    edge = np.maximum(by_row.max(axis=1), by_column.max(axis=1)) > threshold**2
    unsure = np.flatnonzero(~edge & (by_row.sum(axis=1) > threshold**2))
    edge[unsure] = _largest_singular_value(pairs[unsure]) > threshold
    answer = np.zeros((data.n_columns, data.n_columns), dtype=bool)
    answer[i, j] = answer[j, i] = edge
    return answer


def _largest_singular_value(matrices: FloatArray) -> FloatArray:
    """(p,) of matrices (p, r, r)."""
    if matrices.shape[1] == 1:
        return np.abs(matrices[:, 0, 0])
    gram = matrices @ matrices.transpose(0, 2, 1)
    return np.asarray(np.sqrt(np.maximum(np.linalg.eigvalsh(gram)[:, -1], 0.0)))

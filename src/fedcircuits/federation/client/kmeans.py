"""k-means in a few matrix products: scikit-learn's takes longer to import than to run here."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedcircuits.arrays import FloatArray, IntArray

Floats = FloatArray | NDArray[np.float32]

STEPS, LEAST_MOVED = 20, 1e-3  # most steps, and the share of rows below which they end
ROWS_PER_BLOCK = 8192


def centres_of(X: FloatArray, k: int, rng: np.random.Generator) -> FloatArray:
    """(k, F) centres of rows (n, F): greedy k-means++, then Lloyd's steps until hardly a row moves.

    Args:
        X: at least k distinct rows.
        k: how many centres.
        rng: source of the start.
    """
    rows = X.astype(np.float32)
    C = _start(rows, k, rng)
    before = np.full(len(rows), -1)
    for _ in range(STEPS):
        index = nearest(rows, C)
        if (index != before).mean() < LEAST_MOVED:
            break
        before = index
        counts = np.bincount(index, minlength=k)
        some = counts > 0  # a centre without rows stays
        order = np.argsort(index, kind="stable")
        sums = np.add.reduceat(rows[order], (np.cumsum(counts) - counts)[some], axis=0)
        C[some] = sums / counts[some, None]
    return C.astype(float)


def nearest(X: Floats, C: Floats) -> IntArray:
    """(n,) nearest of the centres (k, F) of each row (n, F)."""
    answer = np.empty(len(X), dtype=np.int64)
    length = (C * C).sum(axis=1)
    for start in range(0, len(X), ROWS_PER_BLOCK):
        block = slice(start, start + ROWS_PER_BLOCK)
        answer[block] = (length - 2 * (X[block] @ C.T)).argmin(axis=1)
    return answer


def _start(rows: NDArray[np.float32], k: int, rng: np.random.Generator) -> NDArray[np.float32]:
    """(k, F) rows drawn by their squared distance to those before, the best of a few draws each."""
    n_draws = 2 + int(np.log(k))
    length = (rows * rows).sum(axis=1)
    C = np.empty((k, rows.shape[1]), dtype=rows.dtype)
    C[0] = rows[rng.integers(len(rows))]
    apart = np.maximum(length - 2 * (rows @ C[0]) + (C[0] * C[0]).sum(), 0)
    for at in range(1, k):
        upto = np.cumsum(apart, dtype=float)
        drawn = np.searchsorted(upto, rng.random(n_draws) * upto[-1], side="right")
        drawn = np.minimum(drawn, len(rows) - 1)
        each = length - 2 * (rows[drawn] @ rows.T) + length[drawn][:, None]  # (draws, n)
        each = np.minimum(np.maximum(each, 0), apart)
        best = int(each.sum(axis=1).argmin())
        C[at], apart = rows[drawn[best]], each[best]
    return C

"""Smoothing expected counts along the axis of a column whose states are neighbouring bins.

Fine bins hold few rows of a latent state each; neighbours say nearly the same, so every count is
spread over them by a Gaussian kernel (EM with a smoothing step). The kernel follows the rule for
kernel densities: its width is the spread of the latent state's rows over the bins times a power of
the number of those rows, so that narrow states stay narrow. It falls faster than that of a density
on its own (-1/5): what one state of a mixture lacks in smoothness others make up for.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from fedcircuits.arrays import FloatArray, IntArray

# Width = WIDTH * spread * rows**POWER, chosen by validation parts of the training rows of MAGIC,
# housing, Spambase and Cancer.
WIDTH, POWER = 1.05, -0.4
# Widths in bins are rounded to these; below half the first, nothing is spread.
WIDTHS = (0.35, 0.5, 0.7, 1.0, 1.4, 2.0, 2.8, 4.0, 5.6, 8.0)
LEAST_BINS = 8  # fewer are left as they are


@lru_cache(maxsize=256)
def kernel_of(n: int, width: float) -> FloatArray:
    """(n, n) what a count in each bin gives to all; rows add up to one, mirrored at the ends."""
    at = np.arange(n)
    kernel = np.zeros((n, n))
    for image in (at, -1 - at, 2 * n - 1 - at):
        kernel += np.exp(-0.5 * ((at[:, None] - image[None, :]) / width) ** 2)
    answer = np.asarray(kernel / kernel.sum(axis=1, keepdims=True))
    answer.setflags(write=False)
    return answer


def smoothed(table: FloatArray, bins: IntArray) -> FloatArray:
    """Expected counts (H, card) with those of neighbouring bins spread over each other.

    Args:
        table: counts; rows add up to the same afterwards.
        bins: states that are bins, in the order of the axis; others (atoms, missing) stay.
    """
    n = bins.size
    if n < LEAST_BINS:
        return table
    counts = np.asarray(table[:, bins], dtype=np.float64)  # (H, n)
    at = np.arange(n)
    rows = counts.sum(axis=1)
    safe = np.maximum(rows, 1e-9)
    mean = counts @ at / safe
    spread = np.sqrt(np.maximum(counts @ at**2 / safe - mean**2, 0.0) + 1 / 12)
    width = WIDTH * spread * np.maximum(rows, 1.0) ** POWER
    level = np.abs(np.log(width[:, None] / np.array(WIDTHS)[None, :])).argmin(axis=1)  # (H,)
    for chosen in np.unique(level[width > 0.5 * WIDTHS[0]]):
        mine = (level == chosen) & (width > 0.5 * WIDTHS[0])
        counts[mine] = counts[mine] @ kernel_of(n, WIDTHS[chosen])
    answer = np.array(table, dtype=np.float64)
    answer[:, bins] = counts
    return answer

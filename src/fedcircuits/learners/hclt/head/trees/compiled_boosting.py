"""Boosting of two classes as one compiled loop; its twin is the loop of `boosting.py`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcircuits.arrays import FloatArray, IntArray
from fedcircuits.learners.hclt.head.trees.tree_growing import (
    LEAST_HESSIAN,
    Bins,
    Grown,
    TreeGrower,
)
from fedcircuits.native import Kernels, addresses

# Steps done together, at most, and numbers that are drawn for them.
_STEPS, _DRAWN = 50, 2**20


@dataclass(frozen=True)
class Watched:
    """Held-out rows that end the boosting.

    Attributes:
        bins: (D, m) of the rows.
        labels: (m,) 0 or 1.
        share: (m,) weights that add up to one.
        outputs: (m,) what they start from; moved.
        losses: of the steps so far; grows.
        least_steps: losses before boosting ends at all.
        patience: steps without gain after which it ends.
        least_gain: what counts as a gain.
    """

    bins: Bins
    labels: FloatArray
    share: FloatArray
    outputs: FloatArray
    losses: list[float]
    least_steps: int
    patience: int
    least_gain: float


def compiled_steps(
    native: Kernels,
    grower: TreeGrower,
    labels: FloatArray,
    weights: FloatArray,
    outputs: FloatArray,
    n_steps: int,
    rate: float,
    rng: np.random.Generator,
    watched: Watched | None,
) -> list[tuple[Grown, FloatArray]]:
    """Trees grown one after another, and the value of each of their nodes.

    Args:
        native: the compiled loops.
        grower: of trees on the rows.
        labels: (n,) 0 or 1.
        weights: (n,) of the rows.
        outputs: (n,) log-odds to start from; moved.
        n_steps: most trees.
        rate: learning rate.
        rng: draws columns.
        watched: held-out rows that end it; none if not given.
    """
    limits, (d, n) = grower.limits, grower.bins.shape
    size = 2 * limits.n_leaves
    m = 0 if watched is None else watched.labels.size
    room: list[NDArray[Any] | None] = [
        np.empty(n, dtype=np.int32),
        *grower.work,
        grower.pool,
        np.empty(n, dtype=np.int32),
    ]
    room += [np.empty(n) for _ in range(3)]
    fixed: list[NDArray[Any] | None] = [
        *(grower.bins, grower.by_row, grower.starts, grower.n_bins, grower.kinds),
        *(labels, np.ascontiguousarray(weights), outputs),
    ]
    held: list[NDArray[Any] | None] = [None] * 7
    if watched is not None:
        numbers, leaves = np.arange(m, dtype=np.int32), np.empty(m, dtype=np.int32)
        bins = np.ascontiguousarray(watched.bins)
        held = [bins, numbers, leaves, watched.labels, watched.share, watched.outputs]
        held.append(np.empty(3 * m))
    found: list[tuple[Grown, FloatArray]] = []
    losses = np.zeros(n_steps + 1)
    least_gain = 0.0 if watched is None else watched.least_gain
    constants = np.array([limits.ridge, LEAST_HESSIAN, rate, least_gain])
    at_once = int(np.clip(_DRAWN // (size * d), 1, _STEPS))
    while len(found) < n_steps:
        steps = min(at_once, n_steps - len(found))
        sequence = np.tile(np.arange(d, dtype=np.int32), (steps * size, 1))
        if limits.n_columns < d:
            sequence = rng.permuted(sequence, axis=1)
        nodes = np.full((steps, size, 5), -1, dtype=np.int64)
        sets = np.zeros((steps, size, 4), dtype=np.uint64)
        totals, values = np.zeros((steps, size, 2)), np.zeros((steps, size))
        counts, done = np.zeros(steps, dtype=np.int64), np.zeros(2, dtype=np.int64)
        sizes: IntArray = np.array([*grower.shape, steps, m, 0, 0, 0], dtype=np.int64)
        if watched is not None:
            sizes[8:] = len(watched.losses), watched.least_steps, watched.patience
            losses[: len(watched.losses)] = watched.losses
        grown: list[NDArray[Any] | None] = [losses, nodes, sets, totals, values, counts]
        given = [*fixed, sequence, *room, *held, *grown]
        native.call("boost_two_classes", sizes, constants, addresses(given), done)
        for at, count in enumerate(counts[: done[0]].tolist()):
            tree = Grown(nodes[at, :count], sets[at, :count], totals[at, :count])
            found.append((tree, values[at, :count]))
        if watched is not None:
            watched.losses[:] = losses[: len(watched.losses) + int(done[0])].tolist()
        if done[1]:
            break
    return found

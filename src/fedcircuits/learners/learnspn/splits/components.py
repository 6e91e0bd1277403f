"""Groups of columns that depend on each other, directly or through others."""

from __future__ import annotations

import numpy as np

from fedcircuits.arrays import BoolArray, IntArray


def components(dependent: BoolArray) -> IntArray:
    """(d,) number of the connected component of every node of a symmetric graph (d, d).

    A search that looks at every row once: for a dozen columns a tenth of what it takes to hand
    the matrix to a sparse-graph library.
    """
    group = np.full(len(dependent), -1, dtype=np.int64)
    n_groups = 0
    for start in range(len(dependent)):
        if group[start] >= 0:
            continue
        frontier = np.array([start])
        while frontier.size:
            group[frontier] = n_groups
            frontier = np.flatnonzero(dependent[frontier].any(axis=0) & (group < 0))
        n_groups += 1
    return group

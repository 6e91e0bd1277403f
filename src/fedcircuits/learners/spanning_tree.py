"""Maximum spanning trees of dense matrices, for Chow-Liu trees."""

from __future__ import annotations

import numpy as np

from fedcircuits.arrays import FloatArray


def maximum_spanning_tree(information: FloatArray) -> list[tuple[int, int]]:
    """Return the edges of the maximum spanning tree; ties go to the lower index.

    Prim's algorithm: on a full matrix it costs one pass over each row, where sorting all pairs
    takes twenty times longer.

    Args:
        information: (D, D) symmetric edge values.

    Returns:
        D - 1 undirected edges.
    """
    n_nodes = len(information)
    edges: list[tuple[int, int]] = []
    if n_nodes == 0:
        return edges
    outside = np.ones(n_nodes, dtype=bool)
    outside[0] = False
    best = information[0].copy()
    nearest = np.zeros(n_nodes, dtype=np.int64)
    for _ in range(n_nodes - 1):
        node = int(np.argmax(np.where(outside, best, -np.inf)))
        edges.append((int(nearest[node]), node))
        outside[node] = False
        closer = outside & (information[node] > best)
        best[closer] = information[node][closer]
        nearest[closer] = node
    return edges

"""A tree of anchors: which shared subspaces hang together, read off tables of counts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from fedcircuits.arrays import FloatArray, IntArray

# Rows of the overall shares in every row of a table: an anchor that was never seen stays defined.
TRACE = 0.5


def table_information(counts: FloatArray) -> float:
    """Mutual information of the two sides of a table of counts, in nats."""
    total = counts.sum()
    if total <= 0:
        return 0.0
    p = counts / total
    expected = np.outer(p.sum(axis=1), p.sum(axis=0))
    seen = p > 0
    return float((p[seen] * np.log(p[seen] / expected[seen])).sum())


@dataclass(frozen=True)
class AnchorTree:
    """A forest over the shared subspaces: which one each hangs on.

    Attributes:
        parent: of each subspace, -1 at a root.
        order: parents first.
    """

    parent: tuple[int, ...]
    order: tuple[int, ...]

    def children(self, at: int) -> list[int]:
        """Subspaces right below one."""
        return [i for i, above in enumerate(self.parent) if above == at]


def anchor_tree(n_spaces: int, tables: Mapping[tuple[int, int], FloatArray]) -> AnchorTree:
    """The spanning forest of most information; subspaces that no client holds both of stay apart.

    Args:
        n_spaces: how many subspaces are shared.
        tables: counts (K_i, K_j) of anchors that meet, by i < j.
    """
    strength = {pair: table_information(table) for pair, table in tables.items()}
    part = list(range(n_spaces))  # of the forest so far
    near: list[list[int]] = [[] for _ in range(n_spaces)]
    for i, j in sorted(strength, key=lambda pair: (-strength[pair], pair)):
        if part[i] != part[j]:
            near[i].append(j)
            near[j].append(i)
            part = [part[i] if p == part[j] else p for p in part]
    parent, order = [-1] * n_spaces, []
    for root in range(n_spaces):
        if root in order:
            continue
        walk = [root]
        for at in walk:  # grows while it is walked: breadth first
            order.append(at)
            for other in sorted(near[at]):
                if other not in order and other not in walk:
                    parent[other] = at
                    walk.append(other)
    return AnchorTree(tuple(parent), tuple(order))


def conditional(counts: FloatArray, rows: IntArray, columns: IntArray) -> FloatArray:
    """(K, L) q(column | row) up to scale: counts and a trace of the overall shares.

    Args:
        counts: (K, L).
        rows: (K,) stratum of each row; the trace stays within strata.
        columns: (L,) stratum of each column.
    """
    overall = counts.sum(axis=0) / max(float(counts.sum()), 1.0)
    same = rows[:, None] == columns[None, :]
    table = counts + TRACE * np.where(same, overall, 0.0)
    # A row without any column of its stratum falls back to the overall shares.
    return np.where(table.sum(axis=1, keepdims=True) > 0, table, overall + 1e-12)

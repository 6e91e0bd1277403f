"""Small decision trees over the states of a grid, as plain arrays.

A state of a column has a rank (its place on the axis, or by class share for categories) and a
split asks rank < cut, so every leaf is a box: an interval of ranks in each column. A cell that is
not observed goes both ways.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcircuits.arrays import BoolArray, FloatArray, IntArray
from fedcircuits.errors import StorageError

AnyInt = NDArray[np.integer]


@dataclass(frozen=True, eq=False)
class Forest:
    """T trees over D columns, their nodes in one list, parents before children.

    Attributes:
        ranks: of every column the rank of each state; empty for a column no tree may ask.
        roots: (T,) root of each tree.
        weights: (T,) weight of each tree.
        column: (N,) column a node asks, -1 at a leaf.
        cut: (N,) ranks below it go left.
        left: (N,) child of lower ranks.
        right: (N,) child of the others.
        values: (N, Y) p(class | leaf); not used elsewhere.
    """

    ranks: tuple[IntArray, ...]
    roots: IntArray
    weights: FloatArray
    column: IntArray
    cut: IntArray
    left: IntArray
    right: IntArray
    values: FloatArray

    @property
    def n_leaves(self) -> int:
        """Leaves of all trees."""
        return int((self.column < 0).sum())

    @cached_property
    def tree_of(self) -> IntArray:
        """(N,) the tree of each node."""
        tree = np.full(self.column.size, -1, dtype=np.int64)
        tree[self.roots] = np.arange(self.roots.size)
        for node in np.flatnonzero(self.column >= 0):
            tree[[self.left[node], self.right[node]]] = tree[node]
        return tree

    @cached_property
    def boxes(self) -> tuple[IntArray, IntArray]:
        """(N, D) lowest rank and (N, D) end of the ranks of each node's box."""
        low = np.zeros((self.column.size, len(self.ranks)), dtype=np.int64)
        high = np.tile([r.size for r in self.ranks], (self.column.size, 1))
        for node in np.flatnonzero(self.column >= 0):
            at = self.column[node]
            for child in (self.left[node], self.right[node]):
                low[child], high[child] = low[node], high[node]
            high[self.left[node], at] = low[self.right[node], at] = self.cut[node]
        return low, high

    def reached(self, codes: AnyInt) -> tuple[IntArray, IntArray, BoolArray]:
        """Rows, leaves and whether a missing cell was asked, of every (row, leaf) that may meet.

        Args:
            codes: (n, D) states, -1 where a cell is missing.
        """
        ranks = np.full(codes.shape, -1, dtype=np.int64)
        for at, table in enumerate(self.ranks):
            seen = codes[:, at] >= 0
            if table.size:
                ranks[seen, at] = table[codes[seen, at]]
        node = np.tile(self.roots, len(codes))
        row = np.repeat(np.arange(len(codes)), self.roots.size)
        asked = np.zeros(node.size, dtype=bool)
        done: list[tuple[IntArray, IntArray, BoolArray]] = []
        while node.size:
            column = self.column[node]
            at_leaf = column < 0
            done.append((row[at_leaf], node[at_leaf], asked[at_leaf]))
            node, row, asked, column = (a[~at_leaf] for a in (node, row, asked, column))
            rank = ranks[row, column]
            gap = rank < 0
            step = np.where(rank < self.cut[node], self.left[node], self.right[node])
            node = np.concatenate([step, self.right[node[gap]]])
            asked = np.concatenate([asked | gap, np.ones(int(gap.sum()), dtype=bool)])
            row = np.concatenate([row, row[gap]])
        if not done:
            nothing = np.zeros(0, dtype=np.int64)
            return nothing, nothing, nothing.astype(bool)
        rows, leaves, gaps = (np.concatenate(parts) for parts in zip(*done, strict=True))
        order = np.lexsort((leaves, rows))
        return rows[order], leaves[order], gaps[order]

    def proba(self, codes: AnyInt) -> FloatArray:
        """(n, Y) weighted mean of the trees' answers for rows without missing cells."""
        rows, leaves, _ = self.reached(codes)
        answer = np.zeros((len(codes), self.values.shape[1]))
        share = self.weights[self.tree_of[leaves]] / self.weights.sum()
        for y in range(answer.shape[1]):
            found = np.bincount(rows, share * self.values[leaves, y], minlength=len(codes))
            answer[:, y] = found
        return answer

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Plain arrays for a record."""
        return {
            "ranks": np.concatenate([*self.ranks, np.zeros(0, dtype=np.int64)]).astype(np.int64),
            "n_ranks": np.array([r.size for r in self.ranks], dtype=np.int64),
            "roots": self.roots,
            "weights": self.weights,
            "column": self.column,
            "cut": self.cut,
            "left": self.left,
            "right": self.right,
            "values": self.values,
        }

    @staticmethod
    def from_arrays(arrays: Mapping[str, Any], cards: list[int], n_classes: int) -> Forest:
        """Inverse of `arrays`; a forest that would not end or not add up is a `StorageError`.

        Args:
            arrays: as `arrays` made them.
            cards: number of states of every column, 0 where no tree may ask.
            n_classes: Y.
        """
        whole = {}
        for name in ("ranks", "n_ranks", "roots", "column", "cut", "left", "right"):
            whole[name] = np.asarray(arrays[name])
            if whole[name].dtype != np.int64 or whole[name].ndim != 1:
                raise StorageError(f"the head's {name} must be a list of whole numbers")
        sizes = whole.pop("n_ranks").tolist()
        flat = whole.pop("ranks")
        if sizes != cards or flat.size != sum(cards):
            raise StorageError(f"the head has ranks of {sizes} states, the schema has {cards}")
        ranks = tuple(np.split(flat, np.cumsum(cards)[:-1]))
        if any(not np.array_equal(np.sort(r), np.arange(r.size)) for r in ranks):
            raise StorageError("the head's ranks must number the states of every column")
        values = np.asarray(arrays["values"], dtype=np.float64)
        weights = np.asarray(arrays["weights"], dtype=np.float64)
        forest = Forest(ranks, weights=weights, values=values, **whole)
        forest._check(n_classes)
        return forest

    def _check(self, n_classes: int) -> None:
        n, inner = self.column.size, np.flatnonzero(self.column >= 0)
        lists = (self.cut, self.left, self.right)
        if any(a.size != n for a in lists) or self.values.shape != (n, n_classes):
            raise StorageError("the head's arrays do not fit each other")
        children = np.concatenate([self.left[inner], self.right[inner]])
        every = np.sort(np.concatenate([self.roots, children]))
        later = (self.left[inner] > inner) & (self.right[inner] > inner)
        if not np.array_equal(every, np.arange(n)) or not later.all():
            raise StorageError("the head's nodes must be trees, parents before children")
        cards = np.array([r.size for r in self.ranks])
        if (self.column >= cards.size).any() or (self.column < -1).any():
            raise StorageError("the head asks a column that does not exist")
        low, high = self.boxes
        at = self.column[inner]
        if not ((self.cut[inner] > low[inner, at]) & (self.cut[inner] < high[inner, at])).all():
            raise StorageError("the head has a split with nothing on one side")
        leaves = self.values[self.column < 0]
        fits = (leaves >= 0).all() and np.allclose(leaves.sum(axis=1), 1.0, atol=1e-9)
        if not fits or self.weights.size != self.roots.size or not (self.weights >= 0).all():
            raise StorageError("the head's leaves and weights must be probabilities")

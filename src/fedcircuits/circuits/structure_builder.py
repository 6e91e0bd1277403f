"""`StructureBuilder`: collect sums and products over leaves or parts, order them for evaluation."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedcircuits.arrays import FloatArray, IntArray
from fedcircuits.circuits.structure import Structure, ranges
from fedcircuits.errors import StructureError


class StructureBuilder:
    """Collects sums and products; nodes are numbered as they are added, children first."""

    def __init__(self) -> None:
        self._n = 0
        self._nodes: list[IntArray] = []  # numbers given to inner nodes, block by block
        self._is_sum: list[bool] = []
        self._children: list[IntArray] = []  # (k, r) of each block
        self._log_weights: list[FloatArray] = []  # (k, r) of each block

    def number(self, k: int) -> IntArray:
        """Return numbers for k new leaves."""
        numbers = np.arange(self._n, self._n + k)
        self._n += k
        return numbers

    def sums(self, children: ArrayLike, log_weights: ArrayLike) -> IntArray:
        """Add k sums over children (k, r) with log-weights (k, r), normalised here by rounding."""
        return self._block(children, log_weights, is_sum=True)

    def products(self, children: ArrayLike) -> IntArray:
        """Add k products over children (k, r)."""
        children = np.atleast_2d(np.asarray(children, dtype=np.int64))
        return self._block(children, np.zeros(children.shape), is_sum=False)

    def sum(self, children: ArrayLike, log_weights: ArrayLike) -> int:
        """Add one sum; a sum over one child is that child."""
        children = np.asarray(children, dtype=np.int64)
        if children.size == 1:
            return int(children[0])
        return int(self.sums(children[None, :], np.asarray(log_weights)[None, :])[0])

    def product(self, children: ArrayLike) -> int:
        """Add one product; a product of one child is that child."""
        children = np.asarray(children, dtype=np.int64)
        return int(children[0]) if children.size == 1 else int(self.products(children[None, :])[0])

    def _block(self, children: ArrayLike, log_weights: ArrayLike, *, is_sum: bool) -> IntArray:
        children = np.array(children, dtype=np.int64, ndmin=2)
        log_weights = np.array(log_weights, dtype=float, ndmin=2)
        log_weights = np.broadcast_to(log_weights, children.shape)
        if is_sum:
            total = np.logaddexp.reduce(log_weights, axis=1, keepdims=True)
            # Rounding is mended, a real fault is left for the check to name.
            log_weights = log_weights - np.where(np.abs(total) < 1e-6, total, 0.0)
        numbers = self.number(children.shape[0])
        self._nodes.append(numbers)
        self._is_sum.append(is_sum)
        self._children.append(children)
        self._log_weights.append(log_weights)
        return numbers

    def reached(self, root: int) -> NDArray[np.bool_]:
        """(n,) which of the nodes added so far hang below the root."""
        if not 0 <= root < self._n:
            raise StructureError(["nothing is left: the circuit has no root"])
        alive = np.zeros(self._n, dtype=bool)
        alive[root] = True
        for numbers, children in zip(reversed(self._nodes), reversed(self._children), strict=True):
            below = children[alive[numbers]]
            if below.size and (below >= numbers[0]).any():
                raise StructureError(["a child was added after its parent"])
            alive[below] = True
        return alive

    def below(self, root: int, n_parts: int) -> tuple[Structure, IntArray]:
        """What is reached from a root, where the first numbers are parts: inner nodes and parts.

        Leaf i of the structure is the part whose number is entry i of the second answer.
        """
        alive = self.reached(root)
        kept = np.flatnonzero(alive[:n_parts])
        new = np.full(alive.size, -1, dtype=np.int64)
        new[kept] = np.arange(kept.size)
        return self.structure(alive, new, kept.size), kept

    def structure(self, alive: NDArray[np.bool_], new: IntArray, n_leaves: int) -> Structure:
        """Inner nodes in order of level, kind, arity and first child, so that steps are slices."""
        numbers = np.concatenate([*self._nodes, np.zeros(0, dtype=np.int64)])
        arity = np.concatenate(
            [np.full(len(c), c.shape[1]) for c in self._children] + [np.zeros(0, dtype=np.int64)]
        ).astype(np.int64)
        is_sum = np.repeat(
            np.array(self._is_sum, dtype=bool),
            np.array([len(n) for n in self._nodes], dtype=np.int64),
        )
        child = np.concatenate(
            [*(c.reshape(-1) for c in self._children), np.zeros(0, dtype=np.int64)]
        )
        log_weight = np.concatenate([*(w.reshape(-1) for w in self._log_weights), np.zeros(0)])
        first_edge = np.concatenate([[0], np.cumsum(arity)])
        # Numbers of nodes that were added: first those of leaves, then inner ones as added.
        kept = np.flatnonzero(alive[numbers])
        new[numbers[kept]] = n_leaves + np.arange(kept.size)
        edges = ranges(first_edge[kept], arity[kept])
        draft = Structure(
            n_leaves,
            is_sum[kept],
            np.concatenate([[0], np.cumsum(arity[kept])]),
            new[child[edges]],
            log_weight[edges],
        )
        return _in_order(draft)


def _place_below_parents(draft: Structure) -> IntArray:
    """(n_nodes,) a rank in which the children of consecutive parents are consecutive.

    The i-th children of a group of parents then lie evenly spaced in memory and are read as a
    slice rather than gathered.
    """
    place = np.zeros(draft.n_nodes, dtype=np.int64)
    for inner in reversed(draft.inner_by_level()):
        inner = inner[np.lexsort((place[draft.n_leaves + inner], draft.arity[inner]))]
        edges = ranges(draft.first_edge[inner], draft.arity[inner])
        # A shared child stays where its last parent in this order puts it.
        place[draft.child[edges]] = np.arange(edges.size)
    return place


def _in_order(draft: Structure) -> Structure:
    if draft.n_inner == 0:
        return draft
    level = draft.levels[draft.n_leaves :]
    place = _place_below_parents(draft)[draft.n_leaves :]
    order = np.lexsort((place, draft.arity, draft.is_sum, level))
    rank = np.arange(draft.n_nodes)
    rank[draft.n_leaves + order] = draft.n_leaves + np.arange(draft.n_inner)
    edges = ranges(draft.first_edge[order], draft.arity[order])
    return Structure(
        draft.n_leaves,
        draft.is_sum[order],
        np.concatenate([[0], np.cumsum(draft.arity[order])]),
        rank[draft.child[edges]],
        np.array(draft.log_weight[edges], order="C"),
    )

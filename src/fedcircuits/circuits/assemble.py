"""Putting a circuit together from many nodes at once; learners and queries use it.

`build` is the friendly way for a person; this is the fast way for a program. Nodes are numbered
as they are added; `Circuit.assemble` drops what the root does not reach, puts leaves first, orders
nodes for evaluation and checks the result.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from fedcircuits.circuits.leaf_group import LeafGroup
from fedcircuits.circuits.leaves import LeafFamily, Params
from fedcircuits.circuits.structure import Structure, _ranges
from fedcircuits.errors import StructureError
from fedcircuits.schema import Grid, Schema
from fedcircuits.schema.grid import FloatArray, IntArray


class Assembler:
    """Collects leaves, sums and products, in any order in which children come first."""

    def __init__(self, schema: Schema) -> None:
        self.schema = schema
        self._n = 0
        self._groups: list[tuple[LeafFamily, int, Params, Grid | None, IntArray]] = []
        self._nodes: list[IntArray] = []  # numbers given to inner nodes, block by block
        self._is_sum: list[bool] = []
        self._children: list[IntArray] = []  # (k, r) of each block
        self._log_weights: list[FloatArray] = []  # (k, r) of each block

    def _number(self, k: int) -> IntArray:
        numbers = np.arange(self._n, self._n + k)
        self._n += k
        return numbers

    def leaves(
        self, family: LeafFamily, column: int, params: Params, grid: Grid | None = None
    ) -> IntArray:
        """Add L leaves over a column; params have L as first axis. Returns their numbers (L,)."""
        size = int(np.asarray(params[family.parameters[0]]).shape[0])
        numbers = self._number(size)
        self._groups.append((family, column, params, grid, numbers))
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
        numbers = self._number(children.shape[0])
        self._nodes.append(numbers)
        self._is_sum.append(is_sum)
        self._children.append(children)
        self._log_weights.append(log_weights)
        return numbers

    def parts(self, root: int) -> tuple[tuple[LeafGroup, ...], Structure]:
        """Leaf groups and structure of the circuit below `root`."""
        alive = self._reached(root)
        groups, new, first = [], np.full(self._n, -1, dtype=np.int64), 0
        for family, column, params, grid, numbers in self._merged_groups():
            kept = alive[numbers]
            if not kept.any():
                continue
            arrays = {
                name: np.array(np.asarray(params[name], dtype=float)[kept], order="C")
                for name in family.parameters
            }
            groups.append(LeafGroup(family, column, first, arrays, grid))
            count = int(kept.sum())
            new[numbers[kept]] = np.arange(first, first + count)
            first += count
        return tuple(groups), self._inner(alive, new, first)

    def _reached(self, root: int) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
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

    def _merged_groups(self) -> list[tuple[LeafFamily, int, Params, Grid | None, IntArray]]:
        """Leaves of one family, column and grid in one group: fewer and larger array operations."""
        merged: dict[tuple[int, str, object], list[int]] = {}
        for at, (family, column, params, grid, _) in enumerate(self._groups):
            shapes = tuple(np.asarray(params[name]).shape[1:] for name in family.parameters)
            merged.setdefault((column, family.name, (grid, shapes)), []).append(at)
        answer = []
        for members in merged.values():
            family, column, _, grid, _ = self._groups[members[0]]
            params = {
                name: np.concatenate(
                    [np.asarray(self._groups[m][2][name], dtype=float) for m in members]
                )
                for name in family.parameters
            }
            numbers = np.concatenate([self._groups[m][4] for m in members])
            answer.append((family, column, params, grid, numbers))
        return sorted(answer, key=lambda g: g[1])

    def _inner(
        self, alive: np.ndarray[tuple[int], np.dtype[np.bool_]], new: IntArray, n_leaves: int
    ) -> Structure:
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
        edges = _ranges(first_edge[kept], arity[kept])
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
        edges = _ranges(draft.first_edge[inner], draft.arity[inner])
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
    edges = _ranges(draft.first_edge[order], draft.arity[order])
    return Structure(
        draft.n_leaves,
        draft.is_sum[order],
        np.concatenate([[0], np.cumsum(draft.arity[order])]),
        rank[draft.child[edges]],
        np.array(draft.log_weight[edges], order="C"),
    )

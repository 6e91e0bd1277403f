"""`Structure`: sums, products and edges of a circuit as flat arrays, with checks of validity.

Nodes 0..n_leaves-1 are leaves, the others sums and products; children come before parents and the
root is last.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcircuits.arrays import FloatArray, IntArray
from fedcircuits.errors import StorageError

WEIGHT_TOLERANCE = 1e-9


@dataclass(frozen=True, eq=False)
class Structure:
    """Sums, products and edges of a circuit as flat arrays.

    Attributes:
        n_leaves: leaves come first.
        is_sum: (m,) of the m inner nodes, whether it is a sum (or a product).
        first_edge: (m + 1,) edges of inner node i are first_edge[i]..first_edge[i + 1].
        child: (e,) the child at the end of each edge.
        log_weight: (e,) log-weight of a sum's edge, 0 for a product's.
    """

    n_leaves: int
    is_sum: NDArray[np.bool_]
    first_edge: IntArray
    child: IntArray
    log_weight: FloatArray

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The arrays by name, for a file."""
        return {
            "is_sum": self.is_sum,
            "first_edge": self.first_edge,
            "child": self.child,
            "log_weight": self.log_weight,
        }

    @staticmethod
    def from_arrays(n_leaves: int, arrays: Mapping[str, NDArray[Any]]) -> Structure:
        """Inverse of `arrays`; wrong types, shapes or sizes are a `StorageError`."""
        is_sum, first_edge = arrays["is_sum"], arrays["first_edge"]
        child, log_weight = arrays["child"], floats(arrays, "log_weight")
        shapes = (is_sum.ndim, first_edge.ndim, child.ndim, log_weight.ndim)
        if shapes != (1, 1, 1, 1) or is_sum.dtype != np.bool_:
            raise StorageError("the arrays of the structure have wrong shapes or types")
        if first_edge.dtype != np.int64 or child.dtype != np.int64:
            raise StorageError("the arrays of the structure have wrong shapes or types")
        if is_sum.size and is_sum.view(np.uint8).max() > 1:
            raise StorageError("the arrays of the structure have wrong shapes or types")
        if (
            first_edge.size != is_sum.size + 1
            or first_edge[0] != 0
            or first_edge[-1] != child.size
            or (first_edge[:-1] > first_edge[1:]).any()  # a difference could wrap around
            or child.size != log_weight.size
        ):
            raise StorageError("the arrays of the structure do not fit together")
        return Structure(n_leaves, is_sum, first_edge, child, log_weight)

    @property
    def n_inner(self) -> int:
        """Number of sums and products."""
        return int(self.is_sum.size)

    @property
    def n_nodes(self) -> int:
        """Number of all nodes."""
        return self.n_leaves + self.n_inner

    @property
    def n_edges(self) -> int:
        """Number of edges."""
        return int(self.child.size)

    @property
    def arity(self) -> IntArray:
        """(m,) number of children of each inner node."""
        return np.diff(self.first_edge)

    @cached_property
    def parent_of_edge(self) -> IntArray:
        """(e,) the inner node (counted from 0) that owns each edge."""
        return np.repeat(np.arange(self.n_inner), self.arity)

    @cached_property
    def levels(self) -> IntArray:
        """(n_nodes,) length of the longest path down to a leaf; one sweep per level."""
        level = np.zeros(self.n_nodes, dtype=np.int64)
        waiting = self.arity.copy()
        by_child = np.argsort(self.child, kind="stable")  # edges ordered by their lower end
        first = np.searchsorted(self.child[by_child], np.arange(self.n_nodes + 1))
        front, depth = np.arange(self.n_leaves), 0
        while front.size:
            level[front] = depth
            spans = first[front + 1] - first[front]
            edges = by_child[ranges(first[front], spans)]
            parents = self.parent_of_edge[edges]
            np.subtract.at(waiting, parents, 1)
            front = self.n_leaves + np.unique(parents[waiting[parents] == 0])
            depth += 1
        return level

    def scopes(self, leaf_scopes: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """(n_nodes, words) the columns below each node, as bits, from those of the leaves."""
        scope = np.zeros((self.n_nodes, leaf_scopes.shape[1]), dtype=np.uint64)
        scope[: self.n_leaves] = leaf_scopes
        for inner in self.inner_by_level():
            spans = self.arity[inner]
            edges = ranges(self.first_edge[inner], spans)
            starts = np.cumsum(spans) - spans
            scope[self.n_leaves + inner] = np.bitwise_or.reduceat(
                scope[self.child[edges]], starts, axis=0
            )
        return scope

    def inner_by_level(self) -> list[IntArray]:
        """Inner nodes (counted from 0) of each level above the leaves, lowest first."""
        level = self.levels[self.n_leaves :]
        order = np.argsort(level, kind="stable")
        cuts = np.searchsorted(level[order], np.arange(1, level.max(initial=0) + 2))
        return [part for part in np.split(order, cuts[1:-1]) if part.size]

    def faults(self, leaf_scopes: NDArray[np.uint64], names: tuple[str, ...]) -> list[str]:
        """Every violation of order, smoothness, decomposability and normalisation, in words."""
        faults = self._order_faults()
        if faults:
            return faults  # scopes mean nothing in a graph that is not one
        scope = self.scopes(leaf_scopes)
        size = np.bitwise_count(scope).sum(axis=1, dtype=np.int64)  # (n_nodes,)
        children_size = np.add.reduceat(size[self.child], self.first_edge[:-1])
        faults += self._smoothness_faults(scope, names)
        overlap = ~self.is_sum & (children_size != size[self.n_leaves :])
        for node in np.flatnonzero(overlap):
            shared = self._shared_names(scope, int(node), names)
            faults.append(
                f"product {self.n_leaves + node} is not decomposable: its children share "
                f"{_listed(shared)}"
            )
        faults += self._weight_faults()
        missing = [
            n for n, there in zip(names, _bits(scope[-1], len(names)), strict=True) if not there
        ]
        if missing:
            faults.append(f"the root does not cover {_listed(missing)}")
        used = np.zeros(self.n_nodes, dtype=bool)
        used[self.child] = True
        used[-1] = True
        if not used.all():
            faults.append(
                f"{int((~used).sum())} node(s) hang below nothing, first {np.argmin(used)}"
            )
        return faults

    def _order_faults(self) -> list[str]:
        faults = []
        if self.n_leaves < 1:
            faults.append("a circuit has at least one leaf")
        if (self.arity < 1).any():
            node = self.n_leaves + int(np.argmax(self.arity < 1))
            faults.append(f"node {node} has no child")
        if (
            self.n_edges
            and ((self.child < 0) | (self.child >= self.n_leaves + self.parent_of_edge)).any()
        ):
            faults.append("a child does not come before its parent: not a topological order")
        return faults

    def _smoothness_faults(self, scope: NDArray[np.uint64], names: tuple[str, ...]) -> list[str]:
        own = scope[self.n_leaves + self.parent_of_edge]  # (e, words)
        differs = (scope[self.child] != own).any(axis=1) & self.is_sum[self.parent_of_edge]
        faults = []
        for edge in np.flatnonzero(differs):
            lacking = _bits(own[edge], len(names)) & ~_bits(scope[self.child[edge]], len(names))
            lacks = [n for n, gone in zip(names, lacking, strict=True) if gone]
            faults.append(
                f"sum {self.n_leaves + self.parent_of_edge[edge]} is not smooth: child "
                f"{self.child[edge]} lacks {_listed(lacks)}"
            )
        return faults

    def _weight_faults(self) -> list[str]:
        on_sum = self.is_sum[self.parent_of_edge] if self.n_edges else np.zeros(0, dtype=bool)
        with np.errstate(over="ignore"):
            weight = np.where(
                on_sum, np.exp(np.where(np.isnan(self.log_weight), 0, self.log_weight)), 0
            )
        faults = []
        bad = np.isnan(self.log_weight) | (self.log_weight == np.inf)
        for edge in np.flatnonzero(bad & on_sum)[:5]:
            faults.append(
                f"sum {self.n_leaves + self.parent_of_edge[edge]} has a weight that is no number"
            )
        if faults or not self.n_inner:
            return faults
        total = np.add.reduceat(weight, self.first_edge[:-1])
        off = self.is_sum & (np.abs(total - 1) > WEIGHT_TOLERANCE)
        return [
            f"sum {self.n_leaves + node} has weights that add up to {total[node]:.12g}, not 1"
            for node in np.flatnonzero(off)
        ]

    def _shared_names(
        self, scope: NDArray[np.uint64], node: int, names: tuple[str, ...]
    ) -> list[str]:
        children = self.child[self.first_edge[node] : self.first_edge[node + 1]]
        held = np.sum([_bits(scope[c], len(names)) for c in children], axis=0)
        return [name for name, times in zip(names, held, strict=True) if times > 1]


def floats(arrays: Mapping[str, NDArray[Any]], name: str) -> FloatArray:
    """A float64 array from a file."""
    array = arrays[name]
    if array.dtype != np.float64 or array.ndim < 1:
        raise StorageError(f"array {name} must hold float64 numbers, found {array.dtype}")
    return np.asarray(array)


def scope_bits(
    columns: IntArray, leaf: IntArray, n_leaves: int, n_columns: int
) -> NDArray[np.uint64]:
    """(n_leaves, words) scopes as bits, from pairs of a leaf and one of its columns."""
    scope = np.zeros((n_leaves, (n_columns + 63) // 64), dtype=np.uint64)
    bit = np.left_shift(np.uint64(1), (columns % 64).astype(np.uint64))
    np.bitwise_or.at(scope, (leaf, columns // 64), bit)
    return scope


def ranges(starts: IntArray, spans: IntArray) -> IntArray:
    """Concatenation of starts[i]..starts[i] + spans[i]."""
    if spans.size == 0:
        return np.zeros(0, dtype=np.int64)
    offset = np.repeat(starts - (np.cumsum(spans) - spans), spans)
    return offset + np.arange(int(spans.sum()))


def _bits(words: NDArray[np.uint64], n_columns: int) -> NDArray[np.bool_]:
    """(n_columns,) truth values of packed bits."""
    column = np.arange(n_columns)
    shifted = np.right_shift(words[column // 64], (column % 64).astype(np.uint64))
    answer: NDArray[Any] = (shifted & np.uint64(1)).astype(bool)
    return answer


def _listed(names: list[str]) -> str:
    return ", ".join(map(repr, names[:5])) + (", ..." if len(names) > 5 else "")

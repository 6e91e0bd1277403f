"""Boosted trees as plain arrays: stored without pickle, evaluated by table lookups.

A tree has at most 64 leaves, so the leaves a row can still reach are the bits of one 64-bit number.
Every feature has few different thresholds; for each interval between them (and each category, and
"missing") a table holds, for every tree, the leaves that remain. A row's leaf in a tree is what is
left after one bitwise AND per feature (the idea of QuickScorer, Lucchese et al. 2015).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcircuits.arrays import BoolArray, FloatArray, IntArray
from fedcircuits.errors import StorageError
from fedcircuits.learners.hclt.features import Values
from fedcircuits.native import Kernels, kernels

MOST_LEAVES = 64
_ROWS_PER_CHUNK = 512
_FIRST_SHARE = 0.25  # of the boosting steps
_OF_NODES = ("feature", "threshold", "left", "right", "value", "missing_left", "categories")


@dataclass(frozen=True, eq=False)
class BoostedTrees:
    """Sums of regression trees, one sum for every output.

    Nodes of a tree are adjacent, a child comes after its parent, and children are counted from the
    first node of all trees.

    Attributes:
        feature: (N,) column a node asks about, -1 in a leaf.
        threshold: (N,) values up to it go left (infinity: every value); unused for categories.
        left: (N,) left child.
        right: (N,) right child.
        value: (N,) what a leaf adds to its output.
        missing_left: (N,) whether a row without a value goes left.
        categories: (N,) row of `left_categories` of a node that asks for a category, else -1.
        left_categories: (C, k) codes that go left.
        known_categories: (D, k) codes of a categorical column seen in training; others count as
            missing. No True in the row of a numeric column.
        roots: (T,) first node of every tree.
        output: (T,) the output a tree adds to.
        baseline: (K,) where every output starts.
    """

    feature: IntArray
    threshold: FloatArray
    left: IntArray
    right: IntArray
    value: FloatArray
    missing_left: BoolArray
    categories: IntArray
    left_categories: BoolArray
    known_categories: BoolArray
    roots: IntArray
    output: IntArray
    baseline: FloatArray

    @property
    def n_leaves(self) -> int:
        """Leaves of all trees."""
        return int((self.feature < 0).sum())

    @property
    def n_numbers(self) -> int:
        """Free parameters: a cut for every split, a value for every leaf, the baselines."""
        return int(self.feature.size + self.baseline.size)

    def outputs(self, values: Values) -> FloatArray:
        """(n, K) sums of the trees for rows (n, D), NaN where missing, categories by code."""
        return self.outputs_of_bins(self.bins(values))

    def beside(self, other: BoostedTrees) -> BoostedTrees:
        """Return trees over the same columns with the outputs of both, the other's last."""
        baseline = np.concatenate([self.baseline, other.baseline])
        return self._joined(other, other.output + self.baseline.size, baseline)

    def plus(self, other: BoostedTrees) -> BoostedTrees:
        """Return trees over the same columns whose outputs are the sums of both."""
        return self._joined(other, other.output, self.baseline + other.baseline)

    def times(self, factor: float) -> BoostedTrees:
        """Return the trees with outputs times a factor."""
        return replace(self, value=factor * self.value, baseline=factor * self.baseline)

    def _joined(self, other: BoostedTrees, output: IntArray, baseline: FloatArray) -> BoostedTrees:
        start, sets = self.feature.size, len(self.left_categories)
        shifted = {
            name: np.where(getattr(other, name) >= 0, getattr(other, name) + by, -1)
            for name, by in (("left", start), ("right", start), ("categories", sets))
        }
        added = {
            "roots": other.roots + start,
            "output": output,
            **shifted,
        }
        joined = {
            name: np.concatenate([getattr(self, name), added.get(name, getattr(other, name))])
            for name in self.__dataclass_fields__
            if name not in ("known_categories", "baseline")
        }
        known = self.known_categories | other.known_categories
        return BoostedTrees(known_categories=known, baseline=baseline, **joined)

    def parted(self) -> tuple[BoostedTrees, BoostedTrees]:
        """Return the trees of the first boosting steps, with the baseline, and those of the rest.

        The first ones hold for a client's rows at large, the rest for few of them.
        """
        at = first_trees(self)
        if at == self.roots.size:
            at = 0
        start = int(self.roots[at])
        cuts = ((slice(0, start), slice(0, at), 0), (slice(start, None), slice(at, None), start))
        found = []
        for nodes, trees, by in cuts:
            cut = {name: getattr(self, name)[nodes] for name in _OF_NODES}
            for child in ("left", "right"):
                cut[child] = np.where(cut[child] >= 0, cut[child] - by, -1)
            part = replace(self, **cut, roots=self.roots[trees] - by, output=self.output[trees])
            found.append(part)
        return found[0], replace(found[1], baseline=np.zeros_like(self.baseline))

    def outputs_in_parts(self, values: Values) -> tuple[FloatArray, FloatArray]:
        """(n, K) outputs of the first trees, with the baseline, and of the rest (see `parted`)."""
        at, n_outputs = first_trees(self) % self.roots.size, self.baseline.size
        later = np.arange(self.roots.size) >= at
        baseline = np.concatenate([self.baseline, np.zeros(n_outputs)])
        both = replace(self, output=self.output + n_outputs * later, baseline=baseline)
        found = both.outputs(values)
        return found[:, :n_outputs], found[:, n_outputs:]

    # --- evaluation -------------------------------------------------------------------------------

    def bins(self, values: Values) -> NDArray[np.uint16]:
        """(D, n) number of the interval or category of each value, the last one for missing."""
        answer = np.empty((values.shape[1], len(values)), dtype=np.uint16)
        for at in range(values.shape[1]):
            answer[at] = self.column_bins(at, values[:, at])
        return answer

    def column_bins(self, column: int, values: FloatArray) -> IntArray:
        """(n,) number of the interval or category of values of one column."""
        cuts, known = self.cuts[column], self.known_categories[column]
        if not known.any():
            found = np.searchsorted(cuts, values, side="left")
            return np.where(np.isnan(values), cuts.size + 1, found)
        codes = np.where(np.isfinite(values), values, -1.0).astype(np.int64)
        inside = (codes >= 0) & (codes < known.size)
        inside[inside] = known[codes[inside]]
        return np.where(inside, codes, known.size)

    def outputs_of_bins(self, bins: NDArray[np.uint16]) -> FloatArray:
        """(n, K) sums of the trees for rows (D, n) given by their intervals."""
        native = kernels()
        if native is not None:
            return self._by_walking(native, np.ascontiguousarray(bins))
        n = bins.shape[1]
        answer = np.empty((n, self.baseline.size))
        tables, leaf_value, leaf_start = self._tables, self._leaf_values, self._leaf_start
        every = self._reachable[self.roots][:, None]
        one_hot = (self.output == np.arange(self.baseline.size)[:, None]).astype(float)  # (K, T)
        for start in range(0, n, _ROWS_PER_CHUNK):
            part = bins[:, start : start + _ROWS_PER_CHUNK]
            left = np.repeat(every, part.shape[1], axis=1)  # (T, m) leaves still reachable
            for column, (trees, table) in tables.items():
                left[trees] &= table[:, part[column]]
            # One bit is left: its place is the exponent of the number as a float.
            leaf = (left.astype(np.float64).view(np.int64) >> 52) - 1023
            found = leaf_value[leaf + leaf_start[:, None]]  # (T, m)
            answer[start : start + _ROWS_PER_CHUNK] = (one_hot @ found).T
        return answer + self.baseline

    def _by_walking(self, native: Kernels, bins: NDArray[np.uint16]) -> FloatArray:
        """The same by compiled walks from root to leaf: a node is less to read than a table."""
        n, nodes = bins.shape[1], self._compact
        answer = np.repeat(self.baseline[None], n, axis=0)
        width = self.left_categories.shape[1]
        sizes = (n, self.roots.size, self.feature.size, self.baseline.size, width)
        native.call("trees_outputs", *sizes, bins, *nodes, self.roots, self.output, answer)
        return answer

    @cached_property
    def _compact(self) -> list[NDArray[Any]]:
        """What the walks read of nodes, columns and sets of categories (`native/trees.inc`)."""
        cut = np.where(self.categories >= 0, -1 - self.categories, 0)
        for column, cuts in enumerate(self.cuts):
            asks = (self.feature == column) & (self.categories < 0)
            cut[asks] = np.searchsorted(cuts, self.threshold[asks])
        missing = [
            known.size if known.any() else cuts.size + 1
            for known, cuts in zip(self.known_categories, self.cuts, strict=True)
        ]
        small = (self.feature, cut, self.left, self.right)
        parts = [*(part.astype(np.int32) for part in small), self.missing_left, self.value]
        sets = self.left_categories[:, : 32 * 16]
        words = np.zeros((len(sets), 64), dtype=np.uint8)
        packed = np.packbits(sets, axis=1, bitorder="little")
        words[:, : packed.shape[1]] = packed
        parts += [np.array(missing, dtype=np.int32), self.left_categories, words]
        return [np.ascontiguousarray(part) for part in parts]

    @cached_property
    def _tree_of(self) -> IntArray:
        """(N,) tree of every node."""
        return np.searchsorted(self.roots, np.arange(self.feature.size), side="right") - 1

    @cached_property
    def _leaf_start(self) -> IntArray:
        """(T,) how many leaves the trees before have."""
        counts = np.bincount(self._tree_of[self.feature < 0], minlength=self.roots.size)
        return np.concatenate([[0], np.cumsum(counts)[:-1]]).astype(np.int64)

    @cached_property
    def _leaf_values(self) -> FloatArray:
        """(leaves,) values of the leaves, tree by tree."""
        return self.value[self.feature < 0]

    @cached_property
    def cuts(self) -> list[FloatArray]:
        """The different thresholds of every column."""
        numeric = (self.feature >= 0) & (self.categories < 0)
        return [
            np.unique(self.threshold[numeric & (self.feature == at)])
            for at in range(len(self.known_categories))
        ]

    @cached_property
    def _reachable(self) -> NDArray[np.uint64]:
        """(N,) the leaves below every node, as bits."""
        is_leaf = self.feature < 0
        place = np.cumsum(is_leaf) - 1 - self._leaf_start[self._tree_of]
        bits = np.where(is_leaf, np.uint64(1) << place.clip(0).astype(np.uint64), np.uint64(0))
        here = self.roots[~is_leaf[self.roots]]
        levels = []
        while here.size:
            levels.append(here)
            below = np.concatenate([self.left[here], self.right[here]])
            here = below[~is_leaf[below]]
        for here in reversed(levels):
            bits[here] = bits[self.left[here]] | bits[self.right[here]]
        return bits

    @cached_property
    def _tables(self) -> dict[int, tuple[Any, NDArray[np.uint64]]]:
        """By column: the trees that ask about it, and (trees, intervals) the leaves that remain."""
        answer = {}
        for column in np.unique(self.feature[self.feature >= 0]):
            nodes = np.flatnonzero(self.feature == column)
            goes_left = self._goes_left(int(column), nodes)  # (nodes, intervals)
            lost = np.where(
                goes_left,
                self._reachable[self.right[nodes]][:, None],
                self._reachable[self.left[nodes]][:, None],
            )
            trees, first = np.unique(self._tree_of[nodes], return_index=True)
            table = np.bitwise_and.reduceat(~lost, first, axis=0)
            every = trees.size == self.roots.size
            answer[int(column)] = (slice(None) if every else trees, table)
        return answer

    def _goes_left(self, column: int, nodes: IntArray) -> BoolArray:
        """(nodes, intervals of the column) which way a value takes, the last one missing."""
        known = self.known_categories[column]
        if known.any():
            sides = self.left_categories[self.categories[nodes]]
        else:
            cuts = self.cuts[column]
            at = np.searchsorted(cuts, self.threshold[nodes])
            sides = np.arange(cuts.size + 1) <= at[:, None]
        return np.concatenate([sides, self.missing_left[nodes][:, None]], axis=1)

    # --- making and storing -----------------------------------------------------------------------

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Arrays by name, for a file; integers as small as they fit."""
        small = {"feature", "left", "right", "categories", "roots", "output"}
        return {
            name: getattr(self, name).astype(np.int32) if name in small else getattr(self, name)
            for name in self.__dataclass_fields__
        }

    @staticmethod
    def from_arrays(arrays: dict[str, Any], n_columns: int, n_outputs: int) -> BoostedTrees:
        """Inverse of `arrays`; anything that is not as it should be is a `StorageError`."""
        integers = ("feature", "left", "right", "categories", "roots", "output")
        made = {name: arrays[name] for name in BoostedTrees.__dataclass_fields__}
        trees = BoostedTrees(
            **{k: v.astype(np.int64) if k in integers else v for k, v in made.items()}
        )
        fault = trees._fault(n_columns, n_outputs)
        if fault:
            raise StorageError(f"the trees are not valid: {fault}")
        return trees

    def _fault(self, n_columns: int, n_outputs: int) -> str | None:
        """What is wrong with the arrays, None where nothing is."""
        n = self.feature.size
        of_nodes = (self.threshold, self.left, self.right, self.value, self.missing_left)
        if any(a.shape != (n,) for a in (self.feature, self.categories, *of_nodes)):
            return f"expected one entry a node, {n}, in every array"
        if self.missing_left.dtype != np.bool_ or self.left_categories.dtype != np.bool_:
            return "expected true or false for sides"
        if self.baseline.shape != (n_outputs,) or self.output.shape != self.roots.shape:
            return f"expected {n_outputs} outputs and one of them for every tree"
        if self.known_categories.ndim != 2 or len(self.known_categories) != n_columns:
            return f"expected known categories of {n_columns} columns"
        k = self.known_categories.shape[1]
        if self.left_categories.ndim != 2 or self.left_categories.shape[1] != k:
            return f"expected {k} categories in every set"
        if not (np.isfinite(self.value).all() and np.isfinite(self.baseline).all()):
            return "expected finite values in the leaves"
        if n == 0 or self.roots.size == 0 or self.roots[0] != 0 or (np.diff(self.roots) <= 0).any():
            return "expected trees one after another"
        if self.roots[-1] >= n or self.output.min() < 0 or self.output.max() >= n_outputs:
            return "a tree lies outside its range"
        inner = np.flatnonzero(self.feature >= 0)
        if inner.size and self.feature.max() >= n_columns:
            return f"a node asks about column {self.feature.max()} of {n_columns}"
        last = np.append(self.roots[1:], n)[self._tree_of]
        for child in (self.left[inner], self.right[inner]):
            if (child <= inner).any() or (child >= last[inner]).any():
                return "a child lies outside its tree or before its parent"
        parents = np.bincount(np.concatenate([self.left[inner], self.right[inner]]), minlength=n)
        if (parents != ~np.isin(np.arange(n), self.roots)).any():
            return "expected one parent for every node but the roots"
        if np.bincount(self._tree_of[self.feature < 0]).max() > MOST_LEAVES:
            return f"a tree has more than {MOST_LEAVES} leaves"
        is_category = np.asarray(self.known_categories.any(axis=1))[self.feature[inner]]
        sets = self.categories[inner]
        if (is_category != (sets >= 0)).any() or (sets >= len(self.left_categories)).any():
            return "a node asks for a category of a number, or the other way round"
        if np.isnan(self.threshold[inner[~is_category]]).any():
            return "expected thresholds that are numbers"
        return None


def first_trees(trees: BoostedTrees) -> int:
    """How many trees the first boosting steps made."""
    n_outputs = trees.baseline.size
    return int(_FIRST_SHARE * trees.roots.size / n_outputs) * n_outputs

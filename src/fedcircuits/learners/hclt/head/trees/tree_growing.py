"""Growing regression trees on binned columns: histograms of gradients, best split first.

The usual algorithm of histogram boosting: values are cut into at most 255 bins a column once, a
node's gradients and hessians are added up by bin, and the leaf whose split gains most is split
next. The sums of the larger child are those of the parent less those of the smaller one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedcircuits.arrays import BoolArray, FloatArray, IntArray
from fedcircuits.learners.hclt.features import Values
from fedcircuits.native import Kernels, kernels

MISSING_BIN, BINS = 255, 256
MOST_LEAVES = 64
LEAST_HESSIAN = 1e-3
# Gains closer than this are equal but for rounding: the first one stays.
BEYOND = 1 + 1e-9
# Support a category needs to be told apart, in rows.
LEAST_SUPPORT = 10.0
# Rows that thresholds are taken from.
_MOST_BINNING_ROWS = 200_000
# Histograms kept for subtraction, at most; beyond it both children are added up.
_MOST_KEPT_BYTES = 2**28

Bins = NDArray[np.uint8]


@dataclass(frozen=True)
class Binning:
    """How values become bins.

    Attributes:
        cuts: of every column, thresholds of numbers (values up to a threshold lie below it) or the
            codes of its categories.
        is_category: (D,) columns of categories.
    """

    cuts: list[FloatArray]
    is_category: BoolArray

    @staticmethod
    def of(values: Values, is_category: BoolArray, rng: np.random.Generator) -> Binning:
        """Bins of equal weight from values (n, D), NaN where missing."""
        if len(values) > _MOST_BINNING_ROWS:
            values = values[rng.choice(len(values), _MOST_BINNING_ROWS, replace=False)]
        cuts = []
        for at, category in enumerate(is_category):
            column = values[:, at]
            seen = np.sort(column[~np.isnan(column)])
            found = seen[np.append(True, seen[1:] != seen[:-1])] if seen.size else seen
            if not category and found.size > MISSING_BIN:
                # The value at the end of each of 255 equal parts, or the mean of two at a border.
                share = np.arange(1, MISSING_BIN) * (seen.size / MISSING_BIN)
                low = np.ceil(share).astype(np.int64) - 1
                high = np.minimum(np.floor(share).astype(np.int64), seen.size - 1)
                found = np.unique(0.5 * seen[low] + 0.5 * seen[high])
            elif not category:
                found = 0.5 * found[1:] + 0.5 * found[:-1]
            cuts.append(found)
        return Binning(cuts, is_category)

    def bins(self, values: Values) -> Bins:
        """(D, n) bins of values (n, D); an unseen category counts as missing."""
        answer = np.empty((values.shape[1], len(values)), dtype=np.uint8)
        for at, cuts in enumerate(self.cuts):
            column = values[:, at]
            found = np.searchsorted(cuts, column)
            unknown = np.isnan(column)
            if self.is_category[at]:
                unknown |= cuts[np.minimum(found, cuts.size - 1)] != column if cuts.size else True
            answer[at] = np.where(unknown, MISSING_BIN, found)
        return answer

    @property
    def n_bins(self) -> IntArray:
        """(D,) bins that are not "missing"."""
        return np.array(
            [c.size + (not s) for c, s in zip(self.cuts, self.is_category, strict=True)],
            dtype=np.int64,
        )


@dataclass(frozen=True)
class Limits:
    """When a leaf is not split further.

    Attributes:
        n_leaves: most leaves, up to 64.
        min_rows: least rows behind a leaf.
        ridge: L2 penalty on the leaves' values.
        n_columns: columns a node looks at.
        at_random: whether numbers are split at one place drawn at random instead of the best.
    """

    n_leaves: int
    min_rows: int
    ridge: float
    n_columns: int
    at_random: bool = False


@dataclass(frozen=True)
class Grown:
    """One grown regression tree as arrays.

    Attributes:
        nodes: (N, 5) column or -1 in a leaf, last bin that goes left or -1 for categories, left and
            right child, whether missing goes left.
        sets: (N, 4) categories that go left, as bits.
        totals: (N, 2) sums of gradients and hessians.
    """

    nodes: IntArray
    sets: NDArray[np.uint64]
    totals: FloatArray

    def find_leaves(self, bins: Bins, rows: NDArray[np.int32], leaf_of: NDArray[np.int32]) -> None:
        """Write the node that each of some binned rows (D, n) ends in into `leaf_of` (n,)."""
        native = kernels()
        if native is not None:
            n, m = bins.shape[1], rows.size
            native.call("find_leaves", n, m, rows, bins, self.nodes, self.sets, leaf_of)
            return
        inside = bools(self.sets)  # (N, BINS)
        answer = np.zeros(rows.size, dtype=np.int32)
        while True:
            node = self.nodes[answer]
            moving = node[:, 0] >= 0
            if not moving.any():
                leaf_of[rows] = answer
                return
            b = bins[np.maximum(node[:, 0], 0), rows]
            left = np.where(node[:, 1] < 0, inside[answer, b], b <= node[:, 1])
            left = np.where(b == MISSING_BIN, node[:, 4] > 0, left)
            answer = np.where(moving, np.where(left, node[:, 2], node[:, 3]), answer)
            answer = answer.astype(np.int32)


class TreeGrower:
    """Grows trees on the same binned rows."""

    def __init__(self, bins: Bins, binning: Binning, limits: Limits) -> None:
        """Take binned rows (D, n)."""
        self.bins, self.limits = np.ascontiguousarray(bins), limits
        self.n_bins, self.is_category = binning.n_bins, binning.is_category
        self.has_missing = np.asarray((bins == MISSING_BIN).any(axis=1))
        assert 2 <= limits.n_leaves <= MOST_LEAVES
        d, n = self.bins.shape
        self._size = 2 * limits.n_leaves
        self._places: FloatArray | None = None  # (2 leaves, D) where a node splits, of one tree
        if kernels() is None:
            return
        # What compiled loops take. A column has as many sums as bins; "missing" is bin 255.
        widths = np.where(self.has_missing, BINS, self.n_bins)
        self.starts = np.append(0, np.cumsum(widths)).astype(np.int64)
        width = int(self.starts[-1])
        kept = limits.n_leaves if limits.n_leaves * width * 32 <= _MOST_KEPT_BYTES else 0
        self.kinds = self.is_category.astype(np.int64) + 2 * self.has_missing
        self.shape = n, d, limits.n_leaves, limits.min_rows, limits.n_columns, kept
        self.pool = np.empty((max(kept, 1), width, 4))
        self.work = np.empty(n, dtype=np.int32), np.empty((n, 4))
        self.by_row = np.ascontiguousarray(self.bins.T)  # (n, D)

    def grow(
        self,
        gradient: FloatArray,
        hessian: FloatArray,
        rng: np.random.Generator,
        rows: NDArray[np.int32] | None = None,
    ) -> tuple[Grown, NDArray[np.int32]]:
        """A tree for gradients and hessians (n,), and (n,) the node each row ends in.

        Args:
            gradient: (n,) slopes of the loss.
            hessian: (n,) its curvatures.
            rng: draws columns, and where to split at random.
            rows: the rows that count, rising; all if not given.
        """
        d, size = len(self.bins), self._size
        sequence = np.tile(np.arange(d, dtype=np.int32), (size, 1))
        if self.limits.n_columns < d:
            sequence = rng.permuted(sequence, axis=1)
        self._places = rng.random((size, d)) if self.limits.at_random else None
        counted = np.arange(gradient.size, dtype=np.int32) if rows is None else rows
        nodes, sets = np.full((size, 5), -1, dtype=np.int64), np.zeros((size, 4), dtype=np.uint64)
        tree = Grown(nodes, sets, np.zeros((size, 2)))
        native = kernels()
        grow = self._grow if native is None else self._grow_compiled
        leaf_of, count = grow(tree, gradient, hessian, sequence, counted)
        grown = Grown(nodes[:count], sets[:count], tree.totals[:count])
        if rows is not None:
            others = np.ones(gradient.size, dtype=bool)
            others[rows] = False
            grown.find_leaves(self.bins, np.flatnonzero(others).astype(np.int32), leaf_of)
        return grown, leaf_of

    def _grow_compiled(
        self,
        tree: Grown,
        gradient: FloatArray,
        hessian: FloatArray,
        sequence: NDArray[np.int32],
        counted: NDArray[np.int32],
    ) -> tuple[NDArray[np.int32], int]:
        native = kernels()
        assert isinstance(native, Kernels)
        spare, ordered = self.work
        rows = counted.copy()
        shape = np.array([*self.shape, rows.size], dtype=np.int64)
        leaf_of, count = np.empty(gradient.size, dtype=np.int32), np.zeros(1, dtype=np.int64)
        native.call(
            "grow_tree",
            *(shape, float(self.limits.ridge), LEAST_HESSIAN, self.bins, self.by_row),
            *(self.starts, self.n_bins, self.kinds, np.ascontiguousarray(gradient)),
            *(np.ascontiguousarray(hessian), np.ascontiguousarray(sequence), self._places),
            *(rows, spare, ordered, self.pool, leaf_of),
            *(tree.nodes, tree.sets, tree.totals, count),
        )
        return leaf_of, int(count[0])

    # --- the NumPy twin ---------------------------------------------------------------------------

    def _grow(
        self,
        tree: Grown,
        gradient: FloatArray,
        hessian: FloatArray,
        sequence: NDArray[np.int32],
        counted: NDArray[np.int32],
    ) -> tuple[NDArray[np.int32], int]:
        rows = counted.astype(np.int64)
        # One after another, as in C.
        whole = np.cumsum(gradient[rows])[-1], np.cumsum(hessian[rows])[-1]
        leaf_of = np.zeros(gradient.size, dtype=np.int32)
        tree.totals[0] = whole
        sums = self._sums(rows, gradient, hessian)
        leaves = [_Leaf(rows, 0, sums, *whole)]
        self._find_split(leaves[0], sequence)
        count = 1
        while len(leaves) < self.limits.n_leaves:
            at = _first_best(np.array([leaf.gain for leaf in leaves]))
            leaf = leaves[at]
            if leaf.gain <= 0:
                break
            left = self._goes_left(leaf)
            g, h = leaf.left_total
            pair = [(leaf.rows[left], g, h), (leaf.rows[~left], leaf.g - g, leaf.h - h)]
            is_set = leaf.inside is not None
            last = -1 if is_set else leaf.bin
            missing_left = int(leaf.missing_left)
            tree.nodes[leaf.node] = leaf.column, last, count, count + 1, missing_left
            if leaf.inside is not None:
                packed = np.packbits(leaf.inside, bitorder="little").view(np.uint64)
                tree.sets[leaf.node] = packed
            made = []
            for i, (rows, g, h) in enumerate(pair):
                tree.totals[count + i] = g, h
                leaf_of[rows] = count + i
                made.append(_Leaf(rows, count + i, leaf.sums, g, h))
            leaves[at] = made[0]
            leaves.append(made[1])
            count += 2
            if len(leaves) == self.limits.n_leaves:
                break
            small = 0 if made[0].rows.size < made[1].rows.size else 1
            made[small].sums = self._sums(made[small].rows, gradient, hessian)
            made[1 - small].sums = leaf.sums - made[small].sums
            for one in made:
                self._find_split(one, sequence)
        return leaf_of, count

    def _sums(self, rows: IntArray, gradient: FloatArray, hessian: FloatArray) -> FloatArray:
        """(D, BINS, 3) sums of gradients, hessians and rows by bin."""
        answer = np.empty((len(self.bins), BINS, 3))
        g, h = gradient[rows], hessian[rows]
        for at, column in enumerate(self.bins):
            mine = column[rows]
            answer[at, :, 0] = np.bincount(mine, g, BINS)
            answer[at, :, 1] = np.bincount(mine, h, BINS)
            answer[at, :, 2] = np.bincount(mine, minlength=BINS)
        return answer

    def _find_split(self, leaf: _Leaf, sequence: NDArray[np.int32]) -> None:
        leaf.gain = 0.0
        if leaf.rows.size < 2 * self.limits.min_rows or leaf.h < LEAST_HESSIAN:
            return
        for column in sequence[leaf.node, : self.limits.n_columns]:
            if self.is_category[column]:
                self._split_categories(leaf, int(column))
            else:
                self._split_numbers(leaf, int(column))

    def _gains(self, leaf: _Leaf, left: FloatArray) -> FloatArray:
        """(m,) gains of putting sums (m, 3) to the left; 0 where a side is too small."""
        g, h, rows = left.T
        other_g, other_h, other_rows = leaf.g - g, leaf.h - h, leaf.rows.size - rows
        ridge, least = self.limits.ridge, self.limits.min_rows
        small = (rows < least) | (other_rows < least)
        small |= (h < LEAST_HESSIAN) | (other_h < LEAST_HESSIAN)
        with np.errstate(divide="ignore", invalid="ignore"):
            gain = g * g / (h + ridge) + other_g * other_g / (other_h + ridge)
            gain = gain - leaf.g * leaf.g / (leaf.h + ridge)
        return np.where(small, 0.0, gain)

    def _split_numbers(self, leaf: _Leaf, column: int) -> None:
        sums, nb, missing = leaf.sums[column], self.n_bins[column], self.has_missing[column]
        tried = np.ones(nb, dtype=bool)
        if self._places is not None:
            there = np.flatnonzero(sums[:nb, 2] >= 0.5)  # rounding may leave traces of a row
            low, high = (there[0], there[-1]) if there.size else (nb - 1, nb - 1)
            tried[:-1] = False
            tried[low + int(self._places[leaf.node, column] * (high - low))] = True
        for with_missing in (0, 1) if missing else (0,):
            end = nb if missing and not with_missing else nb - 1
            if end <= 0:
                continue
            start = sums[MISSING_BIN] if with_missing else np.zeros(3)
            left = np.cumsum(np.concatenate([start[None], sums[:end]]), axis=0)[1:]
            gains = np.where(tried[:end], self._gains(leaf, left), 0.0)
            best = _first_best(gains)
            if gains[best] > leaf.gain * BEYOND:
                most_left = left[best, 2] > leaf.rows.size - left[best, 2]
                leaf.keep(gains[best], column, left[best])
                leaf.bin, leaf.inside = best, None
                leaf.missing_left = bool(with_missing) if missing else bool(most_left)

    def _split_categories(self, leaf: _Leaf, column: int) -> None:
        sums, missing = leaf.sums[column], self.has_missing[column]
        there = np.arange(BINS) < self.n_bins[column]
        there[MISSING_BIN] |= missing
        there &= sums[:, 1] * (leaf.rows.size / leaf.h if leaf.h > 0 else 0) >= LEAST_SUPPORT
        used = np.flatnonzero(there)
        level = sums[used, 0] / (sums[used, 1] + LEAST_SUPPORT)
        order = used[np.argsort(level, kind="stable")]
        if order.size < 2:
            return
        for tried in (order, order[::-1]):
            tried = tried[: (order.size + 1) // 2]
            left = np.cumsum(sums[tried], axis=0)
            gains = self._gains(leaf, left)
            best = _first_best(gains)
            if gains[best] > leaf.gain * BEYOND:
                leaf.keep(gains[best], column, left[best])
                leaf.bin, leaf.inside = -1, np.zeros(BINS, dtype=bool)
                leaf.inside[tried[: best + 1]] = True
                most_left = left[best, 2] > leaf.rows.size - left[best, 2]
                leaf.missing_left = bool(leaf.inside[MISSING_BIN] if missing else most_left)

    def _goes_left(self, leaf: _Leaf) -> BoolArray:
        b = self.bins[leaf.column, leaf.rows]
        if leaf.inside is not None:
            return np.asarray(leaf.inside[b])
        return np.where(b == MISSING_BIN, leaf.missing_left, b <= leaf.bin)


@dataclass
class _Leaf:
    """A leaf of a tree that grows, with its best split."""

    rows: IntArray
    node: int
    sums: FloatArray
    g: float
    h: float
    gain: float = 0.0
    column: int = -1
    bin: int = -1
    inside: BoolArray | None = None
    missing_left: bool = False
    left_total: tuple[float, float] = (0.0, 0.0)

    def keep(self, gain: float, column: int, left: FloatArray) -> None:
        self.gain, self.column = float(gain), column
        self.left_total = float(left[0]), float(left[1])


def _first_best(gains: FloatArray) -> int:
    """The first of the gains that no other exceeds by more than rounding."""
    return int((gains * BEYOND >= gains.max()).argmax())


def bools(sets: NDArray[np.uint64]) -> BoolArray:
    """(N, BINS) whether a bin is in each set; sets are (N, 4) words of 64 bits."""
    return np.unpackbits(sets.view(np.uint8), axis=1, bitorder="little").astype(bool)

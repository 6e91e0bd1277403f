"""Boosted trees over the columns of one client and codes that others' trees make of the row.

A sender's code of a row has a coarse score for every class but the last, and a leaf of one small
tree. Both are functions of the row, so that where all trees are in one place nothing needs to be
sent: the first trees make the codes, the second have columns and codes as inputs.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fedcircuits.arrays import FloatArray, IntArray
from fedcircuits.density.row_codes import levels
from fedcircuits.learners.hclt.head.trees.boosted_trees import BoostedTrees


@dataclass(frozen=True, eq=False)
class AcrossTrees:
    """Two layers of boosted trees, with the outputs of the second.

    Attributes:
        first: over the columns; for every sender the outputs that scores are made of, then a leaf.
        widths: (G,) of the levels of every sender's scores.
        second: over the columns, then for every sender its scores and its leaf.
    """

    first: BoostedTrees
    widths: FloatArray
    second: BoostedTrees

    @property
    def roots(self) -> IntArray:
        """(T,) one entry for every tree."""
        return np.concatenate([self.first.roots, self.second.roots])

    @property
    def n_leaves(self) -> int:
        """Leaves of all trees."""
        return self.first.n_leaves + self.second.n_leaves

    @property
    def n_numbers(self) -> int:
        """Number of free parameters."""
        return self.first.n_numbers + self.widths.size + self.second.n_numbers

    @property
    def n_columns(self) -> int:
        """Number of columns, codes not counted."""
        return len(self.first.known_categories)

    def outputs(self, values: FloatArray) -> FloatArray:
        """(n, K) outputs for rows (n, D), NaN where missing, categories by code."""
        outputs = self.first.outputs(values)
        return self.second.outputs(np.concatenate([values, self._codes(outputs)], axis=1))

    def column_bins(self, column: int, values: FloatArray) -> IntArray:
        """(n,) number of the interval or category of values of one column, for both layers."""
        ends = self._cells[column][0]
        if self._is_category(column):
            inside = (values >= 0) & (values < ends.size - 1)
            return np.where(inside, np.where(inside, values, 0.0), ends.size - 1).astype(np.int64)
        found = np.searchsorted(ends[:-2], values, side="left")
        return np.where(np.isnan(values), ends.size - 1, found)

    def outputs_of_bins(self, bins: NDArray[np.uint16]) -> FloatArray:
        """(n, K) outputs for rows (D, n) given by their intervals."""
        cells = self._cells
        first = np.stack([cells[j][1][row] for j, row in enumerate(bins)]).astype(np.uint16)
        codes = self._codes(self.first.outputs_of_bins(first))  # (n, E)
        second = np.empty((len(bins) + codes.shape[1], bins.shape[1]), dtype=np.uint16)
        for j, row in enumerate(bins):
            second[j] = cells[j][2][row]
        for e, column in enumerate(codes.T):
            second[len(bins) + e] = self.second.column_bins(len(bins) + e, column)
        return self.second.outputs_of_bins(second)

    def _codes(self, outputs: FloatArray) -> FloatArray:
        """(n, E) codes from the outputs of the first trees, sender by sender."""
        per = outputs.shape[1] // self.widths.size
        parts = []
        for g, width in enumerate(self.widths):
            mine = outputs[:, g * per : (g + 1) * per]
            parts += [levels(mine[:, :-1], float(width)), np.round(mine[:, -1:])]
        return np.concatenate(parts, axis=1)

    def _is_category(self, column: int) -> bool:
        return bool(
            self.first.known_categories[column].any() or self.second.known_categories[column].any()
        )

    @cached_property
    def _cells(self) -> list[tuple[FloatArray, IntArray, IntArray]]:
        """By column: a value of every common cell (NaN the last), and its bin in both layers."""
        answer = []
        for j in range(self.n_columns):
            if self._is_category(j):
                width = self.first.known_categories.shape[1]
                ends = np.append(np.arange(width, dtype=float), np.nan)
            else:
                cuts = np.union1d(self.first.cuts[j], self.second.cuts[j])
                ends = np.concatenate([cuts, [np.inf, np.nan]])
            bins = [layer.column_bins(j, ends) for layer in (self.first, self.second)]
            answer.append((ends, bins[0], bins[1]))
        return answer

"""Cells of coded rows as numbers of states over all columns: what a tilt adds up for a row."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy import sparse

from fedcircuits.arrays import FloatArray, IntArray, IntegerArray
from fedcircuits.learners.hclt.tree.chow_liu import one_hot
from fedcircuits.learners.hclt.tree.tree_em import state_counts


@dataclass(frozen=True, eq=False)
class Cells:
    """The cells of coded rows; W states of all columns together.

    Attributes:
        codes: (n, D) states, -1 where missing.
        cards: number of states of each column.
    """

    codes: IntegerArray
    cards: tuple[int, ...]

    @staticmethod
    def of(codes: IntegerArray, cards: tuple[int, ...]) -> Cells:
        """Cells of codes of any integer type."""
        dtype = codes.dtype if codes.dtype in (np.int8, np.int16) else np.int32
        return Cells(np.ascontiguousarray(codes, dtype=dtype), cards)

    def totals(self, weights: FloatArray) -> FloatArray:
        """(W,) or (W, Y) sums of weights (n,) or (n, Y) over the rows in every state."""
        if weights.ndim == 1:
            return np.concatenate(state_counts(self.codes, self.cards, weights))
        return np.stack([self.totals(own) for own in weights.T], axis=1)

    @cached_property
    def indicator(self) -> sparse.csr_matrix:
        """(n, W) one-hot cells, for the NumPy twins of compiled loops."""
        return one_hot(self.codes, self.cards)

    @cached_property
    def layout(self) -> IntArray:
        """Bytes of a code, number of columns, first state of every column: what C is told."""
        first = np.cumsum(self.cards) - self.cards
        return np.array([self.codes.itemsize, len(self.cards), *first], dtype=np.int64)


@dataclass(frozen=True, eq=False)
class MeanCells:
    """One row a class that stands for the mean of its rows.

    Attributes:
        means: (Y, W) share of the class's rows in every state.
    """

    means: FloatArray

    def totals(self, weights: FloatArray) -> FloatArray:
        """(W,) or (W, Y) sums of weights (Y,) or (Y, Y) over the classes."""
        return np.asarray(sparse.csr_matrix(self.means).T @ weights)

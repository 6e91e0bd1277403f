"""Factors of all cells of a latent tree's columns in one array (`Tables`), as passes read them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from fedcircuits.arrays import IntArray
from fedcircuits.learners.hclt.tree.latent_tree import LatentTree

AnyFloat = npt.NDArray[np.floating]


@dataclass(frozen=True)
class Tables:
    """Factors of the columns' cells, all columns in one array.

    Attributes:
        values: (R, H) factors given the state of the column's latent, contiguous.
        starts: (D,) first row of every column.
        cards: (D,) number of states; the row after them is that of a missing cell.
    """

    values: AnyFloat
    starts: IntArray
    cards: IntArray

    @staticmethod
    def of(tree: LatentTree, dtype: np.dtype[Any]) -> Tables:
        """Emission tables of a tree; a missing cell's factor is one, which marginalises it."""
        starts, cards = starts_with_missing(tree.cards)
        values = np.empty((int(starts[-1] + cards[-1]) + 1, tree.n_states), dtype=dtype)
        for start, card, table in zip(starts, cards, tree.emissions, strict=True):
            values[start : start + card] = table.T
        values[starts + cards] = 1
        return Tables(values, starts, cards)

    def rows_of(self, column: int, codes: npt.NDArray[np.int32]) -> AnyFloat:
        """(U, H) factors of a column's codes, -1 where missing; a copy."""
        start, card = int(self.starts[column]), int(self.cards[column])
        return self.values[start : start + card + 1].take(codes, axis=0, mode="wrap")


@lru_cache(maxsize=64)
def starts_with_missing(cards: tuple[int, ...]) -> tuple[IntArray, IntArray]:
    """(D,) first rows of columns that have one row more than states, and (D,) their states."""
    sizes = np.array(cards, dtype=np.int64)
    return np.cumsum(sizes + 1) - (sizes + 1), sizes

"""Columns and label of coded rows as the fits take them, and batches of further rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from fedcircuits.arrays import FloatArray, IntArray, IntegerArray
from fedcircuits.errors import LearningError
from fedcircuits.learners.hclt.features import Features
from fedcircuits.learners.hclt.tree.sizes import states_for_classes
from fedcircuits.learners.prepare import Coded, coded_batches, label_cuts
from fedcircuits.schema.reading.batches import RowBatches

# Cells of the rows in memory, where the number of rows is not given.
MEMORY_CELLS = 2**24
# Codes (n, D) and weights (n,) of all rows, batch by batch, as often as it is called.
CodedBatches = Callable[[], Iterator[tuple[IntegerArray, FloatArray]]]


@dataclass(frozen=True)
class Columns:
    """Codes of the columns and the label that a latent tree is fitted to.

    Attributes:
        at: places of its columns in the schema.
        codes: (n, D) their states, in the smallest type that holds those of all columns.
        labels: (n,) class of each row, None where there are none to tell apart.
        present: codes of the label that occur; code 0 alone without a label.
        n_codes: codes of the label; 1 without one.
        cuts: ends between the states of a numeric label.
        targets: (n,) its values.
    """

    at: list[int]
    codes: IntegerArray
    labels: IntArray | None
    present: IntArray
    n_codes: int
    cuts: FloatArray | None
    targets: FloatArray | None


@dataclass(frozen=True)
class Prepared:
    """A table as a fit takes it: coded columns, values for boosted trees, weights of rows.

    Attributes:
        coded: what is known of its columns, without the rows.
        split: columns of the tree, and the label.
        values: of the columns as trees of a head take them, where there may be one.
        weights: (n,) of the rows, None for ones.
        within: mean log-density of the values of a row given their states.
        start: when preparing began.
    """

    coded: Coded
    split: Columns
    values: Features | None
    weights: FloatArray | None
    within: float
    start: float


def split_columns(coded: Coded, label: str | None) -> Columns:
    """Set the label apart from the columns of the tree, if there is one."""
    schema = coded.table.schema
    at = [place for place, name in enumerate(schema.names) if name != label]
    codes = coded.codes[:, at].astype(_code_type([coded.cards[place] for place in at]))
    if label is None:
        return Columns(at, codes, None, np.zeros(1, dtype=np.int64), 1, None, None)
    place = schema.position(label)
    cuts = label_cuts(schema.variables[place])
    targets = None if cuts is None else coded.table.values[:, place]
    present, labels = np.unique(coded.codes[:, place], return_inverse=True)
    useful = labels if present.size > 1 else None  # one class: nothing to distinguish
    return Columns(at, codes, useful, present.astype(np.int64), coded.cards[place], cuts, targets)


def _code_type(cards: list[int]) -> type[np.signedinteger]:
    """The smallest type for the codes of all columns, -1 and one more than the highest."""
    fits = (kind for kind in (np.int8, np.int16) if max(cards, default=0) <= np.iinfo(kind).max)
    return next(fits, np.int32)


def label_is_a_column(coded: Coded, label: str | None) -> bool:
    """Whether a label has too many classes for a tree each (see `sizes.py`)."""
    if label is None:
        return False
    at = coded.table.schema.position(label)
    n_classes = np.unique(coded.codes[:, at]).size
    others = (*coded.cards[:at], *coded.cards[at + 1 :])
    return states_for_classes(n_classes, others) is None


def rows_that_fit(asked: int | None, n_columns: int) -> int:
    """Return how many rows may be in memory: as many as asked for, or as the cells allow."""
    if asked is None:
        return max(MEMORY_CELLS // n_columns, 1)
    if asked < 1:
        raise LearningError(f"rows_in_memory is at least 1, found {asked!r}")
    return asked


def batches_like(coded: Coded, label: str | None, at: list[int], rows: RowBatches) -> CodedBatches:
    """All rows, coded as some of them were; `at` are the places of the tree's columns."""

    def batches() -> Iterator[tuple[IntegerArray, FloatArray]]:
        for codes, weights in coded_batches(coded, label, rows):
            yield np.ascontiguousarray(codes[:, at]), weights

    return batches

"""A table as states: what the splits and the leaves of LearnSPN look at.

Every column is coded once on the grid of the schema (categories keep their codes). Dependence finer
than the grid cannot be modelled by leaves on the grid, so nothing is lost by testing on states, and
every feature of a column becomes a small table with one row a state.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fedcircuits.arrays import BoolArray, FloatArray, IntArray
from fedcircuits.errors import LearningError
from fedcircuits.schema import Schema, Table

States = NDArray[np.int32]
LARGE = 4_000_000  # cells


@dataclass(frozen=True, eq=False)
class Coded:
    """Columns of states, or a slice of them.

    Attributes:
        states: (d, n) state of every cell, -1 where not observed. Columns come first so that one
            column is contiguous.
        cards: (d,) number of states of each column.
        ordered: (d,) whether neighbouring states are neighbours on the axis of a number.
        has_missing: (d,) whether the last state is "observed to be missing".
        weights: (n,) how often each row counts.
    """

    states: States
    cards: IntArray
    ordered: BoolArray
    has_missing: BoolArray
    weights: FloatArray

    @staticmethod
    def of(table: Table, schema: Schema) -> Coded:
        """The rows of a table that say something, on the grids of `schema`.

        Rows of weight zero, and rows in which no cell is observed, are left out.

        Args:
            table: training rows.
            schema: the table's schema with a grid for every numeric variable.
        """
        weights = table.row_weights
        rows = np.flatnonzero((weights > 0) & table.observed.any(axis=1))
        if rows.size == 0:
            raise LearningError(
                f"cannot learn from {len(table)} row(s): none has an observed cell and weight > 0"
            )
        states = np.empty((len(schema), rows.size), dtype=np.int32)
        for at, variable in enumerate(schema):
            seen = table.observed[rows, at]
            if not seen.any():
                raise LearningError(f"variable {variable.name!r}: not one value is observed")
            x = table.values[rows, at]
            if variable.grid is None:
                states[at] = x.astype(np.int32)
            else:
                states[at] = variable.grid.encode(x)
            states[at, ~seen] = -1
        cards = [v.n_codes if v.grid is None else v.grid.n_states for v in schema]
        return Coded(
            states,
            np.array(cards, dtype=np.int64),
            np.array([v.grid is not None for v in schema]),
            np.array([v.missing_state for v in schema]),
            np.asarray(weights[rows], dtype=float),
        )

    @property
    def n_rows(self) -> int:
        """Number of rows, each counted once."""
        return int(self.states.shape[1])

    @property
    def n_columns(self) -> int:
        """Number of columns."""
        return int(self.states.shape[0])

    def take(self, columns: IntArray, rows: IntArray) -> Coded:
        """Return some columns and rows."""
        every = columns.size == self.n_columns and rows.size == self.n_rows
        return Coded(
            self.states if every else self.states[columns[:, None], rows[None, :]],
            self.cards[columns],
            self.ordered[columns],
            self.has_missing[columns],
            self.weights[rows],
        )

    def sample(self, limit: int, rng: np.random.Generator) -> Coded:
        """At most `limit` rows, chosen at random without replacement."""
        if self.n_rows <= limit:
            return self
        rows = np.sort(rng.choice(self.n_rows, size=limit, replace=False))
        return self.take(np.arange(self.n_columns), rows)

    @cached_property
    def offsets(self) -> IntArray:
        """(d + 1,) where the states of each column start when all are laid side by side."""
        return np.concatenate([[0], np.cumsum(self.cards)])

    @cached_property
    def complete(self) -> bool:
        """Whether every cell is observed."""
        return bool((self.states >= 0).all())

    @cached_property
    def is_binary(self) -> bool:
        """Whether every column has two states."""
        return bool((self.cards == 2).all())

    @cached_property
    def equal_weights(self) -> bool:
        """Whether every row counts the same."""
        return bool((self.weights == self.weights[0]).all())

    @cached_property
    def counts(self) -> FloatArray:
        """(W,) weighted count of every state, columns side by side."""
        width = int(self.offsets[-1])
        if self.is_binary and self.complete:
            ones = self.states @ self.weights  # (d,)
            return np.stack([self.weights.sum() - ones, ones], axis=1).reshape(-1)
        weights = None if self.equal_weights else self.weights
        if self.states.size > LARGE:  # column by column: no second copy of the slice
            counts = np.concatenate(
                [
                    np.bincount(column + 1, weights, minlength=card + 1)[1:]
                    for column, card in zip(self.states, self.cards, strict=True)
                ]
            )
        else:
            # Unobserved cells fall into one extra place at the end.
            place = np.where(self.states >= 0, self.states + self.offsets[:-1, None], width)
            tiled = None if weights is None else np.tile(weights, self.n_columns)
            counts = np.bincount(place.reshape(-1), tiled, minlength=width + 1)[:width]
        return np.asarray(counts * self.weights[0] if weights is None else counts, dtype=float)

    @cached_property
    def observed(self) -> FloatArray:
        """(d,) weight of the rows in which each column is observed."""
        return np.add.reduceat(self.counts, self.offsets[:-1])

    @cached_property
    def varies(self) -> BoolArray:
        """(d,) whether a column takes two states or more."""
        return np.add.reduceat((self.counts > 0).astype(np.int64), self.offsets[:-1]) > 1

    def column_counts(self, column: int) -> FloatArray:
        """(s,) weighted count of every state of one column."""
        return self.counts[self.offsets[column] : self.offsets[column + 1]]

    def additive_scores(self, tables: FloatArray) -> FloatArray:
        """(K, n) sum over the observed cells of a row of what K tables (K, W) say of their states.

        Looks states up column by column, so that memory is that of the answer.
        """
        answer = np.zeros((tables.shape[0], self.n_rows))
        nothing = np.zeros((tables.shape[0], 1))
        for at, column in enumerate(self.states):
            here = tables[:, self.offsets[at] : self.offsets[at + 1]]
            # State -1 (not observed) looks up the last entry.
            answer += np.take(np.concatenate([here, nothing], axis=1), column, axis=1, mode="wrap")
        return answer

"""Tables: encoded numbers, a mask of what is observed, and events about cells that are not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pandas as pd

from fedcircuits.arrays import BoolArray, FloatArray, IntArray
from fedcircuits.schema.events.region import Region

if TYPE_CHECKING:
    from fedcircuits.schema.schema import Schema
    from fedcircuits.schema.variable import Variable

Unknown = Literal["error", "missing"]


@dataclass(frozen=True, eq=False)
class Events:
    """Which cells of a table are known to lie in a set of values.

    Attributes:
        regions: the sets, each over the encoded values of the columns it is used in.
        which: (n, D) number of the set of each cell, -1 where there is none.
    """

    regions: tuple[Region, ...]
    which: IntArray

    def part(self, rows: Any, columns: Any = slice(None)) -> Events | None:
        """Some rows and columns; None where no event is left."""
        which = self.which[rows][:, columns]
        return Events(self.regions, which) if (which >= 0).any() else None


@dataclass(frozen=True, repr=False)
class Table:
    """Encoded rows: evidence for a query, or training data for a learner.

    Attributes:
        schema: D variables.
        values: (n, D) numbers as they are, categories as codes; 0 where not observed.
        observed: (n, D) which cells have a value.
        index: labels of the rows, kept in answers.
        weights: (n,) how often each row counts, None for once.
        events: sets of values that cells without a value are known to lie in, None for none. An
            event counts where a cell is not observed; elsewhere the value has the say.
    """

    schema: Schema
    values: FloatArray
    observed: BoolArray
    index: pd.Index[Any]
    weights: FloatArray | None = None
    events: Events | None = None

    def __len__(self) -> int:
        return int(self.values.shape[0])

    def __repr__(self) -> str:
        return f"Table({len(self)} rows of {len(self.schema)} variables)"

    @property
    def row_weights(self) -> FloatArray:
        """(n,) how often each row counts; ones where the table has no weights."""
        return np.ones(len(self)) if self.weights is None else self.weights

    def rows(self, which: slice | IntArray | BoolArray) -> Table:
        """Return some of the rows."""
        weights = None if self.weights is None else self.weights[which]
        return replace(
            self,
            values=self.values[which],
            observed=self.observed[which],
            index=self.index[which],
            weights=weights,
            events=None if self.events is None else self.events.part(which),
        )

    def columns(self, names: list[str]) -> Table:
        """Some of the columns, in the order given; the table itself where these are all of it."""
        if tuple(names) == self.schema.names:
            return self
        at = [self.schema.position(name) for name in names]
        return replace(
            self,
            schema=self.schema.select(names),
            values=self.values[:, at],
            observed=self.observed[:, at],
            events=None if self.events is None else self.events.part(slice(None), at),
        )

    def with_column(self, variable: Variable, values: FloatArray, observed: BoolArray) -> Table:
        """The table with one more column, of values (n,) where they are observed (n,)."""
        return replace(
            self,
            schema=type(self.schema)((*self.schema.variables, variable)),
            values=np.column_stack([self.values, values]),
            observed=np.column_stack([self.observed, observed]),
        )

    # --- events -----------------------------------------------------------------------------------

    @property
    def known(self) -> BoolArray:
        """(n, D) cells of which something is known: a value or an event."""
        return self.observed if self.events is None else self.observed | (self.events.which >= 0)

    def regions_at(self, column: int) -> list[tuple[Region, IntArray]]:
        """The events of one column, each with the numbers of its rows."""
        if self.events is None:
            return []
        which = np.where(self.observed[:, column], -1, self.events.which[:, column])
        numbers = np.unique(which[which >= 0])
        return [(self.events.regions[at], np.flatnonzero(which == at)) for at in numbers]

    def hide(self, column: int) -> Table:
        """The table without anything known of one column."""
        observed, events = self.observed.copy(), self.events
        observed[:, column] = False
        if events is not None:
            which = events.which.copy()
            which[:, column] = -1
            events = Events(events.regions, which)
        return replace(self, observed=observed, events=events)

    def completed(self, values: FloatArray) -> Table:
        """The table with a value in every cell."""
        known = np.ones(values.shape, dtype=bool)
        return replace(self, values=values, observed=known, events=None)

    def meeting(self, column: int, regions: list[Region], which: IntArray | None = None) -> Table:
        """The table with an event more about one column, met with what is known of the cells.

        A value outside the event leaves an empty set: the row has probability zero.

        Args:
            column: the column.
            regions: the events.
            which: (n,) the event of each row, -1 for none; None for the first in all rows.
        """
        rows = np.zeros(len(self), dtype=np.int64) if which is None else which
        events = self.events or Events((), np.full(self.values.shape, -1, dtype=np.int64))
        listed, place, observed = list(events.regions), events.which.copy(), self.observed.copy()
        before = np.where(observed[:, column], -2, place[:, column])  # -2 a value, -1 nothing
        pairs = np.unique(np.stack([rows, before])[:, rows >= 0], axis=1)
        for at, old in pairs.T:
            region, cells = regions[at], np.flatnonzero((rows == at) & (before == old))
            if old == -2:
                cells = cells[~region.contains(self.values[cells, column])]
                observed[cells, column] = False
                met = region.nothing()
            else:
                met = region if old == -1 else region.meet(listed[old])
            place[cells, column] = len(listed)
            listed.append(met)
        return replace(self, observed=observed, events=Events(tuple(listed), place))

    def chunks(self, size: int) -> Iterator[tuple[slice, Table]]:
        """Slices of at most `size` rows, so that memory does not grow with the table."""
        if 0 < len(self) <= size:
            yield slice(0, len(self)), self
            return
        for start in range(0, len(self), size):
            part = slice(start, start + size)
            yield part, self.rows(part)

    @staticmethod
    def empty(schema: Schema, n: int) -> Table:
        """n rows in which nothing is observed."""
        shape = (n, len(schema))
        return Table(schema, np.zeros(shape), np.zeros(shape, dtype=bool), pd.RangeIndex(n))

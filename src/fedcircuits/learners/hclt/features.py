"""Values of a table as boosted trees take them: NaN where missing, categories by code."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from fedcircuits.arrays import BoolArray, FloatArray, IntArray
from fedcircuits.schema import Table, Variable

# Types that a column may be kept in, where they hold every value of it exactly.
_SMALLER = (np.float16, np.float32)


@dataclass(frozen=True, eq=False)
class Features:
    """Rows (n, D) that are read like an array, by column or by rows, and take less memory.

    Attributes:
        columns: D arrays (N,) in the smallest float type that holds their values exactly; shared by
            all selections of rows.
        rows: (n,) numbers of the rows, None for all.
    """

    columns: tuple[NDArray[np.floating], ...]
    rows: IntArray | None = None

    @staticmethod
    def of(table: Table, columns: list[int]) -> Features:
        """Some columns of all rows of a table."""
        return Features(tuple(_packed(_column(table, at)) for at in columns))

    def __len__(self) -> int:
        return self.columns[0].size if self.rows is None else self.rows.size

    @property
    def shape(self) -> tuple[int, int]:
        """Number of rows and number of columns."""
        return len(self), len(self.columns)

    @overload
    def __getitem__(self, key: tuple[slice, int]) -> FloatArray: ...

    @overload
    def __getitem__(self, key: IntArray | BoolArray) -> Features: ...

    def __getitem__(self, key: Any) -> FloatArray | Features:
        if isinstance(key, tuple):  # [:, column]
            column = self.columns[key[1]]
            return (column if self.rows is None else column[self.rows]).astype(np.float64)
        numbers = np.flatnonzero(key) if key.dtype == np.bool_ else key
        return replace(self, rows=numbers if self.rows is None else self.rows[numbers])

    def joined(self, other: Features) -> Features:
        """Return the rows of this selection and then those of another one of the same columns."""
        every = np.arange(self.columns[0].size)
        parts = [every if part.rows is None else part.rows for part in (self, other)]
        return replace(self, rows=np.concatenate(parts))


Values = FloatArray | Features


def joined(one: Values, other: Values) -> Values:
    """Return the rows of the first features and then those of the second."""
    if isinstance(one, Features) and isinstance(other, Features):
        return one.joined(other)
    return np.concatenate([one, other])


def as_features(table: Table, columns: list[int]) -> FloatArray:
    """(n, D) values of some columns as trees take them: NaN where missing."""
    values = np.empty((len(table), len(columns)))
    for j, at in enumerate(columns):
        values[:, j] = _column(table, at)
    return values


def feature(variable: Variable, values: FloatArray) -> FloatArray:
    """Encoded values with NaN for "observed to be missing"."""
    if not variable.is_coded:
        return np.where(np.isfinite(values), values, np.nan)
    return np.where(values < len(variable.categories), values, np.nan)


def _column(table: Table, at: int) -> FloatArray:
    found = feature(table.schema.variables[at], table.values[:, at])
    return np.where(table.observed[:, at], found, np.nan)


def _packed(values: FloatArray) -> NDArray[np.floating]:
    """The values (n,) in the smallest type that holds them exactly."""
    for dtype in _SMALLER:
        with np.errstate(over="ignore"):
            small: NDArray[np.floating] = values.astype(dtype)
        if np.array_equal(small, values, equal_nan=True):
            return small
    return values

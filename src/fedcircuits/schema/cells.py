"""One column between original and encoded values: numbers as they are, categories as codes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from fedcircuits.arrays import BoolArray, FloatArray, IntArray
from fedcircuits.errors import DomainError, SchemaError, UnknownCategoryError, warn
from fedcircuits.schema.numbers import coerced
from fedcircuits.schema.table import Unknown
from fedcircuits.schema.times import from_numbers, to_numbers
from fedcircuits.schema.variable import Variable, canonical_category

if TYPE_CHECKING:
    from fedcircuits.schema.schema import Schema


class CellError(Exception):
    """Bad cells of one column; `encode` turns it into an error that names column and rows."""

    def __init__(self, kind: type[SchemaError], rows: IntArray, expected: str) -> None:
        super().__init__(expected)
        self.kind = kind
        self.rows = rows
        self.expected = expected


# What a caller of a query can do about an unseen category.
UNKNOWN_HINT = " (or ask with unknown='missing')"


def encode_categories(
    variable: Variable, cells: pd.Series[Any], unknown: Unknown
) -> tuple[FloatArray, BoolArray]:
    numbers = variable.numbers
    if numbers is not None and cells.dtype.kind in "iufb":
        raw = cells.to_numpy(dtype=float)
        order = np.argsort(numbers)
        slot = np.minimum(np.searchsorted(numbers[order], raw), numbers.size - 1)
        found = numbers[order][slot] == raw
        codes = order[slot].astype(float)
    else:
        try:
            uniques, inverse = _factorise(cells)
        except TypeError:
            rows = np.array([i for i, cell in enumerate(cells) if not _hashable(cell)])
            raise CellError(SchemaError, rows, _expected_categories(variable)) from None
        if numbers is not None:
            uniques = [_number_if_digits(u) for u in uniques]
        code_of_unique = np.array([_code(variable, u) for u in uniques], dtype=float)
        codes = code_of_unique[inverse]
        found = codes >= 0
    if found.all():
        return codes, found
    if numbers is not None and variable.kind == "binary" and not variable.closed:
        return _nearest_category(variable, cells, codes, found)
    if unknown == "missing":
        return codes, found
    raise CellError(UnknownCategoryError, np.flatnonzero(~found), _expected_categories(variable))


def encode_values(variable: Variable, values: Sequence[Any], unknown: Unknown) -> list[float]:
    """Single values in encoded form; NaN for a category that the variable does not have.

    A number outside the domain is no error here: an event may speak of any number.
    """
    if not variable.is_coded:
        return [float(x) for x in _to_numbers(variable, pd.Series(list(values), dtype=object))]
    if not values:
        return []
    cells = pd.Series(list(values)).infer_objects()
    codes, found = encode_categories(replace(variable, closed=True), cells, unknown)
    return [float(x) for x in np.where(found, codes, np.nan)]


def _factorise(cells: pd.Series[Any]) -> tuple[list[Any], IntArray]:
    """Distinct cells in canonical form, and which of them each cell is.

    Raises:
        TypeError: where a cell is a list or another thing that cannot be compared by hash.
    """
    if len(cells) == 1:  # one row: pandas' machinery costs more than the work
        return [canonical_category(cells.iloc[0])], np.zeros(1, dtype=np.int64)
    inverse, uniques = pd.factorize(cells)
    return [canonical_category(u) for u in uniques], np.asarray(inverse, dtype=np.int64)


def _hashable(cell: object) -> bool:
    try:
        hash(cell)
    except TypeError:
        return False
    return True


def _code(variable: Variable, category: Any) -> int:
    """A category's code, -1 for none; digits without their zeros in front are the same name."""
    code = variable.code_of.get(category)
    if code is None and type(category) in (int, float):
        code = variable.code_of_digits.get(category)
    return -1 if code is None else code


def _number_if_digits(category: Any) -> Any:
    """Text as the number it spells: a "?" turns a whole column of numbers into text."""
    try:
        return float(category)
    except ValueError:
        return category


def _nearest_category(
    variable: Variable, cells: pd.Series[Any], codes: FloatArray, found: BoolArray
) -> tuple[FloatArray, BoolArray]:
    """An unseen number in a column guessed to be binary: each value's state is open outwards."""
    raw = _to_numbers(variable, cells)
    numbers = variable.numbers
    assert numbers is not None
    nearest = np.abs(raw[~found, None] - numbers[None, :]).argmin(axis=1)
    codes = codes.copy()
    codes[~found] = nearest
    warn(
        f"variable {variable.name!r}: took {int((~found).sum())} number(s) other than "
        f"{variable.categories[0]!r} and {variable.categories[1]!r} for the nearer of the two; "
        "declare kind or domain if that is wrong"
    )
    return codes, np.ones_like(found)


def _expected_categories(variable: Variable) -> str:
    shown = ", ".join(map(repr, variable.categories[:8]))
    more = f", ... ({len(variable.categories)} in all)" if len(variable.categories) > 8 else ""
    return f"one of {shown}{more}{UNKNOWN_HINT}"


_TIMES = {
    "date": "date (2026-11-17, 17.11.2026 or Nov 17, 2026)",
    "datetime": "date with a time of day (2026-11-17 14:05)",
    "time": "time of day (14:05)",
    "duration": "duration (26:30:00)",
}


def _to_numbers(variable: Variable, cells: pd.Series[Any]) -> FloatArray:
    if variable.time is not None:
        times = to_numbers(cells, variable.time)
        _refuse(np.isnan(times), SchemaError, f"a {_TIMES[variable.time.partition(' ')[0]]}")
        return times
    if cells.dtype.kind in "iufb":
        return cells.to_numpy(dtype=float)
    if cells.dtype.kind in "mMc":  # pandas would make nanoseconds or real parts of them
        raise CellError(SchemaError, np.arange(len(cells)), f"a number ({variable.kind})")
    # As objects: categories would otherwise be coerced by their codes' dtype.
    raw = coerced(cells.astype(object)).to_numpy(dtype=float, na_value=np.nan)
    bad = np.isnan(raw)
    if bad.any():
        raise CellError(SchemaError, np.flatnonzero(bad), f"a number ({variable.kind})")
    return raw


def encode_numbers(
    variable: Variable, cells: pd.Series[Any], unknown: Unknown
) -> tuple[FloatArray, BoolArray]:
    del unknown  # an unseen number is never unknown
    raw = _to_numbers(variable, cells)
    _refuse(~np.isfinite(raw), DomainError, "a finite number")
    if variable.closed and variable.domain is not None:
        low, high = variable.domain
        _refuse(
            (raw < low) | (raw > high), DomainError, f"a number in the domain [{low:g}, {high:g}]"
        )
    if variable.kind == "count":
        whole = np.round(raw)
        if (whole != raw).any():
            _refuse((whole != raw) & variable.declared, DomainError, "a whole number (count)")
            warn(
                f"variable {variable.name!r}: rounded {int((whole != raw).sum())} number(s) to "
                "whole ones, as all training values were; declare it continuous if that is wrong"
            )
            raw = whole
    return raw, np.ones(raw.size, dtype=bool)


def _refuse(bad: BoolArray, kind: type[SchemaError], expected: str) -> None:
    if bad.any():
        raise CellError(kind, np.flatnonzero(bad), expected)


def decode(schema: Schema, values: FloatArray, index: pd.Index[Any]) -> pd.DataFrame:
    """Encoded values (n, D) as a DataFrame with the schema's names and original values."""
    columns = {
        variable.name: decoder(variable)(values[:, at]) for at, variable in enumerate(schema)
    }
    return pd.DataFrame(columns, index=index)


def decoder(variable: Variable) -> Callable[[FloatArray], Any]:
    """The function that turns encoded values of one variable back into original ones."""

    def categories(codes: FloatArray) -> Any:
        labels: list[Any] = [*variable.categories]
        gone = codes >= len(labels)
        if not gone.any():
            return pd.Series(labels).to_numpy()[codes.astype(np.int64)]
        lookup = np.array([*labels, None], dtype=object)
        return lookup[codes.astype(np.int64)]

    def levels(codes: FloatArray) -> Any:
        places = np.where(codes < len(variable.categories), codes, -1).astype(np.int64)
        kinds: Any = list(variable.categories)
        return pd.Categorical.from_codes(places, categories=kinds, ordered=variable.ordered)

    def numbers(raw: FloatArray) -> Any:
        gone = np.isinf(raw)
        if variable.time is not None:
            return from_numbers(raw, variable.time)
        if variable.kind == "count" and (np.abs(raw) < 2.0**63).all():
            return raw.astype(np.int64)
        return np.where(gone, np.nan, raw)

    if variable.is_coded:
        return categories if variable.ordered is None else levels
    return numbers

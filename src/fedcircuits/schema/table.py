"""Tables: numbers and a mask. The only place where NaN becomes a mask and strings become codes."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pandas as pd

from fedcircuits.arrays import BoolArray, FloatArray, IntArray
from fedcircuits.errors import (
    DomainError,
    FedcircuitsWarning,
    SchemaError,
    UnknownCategoryError,
)
from fedcircuits.schema.variable import MISSING, Variable, canonical_category, plain

if TYPE_CHECKING:
    from fedcircuits.schema.schema import Schema

Unknown = Literal["error", "missing"]


@dataclass(frozen=True)
class Table:
    """Encoded rows: evidence for a query, or training data for a learner.

    Attributes:
        schema: D variables.
        values: (n, D) numbers as they are, categories as codes; 0 where not observed.
        observed: (n, D) which cells have a value.
        index: labels of the rows, kept in answers.
        weights: (n,) how often each row counts, None for once.
    """

    schema: Schema
    values: FloatArray
    observed: BoolArray
    index: pd.Index[Any]
    weights: FloatArray | None = None

    def __len__(self) -> int:
        return int(self.values.shape[0])

    def rows(self, which: slice | IntArray | BoolArray) -> Table:
        """Some of the rows."""
        weights = None if self.weights is None else self.weights[which]
        return replace(
            self,
            values=self.values[which],
            observed=self.observed[which],
            index=self.index[which],
            weights=weights,
        )

    def columns(self, names: list[str]) -> Table:
        """Some of the columns, in the order given."""
        at = [self.schema.position(name) for name in names]
        return replace(
            self,
            schema=self.schema.select(names),
            values=self.values[:, at],
            observed=self.observed[:, at],
        )

    def chunks(self, size: int) -> Iterator[tuple[slice, Table]]:
        """Slices of at most `size` rows, so that memory does not grow with the table."""
        for start in range(0, len(self), size):
            part = slice(start, start + size)
            yield part, self.rows(part)

    @staticmethod
    def empty(schema: Schema, n: int) -> Table:
        """n rows in which nothing is observed."""
        shape = (n, len(schema))
        return Table(schema, np.zeros(shape), np.zeros(shape, dtype=bool), pd.RangeIndex(n))


class CellError(Exception):
    """Bad cells of one column; `encode` turns it into an error that names column and rows."""

    def __init__(self, kind: type[SchemaError], rows: IntArray, expected: str) -> None:
        super().__init__(expected)
        self.kind = kind
        self.rows = rows
        self.expected = expected


def encode(
    schema: Schema,
    frame: pd.DataFrame,
    *,
    unknown: Unknown = "error",
    missing_values: tuple[object, ...] = (),
    missing_as_state: bool = False,
    weights: FloatArray | None = None,
    without: str | None = None,
) -> Table:
    """A DataFrame as a table of `schema`.

    A column that is absent is unobserved, one that the schema does not know is ignored with a
    warning. All bad columns are reported together, each with its first few bad rows.

    Args:
        schema: the variables.
        frame: rows.
        unknown: what an unseen category is: an error, or a missing value.
        missing_values: spellings of a missing value besides those pandas knows.
        missing_as_state: whether a missing cell is *observed to be missing* (training) rather
            than unobserved (queries), for variables that have a state for it.
        weights: (n,) weights of the rows.
        without: a column that is not looked at, whatever it holds.
    """
    check_names(frame)
    n = len(frame)
    if n == 1 and not missing_values and not missing_as_state:
        row = _encode_plain_row(schema, frame, without)
        if row is not None:
            return Table(schema, *row, frame.index, weights)
    values = np.zeros((n, len(schema)))
    observed = np.zeros((n, len(schema)), dtype=bool)
    extra = [name for name in frame.columns if name not in schema]
    if extra:
        shown = ", ".join(map(repr, extra[:5])) + (", ..." if len(extra) > 5 else "")
        warnings.warn(
            f"ignored {len(extra)} column(s) that the model does not know: {shown}",
            FedcircuitsWarning,
            stacklevel=3,
        )
    faults: list[str] = []
    worst: type[SchemaError] | None = None
    for at, variable in enumerate(schema):
        if variable.name not in frame.columns or variable.name == without:
            continue
        try:
            values[:, at], observed[:, at] = _encode_column(
                variable, frame[variable.name], unknown, missing_values, missing_as_state
            )
        except CellError as error:
            worst = error.kind if worst in (None, error.kind) else SchemaError
            faults.append(_tell(variable, frame[variable.name], error))
    if worst is not None:
        raise worst("; ".join(faults))
    return Table(schema, values, observed, frame.index, weights)


def _encode_plain_row(
    schema: Schema, frame: pd.DataFrame, without: str | None
) -> tuple[FloatArray, BoolArray] | None:
    """One row without anything odd in it, cell by cell: pandas' columns cost more than the work.

    None where anything needs the full treatment (a stranger, a rounding, an error to be told).
    """
    values, observed = np.zeros((1, len(schema))), np.zeros((1, len(schema)), dtype=bool)
    for name, cell in zip(frame.columns.tolist(), frame.iloc[0].tolist(), strict=True):
        if name not in schema:
            return None
        if name == without:
            continue
        at = schema.position(name)
        variable = schema.variables[at]
        if isinstance(cell, np.generic) and cell.dtype.kind in "iufb":
            cell = cell.item()
        if cell is None or cell is pd.NA or cell is pd.NaT or cell != cell:
            continue
        if variable.is_coded:
            code = variable.code_of.get(cell) if isinstance(cell, (str, bool, int, float)) else None
            if code is None:
                return None
            values[0, at] = code
        else:
            if not isinstance(cell, (int, float)) or not np.isfinite(cell):
                return None
            if variable.closed or (variable.kind == "count" and cell != round(cell)):
                return None
            values[0, at] = cell
        observed[0, at] = True
    return values, observed


def check_names(frame: pd.DataFrame) -> None:
    """Refuse column names that are not strings, or that repeat."""
    names = frame.columns.tolist()
    odd = [name for name in names if not isinstance(name, str)]
    if odd:
        raise SchemaError(
            f"column names must be strings, found {odd[0]!r} ({type(odd[0]).__name__}); "
            "try frame.columns = frame.columns.astype(str)"
        )
    if len(set(names)) < len(names):
        twice = sorted({name for name in names if names.count(name) > 1})
        raise SchemaError(f"column name(s) {', '.join(map(repr, twice[:5]))} appear more than once")


def _tell(variable: Variable, column: pd.Series[Any], error: CellError) -> str:
    cells = [f"{plain(column.iloc[i])!r} in row {plain(column.index[i])!r}" for i in error.rows[:3]]
    more = f" and {len(error.rows) - 3} more" if len(error.rows) > 3 else ""
    return f"variable {variable.name!r}: expected {error.expected}; found {', '.join(cells)}{more}"


def _encode_column(
    variable: Variable,
    column: pd.Series[Any],
    unknown: Unknown,
    missing_values: tuple[object, ...],
    missing_as_state: bool,
) -> tuple[FloatArray, BoolArray]:
    """Values (n,) and mask (n,) of one column."""
    present = np.array(column.notna(), dtype=bool)
    if missing_values:
        present &= ~column.isin(list(missing_values)).to_numpy(dtype=bool)
    said_missing = np.zeros(len(column), dtype=bool)
    if column.dtype == object:
        said_missing = np.fromiter((cell is MISSING for cell in column), bool, len(column))
        if said_missing.any() and not variable.missing_state:
            rows = np.flatnonzero(said_missing)
            raise CellError(SchemaError, rows, "a value (the model has no state for MISSING)")
        present &= ~said_missing
    if missing_as_state and variable.missing_state:
        said_missing = ~present
    values = np.zeros(len(column))
    if present.any():
        cells = column if present.all() else column[present]
        encoder = _encode_categories if variable.is_coded else _encode_numbers
        try:
            values[present], known = encoder(variable, cells, unknown)
        except CellError as error:
            raise CellError(
                error.kind, np.flatnonzero(present)[error.rows], error.expected
            ) from None
        present[np.flatnonzero(present)[~known]] = False
    values[said_missing] = variable.missing_code
    return values, present | said_missing


def _encode_categories(
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
        code_of_unique = np.array([variable.code_of.get(u, -1) for u in uniques], dtype=float)
        codes = code_of_unique[inverse]
        found = codes >= 0
    if found.all():
        return codes, found
    if numbers is not None and variable.kind == "binary" and not variable.closed:
        return _nearest_category(variable, cells, codes, found)
    if unknown == "missing":
        return codes, found
    raise CellError(UnknownCategoryError, np.flatnonzero(~found), _expected_categories(variable))


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
    warnings.warn(
        f"variable {variable.name!r}: took {int((~found).sum())} number(s) other than "
        f"{variable.categories[0]!r} and {variable.categories[1]!r} for the nearer of the two; "
        "declare kind or domain if that is wrong",
        FedcircuitsWarning,
        stacklevel=6,
    )
    return codes, np.ones_like(found)


def _expected_categories(variable: Variable) -> str:
    shown = ", ".join(map(repr, variable.categories[:8]))
    more = f", ... ({len(variable.categories)} in all)" if len(variable.categories) > 8 else ""
    return f"one of {shown}{more} (or ask with unknown='missing')"


def _to_numbers(variable: Variable, cells: pd.Series[Any]) -> FloatArray:
    if cells.dtype.kind in "iufb":
        return cells.to_numpy(dtype=float)
    if cells.dtype.kind in "mMc":  # pandas would make nanoseconds or real parts of them
        raise CellError(SchemaError, np.arange(len(cells)), f"a number ({variable.kind})")
    # As objects: categories would otherwise be coerced by their codes' dtype.
    numbers = pd.to_numeric(cells.astype(object), errors="coerce")
    raw = numbers.to_numpy(dtype=float, na_value=np.nan)
    bad = np.isnan(raw)
    if bad.any():
        raise CellError(SchemaError, np.flatnonzero(bad), f"a number ({variable.kind})")
    return raw


def _encode_numbers(
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
            warnings.warn(
                f"variable {variable.name!r}: rounded {int((whole != raw).sum())} number(s) to "
                "whole ones, as all training values were; declare it continuous if that is wrong",
                FedcircuitsWarning,
                stacklevel=5,
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

    def numbers(raw: FloatArray) -> Any:
        gone = np.isinf(raw)
        if variable.kind == "count" and (np.abs(raw) < 2.0**63).all():
            return raw.astype(np.int64)
        return np.where(gone, np.nan, raw)

    return categories if variable.is_coded else numbers

"""Rows as a table: the only place where NaN becomes a mask and strings become codes."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from fedcircuits.arrays import BoolArray, FloatArray, IntArray
from fedcircuits.errors import SchemaError, warn
from fedcircuits.schema.cells import CellError, encode_categories, encode_numbers, encode_values
from fedcircuits.schema.events import Event, Region
from fedcircuits.schema.table import Events, Table, Unknown
from fedcircuits.schema.variable import MISSING, Variable, plain

if TYPE_CHECKING:
    from fedcircuits.schema.schema import Schema


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
    warning; rows without a single column that it knows are an error. All bad columns are reported
    together, each with its first few bad rows.

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
    names = check_names(frame)
    n = len(frame)
    if n == 1 and not missing_values and not missing_as_state:
        given = zip(names, frame.iloc[0].tolist(), strict=True)
        row = encode_plain_row(schema, given, without)
        if row is not None:
            return Table(schema, *row, frame.index, weights)
    values = np.zeros((n, len(schema)))
    observed = np.zeros((n, len(schema)), dtype=bool)
    _check_extra(schema, [name for name in frame.columns if name not in schema], frame)
    faults: list[str] = []
    worst: type[SchemaError] | None = None
    regions: list[Region] = []
    held: dict[int, IntArray] = {}  # by column: which event each row is in, -1 for none
    done: set[str] = set()
    if not missing_values:
        done = _encode_levels(schema, frame, values, observed, without)
    for at, variable in enumerate(schema):
        name = variable.name
        if name in done or name not in frame.columns or name == without:
            continue
        column = frame[variable.name]
        try:
            known = len(regions)
            cells, own = _take_events(variable, column, unknown, regions)
            if len(regions) > known:
                held[at] = own
            values[:, at], observed[:, at] = _encode_column(
                variable, cells, unknown, missing_values, missing_as_state
            )
        except CellError as error:
            worst = error.kind if worst in (None, error.kind) else SchemaError
            faults.append(_tell(variable, column, error))
    if worst is not None:
        raise worst("; ".join(faults))
    events = None
    if regions:
        which = np.full((n, len(schema)), -1, dtype=np.int64)
        for at, own in held.items():
            which[:, at] = own
        events = Events(tuple(regions), which)
    return Table(schema, values, observed, frame.index, weights, events=events)


def _encode_levels(
    schema: Schema,
    frame: pd.DataFrame,
    values: FloatArray,
    observed: BoolArray,
    without: str | None,
) -> set[str]:
    """Fill in all columns of pixels at once, and return their names.

    Thousands of them take a while one by one. Columns that hold anything but levels of their
    domain are left, for errors by row.
    """
    present = set(frame.columns) - {without}
    where = [
        at
        for at, v in enumerate(schema.variables)
        if v.kind == "count" and v.closed and not v.missing_state and v.time is None
        and v.name in present
    ]  # fmt: skip
    kinds = dict(zip(frame.columns, (getattr(d, "kind", "O") for d in frame.dtypes), strict=True))
    where = [at for at in where if kinds[schema.variables[at].name] in "iuf"]
    if not where or not len(frame):
        return set()
    names = [schema.variables[at].name for at in where]
    domains = [schema.variables[at].domain or (-np.inf, np.inf) for at in where]
    low, high = np.array(domains).T
    part = frame if names == list(frame.columns) else frame[names]
    if all(kinds[name] in "iu" for name in names):
        cells = part.to_numpy()  # (n, columns)
        right = (cells.min(axis=0) >= low) & (cells.max(axis=0) <= high)
        there = np.ones(cells.shape, dtype=bool)
    else:
        cells = part.to_numpy(dtype=float, na_value=np.nan)
        there = ~np.isnan(cells)
        cells = np.where(there, cells, 0.0)
        legal = (cells >= low) & (cells <= high) & (cells == np.floor(cells))
        right = (legal | ~there).all(axis=0)
    chosen = np.array(where)[right]
    if chosen.size == len(schema):  # all columns, in their order
        values[...], observed[...] = cells, there
    else:
        values[:, chosen], observed[:, chosen] = cells[:, right], there[:, right]
    return {name for name, good in zip(names, right, strict=True) if good}


def _check_extra(schema: Schema, extra: list[str], frame: pd.DataFrame) -> None:
    """Warn of columns that the model does not know; where it knows none, that is an error."""
    if not extra:
        return
    by_case = {name.casefold().strip(): name for name in schema.names}
    shown = []
    for name in extra[:5]:
        near = by_case.get(name.casefold().strip())
        shown.append(repr(name) if near is None else f"{name!r} (the model has {near!r})")
    listed = ", ".join(shown) + (", ..." if len(extra) > 5 else "")
    if len(extra) == len(frame.columns):
        known = ", ".join(map(repr, schema.names[:12])) + (", ..." if len(schema) > 12 else "")
        raise SchemaError(f"the model knows none of the columns {listed}; it has {known}")
    warn(f"ignored {len(extra)} column(s) that the model does not know: {listed}")


def _take_events(
    variable: Variable, column: pd.Series[Any], unknown: Unknown, regions: list[Region]
) -> tuple[pd.Series[Any], IntArray]:
    """The column without its events, and (n,) the number of each cell's region, -1 for none.

    Regions are added to the list; equal events of a column share one.
    """
    which = np.full(len(column), -1, dtype=np.int64)
    if column.dtype != object:
        return column, which
    numbers: dict[Event, int] = {}
    rows = [at for at, cell in enumerate(column) if isinstance(cell, Event)]
    for at in rows:
        event = column.iloc[at]
        try:
            if event not in numbers:
                regions.append(event.region(variable, partial(encode_values, unknown=unknown)))
                numbers[event] = len(regions) - 1
        except TypeError:
            raise CellError(SchemaError, np.array([at]), "values that can be compared") from None
        except CellError as error:
            raise CellError(error.kind, np.array([at]), error.expected) from None
        which[at] = numbers[event]
    if not rows:
        return column, which
    rest = column.copy()
    rest.iloc[rows] = None
    return rest.infer_objects(), which


def encode_plain_row(
    schema: Schema, cells: Iterable[tuple[object, Any]], without: str | None
) -> tuple[FloatArray, BoolArray] | None:
    """One row without anything odd in it, cell by cell: pandas' columns cost more than the work.

    None where anything needs the full treatment: an unknown column, an event, a rounding, an error.
    """
    values, observed = np.zeros((1, len(schema))), np.zeros((1, len(schema)), dtype=bool)
    for name, cell in cells:
        if not isinstance(name, str) or name not in schema:
            return None
        if name == without:
            continue
        at = schema.position(name)
        variable = schema.variables[at]
        if isinstance(cell, np.generic) and cell.dtype.kind in "iufb":
            cell = cell.item()
        if cell is None or cell is pd.NA or cell is pd.NaT:
            continue
        if not isinstance(cell, (str, bool, int, float)):
            return None
        if cell != cell:
            continue
        if variable.is_coded:
            code = variable.code_of.get(cell)
            if code is None:
                return None
            values[0, at] = code
        else:
            if isinstance(cell, str) or abs(cell) > sys.float_info.max:
                return None  # whole numbers beyond floats too
            if variable.closed or (variable.kind == "count" and cell != round(cell)):
                return None
            values[0, at] = cell
        observed[0, at] = True
    return values, observed


def check_names(frame: pd.DataFrame) -> list[str]:
    """Return the column names; refuse those that are not strings, or that repeat."""
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
    return names


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
        encoder = encode_categories if variable.is_coded else encode_numbers
        try:
            values[present], known = encoder(variable, cells, unknown)
        except CellError as error:
            raise CellError(
                error.kind, np.flatnonzero(present)[error.rows], error.expected
            ) from None
        present[np.flatnonzero(present)[~known]] = False
    values[said_missing] = variable.missing_code
    return values, present | said_missing

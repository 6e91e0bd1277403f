"""Guessing a schema from data, with every guess open to correction.

The rule: strings and pandas categoricals are categorical; truth values, and numbers that are only
0 and 1, are binary; other numbers that are whole throughout are counts, whatever their type; all
other numbers are continuous. Of numbers with few distinct values (at most 12, each twice on
average, or 48, each five times, or 256, each forty times) every value is an atom of the grid. Where
all values are written with a few decimals, the variable has that many.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from fedcircuits.errors import SchemaError, unknown_name, warn
from fedcircuits.schema.grids.decimals import decimals_of
from fedcircuits.schema.grids.sketch import MANY_VALUES
from fedcircuits.schema.numbers import coerced
from fedcircuits.schema.times import time_of, to_numbers
from fedcircuits.schema.variable import (
    KINDS,
    MISSING,
    Category,
    Kind,
    Variable,
    canonical_category,
    category_order,
    plain,
)

Domain = tuple[float, float] | Sequence[Category]
EXACT_WHOLE = 2.0**53


def infer_variables(
    frame: pd.DataFrame,
    kinds: Mapping[str, Kind],
    domains: Mapping[str, Domain],
    units: Mapping[str, str],
    missing_values: tuple[object, ...],
) -> list[Variable]:
    """One variable for each column, in the order of the columns."""
    for what, named in (("kinds", kinds), ("domains", domains), ("units", units)):
        if not isinstance(named, Mapping):
            raise SchemaError(f"{what} is a mapping {{COLUMN: ...}}, found {named!r}")
        strangers = sorted(set(named) - set(frame.columns))
        if strangers:
            unknown = unknown_name("column", strangers[0], map(str, frame.columns), "the table")
            raise SchemaError(f"{what}: {unknown}")
    for name, kind in kinds.items():
        if kind not in KINDS:
            raise SchemaError(f"kinds[{name!r}] is one of {', '.join(KINDS)}, found {kind!r}")
    return [
        _infer_one(
            name, known_cells(frame[name], missing_values), kinds.get(name), domains.get(name),
            units.get(name),
        )
        for name in frame.columns
    ]  # fmt: skip


def known_cells(column: pd.Series[Any], missing_values: tuple[object, ...]) -> pd.Series[Any]:
    """The cells of a column that hold a value; texts as numbers where all of them are digits."""
    present = column.notna()
    spelled = column.isin(list(missing_values)) if missing_values else ~present
    column = column[present & ~spelled]
    if (present & spelled).any():
        # A "?" among numbers makes the whole column text: what is left may be numbers after all.
        column = _digits_as_numbers(column)
    if column.dtype == object:
        column = column[[cell is not MISSING for cell in column]]
        column = column.infer_objects()
    return column


def _digits_as_numbers(column: pd.Series[Any]) -> pd.Series[Any]:
    """Text that is numbers throughout as numbers, anything else as it is."""
    if column.dtype.kind != "O" or not all(isinstance(cell, str) for cell in column):
        return column
    numbers = coerced(column)
    return column if numbers.isna().any() else numbers


def _missing_hint(cells: pd.Series[Any]) -> str:
    """A remark on the few texts of a column that holds numbers otherwise."""
    odd = cells[coerced(cells.astype(object)).isna()]
    if not 0 < len(odd) < len(cells) / 2:
        return ""
    shown = odd.iloc[0]
    return f"; it holds numbers but for {shown!r}: pass missing_values=[{shown!r}] if that is none"


def _infer_one(
    name: str,
    cells: pd.Series[Any],
    kind: Kind | None,
    domain: Domain | None,
    unit: str | None,
) -> Variable:
    declared = kind is not None
    time = time_of(cells) if kind not in ("categorical", "binary") else None
    if time is not None:
        cells = pd.Series(to_numbers(cells, time), index=cells.index)
        if kind is None and time == "date":
            kind = "count"  # whole days
    if cells.dtype.kind == "c":
        raise SchemaError(f"variable {name!r}: complex numbers are not supported")
    if len(cells) == 0 and (kind is None or domain is None):
        raise SchemaError(
            f"variable {name!r}: not one value is observed, so nothing can be guessed; drop the "
            "column, or declare both its kind and its domain"
        )
    numbers = _as_numbers(cells)
    kind = kind or _guess(cells, numbers)
    if kind in ("categorical", "binary"):
        categories = _categories(name, cells, kind, domain)
        if not declared and domain is None and len(categories) > max(MANY_VALUES, len(cells) / 2):
            warn(
                f"variable {name!r} has {len(categories)} categories in {len(cells)} rows; "
                f"drop it if it is an identifier, or declare its kind{_missing_hint(cells)}"
            )
        levels = cells.cat if isinstance(cells.dtype, pd.CategoricalDtype) else None
        return Variable(
            name, kind, categories, closed=domain is not None, declared=declared, unit=unit,
            ordered=None if levels is None else bool(levels.ordered),
        )  # fmt: skip
    if numbers is None:  # declared a number: then digits typed as text are numbers too
        found = coerced(cells.astype(object))
        numbers = None if found.isna().any() else found.to_numpy(dtype=float)
    if numbers is None:
        odd = next((c for c in cells if coerced(pd.Series([c], dtype=object)).isna().any()), None)
        raise SchemaError(f"variable {name!r}: declared {kind}, but found {plain(odd)!r}")
    if not np.isfinite(numbers).all():
        infinite = ~np.isfinite(numbers)
        first = plain(cells.index[int(np.argmax(infinite))])
        raise SchemaError(
            f"variable {name!r}: {int(infinite.sum())} infinite value(s), first in row {first!r}; "
            "make them missing or drop the rows"
        )
    if kind == "count" and (numbers != np.round(numbers)).any():
        odd = numbers[numbers != np.round(numbers)][0]
        raise SchemaError(f"variable {name!r}: a count takes whole numbers, found {odd}")
    if domain is None:
        interval = (float(numbers.min()), float(numbers.max()))
    else:
        interval = _interval(name, domain)
        outside = (numbers < interval[0]) | (numbers > interval[1])
        if outside.any():
            raise SchemaError(
                f"variable {name!r}: {int(outside.sum())} value(s) outside the declared domain "
                f"{interval}, first {plain(numbers[outside][0])!r}"
            )
    return Variable(
        name, kind, domain=interval, closed=domain is not None, declared=declared, unit=unit,
        time=time,
        decimals=decimals_of(numbers) if kind == "continuous" and time is None else None,
    )  # fmt: skip


def _as_numbers(cells: pd.Series[Any]) -> np.ndarray[Any, np.dtype[np.float64]] | None:
    """The cells as floats, None if they are not numbers."""
    if isinstance(cells.dtype, pd.CategoricalDtype):
        return None
    if cells.dtype.kind in "iufb":
        return cells.to_numpy(dtype=float)
    if cells.dtype == object or pd.api.types.is_string_dtype(cells.dtype):
        # Digits typed as text are names (postcodes), not quantities; numbers among objects are.
        if any(isinstance(c, str) for c in cells):
            return None
        numbers = coerced(cells)
        return None if numbers.isna().any() else numbers.to_numpy(dtype=float)
    return None


def _guess(cells: pd.Series[Any], numbers: np.ndarray[Any, Any] | None) -> Kind:
    if numbers is None:
        return "categorical"
    if cells.dtype.kind == "b":
        return "binary"
    distinct = np.unique(numbers)
    if np.isin(distinct, (0.0, 1.0)).all():
        return "binary"
    # Beyond EXACT_WHOLE every float is a whole number, so being one says nothing.
    whole = (distinct == np.round(distinct)) & (np.abs(distinct) <= EXACT_WHOLE)
    return "count" if whole.all() else "continuous"


def _categories(
    name: str, cells: pd.Series[Any], kind: Kind, domain: Domain | None
) -> tuple[Category, ...]:
    try:
        seen = {canonical_category(c) for c in cells.unique()}
    except TypeError:
        odd = type(next(iter(cells))).__name__
        raise SchemaError(
            f"variable {name!r}: expected numbers or strings in the cells, found {odd}"
        ) from None
    seen = {_whole(c) for c in seen}
    if domain is None:
        if kind == "binary":
            if seen <= {0, 1}:
                return (False, True) if cells.dtype.kind == "b" else (0, 1)
            if len(seen) != 2:
                raise SchemaError(
                    f"variable {name!r}: declared binary, found {len(seen)} distinct value(s); "
                    "declare domains={...: [a, b]} with both"
                )
        elif isinstance(cells.dtype, pd.CategoricalDtype):
            # In the order that the column itself gives them, unused ones included.
            return tuple(_whole(canonical_category(c)) for c in cells.cat.categories)
        return tuple(sorted(seen, key=category_order))
    categories = tuple(canonical_category(c) for c in domain)
    strangers = sorted(seen - set(categories), key=category_order)
    if strangers:
        raise SchemaError(
            f"variable {name!r}: value(s) outside the declared domain: "
            f"{', '.join(map(repr, strangers[:5]))}"
        )
    return categories


def _whole(category: Category) -> Category:
    return int(category) if isinstance(category, float) and category.is_integer() else category


def _interval(name: str, domain: Domain) -> tuple[float, float]:
    try:
        low, high = (float(v) for v in domain)
    except (TypeError, ValueError):
        raise SchemaError(
            f"variable {name!r}: the domain of a numeric variable is (lowest, highest), "
            f"found {domain!r}"
        ) from None
    return low, high

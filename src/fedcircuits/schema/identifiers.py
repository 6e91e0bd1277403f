"""Columns that are not learned unasked: without a value, or naming rows rather than describing."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from fedcircuits.errors import warn
from fedcircuits.schema.grids.sketch import MANY_VALUES
from fedcircuits.schema.infer import known_cells
from fedcircuits.schema.times import time_of

FEW_ROWS = 30  # below, different values in every row mean little


def identifiers(
    frame: pd.DataFrame, declared: Collection[str] = (), missing_values: Sequence[object] = ()
) -> dict[str, str]:
    """By name the columns that look like identifiers, each with what it looks like.

    These are columns with another text in every row or nearly (more than half of the texts differ,
    and there are very many), and columns of consecutive whole numbers. A column whose kind or
    domain the user declared is never one. Other columns of whole numbers that all differ are warned
    of: they may be keys, and may be quantities.
    """
    found: dict[str, str] = {}
    doubtful: list[str] = []
    for name in frame.columns:
        if name in declared:
            continue
        column = known_cells(frame[name], tuple(missing_values))
        if len(column) < FEW_ROWS:
            continue
        if column.dtype.kind in "iu":
            values = np.unique(column.to_numpy())
            if values.size < len(column):
                continue
            if int(values[-1]) - int(values[0]) == len(column) - 1:
                found[str(name)] = "consecutive whole numbers"
            else:
                doubtful.append(str(name))
        elif _is_text(column) and (why := _many_texts(column)) and time_of(column) is None:
            found[str(name)] = why
    if doubtful:
        shown = ", ".join(map(repr, doubtful))
        warn(
            f"column(s) {shown} hold another whole number in every row: drop them if they are "
            "keys of the rows, or declare their kind"
        )
    return found


def left_out(
    frame: pd.DataFrame, declared: Collection[str] = (), missing_values: Sequence[object] = ()
) -> dict[str, str]:
    """By name the columns that are left out, each with why: without a value, or identifiers."""
    known = frame.notna()
    if missing_values:
        known &= ~frame.isin(list(missing_values))
    holds = known.any()
    empty = [str(name) for name in frame.columns if name not in declared and not holds[name]]
    if len(frame) == 0 or len(empty) == frame.shape[1]:
        empty = []  # nothing would be left: an error of whoever guesses the kinds
    found = identifiers(frame.drop(columns=empty), declared, missing_values)
    return {
        **dict.fromkeys(empty, "no value in any row"),
        **{name: f"{why}, as an identifier has" for name, why in found.items()},
    }


def warn_of_left_out(found: Mapping[str, str]) -> None:
    """Warn of every column that is left out: by name, why."""
    for name, why in found.items():
        warn(
            f"left out column {name!r}: {why}; learn it by naming its kind "
            f"(kinds={{{name!r}: ...}}), or pass drop=[{name!r}] and this warning goes"
        )


def _many_texts(column: pd.Series[Any]) -> str:
    """What is said of a column of texts that hardly repeat, "" where they do."""
    distinct = column.nunique()
    if distinct == len(column):
        return "another text in every row"
    if distinct > max(MANY_VALUES, len(column) / 2):
        return f"{distinct} different texts in {len(column)} rows"
    return ""


def _is_text(column: pd.Series[Any]) -> bool:
    if isinstance(column.dtype, pd.CategoricalDtype):
        return False
    if column.dtype == object:
        return all(isinstance(cell, str) for cell in column)
    return pd.api.types.is_string_dtype(column.dtype) and not column.hasnans

"""Columns that name rows rather than describe them: numbers of rows, keys, names."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import pandas as pd

from fedcircuits.errors import FedcircuitsWarning
from fedcircuits.schema.times import time_of

FEW_ROWS = 30  # below, different values in every row mean little


def identifiers(frame: pd.DataFrame, declared: Collection[str] = ()) -> dict[str, str]:
    """By name the columns that look like identifiers, each with what it looks like.

    These are columns with another text in every row, and columns of consecutive whole numbers. A
    column whose kind or domain the user declared is never one. Other columns of whole numbers that
    all differ are warned of: they may be keys, and may be quantities.
    """
    found: dict[str, str] = {}
    doubtful: list[str] = []
    for name in frame.columns:
        if name in declared:
            continue
        column = frame[name].dropna()
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
        elif _is_text(column) and column.nunique() == len(column) and time_of(column) is None:
            found[str(name)] = "another text in every row"
    if doubtful:
        shown = ", ".join(map(repr, doubtful))
        warnings.warn(
            f"column(s) {shown} hold another whole number in every row: drop them if they are "
            "keys of the rows, or declare their kind",
            FedcircuitsWarning,
            stacklevel=4,
        )
    return found


def warn_of_left_out(found: Mapping[str, str]) -> None:
    """Warn of every column that is left out: by name, what it looks like."""
    for name, why in found.items():
        warnings.warn(
            f"left out column {name!r}: {why}, as an identifier has; learn it by naming its kind "
            f"(kinds={{{name!r}: ...}}), or pass drop=[{name!r}] and this warning goes",
            FedcircuitsWarning,
            stacklevel=4,
        )


def _is_text(column: pd.Series[Any]) -> bool:
    if isinstance(column.dtype, pd.CategoricalDtype):
        return False
    if column.dtype == object:
        return all(isinstance(cell, str) for cell in column)
    return pd.api.types.is_string_dtype(column.dtype) and not column.hasnans

"""Cells as floating-point numbers, Python's whole numbers of any size among them."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd


def coerced(cells: pd.Series[Any]) -> pd.Series[Any]:
    """Return cells as numbers, gaps where there is none; whole numbers beyond a float infinite."""
    try:
        return pd.to_numeric(cells, errors="coerce")
    except OverflowError:
        small = cells.map(lambda cell: as_float(cell) if isinstance(cell, int) else cell)
        return pd.to_numeric(small, errors="coerce")


def as_float(value: Any) -> float:
    """Return a number as a float; a whole number that no float holds is infinite."""
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf

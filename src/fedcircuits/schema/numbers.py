"""Cells as floating-point numbers: whole numbers of any size, and numbers as people write them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd

# A label with more different numbers than this is a number, not a name of a class.
MOST_CLASSES = 20

# A currency in front or a unit behind ("70 kg", "33 m²", "5 €/h"); thousands in groups of three
# digits, which "0,125" has not.
_UNIT = r"([^\W\d_]{{1,5}}[²³]?|[%‰°µ$€£¥][^\W\d_]?)?(/[^\W\d_]{{1,4}}[²³]?)?"
_AROUND = r"([+-]?)([$€£¥]?)\s?{}\s?" + _UNIT
_POINT = r"((?:\d+|[1-9]\d{0,2}(?:,\d{3})+)(?:\.\d+)?(?:[eE][+-]?\d+)?)"
_COMMA = r"((?:\d+|[1-9]\d{0,2}(?:\.\d{3})+)(?:,\d+)?(?:[eE][+-]?\d+)?)"
_WRITTEN = {".": re.compile(_AROUND.format(_POINT)), ",": re.compile(_AROUND.format(_COMMA))}


def plain_number(text: str, decimal: str) -> tuple[str, str] | None:
    """Return a number as `float` reads it and its unit ("$1,234.50": "1234.50", "$"), or None.

    Args:
        text: without blanks around it.
        decimal: "." where commas separate thousands, "," where points do.
    """
    in_brackets = text.startswith("(") and text.endswith(")")  # below zero, as accountants write
    found = _WRITTEN[decimal].fullmatch(text[1:-1].strip() if in_brackets else text)
    if found is None:
        return None
    minus, before, digits, *after = found.groups("")
    if in_brackets:
        if minus:
            return None
        minus = "-"
    thousands = "," if decimal == "." else "."
    return minus + digits.replace(thousands, "").replace(decimal, "."), before + "".join(after)


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


def is_number(column: pd.Series[Any], missing_values: Iterable[object] = ()) -> bool:
    """Return whether a label is predicted as a number and not by its categories."""
    kept = column[column.notna() & ~column.isin(list(missing_values))]
    if kept.dtype.kind == "O":
        kept = kept.infer_objects()
    if kept.dtype.kind not in "iuf":
        return False
    distinct = np.unique(kept.to_numpy(dtype=float))
    if distinct.size <= 2:
        return False
    return distinct.size > MOST_CLASSES or bool((distinct != np.round(distinct)).any())

"""Cells as floating-point numbers: whole numbers of any size, and numbers as people write them."""

from __future__ import annotations

import math
import re
from typing import Any

import pandas as pd

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

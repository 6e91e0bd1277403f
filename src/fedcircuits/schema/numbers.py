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
_CURRENCY = (
    r"[A-Z]{0,2}\$|[€£¥]|EUR|USD|GBP|CHF|JPY|CNY|INR|SEK|NOK|DKK|ISK|PLN|CZK|HUF|RON|BGN|TRY|RUB|"
    r"UAH|BRL|MXN|CAD|AUD|NZD|SGD|HKD|KRW|ZAR|ILS|AED|THB|S?Fr\.?|Rs\.?|kr\.?"
)
_UNIT = r"([^\W\d_]{{1,5}}[²³]?|[%‰°µ$€£¥][^\W\d_]?)?(/[^\W\d_]{{1,4}}[²³]?)?"
_FRONT = r"([+-]?)((?:" + _CURRENCY.replace("{", "{{").replace("}", "}}") + r")?)\s?([+-]?)"
_AROUND = _FRONT + r"{}\s?" + _UNIT
_GROUPS = r"[1-9]\d{{0,2}}(?:(?:{}\d{{3}})+|(?:['’]\d{{3}})+|(?:[ \xa0\u202f]\d{{3}})+)"
_NUMBER = r"((?:\d+|{})(?:{}\d+)?(?:[eE][+-]?\d+)?)"
_WRITTEN = {
    ".": re.compile(_AROUND.format(_NUMBER.format(_GROUPS.format(","), r"\."))),
    ",": re.compile(_AROUND.format(_NUMBER.format(_GROUPS.format(r"\."), ","))),
}
_THOUSANDS = {".": re.compile(r"[,'’\s]"), ",": re.compile(r"[.'’\s]")}


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
    outer, before, inner, digits, *after = found.groups("")
    if (outer and inner) or (in_brackets and outer + inner):
        return None
    minus = "-" if in_brackets else outer + inner
    plain = _THOUSANDS[decimal].sub("", digits).replace(decimal, ".")
    return minus + plain, before + "".join(after)


def is_currency(unit: str) -> bool:
    """Return whether a unit is money, in front of a number or behind it."""
    return re.fullmatch(_CURRENCY, unit) is not None


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

"""Texts that stand for a missing value in a column that otherwise holds numbers or dates."""

from __future__ import annotations

import re
from typing import Any

import pandas as pd

from fedcircuits.errors import warn
from fedcircuits.schema.numbers import MOST_CLASSES, coerced
from fedcircuits.schema.reading.dates import MISSING_SPELLINGS

SPELLINGS = re.compile(
    r"\?+|[-\u2013\u2014]+|\.+|\u2026|\*+|n\.?\s*[abd]\.?|n/[abd]|k\.?\s*a\.?|keine angabe|unknown|"
    r"unbekannt|missing|none|nil|null|not available|no data|<na>|#n/a",
    re.I,
)
_CODE = re.compile(r"0\d\d+")
# Other texts are taken for a spelling where they are short, and this rare among many numbers; a
# single one however often it stands there, for no number would be left a number beside it.
_RARE, _SHORT = 0.05, 8
# A column with this share of numbers is meant to be one of numbers.
_NEARLY_ALL = 0.9


def spells_missing(texts: pd.Series[Any]) -> pd.Series[Any]:
    """Return which texts, without blanks around them, are known to say that a value is missing."""
    return texts.map(SPELLINGS.fullmatch).notna()


def warn_of_missing(name: str, texts: pd.Series[Any]) -> None:
    """Warn that these texts of a column are read as missing."""
    listed = ", ".join(sorted({repr(text) for text in texts}))
    warn(f"column {name!r}: read as missing: {listed}")


def stray_texts(cells: pd.Series[Any]) -> pd.Series[Any] | None:
    """Return which cells are neither numbers nor ISO dates, as most others are; None for names.

    Args:
        cells: of a column, without those that are known to be missing.
    """
    if cells.dtype.kind in "iuf":
        return pd.Series(False, index=cells.index)
    strays: pd.Series[Any] = coerced(cells).isna()
    if strays.mean() > 0.5:
        days = pd.to_datetime(cells, errors="coerce", utc=True, format="ISO8601")
        strays = days.isna()
    elif any(_CODE.fullmatch(cell) for cell in cells):
        return None  # zeros in front are no number's
    return None if strays.mean() > 0.5 or cells[~strays].nunique() < 3 else strays


def are_missing(cells: pd.Series[Any], strays: pd.Series[Any], name: str) -> bool:
    """Return whether stray texts among numbers or dates are spellings of a missing value.

    Warns where they are not, and yet nearly all cells are numbers.

    Args:
        cells: of a column, without those that are known to be missing.
        strays: which are neither numbers nor dates.
        name: of the column, for a warning.
    """
    if not strays.any():
        return True
    odd = cells[strays]
    if cells[~strays].nunique() <= MOST_CLASSES:
        return False
    rare = strays.mean() <= _RARE and odd.nunique() <= MISSING_SPELLINGS
    rare = rare or odd.nunique() == 1 < len(odd)
    if rare and all(len(text) <= _SHORT and not re.search(r"\d", text) for text in odd):
        return True
    if strays.mean() > 1 - _NEARLY_ALL:
        return False
    few = list(odd.unique()[:3])
    shown = ", ".join(map(repr, few)) + (", ..." if odd.nunique() > len(few) else "")
    warn(
        f"column {name!r} is read as categories, unless these cells are mended or "
        f"missing_values=[{shown}] says that they are missing: {int((~strays).sum())} of "
        f"{len(cells)} cells are numbers or dates, but not {shown}"
    )
    return False

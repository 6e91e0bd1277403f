"""Dates in CSV files, as people write them, as ISO 8601 text.

With dots (17.11.2026: the day first), slashes or dashes (11/17/2026), the year in front
(2026/11/17) or of two digits (17.11.26), English months (Nov 17, 2026), and a time of day behind
(14:05, 2:05 PM). Where numbers do not show which part is the day the column stays text, with a
warning. A column may mix these forms, where each of them shows its own order.
"""

from __future__ import annotations

import math
import re
from typing import Any

import pandas as pd

from fedcircuits.errors import warn

MISSING_SPELLINGS = 2  # texts that may stand among numbers or dates
_DAY_OR_MONTH = r"(\d{1,2})([./-])(\d{1,2})\2(\d{4}|(?<=[./])\d{2})"
_YEAR = re.compile(r"(\d{4})([./])(\d{1,2})\2(\d{1,2})(?!\d)")
_CLOCK = r"(?:,?[T ]+(\d{1,2}:\d{2}(?::\d{2}(?:\.\d+)?)?)(?: ?([AaPp])\.?[Mm]\.?)?)?"
_DATE = re.compile(f"^{_DAY_OR_MONTH}{_CLOCK}$")
_CENTURY = 70  # years of two digits from here on are of the last century
_NAMED_MONTH = re.compile(
    r"[A-Za-z]{3,9}\.?[ -]\d{1,2},?[ -]\d{4}|\d{1,2}\.?[ -][A-Za-z]{3,9}\.?,?[ -]\d{4}"
)
_ISO = re.compile(r"\d{4}-\d{2}-\d{2}(?:[T ]\d{2}:\d{2}.*)?")
# What tells the forms of a column apart: the year in front, the sign, or a letter of a month.
_FORM = re.compile(r"^(\d{4}[./-]|\d{1,2}[./-](?=\d))|([A-Za-z])")
_MOST_FORMS, _LEAST_OF_FORM = 4, 0.02
_ONE_BY_ONE = 1000  # texts that are looked at each by itself, where together they are no dates
_TIME_OF_DAY = re.compile(r"(\d{1,3}):([0-5]\d)(?::([0-5]\d(?:\.\d+)?))?(?: ?([AaPp])\.?[Mm]\.?)?")
_MONTH_FORMS = ("%b %d %Y", "%B %d %Y", "%d %b %Y", "%d %B %Y")


def iso_dates(texts: pd.Series[Any], name: str) -> pd.Series[Any] | None:
    """The texts with dates as ISO 8601, None where most are no dates.

    Args:
        texts: without blanks around them.
        name: of the column, for a warning.
    """
    found = _in_several_forms(texts, name)
    if found is None:
        found = _with_numbers(texts, name)
    return _with_month_names(texts) if found is None else found


def as_iso(texts: pd.Series[Any], name: str) -> pd.Series[Any]:
    """The texts with dates as ISO 8601 where they are dates; others stay as they are.

    Args:
        texts: without blanks around them, not none.
        name: of the column, for a warning.
    """
    are_iso = texts.str.fullmatch(_ISO).astype(bool)
    if are_iso.all():
        return texts
    dates = iso_dates(texts, name)  # one order of day and month
    if dates is not None:
        return dates
    if len(texts) > _ONE_BY_ONE:
        return texts
    others = texts[~are_iso]
    parts = [iso_dates(others[k : k + 1], name) for k in range(len(others))]
    found = pd.concat([texts, *(part for part in parts if part is not None)])
    last: pd.Series[Any] = found[~found.index.duplicated(keep="last")]
    return last


def _in_several_forms(texts: pd.Series[Any], name: str) -> pd.Series[Any] | None:
    """Dates in two to four forms, each of which shows its own order; None for one form or none."""
    found = texts.str.extract(_FORM)
    signs = found[0].str.replace(r"\d{3,4}", "Y", regex=True).str.replace(r"\d+", "", regex=True)
    signs = signs.fillna(found[1].where(found[1].isna(), "month")).fillna("")
    signs = signs.where(~texts.str.fullmatch(_ISO), "iso")
    forms = signs.value_counts()
    forms = forms[forms >= _LEAST_OF_FORM * len(texts)]
    if not 2 <= len(forms) <= _MOST_FORMS or "" in forms.index:
        return None
    parts = []
    for sign in forms.index:
        some = texts[signs == sign]
        if sign != "iso":
            read = _with_month_names(some) if sign == "month" else _with_numbers(some, name)
            if read is None:
                return None
            some = read
        parts.append(some)
    rest = texts[~signs.isin(forms.index)]
    if rest.nunique() > MISSING_SPELLINGS:
        return None
    warn(
        f"column {name!r} writes dates in {len(forms)} ways, such as "
        f"{', '.join(repr(str(texts[signs == sign].iloc[0])) for sign in forms.index)}; "
        "each is read in its own order of day and month"
    )
    dates: pd.Series[Any] = pd.concat([*parts, rest]).reindex(texts.index)
    return dates


def clock_times(texts: pd.Series[Any]) -> pd.Series[Any] | None:
    """Texts like 14:05 or 2:05 PM as times of day, as durations from 24:00 on; None for others."""
    if not _TIME_OF_DAY.fullmatch(str(texts.iloc[0])):
        return None
    seconds = texts.map(seconds_of).astype(float)
    if seconds.isna().any():
        return None
    spans = pd.to_timedelta(seconds, unit="s")
    if (seconds >= 86_400).any():
        return spans.astype(object)
    return (pd.Timestamp(0) + spans).map(lambda moment: moment.time()).astype(object)


def seconds_of(text: str) -> float:
    """The seconds of a text like 14:05, 14:05:30 or 2:05 PM since midnight; NaN for others."""
    found = _TIME_OF_DAY.fullmatch(text.strip())
    if found is None:
        return math.nan
    hour, half = int(found[1]), (found[4] or "").lower()
    if half and not 1 <= hour <= 12:
        return math.nan
    hour = hour % 12 + 12 * (half == "p") if half else hour
    return 3600.0 * hour + 60 * int(found[2]) + float(found[3] or 0)


def others_are_few(texts: pd.Series[Any], fits: pd.Series[Any]) -> bool:
    """Whether most texts fit, and the rest is one or two spellings of a missing value."""
    return bool(fits.mean() > 0.5 and texts[~fits].nunique() <= MISSING_SPELLINGS)


def _with_month_names(texts: pd.Series[Any]) -> pd.Series[Any] | None:
    """Dates with an English month, like Nov 17, 2026 or 17-Nov-2026."""
    fits = texts.map(_NAMED_MONTH.fullmatch).notna()
    if not fits.any() or not others_are_few(texts, fits):
        return None
    bare = texts[fits].str.replace(r"[ .,-]+", " ", regex=True)
    found = pd.Series(pd.NaT, index=bare.index, dtype="datetime64[ns]")
    for form in _MONTH_FORMS:
        found = found.fillna(pd.to_datetime(bare, format=form, errors="coerce"))
    if found.isna().any():
        return None  # a day or a month that is none
    days: pd.Series[Any] = found.dt.strftime("%Y-%m-%d").reindex(texts.index).where(fits, texts)
    return days


def _with_numbers(texts: pd.Series[Any], name: str) -> pd.Series[Any] | None:
    """Dates in numbers, like 17.11.2026 or 11/17/2026 2:05 PM."""
    # The year in front leaves one order only: the day last.
    turned = texts.str.replace(_YEAR, r"\4.\3.\1", regex=True)
    parts = turned.str.extract(_DATE)  # (n, 6): first, sign, second, year, clock, half of the day
    fits = parts[0].notna()
    if not fits.any() or not others_are_few(texts, fits):
        return None
    parts = parts[fits]
    first, second = (parts[at].astype(int) for at in (0, 2))
    day_first = bool((parts[1] == ".").all()) or bool((first > 12).any())
    month_first = bool((second > 12).any())
    if day_first == month_first:  # both or neither could be
        if not day_first:
            warn(
                f"column {name!r} holds dates whose day and month cannot be told apart; it is read "
                "as text: write dates as 2026-11-17"
            )
        return None
    day, month = (first, second) if day_first else (second, first)
    year = parts[3].astype(int)
    year = year.where(parts[3].str.len() == 4, year + (1900 + 100 * (year < _CENTURY)))
    date = year.astype(str).str.zfill(4)
    for part in (month, day):
        date = date + "-" + part.astype(str).str.zfill(2)
    clock = _clock(parts[4], parts[5])
    if clock is None:
        return None
    iso = date + clock
    if pd.to_datetime(iso, errors="coerce", format="ISO8601").isna().any():
        return None  # a day that is none
    return iso.reindex(texts.index).where(fits, texts)


def _clock(times: pd.Series[Any], halves: pd.Series[Any]) -> pd.Series[Any] | None:
    """Times of day as ISO 8601 with a blank in front, "" where there is none."""
    if times.isna().all():
        return times.fillna("").astype(object)
    hour = times.str.extract(r"^(\d+)")[0].fillna("0").astype(int)
    half = halves.str.lower()
    if ((hour > 12) | (hour == 0))[half.notna()].any():
        return None  # no hour of half a day
    hour = hour.where(half.isna(), hour % 12 + 12 * (half == "p"))
    rest = times.str.replace(r"^\d+", "", regex=True)
    return (" " + hour.astype(str).str.zfill(2) + rest).where(times.notna(), "")

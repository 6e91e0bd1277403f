"""Dates, times and durations as numbers, and back.

A date is its number of days since 1970-01-01, a date with a time its seconds since then (in UTC
where it has a time zone), a time of day its seconds since midnight, a duration its seconds. What a
column holds is kept as one word: "date", "datetime", "datetime ZONE", "time" or "duration".
"""

from __future__ import annotations

import datetime
import re
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from fedcircuits.arrays import FloatArray
from fedcircuits.schema.reading.dates import as_iso, seconds_of

DAY = 86_400.0
# Microseconds as 64-bit integers end here; what is further out is drawn back.
FARTHEST = 9.0e12
_COARSE = re.compile(r"\d{4}(-\d{2})?")  # a year, a month
_ISO_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
_ISO_TIME = re.compile(r"\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}(:\d{2}(\.\d+)?)?(Z|[+-]\d{2}:?\d{2})?")
# The beginning of a date in another form.
_WRITTEN = re.compile(r"^\d{1,4}[./-]\d{1,2}[./-]\d{2,4}|[A-Za-z]{3}.*\d{4}")
_ZONE = re.compile(r"(Z|[+-]\d{2}:?\d{2})$")


class Span(NamedTuple):
    """A year, a month or a day as ISO 8601 text: when it begins, and when the next one does."""

    begins: str
    ends: str


def is_date(time: str | None) -> bool:
    """Whether a variable's word for time is that of a date, with a time of day or without."""
    return time is not None and time.startswith("date")


def span_of(text: str, time: str) -> Span | None:
    """The span that a text stands for where it says less than the variable: a year, a month, a day.

    None where it says as much, or is no date.
    """
    coarse = _COARSE.fullmatch(text) or (time != "date" and _ISO_DATE.fullmatch(text))
    if not coarse:
        return None
    try:
        span = pd.Period(text)
    except ValueError:  # no month or no day
        return None
    return Span(*(each.start_time.strftime("%Y-%m-%d") for each in (span, span + 1)))


def time_of(cells: pd.Series[Any]) -> str | None:
    """What the cells of a column are, None where they are neither dates nor times.

    Text counts where every cell is a date, in a form that `reading/dates.py` knows: 2026-11-17,
    17.11.2026, 11/17/2026 where the cells show which part is the day, Nov 17, 2026.
    """
    if len(cells) == 0:
        return None
    if cells.dtype.kind == "m":
        return "duration"
    if cells.dtype.kind == "M" or isinstance(cells.dtype, pd.DatetimeTZDtype):
        return _date_or_time(cells)
    if cells.dtype == object or pd.api.types.is_string_dtype(cells.dtype):
        if isinstance(cells.dtype, pd.CategoricalDtype):
            return None
        return _of_objects(cells)
    return None


def _date_or_time(stamps: pd.Series[Any]) -> str:
    zone = getattr(stamps.dt, "tz", None)
    if zone is not None:
        return f"datetime {zone}"
    return "date" if (stamps.dt.normalize() == stamps).all() else "datetime"


def _of_objects(cells: pd.Series[Any]) -> str | None:
    if isinstance(first := cells.iloc[0], str) and not _may_be_date(first.strip()):
        return None
    found = list(cells)
    if all(isinstance(cell, str) for cell in found):
        cells = _iso(cells)
        found = list(cells)
        if all(_ISO_DATE.fullmatch(cell) for cell in found):
            return "date" if _stamps(cells) is not None else None
        if all(_ISO_TIME.fullmatch(cell) or _ISO_DATE.fullmatch(cell) for cell in found):
            zoned = any(_ZONE.search(cell[10:]) for cell in found)
            stamps = _stamps(cells)
            return None if stamps is None else ("datetime UTC" if zoned else "datetime")
        return None
    if all(isinstance(cell, datetime.timedelta) for cell in found):
        return "duration"
    if all(isinstance(cell, datetime.time) for cell in found):
        return "time"
    if all(isinstance(cell, datetime.datetime) for cell in found):
        stamps = _stamps(cells)
        return None if stamps is None else _date_or_time(pd.to_datetime(cells))
    if all(isinstance(cell, datetime.date) for cell in found):
        return "date"
    return None


def _may_be_date(text: str) -> bool:
    """Whether a text has a year, as every date has, and is not too long for one."""
    return len(text) < 40 and bool(_ISO_DATE.match(text) or _WRITTEN.search(text))


def _iso(cells: pd.Series[Any]) -> pd.Series[Any]:
    """Texts with dates as ISO 8601 writes them where they are dates in another form."""
    texts = cells.astype(str).str.strip()
    others = texts[~texts.str.match(_ISO_DATE)]
    if others.empty or not others.map(_may_be_date).any():
        return texts
    texts[others.index] = as_iso(others, str(cells.name))
    return texts


def _stamps(cells: pd.Series[Any]) -> pd.Series[Any] | None:
    """The cells as points in time without a zone (UTC where they have one), None if one is none."""
    try:
        stamps = pd.to_datetime(cells, errors="coerce", utc=True, format="ISO8601")
    except (ValueError, TypeError):
        stamps = pd.to_datetime(cells.astype(str), errors="coerce", utc=True, format="ISO8601")
    return None if stamps.isna().any() else stamps.dt.tz_localize(None)


def to_numbers(cells: pd.Series[Any], time: str) -> FloatArray:
    """(n,) cells as numbers; NaN for one that is not of that kind. Numbers stay as they are."""
    if cells.dtype.kind in "iuf":
        return cells.to_numpy(dtype=float)
    if time == "duration":
        spans = pd.to_timedelta(cells, errors="coerce").dt.total_seconds()
        spelled = [seconds_of(cell) if isinstance(cell, str) else np.nan for cell in cells]
        return np.where(spans.isna(), spelled, spans).astype(float)
    if time == "time":
        return np.array([_seconds_of_day(cell) for cell in cells], dtype=float)
    zone = time.partition(" ")[2]
    if cells.dtype.kind != "M" or isinstance(cells.dtype, pd.DatetimeTZDtype):
        zone_known = isinstance(cells.dtype, pd.DatetimeTZDtype)
        texts: Any = cells if zone_known else _iso(cells)
        zoned: Any = True if zone else None
        try:
            stamps = pd.to_datetime(texts, errors="coerce", utc=zoned, format="ISO8601")
        except (ValueError, TypeError):  # some with a zone, some without
            stamps = pd.to_datetime(texts, errors="coerce", utc=True, format="ISO8601")
    else:
        stamps = cells
    if getattr(stamps.dt, "tz", None) is not None:
        stamps = stamps.dt.tz_convert("UTC").dt.tz_localize(None)
    elif zone:
        stamps = stamps.dt.tz_localize(zone, ambiguous=True, nonexistent="shift_forward")
        stamps = stamps.dt.tz_convert("UTC").dt.tz_localize(None)
    # In microseconds: years beyond 2262 are more nanoseconds than there are.
    seconds = (stamps.dt.as_unit("us") - pd.Timestamp(0).as_unit("us")) / pd.Timedelta(seconds=1)
    return np.asarray(seconds, dtype=float) / (DAY if time == "date" else 1.0)


def _seconds_of_day(cell: Any) -> float:
    if isinstance(cell, str):
        seconds = seconds_of(cell)
        return seconds if seconds < DAY else float("nan")
    if not isinstance(cell, datetime.time):
        return float("nan")
    return cell.hour * 3600 + cell.minute * 60 + cell.second + cell.microsecond / 1e6


def from_numbers(numbers: FloatArray, time: str) -> Any:
    """(n,) numbers as dates, times or durations; a number that is not finite as no time at all."""
    gone = ~np.isfinite(numbers)
    there = np.where(gone, 0.0, numbers)
    if time == "time":
        seconds = np.mod(np.round(there, 6), DAY)
        midnight = datetime.datetime.min
        day = [(midnight + datetime.timedelta(seconds=float(s))).time() for s in seconds]
        return np.array([None if g else t for g, t in zip(gone, day, strict=True)], dtype=object)
    seconds = np.round(there) * DAY if time == "date" else there
    whole = np.round(np.clip(seconds, -FARTHEST, FARTHEST) * 1e6).astype(np.int64)
    unit = "timedelta64[us]" if time == "duration" else "datetime64[us]"
    stamps = whole.view(unit).copy()
    stamps[gone] = np.array("NaT", dtype=unit)
    zone = time.partition(" ")[2]
    return pd.DatetimeIndex(stamps).tz_localize("UTC").tz_convert(zone) if zone else stamps

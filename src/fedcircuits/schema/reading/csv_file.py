"""CSV files as they come: separator, encoding, decimal comma and order of dates found out.

The separator is the one of comma, semicolon, tab and bar that cuts the first lines into the same
number of two or more cells; where several do, the one with more cells, where none does, the comma.
UTF-8 is tried first, with or without a byte order mark, then Windows-1252, with a warning. Where
the separator is not a comma, numbers with decimal commas ("1.234,5") are read as numbers. Dates
with dots (17.11.2026) or slashes become ISO dates; where slashes do not show which part is the day
the column stays text, with a warning. One or two other texts in such a column ("n/a") stay.
"""

from __future__ import annotations

import csv
import io
import re
import warnings
from typing import IO, Any

import pandas as pd

from fedcircuits.errors import FedcircuitsWarning, SchemaError

SEPARATORS = (",", ";", "\t", "|")
_SAMPLE = 64 * 1024
_LINES = 50
MISSING_SPELLINGS = 2  # texts that may stand among numbers or dates
_DATE = re.compile(r"^(\d{1,2})([./])(\d{1,2})\2(\d{4})([T ]\d{2}:\d{2}(?::\d{2}(?:\.\d+)?)?)?$")
_DECIMAL_COMMA = re.compile(r"[+-]?(\d+|\d{1,3}(\.\d{3})+)(,\d+)?([eE][+-]?\d+)?")


def read_csv(file: IO[bytes], sep: str | None = None) -> pd.DataFrame:
    """The rows of an open CSV file.

    Args:
        file: opened for reading bytes, at its start.
        sep: the separator, None to find it out; "tab" and "\\t" are a tab.
    """
    sample = file.read(_SAMPLE)
    file.seek(0)
    encoding = _encoding(sample)
    if b"\x00" in sample and encoding != "utf-16":
        raise ValueError("it holds zero bytes")
    if sep is None:
        sep = find_separator(sample.decode(encoding, errors="replace"))
    elif sep in ("tab", "\\t"):
        sep = "\t"
    if len(sep) != 1:
        raise SchemaError(f"a separator is one character, found {sep!r}")
    options: dict[str, Any] = {"sep": sep, "skipinitialspace": sep != "\t"}
    try:
        frame = pd.read_csv(file, encoding=encoding, **options)
    except UnicodeDecodeError:
        file.seek(0)
        frame = pd.read_csv(file, encoding="cp1252", **options)
        warnings.warn(
            "the file is not UTF-8; read as Windows-1252: check names and categories with accents",
            FedcircuitsWarning,
            stacklevel=5,
        )
    return _rewritten(frame, decimal_commas=sep != ",")


def _encoding(sample: bytes) -> str:
    if sample.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "utf-16"
    return "utf-8-sig"  # which is UTF-8, with or without a mark


def find_separator(sample: str) -> str:
    """The separator of the first lines of a file."""
    lines = sample.splitlines()
    if len(sample) >= _SAMPLE // 2 and len(lines) > 1:
        lines = lines[:-1]  # the last one may be cut off
    lines = [line for line in lines if line.strip()][:_LINES]
    best, cells = ",", 1
    for candidate in SEPARATORS:
        try:
            rows = list(csv.reader(io.StringIO("\n".join(lines)), delimiter=candidate))
        except csv.Error:
            continue
        sizes = {len(row) for row in rows if row}
        if len(sizes) == 1 and max(sizes) > cells:
            best, cells = candidate, max(sizes)
    return best


def _rewritten(frame: pd.DataFrame, decimal_commas: bool) -> pd.DataFrame:
    """The rows with decimal commas and dates written as the rest of the package reads them."""
    for name in frame.columns:
        column = frame[name]
        if column.dtype != object and not pd.api.types.is_string_dtype(column.dtype):
            continue
        texts = column.dropna()
        if len(texts) == 0 or not all(isinstance(text, str) for text in texts):
            continue
        bare = texts.str.strip()
        found = _iso_dates(bare, str(name))
        if found is None and decimal_commas and bare.str.contains(",").any():
            found = _plain_numbers(bare)
        if found is not None:
            frame[name] = found.reindex(column.index)
    return frame


def _others_are_few(texts: pd.Series[Any], fits: pd.Series[Any]) -> bool:
    """Whether most texts fit, and the rest is one or two spellings of a missing value."""
    return fits.mean() > 0.5 and texts[~fits].nunique() <= MISSING_SPELLINGS


def _plain_numbers(texts: pd.Series[Any]) -> pd.Series[Any] | None:
    """Text like "1.234,5" as numbers; as text with a decimal point where other texts stay."""
    fits = texts.map(_DECIMAL_COMMA.fullmatch).notna()
    if not _others_are_few(texts, fits):
        return None
    plain = texts.str.replace(".", "", regex=False).str.replace(",", ".", regex=False)
    return pd.to_numeric(plain) if fits.all() else plain.where(fits, texts)


def _iso_dates(texts: pd.Series[Any], name: str) -> pd.Series[Any] | None:
    """Dates like 17.11.2026 or 11/17/2026, with a time of day or without, as ISO 8601."""
    parts = texts.str.extract(_DATE)  # (n, 5): first, sign, second, year, time of day
    fits = parts[0].notna()
    if not fits.any() or not _others_are_few(texts, fits):
        return None
    first, second = (parts.loc[fits, at].astype(int) for at in (0, 2))
    day_first = bool((parts.loc[fits, 1] == ".").all()) or bool((first > 12).any())
    month_first = bool((second > 12).any())
    if day_first == month_first:  # both or neither could be
        if not day_first:
            warnings.warn(
                f"column {name!r} holds dates whose day and month cannot be told apart; it is read "
                "as text: write dates as 2026-11-17",
                FedcircuitsWarning,
                stacklevel=6,
            )
        return None
    day, month = (first, second) if day_first else (second, first)
    pad = [part.astype(str).str.zfill(2) for part in (month, day)]
    times = parts.loc[fits, 4].fillna("")
    iso = parts.loc[fits, 3] + "-" + pad[0] + "-" + pad[1] + times
    if pd.to_datetime(iso, errors="coerce", format="ISO8601").isna().any():
        return None  # a day that is none
    return iso.reindex(texts.index).where(fits, texts)

"""CSV files as they come: separator, encoding and decimal comma found out.

The separator is the one of comma, semicolon, tab and bar that cuts the first lines into the same
number of two or more cells; where several do, the one with more cells, where none does, the comma.
UTF-8 is tried first, with or without a byte order mark, then Windows-1252, with a warning. Where
the separator is not a comma, columns of numbers with decimal commas ("1.234,5") become numbers.
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
    return frame if sep == "," else _with_decimal_commas(frame)


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


def _with_decimal_commas(frame: pd.DataFrame) -> pd.DataFrame:
    """The rows with text like "1.234,5" as numbers, in columns where all of it is."""
    for name in frame.columns:
        column = frame[name]
        if column.dtype != object and not pd.api.types.is_string_dtype(column.dtype):
            continue
        texts = column.dropna()
        if len(texts) == 0 or not all(isinstance(text, str) for text in texts):
            continue
        bare = texts.str.strip()
        if bare.str.contains(",").any() and bare.map(_DECIMAL_COMMA.fullmatch).notna().all():
            plain = bare.str.replace(".", "", regex=False).str.replace(",", ".", regex=False)
            frame[name] = pd.to_numeric(plain).reindex(column.index)
    return frame

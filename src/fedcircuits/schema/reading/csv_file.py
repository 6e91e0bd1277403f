"""CSV files as they come: separator, encoding, decimal comma and order of dates found out.

The separator is the one of comma, semicolon, tab and bar that cuts the first lines into the same
number of two or more cells; where several do, the one with more cells, where none does, the comma.
UTF-8 is tried first, with or without a byte order mark, then Windows-1252, with a warning. Numbers
may have groups of thousands and one unit ("$1,234.50", "12 %": 12); where the separator is not a
comma, they may have decimal commas ("1.234,5"). Dates become ISO dates (`dates.py`). Digits with
zeros in front ("00731") are names of something and stay text. Spellings of a missing value ("-",
"k.A.") in a column of numbers or dates are missing, with a warning (`spellings.py`). Lines above
the header are left out and equal names told apart, with a warning; blanks around names go.
"""

from __future__ import annotations

import csv
import io
import itertools
import re
from collections import Counter
from typing import IO, Any

import pandas as pd

from fedcircuits.errors import SchemaError, warn
from fedcircuits.schema.numbers import coerced, is_currency, plain_number
from fedcircuits.schema.reading.dates import clock_times, iso_dates, others_are_few
from fedcircuits.schema.reading.spellings import (
    are_missing,
    spells_missing,
    stray_texts,
    warn_of_missing,
)

SEPARATORS = (",", ";", "\t", "|")
_SAMPLE = 64 * 1024
_LINES = 50
_TRIED = 200  # texts of a column that show whether it may hold numbers
_FEW_NAMES = 12  # texts like "2WD" and "4WD" are names, where there are no more of them
_CODE = re.compile(r"0\d\d+")
_VALUE = re.compile(
    r"[+-]?\d*\.\d+(?:[eE][+-]?\d+)?|\d{4}-\d{2}-\d{2}.*|\d{1,2}[./]\d{1,2}[./]\d{4}"
)
_SEP_LINE = re.compile(r"sep=(.)[ ;,\t]*\r?\n", re.I)


def read_csv(file: IO[bytes], sep: str | None = None, name: str = "the file") -> pd.DataFrame:
    """The rows of an open CSV file.

    Args:
        file: opened for reading bytes, at its start.
        name: of the file, for warnings.
        sep: the separator, None to find it out; "tab" and "\\t" are a tab.
    """
    sample = file.read(_SAMPLE)
    file.seek(0)
    encoding = _encoding(sample)
    if b"\x00" in sample and encoding != "utf-16":
        raise ValueError("it holds zero bytes")
    start = sample.decode(encoding, errors="replace")
    declared = _SEP_LINE.match(start.removeprefix("\ufeff"))  # Excel names the separator so
    if sep is None:
        sep = declared[1] if declared else find_separator(start)
    elif sep in ("tab", "\\t"):
        sep = "\t"
    if len(sep) != 1:
        raise SchemaError(f"a separator is one character, found {sep!r}")
    n_above, header, n_cells = _heading(start, sep, int(declared is not None))
    _warn_of_no_header(header)
    options: dict[str, Any] = {"sep": sep, "skipinitialspace": sep != "\t", "skiprows": n_above}
    options["dtype"] = dict.fromkeys(_codes(start, sep, n_above, header), str)
    try:
        frame = pd.read_csv(file, encoding=encoding, **options)
    except UnicodeDecodeError:
        file.seek(0)
        frame = pd.read_csv(file, encoding="cp1252", **options)
        warn(f"{name} is not UTF-8; read as Windows-1252: check names and categories with accents")
        text = sample.decode("cp1252", errors="replace")
        _, header, n_cells = _heading(text, sep, int(declared is not None))
    return _rewritten(_named(frame, header, n_cells), decimal_commas=sep != ",")


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
    found: dict[str, list[list[str]]] = {}
    for candidate in SEPARATORS:
        try:
            found[candidate] = list(csv.reader(io.StringIO("\n".join(lines)), delimiter=candidate))
        except csv.Error:
            continue
    best, cells = ",", 1
    for below_a_title in (False, True):
        for candidate, rows in found.items():
            first = next((k for k, row in enumerate(rows) if len(row) > 1), 0)
            body = rows[first if below_a_title else 0 :]
            sizes = {len(row) for row in body}
            if 2 * len(body) > len(rows) and len(sizes) == 1 and max(sizes) > cells:
                best, cells = candidate, max(sizes)
        if cells > 1:
            break
    return best


def _heading(start: str, sep: str, passed: int = 0) -> tuple[int, list[str], int]:
    """How many lines stand above the header, its cells, and how many the row below it has.

    A line with one cell at most is above it where most rows have three or more.

    Args:
        start: of the file.
        sep: its separator.
        passed: lines at the start that are no rows.
    """
    reader = csv.reader(io.StringIO(start, newline=""), delimiter=sep, skipinitialspace=True)
    try:
        rows = [(row, reader.line_num) for row in itertools.islice(reader, passed, _LINES)]
    except csv.Error:
        return 0, [], 0
    if not rows:
        return 0, [], 0
    filled = [sum(bool(cell.strip()) for cell in row) for row, _ in rows]
    at = next((k for k, n in enumerate(filled) if n), 0)  # empty lines are passed over anyway
    above = passed
    if Counter(filled).most_common(1)[0][0] > 2:
        at = next(k for k, n in enumerate(filled) if n > 1)
        titles = [cell.strip() for row, _ in rows[:at] for cell in row if cell.strip()]
        if titles:
            above = rows[at - 1][1]
            warn(f"left out {at} line(s) above the names of the columns: {titles[0]!r}")
    return above, rows[at][0], next((len(row) for row, _ in rows[at + 1 :] if row), 0)


def _warn_of_no_header(header: list[str]) -> None:
    """Warn where names of columns are fractions or dates, or all numbers but years in order."""
    cells = [cell.strip() for cell in header if cell.strip()]
    values = [cell for cell in cells if _VALUE.fullmatch(cell)]
    if not values and len(cells) > 1 and all(cell.isdecimal() for cell in cells):
        numbers = [int(cell) for cell in cells]
        values = cells if numbers != sorted(set(numbers)) else []
    if values:
        warn(
            f"the names of the columns look like values ({', '.join(map(repr, cells[:3]))}): if "
            "the file has no line with names, add one; its first row is not learned from"
        )


def _codes(start: str, sep: str, n_above: int, header: list[str]) -> list[str]:
    """Names of columns of digits alone, some with zeros in front: postcodes, numbers of accounts.

    Args:
        start: of the file.
        sep: its separator.
        n_above: lines above the header.
        header: cells of the header.
    """
    lines = start.splitlines(keepends=True)[n_above:]
    if len(start) >= _SAMPLE // 2:
        lines = lines[:-1]  # the last one may be cut off
    try:
        rows = list(csv.reader(lines, delimiter=sep, skipinitialspace=True))[1:]
    except csv.Error:
        return []
    found = []
    for at, name in enumerate(header):
        cells = [cell for row in rows if len(row) == len(header) and (cell := row[at].strip())]
        zeros = any(map(_CODE.fullmatch, cells)) and all(cell.isdecimal() for cell in cells)
        if zeros and header.count(name) == 1:
            found.append(name)
    return found


def _named(frame: pd.DataFrame, header: list[str], n_cells: int) -> pd.DataFrame:
    """The rows with names as the header has them, without what separators at line ends make."""
    if n_cells == len(header) + 1 and frame.shape[1] and frame.iloc[:, -1].isna().all():
        # Rows have an empty cell more than the header; pandas took the first one for a name.
        frame = frame.reset_index().iloc[:, :-1].set_axis(frame.columns, axis=1)
    if len(header) != frame.shape[1]:
        return frame
    bare = [name.strip() for name in header]
    unnamed = [not name and bool(frame.iloc[:, at].isna().all()) for at, name in enumerate(bare)]
    twice = [name for name, n in Counter(filter(None, bare)).items() if n > 1]
    if twice:
        warn(
            f"several columns are called {', '.join(map(repr, twice))}: the second is read as "
            f"{twice[0] + '.1'!r}, and so on"
        )
    names: list[str] = []
    for given, name in zip(frame.columns, bare, strict=True):
        tries = (name if k == 0 else f"{name}.{k}" for k in itertools.count())
        names.append(next(each for each in tries if each not in names) if name else str(given))
    return frame.set_axis(names, axis=1).loc[:, [not each for each in unnamed]]


def _rewritten(frame: pd.DataFrame, decimal_commas: bool) -> pd.DataFrame:
    """The rows with decimal commas and dates written as the rest of the package reads them."""
    for name in frame.columns:
        column = frame[name]
        if column.dtype != object and not pd.api.types.is_string_dtype(column.dtype):
            continue
        texts = column.dropna()
        if len(texts) == 0 or not all(isinstance(text, str) for text in texts):
            continue
        found = _numbers_or_dates(texts.str.strip(), str(name), decimal_commas)
        if found is not None:
            frame[name] = found.reindex(column.index)
    return frame


def _numbers_or_dates(
    texts: pd.Series[Any], name: str, decimal_commas: bool
) -> pd.Series[Any] | None:
    """A column of texts as numbers or ISO dates without spellings of missing; None if it stays."""
    if not texts.head(_TRIED).str.contains(r"\d").any():
        return None
    spelled = spells_missing(texts)
    kept = texts[~spelled]
    clocks = clock_times(kept) if len(kept) else None
    if clocks is not None:
        if spelled.any():
            warn_of_missing(name, texts[spelled])
        return clocks
    found = _plain(kept, name, decimal_commas)
    cells = kept if found is None else found
    strays = stray_texts(cells)
    if strays is not None and (strays.any() or spelled.any()) and are_missing(cells, strays, name):
        left_out = pd.concat([texts[spelled], kept[strays]])
        warn_of_missing(name, left_out)
        numbers = coerced(cells[~strays])
        return cells[~strays] if numbers.isna().any() else numbers
    return _plain(texts, name, decimal_commas) if found is not None and spelled.any() else found


def _plain(texts: pd.Series[Any], name: str, decimal_commas: bool) -> pd.Series[Any] | None:
    """Texts as numbers or ISO dates where most are written as either, None where they stay."""
    found = iso_dates(texts, name)
    if found is None and decimal_commas and texts.str.contains(",").any():
        found = _plain_numbers(texts, ",")
    if found is None:
        found = _plain_numbers(texts, ".")
    if found is None and not decimal_commas and texts.str.contains(",").any():
        found = _plain_numbers(texts, ",", with_unit=True)  # "12,30 €" is no list
    return found


def _plain_numbers(
    texts: pd.Series[Any], decimal: str, with_unit: bool = False
) -> pd.Series[Any] | None:
    """Text like "1.234,5" as numbers; as text with a decimal point where other texts stay."""
    if not any(plain_number(text, decimal) for text in texts.head(_TRIED)):
        return None
    read = texts.map(lambda text: plain_number(text, decimal))
    fits = read.notna()
    units = {unit for _, unit in read[fits]}
    if len(units) != 1 or not others_are_few(texts, fits):  # two units are not one number
        return None
    unit = units.pop()
    if with_unit and not unit:
        return None
    if unit.isalpha() and not is_currency(unit) and texts.nunique() <= _FEW_NAMES:
        return None
    plain: pd.Series[Any] = read[fits].str[0]
    if (plain == texts[fits]).all():
        return None  # digits as they are: names, or numbers beside a spelling of a missing value
    if not fits.all():
        return plain.reindex(texts.index).where(fits, texts)
    numbers: pd.Series[Any] = pd.to_numeric(plain)
    return numbers

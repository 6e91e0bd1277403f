"""Rows for a model whose columns are known: its numbers and dates as people write them.

Of a file alone, what a column holds is found out from most of its cells; few rows show little. With
a schema a cell like "0,41", "$1,200" or "n/a" says what it is by itself.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from fedcircuits.schema.numbers import plain_number
from fedcircuits.schema.reading.dates import as_iso
from fedcircuits.schema.reading.read import Data, read
from fedcircuits.schema.reading.spellings import spells_missing, warn_of_missing
from fedcircuits.schema.schema import Schema
from fedcircuits.schema.times import is_date


def read_known(data: Data, schema: Schema, *, sep: str | None = None) -> pd.DataFrame:
    """A DataFrame of the rows in `data`; texts in columns of numbers as the numbers they are.

    A text that says that a value is missing is one, with a warning; others stay as they are.

    Args:
        data: as for `read`.
        schema: of the model that the rows are for.
        sep: separator of a CSV file; found out if not given.
    """
    frame = read(data, sep=sep)
    found = {}
    for variable in schema:
        if variable.is_coded or variable.name not in frame.columns:
            continue
        column = frame[variable.name]
        cells = column.astype(object).to_numpy(copy=True)
        at = np.flatnonzero([isinstance(cell, str) for cell in cells])
        if not at.size:
            continue
        texts = pd.Series(cells[at], at, dtype=object).str.strip()
        odd = spells_missing(texts)
        if odd.any():
            warn_of_missing(variable.name, texts[odd])
        rest = texts[~odd]
        if variable.time is None:
            rest = rest.map(_number)
        elif is_date(variable.time) and len(rest):
            rest = as_iso(rest, variable.name)
        cells[at[odd]], cells[rest.index] = None, rest
        found[variable.name] = pd.Series(cells, column.index).infer_objects()
    return frame.assign(**found) if found else frame


def _number(text: str) -> Any:
    """The one number that a text can mean, or the text."""
    try:
        return float(text)
    except ValueError:
        read = {number[0] for sign in ".," if (number := plain_number(text, sign)) is not None}
        values = {float(each) for each in read}
        return values.pop() if len(values) == 1 else text

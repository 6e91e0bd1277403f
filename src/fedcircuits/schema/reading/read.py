"""Rows from wherever they lie: pandas, polars, Arrow, NumPy, dictionaries, CSV or Parquet files."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
import pandas as pd

from fedcircuits.errors import SchemaError
from fedcircuits.schema.reading.csv_file import read_csv
from fedcircuits.schema.reading.parquet import ParquetFile, check_size, is_parquet

_RAGGED = re.compile(r"Expected (\d+) fields in line (\d+), saw (\d+)")
Data = (
    pd.DataFrame
    | pd.Series
    | np.ndarray[Any, Any]
    | Mapping[str, Any]
    | Sequence[Mapping[str, Any]]
    | str
    | os.PathLike[str]
    | IO[bytes]
)


def read(data: Data, names: Sequence[str] | None = None, *, sep: str | None = None) -> pd.DataFrame:
    """A DataFrame of the rows in `data`.

    Args:
        data: a DataFrame (returned as it is); a polars DataFrame, an Arrow table or anything else
            that Arrow can read; a 2-D NumPy array with `names`, a structured or record array; a
            mapping from name to column, or to a single value (one row); a Series with names as
            index (one row); a list of dictionaries, one a row; a path or an open binary file
            with CSV or Parquet inside, or a folder of Parquet files.
        names: column names of a NumPy array.
        sep: separator of a CSV file; found out if not given (`csv_file.py`).
    """
    if isinstance(data, pd.DataFrame):
        return data
    if isinstance(data, pd.Series):  # one row, a value for each name
        return data.to_frame().T.infer_objects() if names is None else data.to_frame()
    if isinstance(data, np.ndarray):
        return _from_array(data, names)
    if isinstance(data, Mapping):
        if is_one_row(data):
            return pd.DataFrame({name: pd.Series([value]) for name, value in data.items()})
        try:
            return pd.DataFrame(dict(data))
        except ValueError as error:
            raise SchemaError(
                f"a mapping gives a column of values for each name, all of one length: {error}"
            ) from None
    if isinstance(data, (str, os.PathLike)):
        return _from_path(Path(data), sep)
    if hasattr(data, "read"):
        return _from_file(cast(IO[bytes], data), sep=sep)
    if hasattr(data, "__arrow_c_stream__") or hasattr(data, "__arrow_c_array__"):
        return _from_arrow(data)
    if hasattr(data, "collect") and hasattr(data, "collect_schema"):  # polars, not worked out yet
        return _from_arrow(data.collect())
    if isinstance(data, Iterable):
        rows = list(data)
        if rows and all(isinstance(row, Mapping) for row in rows):
            return pd.DataFrame([dict(row) for row in rows])
    raise SchemaError(
        "expected a DataFrame (pandas or polars), an Arrow table, a NumPy array with names, a list "
        "of dictionaries, or a CSV or Parquet file (path or open file), found "
        f"{type(data).__name__}"
    )


def is_one_row(data: object) -> bool:
    """Whether data is one row: a mapping of single values, or a Series with names as index."""
    if isinstance(data, pd.Series):
        return True
    return (
        isinstance(data, Mapping)
        and bool(data)
        and not any(pd.api.types.is_list_like(value) for value in data.values())
    )


def _from_arrow(data: Any) -> pd.DataFrame:
    import pyarrow as pa  # slow to import, and needed here alone

    try:
        frame: pd.DataFrame = pa.table(data).to_pandas()
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise SchemaError(f"Arrow cannot read the {type(data).__name__}: {error}") from None
    return frame


def _from_array(data: np.ndarray[Any, Any], names: Sequence[str] | None) -> pd.DataFrame:
    if data.dtype.names is not None:
        return pd.DataFrame(data)
    if data.ndim != 2:
        raise SchemaError(f"expected an array of rows and columns, found shape {data.shape}")
    if names is None:
        raise SchemaError("a NumPy array needs names: pass names=[...], one for each column")
    if len(names) != data.shape[1]:
        raise SchemaError(f"{len(names)} names for {data.shape[1]} columns")
    return pd.DataFrame(data, columns=list(names))


def _from_path(path: Path, sep: str | None) -> pd.DataFrame:
    if path.is_dir() and is_parquet(path):
        return ParquetFile(path).read()
    if not path.is_file():
        raise SchemaError(f"no such file: {path}")
    with path.open("rb") as file:
        return _from_file(file, str(path), sep)


def _from_file(file: IO[bytes], name: str = "the file", sep: str | None = None) -> pd.DataFrame:
    start = file.read(4)
    if isinstance(start, str):
        raise SchemaError(f"{name} is open as text; open it with mode 'rb'")
    file.seek(0)
    try:
        if start == b"PAR1":
            check_size([file], name)
            file.seek(0)
            return pd.read_parquet(file)
        if name.endswith(".parquet") and start:
            raise SchemaError(f"{name} is no Parquet file: it does not begin with PAR1")
        frame = read_csv(file, sep, name)
    except SchemaError:
        raise
    except pd.errors.EmptyDataError:
        raise SchemaError(f"{name} is empty") from None
    except (ValueError, OSError, UnicodeDecodeError, pd.errors.ParserError) as error:
        if ragged := _RAGGED.search(str(error)):
            raise SchemaError(
                f"{name}, line {ragged[2]}: {ragged[3]} cells where lines before it have "
                f"{ragged[1]}: put a text that holds the separator in quotes, or remove what is "
                "too much (--sep says which separator the file has)"
            ) from None
        raise SchemaError(f"{name} is neither CSV nor Parquet: {error}") from None
    if any("\x00" in str(column) for column in frame.columns):
        raise SchemaError(f"{name} is neither CSV nor Parquet: it holds zero bytes")
    return frame

"""Rows from wherever they lie: pandas, NumPy with names, CSV or Parquet (path or open file)."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
import pandas as pd

from fedcircuits.errors import SchemaError

Data = pd.DataFrame | np.ndarray[Any, Any] | Mapping[str, Any] | str | os.PathLike[str] | IO[bytes]


def read(data: Data, names: Sequence[str] | None = None) -> pd.DataFrame:
    """A DataFrame of the rows in `data`.

    Args:
        data: a DataFrame (returned as it is), a 2-D NumPy array with `names`, a structured or
            record array, a mapping from name to column, a path or an open binary file with CSV
            or Parquet inside.
        names: column names of a NumPy array.
    """
    if isinstance(data, pd.DataFrame):
        return data
    if isinstance(data, pd.Series):
        return data.to_frame().T if names is None else data.to_frame()
    if isinstance(data, np.ndarray):
        return _from_array(data, names)
    if isinstance(data, Mapping):
        try:
            return pd.DataFrame(dict(data))
        except ValueError as error:
            raise SchemaError(
                f"a mapping gives a column of values for each name, all of one length: {error}"
            ) from None
    if isinstance(data, (str, os.PathLike)):
        return _from_path(Path(data))
    if hasattr(data, "read"):
        return _from_file(data)
    raise SchemaError(
        "expected a DataFrame, a NumPy array with names, or a CSV or Parquet file (path or open "
        f"file), found {type(data).__name__}"
    )


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


def _from_path(path: Path) -> pd.DataFrame:
    if not path.is_file():
        raise SchemaError(f"no such file: {path}")
    with path.open("rb") as file:
        return _from_file(file, str(path))


def _from_file(file: IO[bytes], name: str = "the file") -> pd.DataFrame:
    start = file.read(4)
    if isinstance(start, str):
        raise SchemaError(f"{name} is open as text; open it with mode 'rb'")
    file.seek(0)
    try:
        if start == b"PAR1":
            return pd.read_parquet(file)
        frame = pd.read_csv(file, skipinitialspace=True)
    except pd.errors.EmptyDataError:
        raise SchemaError(f"{name} is empty") from None
    except (ValueError, OSError, UnicodeDecodeError, pd.errors.ParserError) as error:
        raise SchemaError(f"{name} is neither CSV nor Parquet: {error}") from None
    if any("\x00" in str(column) for column in frame.columns):
        raise SchemaError(f"{name} is neither CSV nor Parquet: it holds zero bytes")
    return frame

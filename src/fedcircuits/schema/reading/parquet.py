"""Parquet files and folders of them, read whole or batch by batch."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedcircuits.arrays import IntArray
from fedcircuits.errors import SchemaError

# Bytes of a value in memory, by how a file holds it; texts take more.
_BYTES = {"INT64": 8, "DOUBLE": 8, "INT96": 8, "INT32": 4, "FLOAT": 4, "BYTE_ARRAY": 4}
# Cells of a batch.
BATCH_CELLS = 2**21


def batch_rows(n_columns: int) -> int:
    """Rows of a batch: the same for a table and a file, so that both give the same model."""
    return max(BATCH_CELLS // max(n_columns, 1), 1)


class ParquetFile:
    """A Parquet file, or a folder of them, read batch by batch; nothing is kept."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Look at the files' schema and number of rows."""
        import pyarrow as pa  # slow to import, and needed here alone
        import pyarrow.dataset as ds

        self.path = Path(path)
        try:
            self._dataset = ds.dataset(self.path, format="parquet", partitioning="hive")
            self.n_rows = int(self._dataset.count_rows())
        except (pa.ArrowException, OSError, ValueError) as error:
            raise SchemaError(f"{path} cannot be read as Parquet: {error}") from None
        empty = self._dataset.schema.empty_table().to_pandas()
        self.names: list[str] = [str(name) for name in empty.columns]

    def frames(self, columns: Sequence[str] | None = None) -> Iterator[pd.DataFrame]:
        """Yield all rows in order, in batches of a size that does not depend on the files'."""
        import pyarrow as pa

        chosen = list(self.names if columns is None else columns)
        size = batch_rows(len(chosen))
        waiting: list[Any] = []
        n_waiting = 0
        for part in self._dataset.to_batches(columns=chosen, batch_size=size, batch_readahead=1):
            waiting.append(part)
            n_waiting += part.num_rows
            while n_waiting >= size:
                whole = pa.Table.from_batches(waiting)
                yield whole.slice(0, size).to_pandas()
                waiting = whole.slice(size).to_batches()
                n_waiting -= size
        if n_waiting:
            yield pa.Table.from_batches(waiting).to_pandas()

    def take(self, rows: IntArray, columns: Sequence[str] | None = None) -> pd.DataFrame:
        """Return some rows, their numbers ascending."""
        start, kept = 0, []
        for frame in self.frames(columns):
            first, last = np.searchsorted(rows, (start, start + len(frame)))
            kept.append(frame.iloc[rows[first:last] - start])
            start += len(frame)
        return pd.concat(kept, ignore_index=True)

    def read(self) -> pd.DataFrame:
        """Return all rows."""
        check_size([part.path for part in self._dataset.get_fragments()], str(self.path))
        frame: pd.DataFrame = self._dataset.to_table().to_pandas()
        return frame


def check_size(files: Sequence[Any], name: str) -> None:
    """Raise an error where rows would take more than the machine's memory once they are unpacked.

    A file of some kilobytes can hold a thousand million rows, or one long text in each of many.

    Args:
        files: paths, or open files, which are left where they were.
        name: of them all, for the error.
    """
    import pyarrow.parquet as pq

    most = memory()
    size = n_rows = 0
    for file in files:
        opened = pq.ParquetFile(file)
        n_rows += opened.metadata.num_rows
        fixed, texts = _sizes(opened)
        if size + fixed <= most < size + fixed + texts:  # how much the texts take shows by reading
            fixed = 0
            for batch in opened.iter_batches(batch_size=1024):
                fixed += batch.nbytes
                if size + fixed > most:
                    break
        size += fixed
        if size > most:
            raise SchemaError(
                f"{name} has {n_rows} rows that take more than the {most / 2**30:.0f} GiB of "
                "memory here once they are unpacked: take a part of them, or learn from the file "
                "in batches (fedcircuits learn)"
            )


def _sizes(file: Any) -> tuple[int, int]:
    """Bytes that the values of a file take at least, and those that its texts may take more."""
    found = file.metadata
    columns = [
        found.row_group(at).column(k)
        for at in range(found.num_row_groups)
        for k in range(found.num_columns)
    ]
    text = [each for each in columns if each.physical_type == "BYTE_ARRAY"]
    least = sum(each.num_values * _BYTES.get(each.physical_type, 0) for each in columns)
    return least, sum(each.num_values * each.total_uncompressed_size for each in text)


def memory() -> int:
    """Return the bytes of this machine's memory."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def is_parquet(data: object) -> bool:
    """Whether data is the path of a Parquet file or of a folder that holds some."""
    if not isinstance(data, (str, os.PathLike)):
        return False
    path = Path(data)
    if path.is_dir():
        return next(path.glob("**/*.parquet"), None) is not None
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(4) == b"PAR1"

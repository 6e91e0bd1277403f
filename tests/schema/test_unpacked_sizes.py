"""Parquet files of some kilobytes that hold more than a machine's memory."""

from __future__ import annotations

import io
import resource
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedcircuits.api.client_spec import ClientSpec
from fedcircuits.errors import SchemaError
from fedcircuits.schema import read
from fedcircuits.schema.reading import parquet

MEMORY = 2**28


@pytest.fixture(autouse=True)
def little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "memory", lambda: MEMORY)


def zeros(path: Path) -> Path:
    """400 MB of zeros."""
    part = pa.table({"a": pa.array(np.zeros(5_000_000, dtype=np.int64))})
    with pq.ParquetWriter(path, part.schema, compression="zstd") as writer:
        for _ in range(10):
            writer.write_table(part)
    return path


def texts(path: Path, n_rows: int) -> Path:
    """One text of 100 kB, in many rows."""
    column = pa.DictionaryArray.from_arrays(np.zeros(n_rows, dtype=np.int32), ["x" * 100_000])
    pq.write_table(pa.table({"a": column}), path, store_schema=False, compression="zstd")
    return path


def test_files_that_unpack_to_more_than_the_memory_are_refused_before(tmp_path: Path) -> None:
    numbers, long = zeros(tmp_path / "numbers"), texts(tmp_path / "texts", 10_000)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for path in (numbers, long):
        assert path.stat().st_size < 300_000
        with pytest.raises(SchemaError, match="once they are unpacked: take a part of them"):
            read(path)
        with pytest.raises(SchemaError, match="rows that take more than the 0 GiB of memory"):
            read(io.BytesIO(path.read_bytes()))
        with pytest.raises(SchemaError, match="once they are unpacked"):
            ClientSpec("a", path, "hclt").make()
    (tmp_path / "folder").mkdir()
    numbers.rename(tmp_path / "folder" / "0.parquet")
    with pytest.raises(SchemaError, match="once they are unpacked"):
        read(tmp_path / "folder")
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown * 1024 < 2 * MEMORY


def test_files_that_fit_are_read(tmp_path: Path) -> None:
    assert read(texts(tmp_path / "texts", 20)).shape == (20, 1)
    frame = pd.DataFrame({"a": np.arange(1000), "b": ["some text", "another"] * 500})
    frame.to_parquet(tmp_path / "frame")
    assert read(tmp_path / "frame").equals(frame)

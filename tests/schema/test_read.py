"""Rows from pandas, NumPy, mappings, CSV and Parquet, and files that are neither."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedcircuits.errors import SchemaError
from fedcircuits.schema import Schema, read

FRAME = pd.DataFrame(
    {
        "x": [1.5, -2.25, np.nan],
        "n": [4, 9, 4],
        "word": ["a, b", "ä", None],
        "flag": [True, False, True],
    }
)


def check(frame: pd.DataFrame) -> None:
    assert list(frame.columns) == ["x", "n", "word", "flag"]
    np.testing.assert_array_equal(frame["x"], FRAME["x"])
    assert frame["n"].tolist() == [4, 9, 4]
    assert frame["word"].tolist()[:2] == ["a, b", "ä"]
    assert pd.isna(frame["word"].iloc[2])
    assert frame["flag"].tolist() == [True, False, True]


@pytest.mark.parametrize("as_text", [True, False])
def test_csv_by_path(tmp_path: Path, as_text: bool) -> None:
    path = tmp_path / "rows.csv"
    FRAME.to_csv(path, index=False)
    check(read(str(path) if as_text else path))


def test_parquet_by_path_whatever_its_name(tmp_path: Path) -> None:
    path = tmp_path / "rows.data"
    FRAME.to_parquet(path)
    check(read(path))


def test_csv_from_an_open_file() -> None:
    check(read(io.BytesIO(FRAME.to_csv(index=False).encode())))


def test_parquet_from_an_open_file() -> None:
    check(read(io.BytesIO(FRAME.to_parquet())))


def test_a_dataframe_is_itself() -> None:
    assert read(FRAME) is FRAME


def test_numpy_with_names() -> None:
    frame = read(np.array([[1.0, 2.0], [3.0, 4.5]]), ["b", "a"])
    assert frame.to_dict("list") == {"b": [1.0, 3.0], "a": [2.0, 4.5]}


def test_numpy_of_objects_is_guessed_cell_by_cell() -> None:
    rows = np.array([["red", 1.5], ["blue", 2.5]], dtype=object)
    schema = Schema.infer(rows, names=["colour", "size"])
    assert [v.kind for v in schema] == ["categorical", "continuous"]
    np.testing.assert_array_equal(
        schema.encode(rows, names=["colour", "size"]).values, [[1, 1.5], [0, 2.5]]
    )


def test_structured_arrays_have_names_of_their_own() -> None:
    rows = np.array([(1.5, 2), (2.5, 7)], dtype=[("x", float), ("n", int)])
    assert read(rows).to_dict("list") == {"x": [1.5, 2.5], "n": [2, 7]}


def test_a_mapping_of_columns() -> None:
    assert read({"x": [1, 2], "w": ["a", "b"]}).to_dict("list") == {"x": [1, 2], "w": ["a", "b"]}


def test_schema_is_the_same_from_every_source(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    FRAME.to_csv(path, index=False)
    expected = Schema.infer(FRAME)
    assert Schema.infer(path) == expected
    assert Schema.infer(io.BytesIO(FRAME.to_parquet())) == expected


def test_numbers_in_a_csv_with_question_marks() -> None:
    schema = Schema.infer(io.BytesIO(b"x,c\n1.5, ?\n?, b\n2.5, a\n"), missing_values=["?"])
    assert (schema["x"].kind, schema["x"].domain) == ("continuous", (1.5, 2.5))
    assert schema["c"].categories == ("a", "b")


# --- told well ------------------------------------------------------------------------------------


def test_no_such_file(tmp_path: Path) -> None:
    with pytest.raises(SchemaError, match=r"no such file: .*nowhere.csv"):
        read(tmp_path / "nowhere.csv")


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(SchemaError, match="no such file"):
        read(tmp_path)


@pytest.mark.parametrize(
    "content",
    [
        b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR\xff\xfe\xfa",
        b"PAR1 this is not a parquet file at all",
        b"PAR1",
        b"\x00\x01\x02\x03,\x00\n1,2\n",
        bytes(range(256)) * 8,
    ],
)
def test_a_file_that_is_not_one(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "data.csv"
    path.write_bytes(content)
    with pytest.raises(SchemaError, match=r"data.csv is neither CSV nor Parquet"):
        read(path)


def test_an_empty_file(tmp_path: Path) -> None:
    path = tmp_path / "empty.csv"
    path.write_bytes(b"")
    with pytest.raises(SchemaError, match=r"empty.csv is empty"):
        read(path)


def test_a_header_without_rows_is_a_table_without_rows() -> None:
    with pytest.raises(SchemaError, match="the table has no row"):
        Schema.infer(io.BytesIO(b"x,y\n"))


def test_a_file_open_as_text() -> None:
    with pytest.raises(SchemaError, match="open as text; open it with mode 'rb'"):
        read(io.StringIO("x,y\n1,2\n"))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("data", "names", "message"),
    [
        (np.zeros((2, 3)), None, "a NumPy array needs names"),
        (np.zeros((2, 3)), ["a", "b"], "2 names for 3 columns"),
        (np.zeros(3), ["a"], "an array of rows and columns, found shape"),
        (42, None, "expected a DataFrame.* found int"),
        ([1, 2], None, "expected a DataFrame.* found list"),
        ({"x": [1, 2], "y": [1]}, None, "all of one length"),
    ],
)
def test_what_is_no_table(data: Any, names: Any, message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        read(data, names)

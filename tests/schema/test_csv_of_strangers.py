"""CSV files as hospitals, banks and shops export them: codes, dates, brackets, units, free text."""

from __future__ import annotations

import io
from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest

import fedcircuits as fc
from fedcircuits.errors import FedcircuitsWarning
from fedcircuits.schema import read


def column(*cells: str, sep: str = ";") -> pd.Series:
    """The only interesting column of a file."""
    lines = [f"a{sep}b", *(f"{cell}{sep}1" for cell in cells)]
    return read(io.BytesIO("\n".join([*lines, ""]).encode()), sep=sep)["a"]


def test_digits_with_zeros_in_front_are_names() -> None:
    assert column("01067", "10115", "").tolist()[:2] == ["01067", "10115"]
    assert column("01", "12", "07").tolist() == [1, 12, 7]  # months and hours
    assert column("0.5", "007.5").tolist() == [0.5, 7.5]
    assert column("0", "1000").tolist() == [0, 1000]


def test_a_model_of_codes_takes_files_that_lost_the_zeros() -> None:
    codes = [*("01067", "10115", "50667") * 20]
    model = fc.learn(pd.DataFrame({"plz": codes}), learner="factorised")
    written = model.log_prob(pd.DataFrame({"plz": ["01067", "10115"]}))
    assert np.array_equal(written, model.log_prob(pd.DataFrame({"plz": [1067, 10115]})))
    assert np.array_equal(written[:1], model.log_prob({"plz": 1067}))
    with pytest.raises(fc.errors.UnknownCategoryError, match="expected one of '01067'"):
        model.log_prob({"plz": 67})
    twice = fc.learn(pd.DataFrame({"plz": ["01", "1", "2"] * 20}), learner="factorised")
    with pytest.raises(fc.errors.UnknownCategoryError):  # which of the two is meant?
        twice.log_prob({"plz": 1})


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        (["08/30/2023 02:00 PM", "09/09/2023 12:21 am"], ["2023-08-30 14:00", "2023-09-09 00:21"]),
        (["8/30/2023 9:05", "9/9/2023 19:21"], ["2023-08-30 09:05", "2023-09-09 19:21"]),
        (["2023/08/30", "2023/9/1"], ["2023-08-30", "2023-09-01"]),
        (["2023.08.30", "2023.9.1"], ["2023-08-30", "2023-09-01"]),
        (["30.08.23", "01.09.71"], ["2023-08-30", "1971-09-01"]),
        (["8/30/23", "9/1/23"], ["2023-08-30", "2023-09-01"]),
        (["30-08-2023", "01-09-2023"], ["2023-08-30", "2023-09-01"]),
        (["8/30/2023 14:00 PM", "9/9/2023 1:00 PM"], None),  # no hour of half a day
        (["1.12.24", "1.13.24"], None),  # versions, of which one is no day
        (["12-11-10", "30-11-10"], None),  # no telling the year
    ],
)
def test_dates_as_people_write_them(cells: list[str], expected: list[str] | None) -> None:
    assert column(*cells).tolist() == (cells if expected is None else expected)


def test_a_column_of_dates_in_several_forms_is_read_with_a_warning() -> None:
    cells = ["2025-08-16", "16.07.2025", "11/28/2025", "Aug 3, 2025"]
    with pytest.warns(
        FedcircuitsWarning, match=r"'a' writes dates in 4 ways.*its own order of day"
    ):
        found = column(*cells)
    assert found.tolist() == ["2025-08-16", "2025-07-16", "2025-11-28", "2025-08-03"]
    with pytest.warns(FedcircuitsWarning, match="cannot be told apart"):
        assert column("2025-08-16", "03/04/2025").tolist() == ["2025-08-16", "03/04/2025"]


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        (["9:05", "14:30", "00:10:30"], [32700.0, 52200.0, 630.0]),
        (["9:05 AM", "2:30 pm"], [32700.0, 52200.0]),
        (["1:00:00", "26:30:00"], [3600.0, 95400.0]),  # a duration: no day has 26 hours
    ],
)
def test_times_of_day_and_durations_are_numbers(cells: list[str], expected: list[float]) -> None:
    table = pd.DataFrame({"a": column(*cells * 5)})
    schema = fc.Schema.infer(table)
    assert schema["a"].time == ("duration" if expected[-1] > 86_400 else "time")
    assert schema.encode(table).values[: len(expected), 0].tolist() == expected
    assert schema.encode(pd.DataFrame({"a": cells})).values[:, 0].tolist() == expected


def test_a_missing_time_of_day_is_one() -> None:
    with pytest.warns(FedcircuitsWarning, match=r"column 'a': read as missing: '-'"):
        assert column("9:05", "-", "10:30").isna().tolist() == [False, True, False]
    assert column("9:05", "9:61").tolist() == ["9:05", "9:61"]
    assert column("3:2", "1:0").tolist() == ["3:2", "1:0"]  # a score


def test_text_dates_of_a_data_frame_are_read_as_those_of_a_file() -> None:
    rows = pd.DataFrame(
        {"day": ["11/17/2026", "12/01/2026", "11/30/2026"] * 10, "y": [0, 1, 1] * 10}
    )
    model = fc.learn(rows, learner="factorised")
    assert model.schema["day"].time == "date"
    iso = model.log_prob({"day": "2026-11-17"}).item()
    for text in ("11/17/2026", "17.11.2026", "Nov 17, 2026", "2026/11/17"):
        assert model.log_prob({"day": text}).item() == iso
        assert model.log_prob(pd.DataFrame({"day": [text]})).item() == iso
    with (
        pytest.raises(fc.errors.SchemaError, match=r"expected a date \(2026-11-17, 17.11.2026 or"),
        pytest.warns(FedcircuitsWarning, match="write dates as 2026-11-17"),
    ):
        model.log_prob({"day": "03/04/2026"})


def test_the_line_in_which_excel_names_the_separator_is_no_row() -> None:
    found = read(io.BytesIO(b"sep=;\r\na;b\r\n1,5;x\r\n2,5;y\r\n"))
    assert found.to_dict("list") == {"a": [1.5, 2.5], "b": ["x", "y"]}


def test_a_line_with_too_many_cells_is_named() -> None:
    with pytest.raises(
        fc.errors.SchemaError, match=r"line 3: 3 cells where lines before it have 2"
    ):
        read(io.BytesIO(b"a,b\n1,2\n1,2,3\n"))


@pytest.mark.parametrize("header", ["5,0.13,q", "7,3,9", "2025-01-03,4,x"])
def test_a_file_without_names_of_columns_is_noticed(header: str) -> None:
    with pytest.warns(FedcircuitsWarning, match="names of the columns look like values"):
        read(io.BytesIO(f"{header}\n1,2,3\n4,5,6\n".encode()))


@pytest.mark.parametrize("header", ["country,2019,2020", "2018,2019,2020", "a,b,c"])
def test_years_are_names_of_columns(header: str, recwarn: pytest.WarningsRecorder) -> None:
    read(io.BytesIO(f"{header}\n1,2,3\n4,5,6\n".encode()))
    assert not list(recwarn)


def test_amounts_in_brackets_are_below_zero() -> None:
    assert column("($1,234.50)", "$20.00").tolist() == [-1234.5, 20.0]
    assert column("(12)", "7 ").tolist() == [-12, 7]
    assert column("(-12)", "7").tolist() == ["(-12)", "7"]


def test_one_unit_makes_numbers_where_they_are_many() -> None:
    areas = [f"{n} m²" for n in range(20, 60)]
    assert column(*areas).tolist() == list(range(20, 60))
    speeds = [f"{n / 2}km/h" for n in range(20, 60)]
    assert column(*speeds).tolist() == [n / 2 for n in range(20, 60)]
    drives = ["2WD", "4WD"] * 20
    assert column(*drives).tolist() == drives
    mixed = [f"{n}{'kg' if n % 2 else 'g'}" for n in range(20, 60)]
    assert column(*mixed).tolist() == mixed


def noted(n: int, text: Callable[[int], str]) -> pd.DataFrame:
    """Rows with a column of texts, and a number."""
    return pd.DataFrame({"note": [text(i) for i in range(n)], "x": np.arange(n) % 7})


def test_texts_that_hardly_repeat_are_left_out() -> None:
    rows = noted(1200, lambda i: f"memo {i % 900}")
    with pytest.warns(FedcircuitsWarning, match="'note': 900 different texts in 1200 rows"):
        model = fc.learn(rows, learner="factorised")
    assert model.schema.names == ("x",)
    some = noted(1200, lambda i: f"memo {i % 500}")
    assert "note" in fc.learn(some, learner="factorised").schema
    few = noted(60, lambda i: f"memo {i % 50}")  # little is known from sixty rows
    assert "note" in fc.learn(few, learner="factorised").schema


def test_the_warning_of_an_encoding_names_the_file(tmp_path) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "größen.csv"
    path.write_bytes("a,b\nMüller,1\n".encode("cp1252"))
    with pytest.warns(FedcircuitsWarning, match=r"größen\.csv is not UTF-8; read as Windows-1252"):
        assert read(path)["a"].tolist() == ["Müller"]


@pytest.mark.parametrize("sep", [",", ";"])
def test_several_spellings_of_a_missing_price_leave_numbers(sep: str) -> None:
    spellings = ["-", "?", "N/A", "k.A.", "none", "", "n.d.", "--"]
    cells = [f"{5 + i / 10}" for i in range(100)] + spellings
    with pytest.warns(FedcircuitsWarning, match=r"'a': read as missing: '-', '--', '\?', 'k\.A"):
        prices = column(*cells, sep=sep)
    assert prices.dtype == float
    assert prices.isna().sum() == len(spellings)
    assert prices[:100].tolist() == [5 + i / 10 for i in range(100)]
    amounts = [f"{5 + i},50 €" for i in range(60)]
    with pytest.warns(FedcircuitsWarning, match=r"read as missing: '-', '\?', 'unbekannt'"):
        euros = column(*amounts, "-", "?", "unbekannt")
    assert euros[:60].tolist() == [5.5 + i for i in range(60)]
    days = [f"{1 + i % 28}.11.2026" for i in range(60)]
    with pytest.warns(FedcircuitsWarning, match=r"read as missing: '-', '\?', 'k\.A\.'"):
        dates = column(*days, "-", "?", "k.A.")
    assert fc.Schema.infer(pd.DataFrame({"a": dates}))["a"].time == "date"


def test_rare_short_texts_among_many_numbers_are_missing() -> None:
    numbers = [str(i * 7) for i in range(100)]
    with pytest.warns(FedcircuitsWarning, match="read as missing: 'nm'"):  # often, but always one
        assert column(*numbers, *["nm"] * 40).isna().sum() == 40
    with pytest.warns(FedcircuitsWarning, match="read as missing: 'tbd', 'x'"):
        assert column(*numbers, "tbd", "x").isna().sum() == 2
    rooms = ["1", "2", "3", "EG"] * 20  # a floor among few
    assert column(*rooms).tolist() == rooms
    postcodes = [f"{i:05d}" for i in range(100, 200)]
    assert column(*postcodes, "-").tolist() == [*postcodes, "-"]


def test_other_texts_among_nearly_only_numbers_are_pointed_out() -> None:
    cells = [*(str(i * 7) for i in range(100)), "see note", "12 or 13", "below 5"]
    with pytest.warns(FedcircuitsWarning, match="'a' is read as categories.*: 100 of 103 cells"):
        assert column(*cells).tolist() == cells


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        (["€12.30", "€ -7.00"], [12.3, -7]),
        (["EUR 12,30", "EUR 1.234,50"], [12.3, 1234.5]),
        (["12.30 €", "1 234.50 €"], [12.3, 1234.5]),
        (["CHF 1'234.50", "CHF 12’000.00", "CHF 5"], [1234.5, 12000, 5]),
        (["(12.30)", "5.00"], [-12.3, 5]),
        (["US$ 5", "US$1,200.50"], [5, 1200.5]),
        (["SKU 12", "SKU 13"], None),
        (["1'2345", "1'23"], None),
    ],
)
@pytest.mark.parametrize("sep", [",", ";"])
def test_amounts_with_currencies(cells: list[str], expected: list[float] | None, sep: str) -> None:
    found = column(*(f'"{cell}"' for cell in cells), sep=sep)
    assert found.tolist() == (cells if expected is None else expected)

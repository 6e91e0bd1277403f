"""CSV files of any dialect, Arrow, dictionaries, dates, category dtypes, columns that name rows."""

from __future__ import annotations

import datetime
import io
import warnings
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import fedcircuits as fc
from fedcircuits.errors import FedcircuitsWarning, FederationError, QueryError, SchemaError
from fedcircuits.schema import read
from fedcircuits.schema.events.parse import from_texts
from fedcircuits.schema.reading.known import read_known

ROWS = pd.DataFrame({"name": ["Ä", "b; c", "d"], "x": [1.5, -2.25, 1000.0], "n": [1, 2, 3]})


@pytest.mark.parametrize("sep", [",", ";", "\t", "|"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_separator_and_encoding_are_found_out(sep: str, encoding: str) -> None:
    text = ROWS.to_csv(index=False, sep=sep)
    pd.testing.assert_frame_equal(read(io.BytesIO(text.encode(encoding))), ROWS)


def test_a_file_in_windows_letters_is_read_with_a_warning() -> None:
    text = ROWS.to_csv(index=False, sep=";")
    with pytest.warns(FedcircuitsWarning, match="Windows-1252"):
        frame = read(io.BytesIO(text.encode("cp1252")))
    pd.testing.assert_frame_equal(frame, ROWS)


def test_decimal_commas_are_numbers_and_the_separator_can_be_said() -> None:
    text = "a;b;c;d\n1,5;1.234,5;x,1;7\n-2;3;y,2;8\n;0,25;z,3;9\n"
    frame = read(io.BytesIO(text.encode()))
    assert frame["a"].tolist()[:2] == [1.5, -2.0]
    assert np.isnan(frame["a"][2])
    assert frame["b"].tolist() == [1234.5, 3.0, 0.25]
    assert frame["c"].tolist() == ["x,1", "y,2", "z,3"]
    assert frame["d"].tolist() == [7, 8, 9]
    odd = b"a#b\n1#2\n"
    assert read(io.BytesIO(odd), sep="#")["b"].tolist() == [2]
    with pytest.raises(SchemaError, match="one character"):
        read(io.BytesIO(odd), sep="##")


def test_a_single_column_stays_one_column() -> None:
    assert list(read(io.BytesIO(b"word\na\nb c\n")).columns) == ["word"]


class Capsules:
    """Something that Arrow can read, as polars' frames are."""

    def __init__(self, table: pa.Table) -> None:
        self.table = table

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self.table.__arrow_c_stream__(requested_schema)


def test_arrow_tables_and_dictionaries_are_rows() -> None:
    table = pa.Table.from_pandas(ROWS, preserve_index=False)
    for data in (table, Capsules(table), ROWS.to_dict("records")):
        pd.testing.assert_frame_equal(read(data), ROWS)
    with pytest.raises(SchemaError, match="found set"):
        read({1, 2})  # type: ignore[arg-type]


def test_polars_frames_are_rows() -> None:
    polars = pytest.importorskip("polars")
    frame = polars.DataFrame(ROWS.to_dict("list"))
    pd.testing.assert_frame_equal(read(frame), ROWS)
    pd.testing.assert_frame_equal(read(frame.lazy()), ROWS)


# --- dates ----------------------------------------------------------------------------------------

DAYS = pd.Series(pd.date_range("2020-01-01", periods=90, freq="D"))
TIMES: dict[str, Any] = {
    "date": DAYS,
    "datetime": DAYS + pd.to_timedelta(np.arange(90) * 977, unit="s"),
    "datetime Europe/Berlin": DAYS.dt.tz_localize("Europe/Berlin") + pd.Timedelta(hours=3),
    "duration": pd.Series(pd.to_timedelta(np.arange(90) * 61, unit="s")),
    "time": pd.Series([datetime.time(i % 24, i % 60) for i in range(90)]),
}


@pytest.mark.parametrize("kind", list(TIMES))
def test_times_become_numbers_and_come_back(kind: str) -> None:
    frame = pd.DataFrame({"when": TIMES[kind], "x": np.arange(90) % 7})
    schema = fc.Schema.infer(frame)
    assert schema["when"].time == kind
    again = fc.Schema.from_json(schema.to_json())
    assert again == schema
    table = again.encode(frame)
    back = again.decode(table.values, table.index)["when"]
    assert back.tolist() == frame["when"].tolist()


def test_dates_as_text_are_dates() -> None:
    frame = pd.DataFrame({"day": DAYS.dt.strftime("%Y-%m-%d"), "x": np.arange(90) % 5})
    schema = fc.Schema.infer(frame)
    assert schema["day"].time == "date"
    table = schema.encode(frame)
    assert schema.decode(table.values, table.index)["day"].tolist() == DAYS.tolist()
    assert fc.Schema.infer(frame, {"day": "categorical"})["day"].is_coded
    with pytest.raises(SchemaError, match=r"a date \(2026-11-17, .*\); found 'soon'"):
        schema.encode(pd.DataFrame({"day": ["2020-01-05", "soon"]}))


def test_a_model_of_dates_is_asked_in_dates() -> None:
    rng = np.random.default_rng(0)
    day = pd.Series(pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 300, 400), "D"))
    frame = pd.DataFrame({"day": day, "late": np.where(day > "2020-06-30", "yes", "no")})
    model = fc.learn(frame, learner="hclt", seed=0)
    late = model.probability({"late": "yes"}, {"day": fc.above("2020-08-01")})
    assert late > 0.9
    sample = model.sample(50, {"day": fc.between("2020-03-01", "2020-03-31")}, seed=1)
    assert sample["day"].between("2020-03-01", "2020-03-31").all()
    assert model.predict(pd.DataFrame({"late": ["yes"]}), "day").dtype.kind == "M"
    low, high = model.interval("day", 0.8, {"late": "yes"})
    assert pd.Timestamp("2020-06-15") < low < high < pd.Timestamp("2020-11-30")


def test_clients_must_agree_on_what_is_a_date() -> None:
    dates = fc.Schema.infer(pd.DataFrame({"t": DAYS, "x": np.arange(90) % 3}))
    numbers = fc.Schema.infer(pd.DataFrame({"t": np.arange(90.0) ** 1.5, "x": np.arange(90) % 3}))
    with pytest.raises(SchemaError, match="client 'a' has date, client 'b' no dates"):
        fc.Schema.merge({"a": dates, "b": numbers})
    assert fc.Schema.merge({"a": dates, "b": dates})["t"].time == "date"


# --- categories, identifiers, names ---------------------------------------------------------------


@pytest.mark.parametrize("ordered", [True, False])
def test_category_dtypes_come_back_as_they_came(ordered: bool) -> None:
    size = pd.Series(pd.Categorical(["m", "s", "l", "m"] * 10, ["s", "m", "l", "xl"], ordered))
    frame = pd.DataFrame({"size": size, "x": np.tile([1.0, 2.0, 3.0, 2.0], 10)})
    model = fc.learn(frame, learner="factorised")
    assert model.sample(5, seed=0)["size"].dtype == size.dtype
    filled = model.impute(frame.assign(size=size.where(frame.index > 3)))
    assert filled["size"].dtype == size.dtype
    assert list(model.predict_proba(frame[["x"]], "size").columns) == ["s", "m", "l", "xl"]


def numbered(n: int = 60) -> pd.DataFrame:
    rng = np.random.default_rng(1)
    return pd.DataFrame(
        {
            "row": rng.permutation(n) + 1000,
            "key": [f"k{i}" for i in range(n)],
            "x": rng.normal(size=n),
            "y": rng.choice(["a", "b"], n),
        }
    )


def test_identifiers_are_left_out_with_a_warning_that_names_the_remedy() -> None:
    with pytest.warns(FedcircuitsWarning, match=r"left out column 'row'.*drop=") as caught:
        model = fc.learn(numbered(), learner="factorised")
    assert any("left out column 'key'" in str(w.message) for w in caught)
    assert model.schema.names == ("x", "y")
    with warnings.catch_warnings():
        warnings.simplefilter("error", FedcircuitsWarning)
        assert len(fc.learn(numbered(), learner="factorised", drop=["row", "key"]).schema) == 2
        kept = fc.learn(
            numbered(), learner="factorised", kinds={"row": "count", "key": "categorical"}
        )
    assert kept.schema.names == ("row", "key", "x", "y")
    with pytest.raises(SchemaError, match=r"no column 'keys'.*did you mean 'key'"):
        fc.learn(numbered(), drop=["keys"])
    with pytest.warns(FedcircuitsWarning), pytest.raises(SchemaError, match="every column looks"):
        fc.learn(numbered()[["key"]])
    squares = numbered().drop(columns=["row", "key"]).assign(n=np.arange(60) ** 2)
    with pytest.warns(FedcircuitsWarning, match="another whole number in every row"):
        fc.learn(squares, learner="factorised")


def test_identifiers_stop_a_federation_unless_they_are_the_id() -> None:
    frame = numbered(90)
    clients = {"a": frame[:45], "b": frame[45:]}
    with pytest.raises(FederationError, match="'key' holds another text in every row"):
        fc.federate({n: f.drop(columns="row") for n, f in clients.items()}, learner="factorised")
    fed = fc.federate(
        {n: f.drop(columns="row") for n, f in clients.items()}, id="key", learner="factorised"
    )
    assert set(fed.schema.names) == {"x", "y"}


def test_numbers_beside_one_spelling_of_missing_are_no_identifier() -> None:
    frame = numbered(90).assign(z=[f"{i / 7:.3f}" for i in range(89)] + ["see file"])
    frame = frame.drop(columns=["row", "key"])
    named = {"learner": "factorised", "missing_values": ["see file"]}
    assert fc.learn(frame, **named).schema["z"].kind == "continuous"
    clients = {"a": frame.assign(x=0.5), "b": frame}
    assert fc.federate(clients, **named).schema["z"].kind == "continuous"


def test_columns_that_the_model_does_not_know_are_pointed_out() -> None:
    model = fc.learn(numbered().drop(columns=["row", "key"]), learner="factorised")
    with pytest.warns(FedcircuitsWarning, match=r"'X' \(the model has 'x'\)"):
        model.log_prob(pd.DataFrame({"X": [1.0], "y": ["a"]}))
    with pytest.raises(SchemaError, match=r"knows none of the columns 'X' .*it has 'x', 'y'"):
        model.log_prob(pd.DataFrame({"X": [1.0], "z": [2.0]}))
    with pytest.raises(QueryError, match="did you mean 'x'"):
        model.expectation("X")


def test_events_are_evidence_and_not_data() -> None:
    frame = pd.DataFrame({"x": [1.0, fc.above(2), 3.0], "y": ["a", "b", "a"]})
    with pytest.raises(SchemaError, match="'x' holds an event"):
        fc.learn(frame, learner="factorised")


def test_several_draws_on_request() -> None:
    frame = numbered(200).drop(columns=["row", "key"])
    model = fc.learn(frame.assign(n=np.arange(200) % 9), learner="factorised")
    gaps = pd.DataFrame({"x": [None, 1.0], "y": ["a", None], "n": [None, None]})
    draws = model.impute(gaps, draws=3, seed=0)
    assert len(draws) == 3
    assert not draws[0].equals(draws[1])
    for filled in (*draws, model.impute(gaps)):
        assert filled["y"][0] == "a"
        assert filled["x"][1] == 1.0
        assert filled.notna().all().all()
        assert filled["n"].dtype.kind == "i"
    assert model.impute(gaps)["n"][0] == round(model.expectation("n"))


def test_dates_with_day_first_and_points_are_dates() -> None:
    texts = ["17.11.2026", "1.2.2024", "31.12.1999"] * 20
    rows = pd.DataFrame({"day": texts, "x": np.arange(60) % 7})
    schema = fc.Schema.infer(rows)
    assert schema["day"].time == "date"
    found = schema.encode(rows).values[:3, 0]
    wanted = pd.to_datetime(["2026-11-17", "2024-02-01", "1999-12-31"])
    assert np.array_equal(found, (wanted - pd.Timestamp(0)) / pd.Timedelta(days=1))
    odd = pd.DataFrame({"day": ["17.11.2026", "31.02.2024", "soon"] * 20, "x": range(60)})
    assert fc.Schema.infer(odd)["day"].time is None


# --- decimal commas and dates of CSV files --------------------------------------------------------


def of_csv(text: str) -> pd.DataFrame:
    return read(io.BytesIO(text.encode()))


def test_decimal_commas_beside_a_spelling_of_missing() -> None:
    text = "cost;name\n" + "".join(f"1.{i:03d},5;a\n" for i in range(40)) + "k.A.;b\n"
    with pytest.warns(fc.FedcircuitsWarning, match=r"'cost': read as missing: 'k\.A\.'"):
        frame = of_csv(text)
    variable = fc.Schema.infer(frame, missing_values=["k.A."])["cost"]
    assert variable.kind == "continuous"
    assert frame["cost"].iloc[3] == 1003.5
    assert np.isnan(frame["cost"].iloc[-1])
    words = of_csv("cost;name\n1,5;a\nabc;a\ndef;b\nghi;c\n")
    assert words["cost"].tolist() == ["1,5", "abc", "def", "ghi"]  # too many other texts


def test_dates_with_dots_are_day_month_year() -> None:
    frame = of_csv("day;at\n17.11.2026;3.2.2025 14:05\n1.2.2025;04.02.2025 09:30:10\n;\n")
    assert frame["day"].tolist()[:2] == ["2026-11-17", "2025-02-01"]
    assert frame["at"].tolist()[:2] == ["2025-02-03 14:05", "2025-02-04 09:30:10"]
    schema = fc.Schema.infer(frame)
    assert (schema["day"].time, schema["at"].time) == ("date", "datetime")


def test_dates_with_slashes_are_read_where_one_part_is_no_month() -> None:
    american = of_csv("day,x\n11/17/2026,1\n02/01/2025,2\n")
    assert american["day"].tolist() == ["2026-11-17", "2025-02-01"]
    british = of_csv("day,x\n17/11/2026,1\n01/02/2025,2\n")
    assert british["day"].tolist() == ["2026-11-17", "2025-02-01"]
    with pytest.warns(fc.FedcircuitsWarning, match="day and month cannot be told apart"):
        unclear = of_csv("day,x\n01/02/2026,1\n02/03/2025,2\n")
    assert unclear["day"].tolist() == ["01/02/2026", "02/03/2025"]


def test_a_day_that_is_none_leaves_the_text_as_it_was() -> None:
    frame = of_csv("day;x\n31.02.2024;1\n17.11.2026;2\n")
    assert frame["day"].tolist() == ["31.02.2024", "17.11.2026"]


@pytest.mark.parametrize("how", ["datetime64", "text", "date"])
def test_a_day_after_the_other_is_a_series_and_no_numbering(how: str) -> None:
    days = pd.Series(pd.date_range("2025-01-01", periods=120))
    cells = {"datetime64": days, "text": days.dt.strftime("%d.%m.%Y"), "date": days.dt.date}[how]
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"day": cells, "x": np.arange(120) / 20 + rng.normal(0, 0.1, 120)})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = fc.learn(frame, learner="mixture")
    assert model.schema.names == ("day", "x")
    late = fc.above(cells.iloc[80]) if how != "date" else fc.above(str(cells.iloc[80]))
    assert model.expectation("x", {"day": late}) > model.expectation("x") + 1


def test_a_name_that_differs_only_by_case_is_pointed_out() -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"Age": rng.normal(40, 9, 60), "k": rng.choice(list("ab"), 60)})
    with pytest.raises(fc.FedcircuitsError, match="did you mean 'Age'"):
        fc.learn(frame, label="age")
    model = fc.learn(frame, learner="factorised")
    for ask in (model.expectation, lambda name: model.condition({name: 30.0})):
        with pytest.raises(fc.FedcircuitsError, match="did you mean 'Age'"):
            ask("age")
    with pytest.warns(fc.FedcircuitsWarning, match="'age' \\(the model has 'Age'\\)"):
        model.log_prob(pd.DataFrame({"age": [30.0], "k": ["a"]}))
    frames = {"a": frame, "b": frame.rename(columns={"Age": "age"})}
    with pytest.warns(fc.FedcircuitsWarning, match="'Age' .client 'a'., 'age' .client 'b'. differ"):
        fc.federate(frames, learner="factorised")


def test_evidence_as_text_takes_the_dates_and_decimal_commas_that_files_hold() -> None:
    days = pd.Series(pd.date_range("2024-01-01", periods=60).strftime("%m/%d/%Y"))
    lines = "".join(f"{day};0,{k:02}\n" for k, day in enumerate(days))
    schema = fc.Schema.infer(read(io.BytesIO(f"day;share\n{lines}".encode())))

    def asked(*texts: str) -> dict[str, object]:
        return from_texts(schema, texts, "--given")

    iso = asked("day=2024-01-20..2024-02-14")
    assert asked("day=01/20/2024..02/14/2024") == asked("day=20/01/2024..14/02/2024") == iso
    assert asked("day=Jan 20, 2024..14 February 2024") == asked("day=20.01.24..14-02-2024") == iso
    assert asked("share<0,25") == asked("share<0.25")
    with pytest.raises(QueryError, match="day and month of '01/02/2024' cannot be told apart"):
        asked("day>01/02/2024")
    with pytest.raises(QueryError, match=r"'1,234' may be 1234 or 1\.234"):
        asked("share<1,234")


def test_a_year_or_a_month_as_evidence_is_all_of_it() -> None:
    days = pd.Series(pd.date_range("2023-01-01", periods=730)).rename("day")
    stamps = (pd.Series(pd.date_range("2023-01-01", periods=730 * 4, freq="6h"))).rename("at")
    for table, whole in ((days, "2024-02"), (stamps, "2024-02-20")):
        frame, name = table.to_frame(), str(table.name)
        model = fc.learn(frame, learner="factorised", kinds={name: "continuous"})

        def share(text: str, model: fc.Circuit = model) -> float:
            return float(model.probability(from_texts(model.schema, [text], "--given")))

        def real(inside: pd.Series) -> object:
            return pytest.approx(float(inside.mean()), abs=0.01)

        first = pd.Timestamp(whole)
        after = pd.Timestamp("2024-03-01" if whole == "2024-02" else "2024-02-21")
        inside = (table >= first) & (table < after)
        assert share(f"{name}={whole}") == real(inside)
        assert share(f"{name}!={whole}") == real(~inside)
        assert share(f"{name}<{whole}") == real(table < first)
        assert share(f"{name}<={whole}") == real(table < after)
        assert share(f"{name}>{whole}") == real(table >= after)
        assert share(f"{name}>={whole}") == real(table >= first)
        assert share(f"{name}=2023..{whole}") == real(table < after)
        assert share(f"{name}={whole}|2023") == real(inside | (table < pd.Timestamp("2024")))
    for text in ("at=78", "at=785512.5", "at=2024-13", "at=yesterday"):
        with pytest.raises(fc.FedcircuitsError, match="expected a date"):
            share(text)
    with pytest.raises(QueryError, match="whose lower end comes first"):
        share("at=2024..2023-05")


def test_a_day_in_the_year_9999_is_a_day() -> None:
    days = [*DAYS.dt.strftime("%Y-%m-%d"), "9999-12-31"]
    frame = pd.DataFrame({"day": days, "x": np.arange(91) % 5})
    schema = fc.Schema.infer(frame, {"day": "continuous"})
    assert schema["day"].time == "date"
    found = schema.encode(frame).values[:, schema.position("day")]
    assert found[-1] == (datetime.date(9999, 12, 31) - datetime.date(1970, 1, 1)).days
    assert np.isfinite(fc.learn(frame, learner="factorised").log_prob(frame)).all()


def test_a_day_in_the_year_9999_comes_back() -> None:
    days = [*DAYS.dt.strftime("%Y-%m-%d"), "9999-12-31"]
    schema = fc.Schema.infer(pd.DataFrame({"day": days}), {"day": "continuous"})
    table = schema.encode(pd.DataFrame({"day": days}))
    back = schema.decode(table.values, table.index)["day"]
    assert str(back.iloc[-1])[:10] == "9999-12-31"


def of_bytes(*lines: str, encoding: str = "utf-8") -> pd.DataFrame:
    return read(io.BytesIO("\n".join([*lines, ""]).encode(encoding)))


def test_numbers_with_units_and_groups_of_thousands_are_numbers() -> None:
    frame = of_bytes(
        "price,share,heat,both,code,digits",
        '"$1,234.50",5%,21.5°C,5 $,"1,2","0,125"',
        '-$20,12.5%,19°C,6 €,"3,4","1,250"',
    )
    assert frame["price"].tolist() == [1234.5, -20.0]
    assert frame["share"].tolist() == [5.0, 12.5]
    assert frame["heat"].tolist() == [21.5, 19.0]
    for stays in ("both", "code", "digits"):  # two currencies, a list, no groups of thousands
        assert all(isinstance(cell, str) for cell in frame[stays])
    pointed = of_bytes("a;b;c", "1.234,50 €;0.125%;1,234.5", "7 €;0.250%;12,000,000")
    assert pointed["a"].tolist() == [1234.5, 7.0]
    assert pointed["b"].tolist() == [0.125, 0.25]
    assert pointed["c"].tolist() == [1234.5, 12e6]
    schema = fc.Schema.infer(pd.concat([frame[["price", "share"]]] * 20))
    asked = from_texts(schema, ["price>$1,000.00", "share<12,5 %"], "--given")
    assert asked == from_texts(schema, ["price>1000", "share<12.5"], "--given")
    assert from_texts(schema, ["price>5.000,00"], "") == from_texts(schema, ["price>5000"], "")


def test_dates_with_english_months_are_dates() -> None:
    frame = of_bytes(
        "a,b,c", 'Nov 17 2026,"November 7, 2026",may 1 2026', "Jan 1 2024,n/a,Mai 2 2026"
    )
    assert frame["a"].tolist() == ["2026-11-17", "2024-01-01"]
    assert frame["c"].tolist() == ["may 1 2026", "Mai 2 2026"]
    assert of_bytes("a;b", "17-Nov-2026;1", "1 March 2024;2")["a"].tolist() == [
        "2026-11-17",
        "2024-03-01",
    ]


def test_blanks_around_names_go_and_equal_names_are_told_apart() -> None:
    with pytest.warns(FedcircuitsWarning, match="several columns are called 'a': .* as 'a.1'"):
        frame = of_bytes("a ;b; a;c", "1;2;3;4", "5;6;7;8")
    assert frame.columns.tolist() == ["a", "b", "a.1", "c"]
    assert frame["a.1"].tolist() == [3, 7]


@pytest.mark.parametrize("sep", [",", ";"])
def test_lines_above_the_header_are_left_out_with_a_warning(sep: str) -> None:
    rows = [sep.join(row) for row in (["a", "b", "c"], ["1", "x", "2"], ["3", "y", "4"])]
    for title in (["A title"], [f"A title{sep}{sep}"], ["A title", "", "made today"]):
        with pytest.warns(FedcircuitsWarning, match="above the names of the columns: 'A title'"):
            frame = of_bytes(*title, *rows)
        assert frame.to_dict("list") == {"a": [1, 3], "b": ["x", "y"], "c": [2, 4]}


def test_separators_at_the_ends_of_lines_make_no_column() -> None:
    for header in ("a;b;", "a;b"):
        frame = read(io.BytesIO(f"{header}\n1;2;\n3;4;\n".encode()), sep=";")
        assert frame.to_dict("list") == {"a": [1, 3], "b": [2, 4]}


def test_names_of_rows_in_front_stay_the_index() -> None:
    frame = read(io.BytesIO(b"a,b\nx,1,2\ny,3,4\n"))
    assert frame.index.tolist() == ["x", "y"]
    assert frame.to_dict("list") == {"a": [1, 3], "b": [2, 4]}


def test_an_empty_column_is_left_out_with_a_warning() -> None:
    frame = pd.DataFrame({"a": [1.5, 2.0, 4.0] * 20, "b": np.nan, "y": ["u", "v", "u"] * 20})
    with pytest.warns(FedcircuitsWarning, match="left out column 'b': no value in any row"):
        model = fc.learn(frame, label="y", learner="factorised")
    assert model.schema.names == ("a", "y")
    with pytest.warns(FedcircuitsWarning, match="left out column 'b': no value in any row"):
        fc.learn(frame.assign(b="?"), label="y", learner="factorised", missing_values=["?"])
    with pytest.raises(SchemaError, match="'b': not one value is observed"):
        fc.learn(frame, label="b", learner="factorised")


def test_few_rows_for_a_known_schema_are_read_as_people_write_them() -> None:
    frame = pd.DataFrame(
        {
            "share": np.linspace(0, 1, 60),
            "since": pd.date_range("2024-01-01", periods=60),
            "kind": ["a", "?"] * 30,
        }
    )
    schema = fc.Schema.infer(frame)
    file = io.BytesIO(b"share;since;kind\n0,41;17.11.2024;a\nk.A.;n/a;?\n0.5;Nov 3, 2024;a\n")
    with pytest.warns(fc.FedcircuitsWarning, match=r"column 'share': read as missing: 'k\.A\.'"):
        rows = read_known(file, schema)
    assert rows["share"].tolist()[::2] == [0.41, 0.5]
    assert rows["share"].isna().tolist() == rows["since"].isna().tolist() == [False, True, False]
    assert rows["since"].tolist()[::2] == ["2024-11-17", "2024-11-03"]
    assert rows["kind"].tolist() == ["a", "?", "a"]  # a category is what it is
    twice = pd.DataFrame({"share": ["0,1", "-"]}, index=[7, 7])
    with pytest.warns(fc.FedcircuitsWarning, match="read as missing: '-'"):
        assert read_known(twice, schema)["share"].tolist()[0] == 0.1
    assert read_known(pd.DataFrame({"share": ["1,234"]}), schema)["share"].tolist() == ["1,234"]

"""Rows to tables and back: order, index, masks, unseen values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

import fedcircuits as fc
from fedcircuits.errors import DomainError, FedcircuitsWarning, SchemaError, UnknownCategoryError
from fedcircuits.schema import Schema, Table, Variable

TRAINING = pd.DataFrame(
    {
        "size": [1.5, 2.25, 9.75, 4.5, 3.0, 7.125],
        "rooms": [3, 5, 3, 5, 7, 7],
        "colour": ["red", "blue", "red", "green", "blue", "red"],
        "sold": [0, 1, 1, 0, 1, 0],
        "new": [True, False, False, True, True, False],
    }
)
SCHEMA = Schema.infer(TRAINING)


def test_kinds_of_the_training_table() -> None:
    kinds = [v.kind for v in SCHEMA]
    assert kinds == ["continuous", "count", "categorical", "binary", "binary"]


def test_codes_follow_the_sorted_categories() -> None:
    table = SCHEMA.encode(TRAINING)
    expected = [
        [1.5, 3, 2, 0, 1], [2.25, 5, 0, 1, 0], [9.75, 3, 2, 1, 0],
        [4.5, 5, 1, 0, 1], [3.0, 7, 0, 1, 1], [7.125, 7, 2, 0, 0],
    ]  # fmt: skip
    np.testing.assert_array_equal(table.values, expected)
    assert table.observed.all()


@pytest.mark.parametrize(
    "index",
    [
        pd.Index([9, 4, 4, 0, -2, 7]),  # a label twice
        pd.Index(list("fadceb"), name="house"),
        pd.MultiIndex.from_product([["x", "y"], [3, 1, 2]], names=["a", "b"]),
        pd.date_range("2021-05-01", periods=6),
    ],
)
def test_decode_gives_back_rows_order_and_index(index: Any) -> None:
    frame = TRAINING.set_axis(index, axis=0)
    table = SCHEMA.encode(frame)
    pd.testing.assert_frame_equal(SCHEMA.decode(table.values, table.index), frame, check_dtype=True)


def test_order_of_columns_does_not_matter() -> None:
    shuffled = TRAINING[["sold", "colour", "new", "rooms", "size"]]
    np.testing.assert_array_equal(SCHEMA.encode(shuffled).values, SCHEMA.encode(TRAINING).values)


@pytest.mark.parametrize("missing", [None, np.nan, pd.NA])
def test_missing_cells_become_a_mask(missing: Any) -> None:
    row = pd.DataFrame({name: pd.Series([missing], dtype=object) for name in SCHEMA.names})
    table = SCHEMA.encode(row)
    assert not table.observed.any()
    assert not np.isnan(table.values).any()


def test_absent_columns_are_missing() -> None:
    table = SCHEMA.encode(pd.DataFrame({"colour": ["blue"], "size": [2.0]}))
    assert table.observed.tolist() == [[True, False, True, False, False]]


def test_extra_columns_are_ignored_with_a_warning() -> None:
    with pytest.warns(FedcircuitsWarning, match=r"ignored 1 column.*: 'owner'"):
        table = SCHEMA.encode(TRAINING.assign(owner="me"))
    np.testing.assert_array_equal(table.values, SCHEMA.encode(TRAINING).values)


def test_zero_rows_encode_to_zero_rows() -> None:
    table = SCHEMA.encode(TRAINING.iloc[:0])
    assert len(table) == 0
    assert table.values.shape == (0, 5)
    assert list(SCHEMA.decode(table.values, table.index).columns) == list(SCHEMA.names)


def test_named_spellings_of_missing_at_query_time() -> None:
    frame = pd.DataFrame({"colour": ["red", "?", "n/k"], "rooms": [3, -1, 5]})
    table = SCHEMA.encode(frame, missing_values=["?", "n/k", -1])
    assert table.observed[:, 2].tolist() == [True, False, False]
    assert table.observed[:, 1].tolist() == [True, False, True]


def test_weights_are_carried_and_cut_with_the_rows() -> None:
    table = SCHEMA.encode(TRAINING, weights=np.arange(6.0))
    part = table.rows(np.array([4, 1]))
    assert part.weights is not None
    assert part.weights.tolist() == [4.0, 1.0]
    assert part.index.tolist() == [4, 1]
    assert part.values[:, 0].tolist() == [3.0, 2.25]


def test_chunks_cover_the_rows_in_order() -> None:
    table = SCHEMA.encode(TRAINING)
    parts = list(table.chunks(4))
    assert [len(t) for _, t in parts] == [4, 2]
    np.testing.assert_array_equal(np.concatenate([t.values for _, t in parts]), table.values)


def test_columns_are_taken_by_name_in_the_order_given() -> None:
    part = SCHEMA.encode(TRAINING).columns(["sold", "size"])
    assert part.schema.names == ("sold", "size")
    assert part.values[1].tolist() == [1.0, 2.25]


def test_an_empty_table_observes_nothing() -> None:
    table = Table.empty(SCHEMA, 3)
    assert len(table) == 3
    assert not table.observed.any()


def test_counts_too_large_for_an_integer_are_decoded_as_they_are() -> None:
    schema = Schema((Variable("n", "count"),))
    values = np.array([[4.0], [1e300]])
    assert schema.decode(values, pd.RangeIndex(2))["n"].tolist() == [4.0, 1e300]
    assert schema.decode(values[:1], pd.RangeIndex(1))["n"].dtype == np.int64


# --- unseen values --------------------------------------------------------------------------------


def test_unseen_category_is_an_error_that_names_value_row_and_choices() -> None:
    frame = pd.DataFrame({"colour": ["red", "pink"]}, index=["a", "b"])
    with pytest.raises(
        UnknownCategoryError,
        match=r"'colour': expected one of 'blue', 'green', 'red' .*; found 'pink' in row 'b'",
    ):
        SCHEMA.encode(frame)


def test_unseen_category_is_missing_on_request() -> None:
    frame = pd.DataFrame({"colour": ["red", "pink", "blue"]})
    table = SCHEMA.encode(frame, unknown="missing")
    assert table.observed[:, 2].tolist() == [True, False, True]
    assert table.values[[0, 2], 2].tolist() == [2.0, 0.0]


def test_many_bad_rows_are_counted_and_the_first_three_shown() -> None:
    frame = pd.DataFrame({"colour": ["pink", "mauve", "puce", "teal", "gold"]})
    with pytest.raises(UnknownCategoryError, match=r"'pink' in row 0.*'puce' in row 2 and 2 more"):
        SCHEMA.encode(frame)


def test_all_bad_columns_are_told_together() -> None:
    frame = pd.DataFrame({"size": ["big"], "colour": ["pink"]})
    with pytest.raises(SchemaError, match=r"'size': expected a number.*'colour': expected one of"):
        SCHEMA.encode(frame)


@pytest.mark.parametrize("value", [-1e300, -3.7, 0.0, 5.123, 1e300])
def test_unseen_number_of_a_continuous_variable_is_taken_as_it_is(value: float) -> None:
    table = SCHEMA.encode(pd.DataFrame({"size": [value]}))
    assert table.values[0, 0] == value


@pytest.mark.parametrize("value", [-4, 4, 1000, 10**12])
def test_unseen_count_is_taken_as_it_is(value: int) -> None:
    assert SCHEMA.encode(pd.DataFrame({"rooms": [value]})).values[0, 1] == value


def test_fraction_in_a_column_guessed_to_be_counts_is_rounded_with_a_warning() -> None:
    with pytest.warns(FedcircuitsWarning, match="'rooms': rounded 1 number"):
        table = SCHEMA.encode(pd.DataFrame({"rooms": [4.8, 3.0]}))
    assert table.values[:, 1].tolist() == [5.0, 3.0]


@pytest.mark.parametrize(("value", "code"), [(2, 1.0), (-7.5, 0.0), (0.3, 0.0), (0.8, 1.0)])
def test_number_in_a_column_guessed_to_be_binary_takes_the_nearer(value: Any, code: float) -> None:
    with pytest.warns(FedcircuitsWarning, match="'sold': took 1 number"):
        table = SCHEMA.encode(pd.DataFrame({"sold": [value, 1]}))
    assert table.values[:, 3].tolist() == [code, 1.0]
    assert table.observed[:, 3].all()


def test_unseen_numbers_have_positive_density_in_a_learned_model(
    rng: np.random.Generator,
) -> None:
    n = 60
    frame = pd.DataFrame(
        {
            "smooth": rng.normal(0, 1, n),
            "tenths": rng.choice([0.1, 0.2, 0.7], n),
            "count": rng.choice([2, 3, 9], n),
            "flag": rng.choice([0, 1], n),
            "flat": np.full(n, 4.5),
        }
    )
    model = fc.learn(frame)
    for name, values in {
        "smooth": [-1e6, 0.0123, 1e300],
        "tenths": [0.1, 0.15, 0.5, -3.0, 8.0],
        "count": [2, 5, -40, 10**15],
        "flag": [0, 1],
        "flat": [4.5, 4.6, -1e9],
    }.items():
        log_prob = model.log_prob(pd.DataFrame({name: values}))
        assert np.isfinite(log_prob).all(), name


def test_number_outside_a_declared_domain_is_an_error() -> None:
    schema = Schema.infer(TRAINING, domains={"size": (0.0, 20.0), "rooms": (1, 9), "sold": [0, 1]})
    with pytest.raises(
        DomainError, match=r"'size': .*in the domain \[0, 20\]; found 20.5 in row 0"
    ):
        schema.encode(pd.DataFrame({"size": [20.5]}))
    with pytest.raises(DomainError, match=r"'rooms': .*\[1, 9\]; found 12 in row 0"):
        schema.encode(pd.DataFrame({"rooms": [12]}))
    with pytest.raises(UnknownCategoryError, match="'sold': expected one of 0, 1"):
        schema.encode(pd.DataFrame({"sold": [2]}))
    assert schema.encode(pd.DataFrame({"size": [0.0, 20.0]})).observed[:, 0].all()


def test_fraction_of_a_declared_count_is_an_error() -> None:
    schema = Schema.infer(TRAINING, kinds={"rooms": "count"})
    with pytest.raises(DomainError, match=r"'rooms': expected a whole number .*found 2.5 in row 0"):
        schema.encode(pd.DataFrame({"rooms": [2.5]}))


# --- wrong types ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (["big"], "'size': expected a number .continuous.; found 'big' in row 0"),
        ([np.inf], "'size': expected a finite number; found inf in row 0"),
        ([1.0, -np.inf], "'size': expected a finite number; found -inf in row 1"),
        (pd.to_datetime(["2020-01-01"]), "'size': expected a number .*2020-01-01"),
        (pd.to_timedelta([5], unit="s"), "'size': expected a number"),
        ([1 + 2j], "'size': expected a number"),
        ([[1.0]], "'size': expected a number"),
    ],
)
def test_wrong_types_of_a_number(values: Any, message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        SCHEMA.encode(pd.DataFrame({"size": values}))


@pytest.mark.parametrize("cell", [["red"], {"red": 1}, 3.5])
def test_wrong_types_of_a_category(cell: Any) -> None:
    frame = pd.DataFrame({"colour": pd.Series([cell, "red"], dtype=object)})
    with pytest.raises(SchemaError, match=r"'colour': expected one of 'blue'.*in row 0$"):
        SCHEMA.encode(frame)


def test_numbers_written_as_text_are_numbers() -> None:
    frame = pd.DataFrame({"size": ["2.5", "1e2"], "sold": ["0", "1"], "rooms": ["5", "-3"]})
    table = SCHEMA.encode(frame)
    np.testing.assert_array_equal(table.values[:, [0, 1, 3]], [[2.5, 5, 0], [100, -3, 1]])


def test_one_is_true_and_true_is_one() -> None:
    frame = pd.DataFrame({"new": [1, 0], "sold": [True, False]})
    np.testing.assert_array_equal(SCHEMA.encode(frame).values[:, 3:], [[1, 1], [0, 0]])


def test_non_string_names_are_refused_at_query_time() -> None:
    with pytest.raises(SchemaError, match="column names must be strings, found 0"):
        SCHEMA.encode(pd.DataFrame([[1.5]]))


def test_duplicate_columns_are_refused_at_query_time() -> None:
    frame = pd.DataFrame([[1.5, 2.5]], columns=["size", "size"])
    with pytest.raises(SchemaError, match="'size' appear more than once"):
        SCHEMA.encode(frame)


# --- a state for missing --------------------------------------------------------------------------

STATES = Schema(
    (
        Variable("c", "categorical", ("a", "b"), missing_state=True),
        Variable("x", "continuous", missing_state=True),
        Variable("y", "continuous"),
    )
)


def test_missing_is_a_state_in_training_only() -> None:
    frame = pd.DataFrame({"c": ["b", None], "x": [np.nan, 2.5], "y": [np.nan, 1.0]})
    asked, trained = STATES.encode(frame), STATES.encode(frame, missing_as_state=True)
    assert asked.observed.tolist() == [[True, False, False], [False, True, True]]
    assert trained.observed.tolist() == [[True, True, False], [True, True, True]]
    assert trained.values[1, 0] == 2.0
    assert trained.values[0, 1] == np.inf


def test_a_user_can_say_that_a_value_is_missing() -> None:
    frame = pd.DataFrame({"c": ["b", fc.MISSING], "x": [fc.MISSING, 2.5]})
    table = STATES.encode(frame)
    assert table.observed[:, :2].all()
    assert table.values[:, :2].tolist() == [[1.0, np.inf], [2.0, 2.5]]
    decoded = STATES.decode(table.values, table.index)
    assert decoded["c"][0] == "b"
    assert pd.isna(decoded["c"][1])
    assert np.isnan(decoded["x"][0])
    assert decoded["x"][1] == 2.5


def test_empty_cells_are_marked_where_missing_is_a_state() -> None:
    frame = pd.DataFrame({"c": ["b", None], "x": [np.nan, 2.5], "y": [np.nan, 1.0]}, index=[7, 9])
    marked = STATES.mark_missing(frame)
    pd.testing.assert_frame_equal(STATES.mark_missing(marked), marked)
    asked, trained = STATES.encode(marked), STATES.encode(frame, missing_as_state=True)
    np.testing.assert_array_equal(asked.values, trained.values)
    np.testing.assert_array_equal(asked.observed, trained.observed)
    assert frame.isna().sum().tolist() == [1, 1, 1]  # the rows given stay as they are
    assert list(marked.index) == [7, 9]
    assert STATES.mark_missing(frame[["y"]])["y"].dtype == float


def test_missing_is_refused_where_it_is_no_state() -> None:
    frame = pd.DataFrame({"y": [1.0, fc.MISSING]})
    with pytest.raises(SchemaError, match=r"'y': expected a value .*MISSING.* in row 1"):
        STATES.encode(frame)


def test_a_mapping_of_single_values_is_encoded_as_a_frame_of_one_row() -> None:
    frame = pd.DataFrame(
        {"age": [31.5, 40.0, np.nan], "town": ["A", "B", None], "count": [3, 4, 5]}
    )
    schema = fc.Schema.infer(frame)
    rows: list[dict[str, Any]] = [
        {"age": 31.5, "town": "B", "count": 4},
        {"age": np.float32(31.5), "town": None},
        {"count": np.int64(5), "age": float("nan")},
        {"town": "C"},
    ]
    for row in rows:
        alone = schema.encode(row, unknown="missing")
        framed = schema.encode(pd.DataFrame([row]), unknown="missing")
        np.testing.assert_array_equal(alone.values, framed.values)
        np.testing.assert_array_equal(alone.observed, framed.observed)
        assert list(alone.index) == [0]
    # Columns of values are a table, whatever holds them.
    assert len(schema.encode({"age": np.array([1.0, 2.0]), "count": [1, 2]})) == 2

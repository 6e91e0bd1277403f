"""The rule that guesses a schema, every way to correct it, and what it refuses."""

from __future__ import annotations

import time
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pytest

import fedcircuits as fc
from fedcircuits.errors import FedcircuitsWarning, SchemaError
from fedcircuits.schema import Schema, Variable


def infer(values: Any, **options: Any) -> Variable:
    """The variable guessed from one column."""
    return Schema.infer(pd.DataFrame({"x": values}), **options)["x"]


# --- the rule -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (["a", "b", "a"], "categorical"),
        (["1", "2", "2"], "categorical"),  # digits typed as text are names
        ([True, False, True], "binary"),
        ([0, 1, 1], "binary"),
        ([0.0, 1.0], "binary"),
        ([1, 1], "binary"),
        ([7, 7, 7], "count"),
        ([3, 9] * 5, "count"),
        ([3.0, 9.0] * 5, "count"),
        ([-2, 0, 5] * 4, "count"),
        (list(range(12)) * 2, "count"),
        (list(range(13)), "count"),  # whole numbers are whole, however many there are
        (np.arange(3.0, 900.0), "count"),
        ([2.0**60, 2.0**61, 2.0**62], "continuous"),  # floats of that size are always whole
        ([*range(400), 0.5], "continuous"),
        ([0.5, 1.5] * 5, "continuous"),
        (np.linspace(0, 1, 50), "continuous"),
    ],
)
def test_kind_is_guessed_by_the_rule(values: Any, kind: str) -> None:
    variable = infer(values)
    assert variable.kind == kind
    assert not variable.declared
    assert not variable.closed


def test_few_fractions_are_atoms_of_a_continuous_variable() -> None:
    frame = pd.DataFrame({"x": [0.25, 0.75, 1.5] * 6})
    schema = Schema.infer(frame)
    schema = schema.with_grids(schema.encode(frame))
    assert schema["x"].kind == "continuous"
    assert schema["x"].outcomes == (0.25, 0.75, 1.5)


def test_categories_are_sorted() -> None:
    assert infer(["pear", "apple", "fig", "apple"]).categories == ("apple", "fig", "pear")


def test_categories_of_mixed_types_are_truths_numbers_strings() -> None:
    values = pd.Series(["b", 3, "a", 2.5, True], dtype=object)
    assert infer(values).categories == (True, 2.5, 3, "a", "b")


def test_unused_levels_of_a_pandas_categorical_are_categories() -> None:
    assert infer(pd.Categorical(["b", "a"], ["c", "b", "a"])).categories == ("c", "b", "a")


def test_a_pandas_categorical_of_numbers_is_categorical() -> None:
    variable = infer(pd.Categorical([10, 20, 10]))
    assert (variable.kind, variable.categories) == ("categorical", (10, 20))


def test_truth_values_keep_their_type() -> None:
    assert infer([True, True]).categories == (False, True)
    assert infer([1, 1]).categories == (0, 1)


def test_domain_is_the_range() -> None:
    assert infer([3.5, -2.25, 9.0]).domain == (-2.25, 9.0)


@pytest.mark.parametrize(
    ("dtype", "values", "kind"),
    [
        ("Int64", [5, None, 9], "count"),
        ("Float64", [0.5, None, 0.25], "continuous"),
        ("boolean", [True, None, False], "binary"),
        ("string", ["a", None, "b"], "categorical"),
        ("int64[pyarrow]", [5, None, 9], "count"),
        ("double[pyarrow]", [0.5, None, 0.25], "continuous"),
        ("bool[pyarrow]", [True, None, False], "binary"),
        ("string[pyarrow]", ["a", None, "b"], "categorical"),
        ("category", ["a", None, "b"], "categorical"),
        ("int8", [5, 5, 9], "count"),
        ("float32", [0.5, 0.5, 0.25], "continuous"),
        (object, [5, None, 9.0], "count"),
        (object, [True, None, False], "binary"),
        (object, [Decimal("0.5"), None, Decimal("0.25")], "continuous"),
        (object, ["a", None, "b"], "categorical"),
    ],
)
def test_every_dtype_of_pandas(dtype: Any, values: list[Any], kind: str) -> None:
    column = pd.Series(values * 5, dtype=dtype)
    schema = Schema.infer(pd.DataFrame({"x": column}))
    assert schema["x"].kind == kind
    table = schema.encode(pd.DataFrame({"x": column}))
    np.testing.assert_array_equal(table.observed[:, 0], column.notna().to_numpy(dtype=bool))
    decoded = schema.decode(table.values, table.index)["x"]
    seen = [(a, b) for a, b in zip(column, decoded, strict=True) if not pd.isna(a)]
    assert all(a == b for a, b in seen)


# --- missing values -------------------------------------------------------------------------------


@pytest.mark.parametrize("missing", [None, np.nan, pd.NA, float("nan"), pd.NaT, fc.MISSING])
def test_any_spelling_of_missing_is_no_value(missing: Any) -> None:
    column = pd.Series([3.5, missing, 4.5], dtype=object)
    assert infer(column).domain == (3.5, 4.5)
    words = pd.Series(["a", missing, "b"], dtype=object)
    assert infer(words).categories == ("a", "b")


@pytest.mark.parametrize("spellings", ["?", ["?"], ("?", "unknown")])
def test_user_named_spellings_are_no_category(spellings: Any) -> None:
    assert infer(["a", "?", "b"], missing_values=spellings).categories == ("a", "b")


def test_a_word_is_one_spelling_not_its_letters() -> None:
    assert infer(["n", "na", "b"], missing_values="na").categories == ("b", "n")


def test_user_named_number_is_missing() -> None:
    assert infer([3.5, -999, 4.5], missing_values=[-999]).domain == (3.5, 4.5)


def test_numbers_with_a_question_mark_among_them_are_numbers() -> None:
    frame = pd.DataFrame({"x": ["1.5", "?", "9", "2.5"], "b": ["0", "1", "?", "1"]})
    schema = Schema.infer(frame, missing_values=["?"])
    assert (schema["x"].kind, schema["x"].domain) == ("continuous", (1.5, 9.0))
    assert (schema["b"].kind, schema["b"].categories) == ("binary", (0, 1))
    table = schema.encode(frame, missing_values=["?"])
    np.testing.assert_array_equal(table.observed, [[1, 1], [0, 1], [1, 0], [1, 1]])
    np.testing.assert_array_equal(table.values[table.observed], [1.5, 0, 1, 9, 2.5, 1])


# --- overrides ------------------------------------------------------------------------------------


def test_every_guess_can_be_overridden() -> None:
    frame = pd.DataFrame({"zip": [10, 20, 30], "n": [1.0, 2.0, 3.0], "t": ["1.5", "2", "2"]})
    kinds: Any = {"zip": "categorical", "n": "count", "t": "continuous"}
    schema = Schema.infer(frame, kinds=kinds)
    assert [v.kind for v in schema] == ["categorical", "count", "continuous"]
    assert all(v.declared for v in schema)
    assert schema["zip"].categories == (10, 20, 30)
    assert schema["t"].domain == (1.5, 2.0)
    assert schema.encode(frame).values[0].tolist() == [0.0, 1.0, 1.5]


def test_declared_domain_is_kept_and_closed() -> None:
    variable = infer([3.5, 4.5], domains={"x": (0, 10)})
    assert (variable.domain, variable.closed) == ((0.0, 10.0), True)
    variable = infer(["b"], domains={"x": ["c", "b", "a"]})
    assert (variable.categories, variable.closed) == (("c", "b", "a"), True)


def test_units_are_kept() -> None:
    assert infer([3.5, 4.5], units={"x": "kg"}).unit == "kg"


def test_column_without_a_value_is_declared_by_kind_and_domain() -> None:
    variable = infer([None, None], kinds={"x": "binary"}, domains={"x": ["no", "yes"]})
    assert variable.categories == ("no", "yes")
    schema = Schema.infer(
        pd.DataFrame({"x": [np.nan, np.nan]}), {"x": "continuous"}, {"x": (0.0, 2.0)}
    )
    grid = schema.with_grids(schema.encode(pd.DataFrame({"x": [np.nan]})))["x"].grid
    assert grid is not None
    assert grid.edges.tolist() == [0.0, 2.0]


# --- bad input, told well -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "options", "message"),
    [
        ([1.0, np.inf, -np.inf], {}, "'x': 2 infinite value.* first in row 1"),
        ([None, None], {}, "'x': not one value is observed"),
        ([1, 2, 3], {"kinds": {"x": "nominal"}}, "is one of continuous, count.* found 'nominal'"),
        ([1.5, 2.0], {"kinds": {"x": "count"}}, "'x': a count takes whole numbers, found 1.5"),
        (["a", "7"], {"kinds": {"x": "continuous"}}, "'x': declared continuous, but found 'a'"),
        ([1, 2, 3], {"kinds": {"x": "binary"}}, "'x': declared binary, found 3 distinct"),
        (["a", "a"], {"kinds": {"x": "binary"}}, "'x': declared binary, found 1 distinct"),
        ([1.5, 12.5], {"domains": {"x": (0, 10)}}, "'x': 1 value.* declared domain .* first 12.5"),
        (
            ["a", "z"],
            {"domains": {"x": ["a", "b"]}},
            "'x': value.* outside the declared domain: 'z'",
        ),
        ([1.5], {"domains": {"x": (10, 0)}}, "'x'"),
        ([1.5], {"domains": {"x": ("low", "high")}}, r"is \(lowest, highest\)"),
        ([1.5], {"domains": {"x": (0, 5, 9)}}, r"is \(lowest, highest\)"),
        ([1 + 2j], {}, "'x': complex numbers"),
        ([[1], [2]], {}, "'x': expected numbers or strings in the cells, found list"),
    ],
)
def test_bad_columns_are_named(values: Any, options: Any, message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        infer(values, **options)


@pytest.mark.parametrize("what", ["kinds", "domains", "units"])
def test_an_override_for_no_column_is_refused(what: str) -> None:
    with pytest.raises(SchemaError, match=f"{what}: the table has no column 'colour'; it has x"):
        infer([1.5, 2.5], **{what: {"colour": "categorical"}})


def test_no_column() -> None:
    with pytest.raises(SchemaError, match="the table has no column"):
        Schema.infer(pd.DataFrame(index=[1, 2]))


def test_no_row() -> None:
    with pytest.raises(SchemaError, match="the table has no row"):
        Schema.infer(pd.DataFrame({"x": []}))


def test_duplicate_columns() -> None:
    frame = pd.DataFrame([[1, 2, 3]], columns=["a", "b", "a"])
    with pytest.raises(SchemaError, match="'a' appear more than once"):
        Schema.infer(frame)


@pytest.mark.parametrize("name", [3, None, ("a", "b"), 2.5])
def test_names_that_are_not_strings(name: Any) -> None:
    frame = pd.DataFrame([[1, 2]])
    frame.columns = pd.Index([name, "ok"], tupleize_cols=False)
    with pytest.raises(SchemaError, match="column names must be strings, found"):
        Schema.infer(frame)


def test_empty_name() -> None:
    with pytest.raises(SchemaError, match="a variable's name is a non-empty string"):
        Schema.infer(pd.DataFrame({"": [1.5, 2.5]}))


def test_constant_columns_are_fine() -> None:
    frame = pd.DataFrame({"n": [5] * 4, "w": ["a"] * 4, "f": [2.5] * 4, "t": [True] * 4})
    kinds = [v.kind for v in Schema.infer(frame)]
    assert kinds == ["count", "categorical", "continuous", "binary"]


def test_ten_thousand_categories_are_told_and_encoded_quickly() -> None:
    frame = pd.DataFrame({"id": [f"customer {i:05d}" for i in range(10_000)]})
    start = time.process_time()
    with pytest.warns(FedcircuitsWarning, match="10000 categories in 10000 rows; drop it if"):
        schema = Schema.infer(frame)
    table = schema.encode(frame)
    assert time.process_time() - start < 5
    np.testing.assert_array_equal(table.values[:, 0], np.arange(10_000))
    with pytest.raises(SchemaError, match=r"\(10000 in all\)"):
        schema.encode(pd.DataFrame({"id": ["nobody"]}))

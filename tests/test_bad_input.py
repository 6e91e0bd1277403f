"""Bad input at the public surface: what was expected, what was found, and which name or row."""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import fedcircuits as fc
from contracts.by_hand import small_circuit
from fedcircuits.errors import (
    DomainError,
    FedcircuitsWarning,
    QueryError,
    SchemaError,
    UnknownCategoryError,
)


@pytest.fixture(scope="module")
def model() -> fc.Circuit:
    return small_circuit()


# --- cells ----------------------------------------------------------------------------------------


def test_an_unseen_category_is_named_with_variable_row_and_choices(model: fc.Circuit) -> None:
    rows = pd.DataFrame({"job": ["clerk", "pilot"]}, index=["a", "b"])
    with pytest.raises(
        UnknownCategoryError,
        match=r"variable 'job': expected one of 'clerk', 'farmer', 'nurse'.*'pilot' in row 'b'",
    ):
        model.log_prob(rows)


def test_an_unseen_category_is_missing_on_request(model: fc.Circuit) -> None:
    rows = pd.DataFrame({"job": ["pilot", "clerk"], "smokes": [1, 1]})
    found = model.log_prob(rows, unknown="missing")
    assert found[0] == pytest.approx(math.log(0.35 * 0.2 + 0.65 * 0.45))
    assert found[1] == pytest.approx(math.log(0.35 * 0.2 * 0.6 + 0.65 * 0.45 * 0.1))


@pytest.mark.parametrize(
    ("column", "cells", "kind", "words"),
    [
        ("age", ["old"], SchemaError, r"'age': expected a number \(continuous\); found 'old'"),
        ("age", [[1, 2]], SchemaError, r"'age': expected a number"),
        ("age", [math.inf], DomainError, r"'age': expected a finite number; found inf in row 0"),
        ("age", [-math.inf, 3.0], DomainError, r"'age': expected a finite number"),
        ("share", [1.5], DomainError, r"'share': expected a number in the domain \[0, 1\]"),
        ("visits", [2.5], DomainError, r"'visits': expected a whole number"),
        ("visits", ["many"], SchemaError, r"'visits': expected a number \(count\); found 'many'"),
        ("job", [3], UnknownCategoryError, r"'job': expected one of .*found"),
        ("smokes", [2], UnknownCategoryError, r"'smokes': expected one of 0, 1"),
    ],
)
def test_a_bad_cell_is_told_with_its_variable(
    model: fc.Circuit, column: str, cells: list[Any], kind: type[Exception], words: str
) -> None:
    rows = pd.DataFrame({column: pd.Series(cells)})
    with pytest.raises(kind, match=words):
        model.log_prob(rows)


def test_many_bad_rows_report_the_first_few_and_count_the_rest(model: fc.Circuit) -> None:
    rows = pd.DataFrame({"job": ["pilot"] * 1000}, index=[f"r{i}" for i in range(1000)])
    with pytest.raises(UnknownCategoryError, match=r"in row 'r0'.*in row 'r2' and 997 more") as e:
        model.log_prob(rows)
    assert len(str(e.value)) < 400


def test_faults_of_several_columns_come_in_one_error(model: fc.Circuit) -> None:
    rows = pd.DataFrame({"age": ["x", 4], "job": ["clerk", "pilot"], "share": [0.5, 7.0]})
    with pytest.raises(SchemaError, match=r"'age'.*; variable 'share'.*; variable 'job'"):
        model.log_prob(rows)


# --- columns --------------------------------------------------------------------------------------


def test_an_extra_column_is_ignored_with_a_warning(model: fc.Circuit) -> None:
    rows = pd.DataFrame({"age": [40.0, 41.0], "shoe": [43, 44]})
    with pytest.warns(FedcircuitsWarning, match=r"ignored 1 column\(s\).*'shoe'"):
        found = model.log_prob(rows)
    assert found.tolist() == model.log_prob(rows[["age"]]).tolist()


def test_a_single_row_with_an_extra_column_warns_too(model: fc.Circuit) -> None:
    rows = pd.DataFrame({"age": [40.0], "shoe": [43]})
    with pytest.warns(FedcircuitsWarning, match="'shoe'"):
        model.log_prob(rows)


def test_missing_columns_and_cells_are_no_fault_and_give_no_warning(model: fc.Circuit) -> None:
    rows = pd.DataFrame({"job": [None, "nurse", pd.NA, np.nan]}, dtype=object)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = model.log_prob(rows)
    nurse = math.log(0.35 * 0.1 + 0.65 * 0.7)
    assert found.tolist() == pytest.approx([0.0, nurse, 0.0, 0.0], abs=1e-14)


def test_column_names_must_be_strings(model: fc.Circuit) -> None:
    rows = pd.DataFrame({0: [1.0], "age": [3.0]})
    with pytest.raises(SchemaError, match=r"column names must be strings, found 0 \(int\)"):
        model.log_prob(rows)
    with pytest.raises(SchemaError, match="column names must be strings"):
        fc.learn(rows)


def test_a_column_may_appear_only_once(model: fc.Circuit) -> None:
    rows = pd.DataFrame([[1.0, 2.0]], columns=["age", "age"])
    with pytest.raises(SchemaError, match="'age' appear more than once"):
        model.log_prob(rows)
    with pytest.raises(SchemaError, match="'age' appear more than once"):
        fc.learn(rows)


# --- no rows, no columns --------------------------------------------------------------------------


@pytest.mark.parametrize("columns", [["age", "job"], []])
def test_zero_rows_give_an_empty_series(model: fc.Circuit, columns: list[str]) -> None:
    rows = pd.DataFrame({name: [] for name in columns})
    found = model.log_prob(rows)
    assert found.tolist() == []
    assert found.dtype == np.float64
    assert found.name == "log_prob"


def test_zero_rows_give_empty_answers_to_every_question(model: fc.Circuit) -> None:
    rows = pd.DataFrame({"age": pd.Series([], dtype=float)})
    proba = model.predict_proba(rows, "job")
    assert proba.shape == (0, 3)
    assert list(proba.columns) == ["clerk", "farmer", "nurse"]
    assert model.predict(rows, "job").tolist() == []
    assert model.predict(rows, "age").tolist() == []
    assert model.expectation("age", rows).tolist() == []
    assert len(model.mpe(rows)) == 0
    assert len(model.sample(3, rows)) == 0
    assert len(model.impute(rows, "mean")) == 0
    assert list(model.sample(0).columns) == list(model.schema.names)
    assert len(model.sample(0)) == 0


def test_nothing_can_be_learned_from_nothing() -> None:
    with pytest.raises(SchemaError, match="the table has no column"):
        fc.learn(pd.DataFrame())
    with pytest.raises(SchemaError, match="the table has no row"):
        fc.learn(pd.DataFrame({"age": []}))
    with pytest.raises(SchemaError, match="'age': not one value is observed"):
        fc.learn(pd.DataFrame({"age": [None, None]}))
    with pytest.raises(SchemaError, match="'age': not one value is observed"):
        fc.learn(pd.DataFrame({"age": [None, None], "job": ["a", "b"]}), label="age")


def test_infinite_values_are_not_learned_from() -> None:
    frame = pd.DataFrame({"age": [1.5, math.inf, 2.5, -math.inf]}, index=list("abcd"))
    with pytest.raises(SchemaError, match=r"'age': 2 infinite value\(s\), first in row 'b'"):
        fc.learn(frame)


def test_a_constant_column_is_learned(tmp_path: Path) -> None:
    frame = pd.DataFrame({"same": [7.25] * 20, "word": ["yes"] * 20, "n": [3] * 20})
    model = fc.learn(frame)
    assert model.expectation("same") == pytest.approx(7.25, rel=0.05)
    assert model.predict_proba(frame.iloc[:1], "word").loc[0, "yes"] == 1.0
    assert np.isfinite(model.log_prob(frame)).all()
    unseen = pd.DataFrame({"same": [9.5], "n": [5]})
    assert model.log_prob(unseen).iloc[0] > -math.inf
    model.save(tmp_path / "m.fc")
    assert fc.load(tmp_path / "m.fc").log_prob(frame).tolist() == model.log_prob(frame).tolist()


def test_ten_thousand_categories_are_learned() -> None:
    names = [f"c{i:05d}" for i in range(10_000)]
    frame = pd.DataFrame({"id": names * 2, "y": [i % 3 == 0 for i in range(20_000)]})
    model = fc.learn(frame, learner="factorised")
    found = model.log_prob(pd.DataFrame({"id": ["c00017"]})).iloc[0]
    assert found == pytest.approx(math.log(1e-4), rel=1e-6)
    with pytest.raises(UnknownCategoryError, match=r"\(10000 in all\).*'zebra'"):
        model.log_prob(pd.DataFrame({"id": ["zebra"]}))


# --- names ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "ask",
    [
        lambda m: m.marginal(["age", "heigth"]),
        lambda m: m.marginal("heigth"),
        lambda m: m.condition(heigth=3),
        lambda m: m.condition({"heigth": 3}),
        lambda m: m.predict_proba(pd.DataFrame({"age": [1.0]}), "heigth"),
        lambda m: m.predict(pd.DataFrame({"age": [1.0]}), "heigth"),
        lambda m: m.expectation("heigth"),
        lambda m: m.variance("heigth"),
        lambda m: m.expectation("age", {"heigth": 1}),
        lambda m: m.covariance(["age", "heigth"]),
        lambda m: m.sample(1, {"heigth": 2}),
        lambda m: m.mpe({"heigth": 2}),
    ],
)
def test_an_unknown_name_is_told_with_those_that_exist(model: fc.Circuit, ask: Any) -> None:
    with pytest.raises(QueryError, match=r"no variable 'heigth'; the model has 'age', 'share'"):
        ask(model)


def test_a_name_of_another_type_is_an_unknown_name(model: fc.Circuit) -> None:
    with pytest.raises(QueryError, match=r"no variable 3"):
        model.marginal([3])  # type: ignore[list-item]
    with pytest.raises(QueryError, match=r"no variable \['age'\]"):
        model.expectation(["age"])  # type: ignore[arg-type]


def test_a_marginal_of_nothing_is_refused(model: fc.Circuit) -> None:
    with pytest.raises(QueryError, match=r"one or more different names, found \[\]"):
        model.marginal([])
    with pytest.raises(QueryError, match=r"one or more different names, found \['age', 'age'\]"):
        model.marginal(["age", "age"])


def test_a_covariance_needs_different_names(model: fc.Circuit) -> None:
    with pytest.raises(QueryError, match=r"different names, found \['age', 'age'\]"):
        model.covariance(["age", "age"])
    one = model.covariance("age")  # a name by itself, as in marginal
    spread = 64 + 0.35 * 0.65 * 30.0**2
    assert one.loc["age", "age"] == pytest.approx(spread)


def test_condition_on_everything_is_refused(model: fc.Circuit) -> None:
    row = {"age": 33.0, "share": 0.2, "visits": 2, "job": "clerk", "smokes": 1}
    with pytest.raises(QueryError, match="leaves no variable"):
        model.condition(row)
    assert model.condition(row | {"age": None}).schema.names == ("age",)


def test_condition_on_nothing_is_the_model_itself(model: fc.Circuit) -> None:
    rows = pd.DataFrame({"age": [33.0, 55.0], "job": ["clerk", None]})
    assert model.condition().log_prob(rows).tolist() == pytest.approx(model.log_prob(rows).tolist())


# --- questions that have no answer ----------------------------------------------------------------


def test_a_continuum_has_no_table_of_probabilities(model: fc.Circuit) -> None:
    rows = pd.DataFrame({"job": ["clerk"]})
    with pytest.raises(QueryError, match=r"'age' is continuous with a continuum.*expectation"):
        model.predict_proba(rows, "age")


@pytest.mark.parametrize("n", [-1, 2.5, "three", math.nan, math.inf, [2]])
def test_sample_needs_a_whole_number(model: fc.Circuit, n: Any) -> None:
    with pytest.raises(QueryError, match="sample needs a whole number of samples >= 0, found"):
        model.sample(n)


def test_a_whole_number_may_come_as_float_or_numpy(model: fc.Circuit) -> None:
    assert len(model.sample(3.0, seed=1)) == 3  # type: ignore[arg-type]
    assert len(model.sample(np.int32(3), seed=1)) == 3  # type: ignore[arg-type]


@pytest.mark.parametrize("order", [-1, 1.5, "two", None])
def test_a_moment_has_a_whole_order(model: fc.Circuit, order: Any) -> None:
    with pytest.raises(QueryError, match=r"order of a moment is in 0\.\.100, found"):
        model.moment("age", order)


def test_words_have_no_moments(model: fc.Circuit) -> None:
    with pytest.raises(QueryError, match=r"'job' has categories that are not numbers \('clerk'"):
        model.expectation("job")
    with pytest.raises(QueryError, match=r"'job' has categories that are not numbers"):
        model.covariance(["age", "job"])
    assert list(model.covariance().columns) == ["age", "share", "visits", "smokes"]


def test_a_misspelt_choice_is_refused_not_guessed(model: fc.Circuit) -> None:
    rows = pd.DataFrame({"age": [3.0, None]})
    with pytest.raises(QueryError, match="how is 'mean', 'likeliest' or 'sample', found 'median'"):
        model.impute(rows, "median")  # type: ignore[arg-type]
    with pytest.raises(QueryError, match="impossible is 'error' or 'nan', found 'NaN'"):
        model.predict_proba(rows, "job", impossible="NaN")  # type: ignore[arg-type]
    with pytest.raises(QueryError, match="impossible is 'error' or 'nan', found 'drop'"):
        model.expectation("age", rows, impossible="drop")  # type: ignore[arg-type]

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
from fedcircuits import Schema, Variable, build
from fedcircuits.errors import (
    DomainError,
    FedcircuitsError,
    FedcircuitsWarning,
    FederationError,
    ImpossibleEvidenceError,
    LearningError,
    QueryError,
    SchemaError,
    StorageError,
    UnknownCategoryError,
)
from fedcircuits.schema import Grid


@pytest.fixture(scope="module")
def model() -> fc.Circuit:
    """Two clusters over a number, a declared number, a count, a category and a flag."""
    schema = Schema(
        (
            Variable("age", "continuous"),
            Variable("share", "continuous", domain=(0.0, 1.0), closed=True),
            Variable("visits", "count", declared=True),
            Variable("job", "categorical", ("clerk", "farmer", "nurse")),
            Variable("smokes", "binary", (0, 1), closed=True),
        )
    )
    children = [
        build.product(
            [
                build.gaussian("age", mean, 8.0),
                build.uniform("share", 0.0, top),
                build.poisson("visits", rate),
                build.categorical("job", job),
                build.bernoulli("smokes", smokes),
            ]
        )
        for mean, top, rate, job, smokes in (
            (30.0, 0.5, 1.5, [0.6, 0.3, 0.1], 0.2),
            (60.0, 1.0, 6.0, [0.1, 0.2, 0.7], 0.45),
        )
    ]
    return build.circuit(schema, build.sum(children, [0.35, 0.65]))


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


# --- data of other sorts --------------------------------------------------------------------------


def test_rows_must_be_a_table(model: fc.Circuit, tmp_path: Path) -> None:
    with pytest.raises(SchemaError, match=r"expected a DataFrame.*found int"):
        model.log_prob(3)  # type: ignore[arg-type]
    with pytest.raises(SchemaError, match="needs names"):
        model.log_prob(np.zeros((2, 5)))
    with pytest.raises(SchemaError, match="no such file"):
        model.log_prob(tmp_path / "rows.csv")
    with pytest.raises(SchemaError, match="no such file"):
        model.log_prob(tmp_path)
    (tmp_path / "empty.csv").write_bytes(b"")
    with pytest.raises(SchemaError, match="is empty"):
        model.log_prob(tmp_path / "empty.csv")
    (tmp_path / "noise.csv").write_bytes(bytes(range(256)) * 20)
    with pytest.raises(SchemaError, match="neither CSV nor Parquet"):
        model.log_prob(tmp_path / "noise.csv")
    (tmp_path / "half.parquet").write_bytes(b"PAR1" + b"\0" * 50)
    with pytest.raises(SchemaError, match="neither CSV nor Parquet"):
        model.log_prob(tmp_path / "half.parquet")


def test_a_mapping_of_single_values_is_one_row(model: fc.Circuit) -> None:
    found = model.log_prob({"age": 40.0})
    assert found.tolist() == model.log_prob(pd.DataFrame({"age": [40.0]})).tolist()
    with pytest.raises(SchemaError, match="all of one length"):
        model.log_prob({"age": [40.0, 30.0], "job": ["clerk"]})


# --- learning -------------------------------------------------------------------------------------


def test_learn_refuses_what_it_does_not_know() -> None:
    frame = pd.DataFrame({"age": [1.5, 2.5, 4.0], "job": ["a", "b", "a"]})
    with pytest.raises(LearningError, match=r"no learner 'magic'; there are .*factorised"):
        fc.learn(frame, learner="magic")
    with pytest.raises(LearningError, match=r"learner 'factorised'.*depth"):
        fc.learn(frame, learner="factorised", depth=3)
    with pytest.raises(LearningError, match=r"a learner has fit\(table, rng\), found int"):
        fc.learn(frame, learner=3)  # type: ignore[arg-type]
    with pytest.raises(LearningError, match="weights must be 3 finite numbers"):
        fc.learn(frame, weights=[1.0, 2.0])
    with pytest.raises(LearningError, match="weights must be 3 finite numbers"):
        fc.learn(frame, weights=[1.0, -2.0, 3.0])
    with pytest.raises(SchemaError, match=r"kinds: .*'agee'; .* did you mean 'age'"):
        fc.learn(frame, kinds={"agee": "count"})
    with pytest.raises(SchemaError, match="'job': declared continuous, but found 'a'"):
        fc.learn(frame, kinds={"job": "continuous"})
    with pytest.raises(SchemaError, match=r"'age': 1 value\(s\) outside the declared domain"):
        fc.learn(frame, domains={"age": (0.0, 3.0)})


# --- files that are no models ---------------------------------------------------------------------


def test_load_says_what_is_wrong_with_a_path(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"cannot read .*none\.fc: No such file"):
        fc.load(tmp_path / "none.fc")
    with pytest.raises(StorageError, match=r"cannot read .*: Is a directory"):
        fc.load(tmp_path)
    with pytest.raises(StorageError, match=r"cannot read .*null"):
        fc.load("model\0.fc")
    text = tmp_path / "notes.txt"
    text.write_text("These are my notes on circuits, and not a circuit.\n")
    with pytest.raises(StorageError, match=r"notes\.txt is not a fedcircuits file"):
        fc.load(text)
    text.write_text("")
    with pytest.raises(StorageError, match=r"notes\.txt is not a fedcircuits file: only 0 bytes"):
        fc.load(text)


def test_every_error_is_caught_by_the_one_base_class(model: fc.Circuit, tmp_path: Path) -> None:
    with pytest.raises(FedcircuitsError, match="no variable"):
        model.marginal(["nobody"])
    with pytest.raises(FedcircuitsError, match="cannot read"):
        fc.load(tmp_path)
    with pytest.raises(FedcircuitsError, match="expected one of"):
        model.log_prob(pd.DataFrame({"job": ["pilot"]}))


@pytest.mark.parametrize(
    ("categories", "told"),
    [
        ((1, 10**400), "finite and below 1.8e308, found an integer of over 300 digits"),
        ((1.0, float("inf")), "finite and below 1.8e308, found inf"),
        ((2**53, 2**53 + 1), "are the same number in double precision"),
    ],
)
def test_a_category_that_is_no_float_is_refused(categories: tuple[float, ...], told: str) -> None:
    with pytest.raises(fc.errors.SchemaError, match=told):
        fc.Variable("c", "categorical", categories)


def test_a_target_without_mass_on_its_outcomes_is_not_called_impossible_evidence() -> None:
    grid = Grid(np.array([1.0, 2.0]), np.array([1.0, 2.0]), tails=(1.0, 1.0), integer=True)
    schema = fc.Schema((fc.Variable("n", "count", grid=grid), fc.Variable("y", "binary", (0, 1))))
    circuit = build.circuit(
        schema,
        build.product([build.histogram("n", grid, [1.0, 0, 0, 0]), build.categorical("y", [1, 0])]),
    )
    rows = pd.DataFrame({"y": [0]}, index=["here"])
    with pytest.raises(QueryError, match=r"'n' takes none of its listed values .* 'here'"):
        circuit.predict_proba(rows, "n")
    assert circuit.predict_proba(rows, "n", impossible="nan").isna().all(axis=None)
    with pytest.raises(ImpossibleEvidenceError, match="probability zero"):
        circuit.predict_proba(pd.DataFrame({"y": [1]}), "n")


@pytest.mark.parametrize("seed", ["x", 1.5, -1, [1], True, float("nan")])
def test_a_seed_is_a_whole_number(model: fc.Circuit, seed: Any) -> None:
    rows = pd.DataFrame({"x": [1.0, 2.0, 2.5, 4.0] * 5})
    asks: list[Any] = [
        lambda: model.sample(2, seed=seed),
        lambda: fc.learn(rows, learner="factorised", seed=seed),
        lambda: fc.federate({"a": rows}, learner="factorised", seed=seed),
    ]
    for ask in asks:
        with pytest.raises(FedcircuitsError, match="seed is a whole number >= 0, found"):
            ask()


@pytest.mark.parametrize("names", [None, 5, [[]], [None]])
def test_names_that_are_no_names_are_refused_by_us(model: fc.Circuit, names: Any) -> None:
    for ask in (model.marginal, model.entropy, model.mutual_information_matrix, model.condition):
        if names is None and ask in (model.mutual_information_matrix, model.condition):
            continue  # None is their default
        with pytest.raises(QueryError):
            ask(names)


def test_whole_numbers_beyond_64_bits_are_numbers() -> None:
    rows = pd.DataFrame({"x": [10**21 + 10**20 * (i % 7) for i in range(40)], "k": ["a", "b"] * 20})
    model = fc.learn(rows, learner="factorised")
    assert np.isfinite(model.log_prob(rows)).all()
    assert model.condition(x=10**21).schema.names == ("k",)
    with pytest.raises(FederationError, match="client 'a': its table cannot be sent"):
        fc.federate({"a": rows, "b": rows}, learner="factorised", engine="processes")


def test_clients_are_a_mapping_or_a_list_of_tables() -> None:
    rows = pd.DataFrame({"x": [1.0, 2.0] * 5})
    with pytest.raises(FederationError, match=r"clients is a mapping .*; found DataFrame"):
        fc.federate(rows)  # type: ignore[call-overload]
    with pytest.raises(FederationError, match=r"clients is a mapping .*; found rows"):
        fc.federate([{"x": 1.0}, {"x": 2.0}])


HUGE = 10**400


@pytest.mark.parametrize(
    "ask",
    [
        lambda m: m.probability({"age": fc.above(HUGE)}),
        lambda m: m.probability({"age": fc.between(-HUGE, HUGE)}),
        lambda m: m.probability({"age": fc.one_of([HUGE])}),
        lambda m: m.probability({"age": fc.not_(HUGE)}),
        lambda m: m.probability({"job": fc.one_of([HUGE])}),
        lambda m: m.log_prob({"age": HUGE}),
        lambda m: m.cdf("age", HUGE),
        lambda m: m.quantile("age", HUGE),
        lambda m: m.moment("age", 10**30),
        lambda m: m.sample(10**30),
        lambda m: m.sample(2, {"age": HUGE}),
        lambda _: fc.learn(pd.DataFrame({"x": [HUGE, 1, 2] * 20})),
        lambda _: fc.learn(pd.DataFrame({"x": [HUGE, 1, 2] * 20}), kinds={"x": "continuous"}),
    ],
)
def test_numbers_that_no_float_holds_are_answered_or_refused_by_us(
    model: fc.Circuit, ask: Any
) -> None:
    try:
        found = ask(model)
    except FedcircuitsError as error:
        text = str(error)
        assert text
    else:
        assert 0.0 <= found <= 1.0

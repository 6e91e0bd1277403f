"""Arguments, tables, paths and numbers of the wrong sort at the public surface."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import fedcircuits as fc
from contracts.by_hand import small_circuit
from fedcircuits import build
from fedcircuits.errors import (
    FedcircuitsError,
    FederationError,
    ImpossibleEvidenceError,
    LearningError,
    QueryError,
    SchemaError,
    StorageError,
)
from fedcircuits.schema import Grid


@pytest.fixture(scope="module")
def model() -> fc.Circuit:
    return small_circuit()


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

"""Schemas and variables as values."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedcircuits.errors import QueryError, SchemaError
from fedcircuits.schema import Grid, Schema, Variable

SCHEMA = Schema(
    (
        Variable("age", "count", domain=(0.0, np.inf), closed=True, declared=True, unit="years"),
        Variable(
            "pay",
            "continuous",
            domain=(-1.5, 1 / 3),
            grid=Grid(np.array([0.1]), np.array([-1.5, 0.3]), tails=(0.2, 0.7), missing=True),
            missing_state=True,
        ),
        Variable("job", "categorical", ("clerk", "nurse"), missing_state=True),
        Variable("mix", "categorical", (False, 2, 2.5, "two")),
        Variable("ok", "binary", (False, True)),
    )
)


def test_json_round_trip_is_exact() -> None:
    again = Schema.from_json(json.loads(json.dumps(SCHEMA.to_json(), allow_nan=False)))
    assert again == SCHEMA
    assert again["mix"].categories == (False, 2, 2.5, "two")
    assert [type(c) for c in again["mix"].categories] == [bool, int, float, str]
    assert again["pay"].domain == (-1.5, 1 / 3)


def test_variables_are_found_by_name() -> None:
    assert SCHEMA.position("job") == 2
    assert SCHEMA["job"].categories == ("clerk", "nurse")
    assert "job" in SCHEMA
    assert "jobs" not in SCHEMA
    assert len(SCHEMA) == 5
    assert [v.name for v in SCHEMA] == ["age", "pay", "job", "mix", "ok"]


@pytest.mark.parametrize("name", ["jobs", 3, None, ["job"]])
def test_an_unknown_name_is_told_with_those_that_exist(name: Any) -> None:
    with pytest.raises(QueryError, match=r"no variable .*; the model has 'age', 'pay', 'job'"):
        SCHEMA.position(name)


def test_select_keeps_the_order_given() -> None:
    assert SCHEMA.select(["ok", "age"]).names == ("ok", "age")


def test_with_variables_replaces_by_name() -> None:
    new = Variable("job", "categorical", ("a", "b", "c"))
    changed = SCHEMA.with_variables([new])
    assert changed.names == SCHEMA.names
    assert changed["job"].categories == ("a", "b", "c")
    assert SCHEMA["job"].categories == ("clerk", "nurse")


def test_missing_code_is_the_last_category_or_infinity() -> None:
    assert (SCHEMA["job"].n_codes, SCHEMA["job"].missing_code) == (3, 2.0)
    assert SCHEMA["pay"].missing_code == np.inf


def test_outcomes_are_original_values() -> None:
    assert SCHEMA["job"].outcomes == ("clerk", "nurse")
    assert SCHEMA["age"].outcomes is None
    atoms = Grid(np.array([2.0, 5.0]), np.array([2.0, 5.0]), integer=True)
    outcomes = Variable("n", "count", grid=atoms).outcomes
    assert outcomes == (2, 5)
    assert [type(o) for o in outcomes or ()] == [int, int]


def test_numbers_of_categories() -> None:
    np.testing.assert_array_equal(SCHEMA["ok"].numbers, [0.0, 1.0])
    assert SCHEMA["job"].numbers is None
    assert SCHEMA["mix"].numbers is None


def test_grids_are_made_for_numbers_without_one(rng: np.random.Generator) -> None:
    frame = pd.DataFrame({"x": rng.normal(0, 1, 90), "n": rng.integers(2, 5, 90), "c": ["a"] * 90})
    schema = Schema.infer(frame)
    made = schema.with_grids(schema.encode(frame), n_bins=5)
    assert made["c"].grid is None
    assert made["x"].grid is not None
    assert made["x"].grid.edges.size == 6
    assert made["n"].grid is not None
    np.testing.assert_array_equal(made["n"].grid.atoms, [2, 3, 4])
    assert made["n"].grid.integer
    assert made.with_grids(schema.encode(frame), n_bins=9) == made


def test_a_grid_that_cannot_be_made_names_the_variable() -> None:
    schema = Schema((Variable("pay", "continuous"),))
    with pytest.raises(SchemaError, match="variable 'pay': no grid can be made"):
        schema.with_grids(schema.encode(pd.DataFrame({"pay": [np.nan]})))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": ""}, "a variable's name is a non-empty string, found ''"),
        ({"name": 3}, "a variable's name is a non-empty string, found 3"),
        ({"kind": "text"}, "'x': kind is one of continuous, count.* found 'text'"),
        ({"kind": "categorical"}, "'x': a categorical variable has categories"),
        ({"kind": "categorical", "categories": ("a", "a")}, "'x': its categories repeat"),
        ({"kind": "categorical", "categories": (1, True)}, "'x': its categories repeat"),
        ({"kind": "binary", "categories": ("a", "b", "c")}, "'x': .*two categories, found 3"),
        ({"domain": (3.0, 1.0)}, r"'x': a domain is \(lowest, highest\)"),
        ({"domain": (np.nan, 1.0)}, r"'x': a domain is \(lowest, highest\)"),
    ],
)
def test_what_is_not_a_variable_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        Variable(**{"name": "x", "kind": "continuous", **options})


def test_no_variable_is_no_schema() -> None:
    with pytest.raises(SchemaError, match="a schema has at least one variable"):
        Schema(())


def test_a_name_twice_is_no_schema() -> None:
    with pytest.raises(SchemaError, match="two variables of a schema have the same name"):
        Schema((Variable("x", "continuous"), Variable("x", "count")))

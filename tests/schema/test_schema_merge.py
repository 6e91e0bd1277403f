"""Merging the schemas of clients, and the conflicts that are refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedcircuits.errors import SchemaConflictError
from fedcircuits.schema import Grid, Schema, Variable


def merged(**clients: Variable) -> Variable:
    """One variable, as each client has it, after merging."""
    return Schema.merge({name: Schema((v,)) for name, v in clients.items()})["x"]


def guess(values: Any, **options: Any) -> Variable:
    return Schema.infer(pd.DataFrame({"x": values}), **options)["x"]


COUNT = guess([2, 3] * 4)
NUMBER = guess([0.5, 7.25, 3.0])
FLAG = guess([0, 1])
WORD = guess(["b", "a"])


def test_categories_are_united_in_sorted_order() -> None:
    found = merged(shop=guess(["pear", "fig"]), bank=guess(["apple", "fig"]))
    assert found.categories == ("apple", "fig", "pear")
    assert found.kind == "categorical"


def test_domains_are_widened() -> None:
    found = merged(a=guess([2.5, 9.0, 3.5]), b=guess([-1.25, 3.0, 4.5]))
    assert found.domain == (-1.25, 9.0)


def test_names_come_in_order_of_sorted_clients() -> None:
    a = Schema.infer(pd.DataFrame({"u": [1.5], "v": [2.5]}))
    b = Schema.infer(pd.DataFrame({"w": [1.5], "u": [2.5]}))
    assert Schema.merge({"b": b, "a": a}).names == ("u", "v", "w")
    assert Schema.merge({"a": a, "b": b}) == Schema.merge({"b": b, "a": a})


def test_merging_one_schema_changes_nothing() -> None:
    schema = Schema.infer(pd.DataFrame({"u": [1.5], "v": ["a"]}))
    assert Schema.merge({"only": schema}) == schema


@pytest.mark.parametrize(
    ("a", "b", "kind", "domain"),
    [
        (FLAG, COUNT, "count", (0.0, 3.0)),
        (FLAG, NUMBER, "continuous", (0.0, 7.25)),
        (COUNT, NUMBER, "continuous", (0.5, 7.25)),
        (COUNT, guess([2.0, 9.0] * 4, kinds={"x": "continuous"}), "continuous", (2.0, 9.0)),
    ],
)
def test_guesses_give_way(a: Variable, b: Variable, kind: str, domain: Any) -> None:
    for found in (merged(a=a, b=b), merged(a=b, b=a)):
        assert (found.kind, found.domain) == (kind, domain)


def test_truth_values_and_zero_one_are_the_same() -> None:
    found = merged(a=guess([True, False]), b=FLAG)
    assert found.kind == "binary"
    assert [int(c) for c in found.categories] == [0, 1]


def test_binary_with_a_third_category_is_categorical() -> None:
    yes_no = guess(["n", "y"], kinds={"x": "binary"})
    other = guess(["n", "maybe"], kinds={"x": "binary"})
    found = merged(a=yes_no, b=other)
    assert (found.kind, found.categories) == ("categorical", ("maybe", "n", "y"))


def test_a_domain_stays_closed_only_if_all_declared_it() -> None:
    closed = guess([2.5, 3.5], domains={"x": (0, 10)})
    wide = guess([2.5, 3.5], domains={"x": (-5, 5)})
    assert not merged(a=closed, b=NUMBER).closed
    both = merged(a=closed, b=wide)
    assert (both.closed, both.domain) == (True, (-5.0, 10.0))


def test_one_client_may_know_the_unit() -> None:
    kilos = guess([2.5, 3.5], units={"x": "kg"})
    assert merged(a=NUMBER, b=kilos).unit == "kg"


def test_missing_state_of_one_is_the_state_of_all() -> None:
    with_state = Variable("x", "categorical", ("a",), missing_state=True)
    assert merged(a=with_state, b=WORD).missing_state


# --- conflicts ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("a", "b", "message"),
    [
        (
            WORD,
            NUMBER,
            "'x': client 'bank' says categorical .'a', ....*client 'shop' says continuous",
        ),
        (NUMBER, WORD, "'x': client 'bank' says continuous, client 'shop' says categorical"),
        (WORD, FLAG, "client 'bank' says categorical .*client 'shop' says binary .0, ..."),
        (guess([1, 2], kinds={"x": "categorical"}), WORD, "categorical .1, .* categorical .'a'"),
        (
            guess([1, 2], kinds={"x": "count"}),
            guess([1, 2], kinds={"x": "continuous"}),
            "count.*continuous",
        ),
        (guess([0, 1], kinds={"x": "binary"}), COUNT, "'bank' says binary .*'shop' says count"),
        (guess([2, 3], kinds={"x": "count"}), NUMBER, "'bank' says count.*'shop' says continuous"),
    ],
)
def test_conflicts_of_kind_name_variable_clients_and_kinds(
    a: Variable, b: Variable, message: str
) -> None:
    with pytest.raises(SchemaConflictError, match=message):
        merged(bank=a, shop=b)


def test_conflict_of_units_names_both() -> None:
    kilos, pounds = guess([2.5], units={"x": "kg"}), guess([2.5], units={"x": "lb"})
    with pytest.raises(
        SchemaConflictError, match="'x': client 'a' measures it in 'kg', client 'b' in 'lb'"
    ):
        merged(a=kilos, b=pounds)


def test_conflict_names_the_client_that_said_the_unit() -> None:
    kilos, pounds = guess([2.5], units={"x": "kg"}), guess([2.5], units={"x": "lb"})
    with pytest.raises(SchemaConflictError, match="client 'b' measures it in 'kg', client 'c' in"):
        merged(a=NUMBER, b=kilos, c=pounds)


def test_conflict_names_a_client_that_said_the_kind() -> None:
    # 'a' guesses binary, which would give way; it is 'b' that declared a count.
    declared = guess([2, 3], kinds={"x": "count"})
    with pytest.raises(SchemaConflictError, match="'b' says count, client 'c' says continuous"):
        merged(a=FLAG, b=declared, c=NUMBER)


def test_different_grids_are_refused() -> None:
    one = NUMBER.with_grid(Grid(np.array([]), np.array([0.0, 1.0])))
    other = NUMBER.with_grid(Grid(np.array([]), np.array([0.0, 2.0])))
    with pytest.raises(SchemaConflictError, match="'x': clients 'a' and 'b' have different grids"):
        merged(a=one, b=other)


def test_an_agreed_grid_is_kept() -> None:
    grid = Grid(np.array([]), np.array([0.0, 1.0]))
    assert merged(a=NUMBER.with_grid(grid), b=NUMBER).grid == grid
    assert merged(a=NUMBER, b=NUMBER.with_grid(grid)).grid == grid


def test_a_grid_of_counts_is_dropped_where_the_variable_becomes_continuous() -> None:
    grid = Grid(np.array([2.0, 3.0]), np.array([2.0, 3.0]), integer=True)
    found = merged(a=COUNT.with_grid(grid), b=NUMBER)
    assert (found.kind, found.grid) == ("continuous", None)

"""Rows of states of a number that were too few to be told: what their neighbours leave them."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from fedcircuits.density.tilt import n_states_of, spread_over_states
from fedcircuits.schema import Schema, Variable


def number() -> Variable:
    rows = pd.DataFrame({"x": np.linspace(0.0, 1.0, 400)})
    table = Schema.infer(rows).encode(rows)
    return next(iter(table.schema.with_grids(table)))


def test_codes_stay() -> None:
    variable = Variable("c", "categorical", ("u", "v", "w"))
    np.testing.assert_array_equal(spread_over_states(variable, np.array([3.0, 0, 2])), np.eye(3))


def test_a_state_without_rows_gets_half_of_the_rarest_from_the_nearest() -> None:
    variable = number()
    rows = np.full(n_states_of(variable), 100.0)
    rows[[0, 4, 7]] = 0, 0, 10
    found = rows @ spread_over_states(variable, rows)
    assert found.sum() == pytest.approx(rows.sum())
    assert found[[0, 1, 7]] == pytest.approx([5, 95, 10])
    assert found[4] == pytest.approx(5)
    assert found[3] + found[5] == pytest.approx(195)


def test_no_neighbour_leaves_more_than_an_even_share() -> None:
    variable = number()
    rows = np.zeros(n_states_of(variable))
    rows[3] = 12
    np.testing.assert_allclose(
        rows @ spread_over_states(variable, rows), 12 / rows.size, rtol=1e-12
    )
    rows[:] = 0
    np.testing.assert_array_equal(spread_over_states(variable, rows), np.eye(rows.size))

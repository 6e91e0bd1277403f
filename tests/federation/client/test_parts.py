"""Groups of rows that a client takes: unions of parts of enough rows; states of enough rows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fedcircuits.federation.client.rows.parts import Parts
from fedcircuits.federation.client.rows.rare_states import without_rare_states
from fedcircuits.schema import Schema, Table, Variable
from fedcircuits.schema.grids.grid import Grid


@pytest.mark.parametrize("least", [2, 5, 9])
def test_whatever_groups_are_chosen_no_sum_or_difference_is_about_few_rows(least: int) -> None:
    """All groups are unions of parts, and every part has enough rows."""
    rng = np.random.default_rng(least)
    for n in (4, 30, 200):
        parts, seen = Parts(least), []
        parts.begin(b"run", np.zeros(n, dtype=np.int64))
        for _ in range(40):
            if rng.random() < 0.5:
                wanted = rng.random(n) < rng.random()
                taken = parts.chosen(wanted)
                assert not (taken & ~wanted).any()  # what is left out stays out
                seen.append(taken.astype(int))
            else:
                seen.append(parts.grouped(rng.integers(0, rng.integers(1, 9), n)))
        told = np.unique(np.stack(seen), axis=1, return_inverse=True)[1].reshape(-1)
        assert np.bincount(told).min() >= min(least, n)
        again = Parts(least)
        again.begin(b"run", np.zeros(n, dtype=np.int64))
        few = np.arange(n) < least - 1
        assert not again.chosen(few).any()
        kept = again.chosen(~few)
        assert (~kept).sum() >= least or not kept.any()


def test_parts_are_not_forgotten_by_agreeing_again() -> None:
    parts = Parts(5)
    first, other = np.zeros(20, dtype=np.int64), np.zeros(20, dtype=np.int64)
    for name in (b"one", b"two", b"one"):
        parts.begin(name, first)
        half = np.arange(20) < 10 if name == b"one" else np.arange(20) < 7
        parts.chosen(half)
    other[:8] = 1  # splits the first half into eight and two
    assert np.unique(parts.grouped(other)[:10]).size == 1


def test_without_a_smallest_group_rows_are_taken_as_they_are_asked_for() -> None:
    for least in (0, 1):
        parts = Parts(least)
        parts.begin(b"run", np.zeros(6, dtype=np.int64))
        one = np.arange(6) == 3
        assert (parts.chosen(one) == one).all()
        assert (parts.grouped(np.arange(6)) == np.arange(6)).all()


def test_as_many_rows_are_given_up_as_those_outside_lack() -> None:
    parts = Parts(5)
    parts.begin(b"run", np.zeros(20, dtype=np.int64))
    assert parts.chosen(np.arange(20) < 18).sum() == 15  # two outside lack three
    assert parts.chosen(np.arange(20) < 15).sum() == 15  # what was told is told again
    assert parts.chosen(np.arange(20) < 10).sum() == 10
    assert parts.chosen(np.arange(20) < 9).sum() == 5  # one outside lacks four
    assert parts.chosen(np.arange(20) < 4).sum() == 0  # four would be left
    assert parts.chosen(np.ones(20, dtype=bool)).all()
    groups = np.repeat([0, 1, 2], [9, 3, 8])
    assert parts.grouped(groups).tolist() == [0] * 10 + [2] * 10


def test_classes_of_the_label_are_parts_from_the_start() -> None:
    parts = Parts(5)
    parts.begin(b"run", np.repeat([0, 1], [12, 4]))
    assert parts.chosen(np.arange(16) >= 8).tolist() == [False] * 16  # four of each class
    wanted = (np.arange(16) >= 6) & (np.arange(16) < 12)
    assert parts.chosen(wanted).sum() == 6


def column(values: list[float], edges: list[float], atoms: list[float]) -> Table:
    grid = Grid(np.array(atoms), np.array(edges), tails=(1.0, 1.0), missing=True)
    variable = Variable("x", "continuous", missing_state=True).with_grid(grid)
    cells = np.array(values)[:, None]
    table = Table.empty(Schema((variable,)), len(values))
    return replace(table, values=cells, observed=np.ones(cells.shape, dtype=bool))


def test_a_state_of_few_rows_is_told_as_a_neighbour() -> None:
    values = [0.5] * 6 + [1.5] * 2 + [2.5] * 7 + [9.0] * 1 + [np.inf] * 2
    table = column(values, [0.0, 1.0, 2.0, 3.0, 4.0], [])
    told = without_rare_states(table, 5)
    grid = table.schema["x"].grid
    assert grid is not None
    counts = np.bincount(grid.encode(told.values[:, 0]), minlength=grid.n_states)
    assert counts.tolist() == [0, 6, 0, 10, 0, 0, 2]  # a missing cell is no neighbour of any
    assert (told.values[:6] == table.values[:6]).all()  # rows of large states keep their values
    assert without_rare_states(table, 1) is table
    assert counts.sum() == len(values)


def test_states_of_few_rows_together_are_told_as_one() -> None:
    table = column([0.5, 1.5, 1.6, 2.5, 3.5, *[7.0] * 3], [0.0, 1.0, 2.0, 3.0, 4.0, 8.0], [7.0])
    told = without_rare_states(table, 5)
    grid = table.schema["x"].grid
    assert grid is not None
    states = grid.encode(told.values[:, 0])
    assert np.unique(states).size == 1  # five in the first four bins, three left over
    assert told.values.shape == (8, 1)

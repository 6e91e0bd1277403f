"""Grids: states, densities within them, moments, and what a grid refuses."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedcircuits.errors import SchemaError
from fedcircuits.schema import Grid
from oracles.quadrature import Piece, integrate

GRID = Grid(np.array([-1.5, 0.0, 2.0]), np.array([-3.0, 0.0, 0.5, 4.0]), tails=(0.6, 2.0))


@st.composite
def grids(draw: st.DrawFn) -> Grid:
    """Any grid: atoms anywhere between the edges, on them too; open or closed tails."""
    integer = draw(st.booleans())
    number = (
        st.integers(-40, 40).map(float) if integer else st.integers(-200, 200).map(lambda i: i / 7)
    )
    edges = sorted(draw(st.sets(number, min_size=1, max_size=6)))
    inside = [v for v in draw(st.sets(number, max_size=6)) if edges[0] <= v <= edges[-1]]
    atoms = sorted(set(inside) | set(draw(st.sets(st.sampled_from(edges), max_size=3))))
    tails = tuple(draw(st.sampled_from([0.0, 0.3, 1.0, 25.0])) for _ in range(2))
    if len(edges) == 1:
        atoms = edges
    tilts = [draw(st.sampled_from([0.0, -0.7, 1e-6, 3.0, -60.0])) for _ in edges[1:]]
    shapes = tuple(draw(st.sampled_from([4.0, 2.5, 9.0])) for _ in range(2))
    missing = draw(st.booleans())
    floors = [-np.inf]
    if tails[0] > 0 and (atoms or len(edges) > 1):
        floors += [edges[0], edges[0] - 1, edges[0] - 13]
    floor = draw(st.sampled_from(floors))
    arrays = np.array(atoms), np.array(edges)
    return Grid(*arrays, tails, integer, missing, np.array(tilts), shapes, floor)


def mass_of_state(grid: Grid, state: int) -> float:
    """Integral of the density within one state, from the density alone."""

    def within(x: np.ndarray) -> np.ndarray:
        return np.where(grid.encode(x) == state, np.exp(grid.log_within(x)), 0.0)

    edges = grid.edges.tolist()
    total = float(within(np.append(grid.atoms, np.inf)).sum())
    if grid.integer:
        reach = 20_000
        x = np.setdiff1d(np.arange(edges[0] - reach, edges[-1] + reach + 1), grid.atoms)
        total += float(within(x).sum())
        # What lies beyond: the survival function of the Lomax tail.
        for side, end in ((0, edges[0] - reach), (1, edges[-1] + reach)):
            ends_above = side == 0 and grid.floor > -np.inf
            held = grid.tails[side] > 0 and grid.encode(np.array([end]))[0] == state
            if held and not ends_above:
                total += (1 + reach / grid.tails[side]) ** -grid.shapes[side]
        return total
    ends = [-np.inf, *edges, np.inf]
    scales = [grid.tails[0], *[1.0] * (len(edges) - 1), grid.tails[1]]
    if -np.inf < grid.floor < edges[0]:
        ends, scales = [-np.inf, grid.floor, *ends[1:]], [scales[0], *scales]
    for low, high, scale in zip(ends[:-1], ends[1:], scales, strict=True):
        total += integrate(within, Piece(low, high, scale or 1.0), panels=2)
    return total


@given(grids())
def test_every_state_has_mass_one_within(grid: Grid) -> None:
    for state in range(grid.n_states):
        assert mass_of_state(grid, state) == pytest.approx(1.0, abs=1e-9), state


@given(grids(), st.lists(st.floats(-1e4, 1e4), min_size=1, max_size=20))
def test_a_value_has_a_state_exactly_where_it_has_a_density(grid: Grid, values: Any) -> None:
    x = np.concatenate([np.round(values), values, grid.edges, grid.atoms])
    state, log_within = grid.encode(x), grid.log_within(x)
    assert ((state >= 0) == (log_within > -np.inf)).all()
    assert state.max(initial=-1) < grid.n_states


@given(grids())
def test_samples_and_modes_lie_in_their_state(grid: Grid) -> None:
    states = np.repeat(np.arange(grid.n_states), 30)
    x = grid.sample_within(states, np.random.default_rng(0))
    # A bin's sample may hit an atom only with probability zero, or where the bin is on integers,
    # never.
    np.testing.assert_array_equal(grid.encode(x), states)
    value, log_density = grid.modes()
    np.testing.assert_array_equal(grid.encode(value), np.arange(grid.n_states))
    at_samples = grid.log_within(x).reshape(grid.n_states, 30)
    assert (at_samples <= log_density[:, None] + 1e-12).all()


@given(grids())
def test_states_are_numbered_along_the_axis(grid: Grid) -> None:
    atoms = grid.encode(grid.atoms)
    assert (np.diff(atoms) > 0).all()
    np.testing.assert_array_equal(atoms, grid.atom_states)
    if grid.tails[0] > 0:
        assert grid.encode(grid.edges[:1] - 1)[0] == 0
        assert grid.encode(grid.edges[:1] - 100)[0] == 0
    if grid.tails[1] > 0:
        assert grid.encode(grid.edges[-1:] + 1)[0] == grid.n_states - 1 - grid.missing


@given(grids())
def test_json_round_trip_is_exact(grid: Grid) -> None:
    again = Grid.from_json(json.loads(json.dumps(grid.to_json(), allow_nan=False)))
    assert again == grid
    assert hash(again) == hash(grid)
    np.testing.assert_array_equal(again.atoms, grid.atoms)
    np.testing.assert_array_equal(again.edges, grid.edges)


@given(grids())
def test_moment_of_order_zero_is_one_but_for_missing(grid: Grid) -> None:
    expected = np.ones(grid.n_states)
    if grid.missing:
        expected[-1] = 0.0
    np.testing.assert_allclose(grid.moments(0), expected, rtol=1e-12)


@pytest.mark.parametrize("integer", [False, True])
@pytest.mark.parametrize("order", [1, 2, 3])
def test_moments_equal_the_mean_of_powers(integer: bool, order: int) -> None:
    grid = Grid(
        np.array([-4.0, 2.0]), np.array([-4.0, 1.0, 9.0]), tails=(0.0, 0.0), integer=integer
    )
    found = grid.moments(order)
    states = [grid.encode(np.array([v]))[0] for v in (-4.0, 0.0, 2.0, 5.0)]
    if integer:
        low = np.mean(np.array([-3.0, -2, -1, 0]) ** order)
        high = np.mean(np.array([1.0, 3, 4, 5, 6, 7, 8, 9]) ** order)
    else:
        low = integrate(lambda x: x**order / 5, Piece(-4, 1))
        high = integrate(lambda x: x**order / 8, Piece(1, 9))
    np.testing.assert_allclose(found[states], [(-4.0) ** order, low, 2.0**order, high], rtol=1e-12)


def test_states_of_a_hand_made_grid() -> None:
    # tail, [-3, 0) with -1.5 inside, atom 0 with [0, .5), [.5, 4] with 2 inside, tail
    x = np.array([-3.1, -3.0, -1.5, -0.1, 0.0, 0.1, 0.5, 2.0, 4.0, 4.1])
    assert GRID.n_states == 8
    assert GRID.encode(x).tolist() == [0, 1, 2, 1, 3, 4, 5, 6, 5, 7]


def test_density_of_a_hand_made_grid() -> None:
    x = np.array([-4.2, -3.0, -1.5, 0.0, 0.1, 0.5, 4.0, 6.0])
    expected = [
        4 / 0.6 * (1 + 1.2 / 0.6) ** -5, 1 / 3, 1.0, 1.0, 1 / 0.5, 1 / 3.5, 1 / 3.5,
        4 / 2.0 * (1 + 2.0 / 2.0) ** -5,
    ]  # fmt: skip
    np.testing.assert_allclose(np.exp(GRID.log_within(x)), expected, rtol=1e-12)


def test_an_unseen_number_takes_the_bin_between_its_neighbours() -> None:
    grid = Grid(np.array([0.1, 0.2, 0.7]), np.array([0.1, 0.7]), tails=(0.05, 0.05))
    assert grid.is_discrete
    found = grid.encode(np.array([0.15, 0.4, 0.1, 0.7]))
    assert found.tolist() == [2, 2, 1, 4]
    assert np.exp(grid.log_within(np.array([0.4]))[0]) == pytest.approx(1 / 0.6)


def test_closed_tails_hold_nothing() -> None:
    grid = Grid(np.array([]), np.array([0.0, 1.0]), tails=(0.0, 0.0))
    x = np.array([-1e-9, 0.0, 1.0, 1.0 + 1e-9, 1e300, -1e300])
    assert grid.encode(x).tolist() == [-1, 0, 0, -1, -1, -1]
    np.testing.assert_array_equal(np.exp(grid.log_within(x)), [0, 1, 1, 0, 0, 0])


@pytest.mark.parametrize("integer", [False, True])
@pytest.mark.parametrize("x", [-1e308, -1e20, -1e5, 1e5, 1e16, 1e200, 1.7e308])
@pytest.mark.parametrize("scale", [1e-9, 1.0, 1e9])
def test_far_out_values_have_a_positive_density(integer: bool, x: float, scale: float) -> None:
    grid = Grid(np.array([]), np.array([0.0, 8.0]), tails=(scale, scale), integer=integer)
    found = grid.log_within(np.array([x]))[0]
    distance = -x if x < 0 else x - 8.0
    if integer and scale < 1:  # P(d) = S(d - 1) - S(d) is close to S'(d - 1/2) far out
        distance -= 0.5
    log_ratio = np.logaddexp(0.0, np.log(distance) - np.log(scale))
    expected = np.log(4) - np.log(scale) - 5 * log_ratio
    assert found == pytest.approx(expected, rel=1e-4 if integer else 1e-12)


def test_infinity_is_the_missing_state_and_nothing_else() -> None:
    open_grid = Grid(np.array([]), np.array([0.0, 1.0]), tails=(1.0, 1.0))
    assert open_grid.encode(np.array([np.inf]))[0] == -1
    assert open_grid.log_within(np.array([np.inf]))[0] == -np.inf
    with_missing = Grid(np.array([]), np.array([0.0, 1.0]), tails=(1.0, 1.0), missing=True)
    assert with_missing.encode(np.array([np.inf]))[0] == 3
    assert with_missing.log_within(np.array([np.inf]))[0] == 0.0
    assert with_missing.moments(2)[3] == 0.0


def test_contiguous_integer_atoms_leave_no_empty_state() -> None:
    grid = Grid(np.arange(5.0), np.array([0.0, 4.0]), tails=(1.0, 1.0), integer=True)
    assert grid.n_states == 7
    assert grid.encode(np.arange(-1.0, 6.0)).tolist() == [0, 1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("size", [1e-300, 1e-9, 1e9, 1e300])
def test_any_magnitude_integrates_to_one(size: float) -> None:
    grid = Grid(np.array([size]), np.array([-2.0, 1.0, 3.0]) * size, tails=(size, 0.5 * size))
    for state in range(grid.n_states):
        assert mass_of_state(grid, state) == pytest.approx(1.0, abs=1e-9), state


def test_moments_of_the_smallest_numbers_are_finite() -> None:
    grid = Grid(np.array([]), np.array([0.0, 4e-310, 9e-310]), tails=(0.0, 1e-310))
    for order in (1, 2, 3):
        assert np.isfinite(grid.moments(order)).all()
    assert 0 < grid.moments(1)[0] < 4e-310
    assert np.isfinite(grid.variances()).all()


def test_arrays_of_a_grid_cannot_be_changed() -> None:
    mine = np.array([0.0, 1.0])
    grid = Grid(np.array([]), mine)
    mine[0] = -5.0
    assert grid.edges[0] == 0.0
    with pytest.raises(ValueError, match="read-only"):
        grid.edges[0] = 3.0


def test_equality_is_of_values() -> None:
    same = Grid(np.array([-1.5, 0.0, 2.0]), np.array([-3.0, 0.0, 0.5, 4.0]), tails=(0.6, 2.0))
    assert same == GRID
    other = Grid(same.atoms, same.edges, tails=(0.6, 2.1))
    assert other != GRID
    assert Grid(same.atoms, same.edges, tails=(0.6, 2.0), missing=True) != GRID


@pytest.mark.parametrize(
    ("atoms", "edges", "options", "message"),
    [
        ([], [], {}, "at least one edge"),
        ([np.nan], [0.0, 1.0], {}, "must be finite"),
        ([], [0.0, np.inf], {}, "must be finite"),
        ([0.5, 0.2], [0.0, 1.0], {}, "increase strictly"),
        ([], [0.0, 0.0], {}, "increase strictly"),
        ([1.5], [0.0, 1.0], {}, "edges must enclose the atoms"),
        ([], [0.0, 1.0], {"tails": (-1.0, 1.0)}, "tail scales"),
        ([], [0.0, 1.0], {"tails": (1.0, np.inf)}, "tail scales"),
        ([], [0.0, 1.0], {"tails": (1.0,)}, "tail scales"),
        ([0.5], [0.0, 1.0], {"integer": True}, "integer atoms and edges"),
        ([], [1.0], {"tails": (0.0, 0.0)}, "no state is left"),
        ([], [1.0], {"integer": True}, "a lone edge of an integer grid must be an atom"),
    ],
)
def test_what_is_not_a_grid_is_refused(
    atoms: list[float], edges: list[float], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(SchemaError, match=message):
        Grid(np.array(atoms), np.array(edges), **options)


@pytest.mark.parametrize("order", [0, 1, 2, 5, 60])
def test_moments_of_high_order_over_integers_cost_no_exponential_time(order: int) -> None:
    grid = Grid(np.array([3.0]), np.array([-2.0, 6.0]), tails=(0, 0), integer=True)
    values = [v for v in range(-2, 7) if v != 3]
    bin_state = int(grid.encode(np.array([0.0]))[0])
    expected = sum(v**order for v in values) / len(values)
    assert grid.moments(order)[bin_state] == pytest.approx(expected, rel=1e-14)


@pytest.mark.parametrize("scale", [0.3, 2.0, 1e3, 9e6, 1.1e7, 1e12])
def test_moments_of_an_integer_tail_pass_smoothly_into_those_of_the_line(scale: float) -> None:
    grid = Grid(np.array([0.0]), np.array([0.0]), tails=(0.0, scale), integer=True)
    line = Grid(np.array([0.0]), np.array([0.0]), tails=(0.0, scale))
    for order in (1, 2, 3):
        gap = grid.moments(order)[1] / line.moments(order)[1] - 1
        # Distances are rounded up: half a step more on average, order by order.
        if scale >= 1e3:
            assert gap * scale == pytest.approx({1: 1.5, 2: 1.0, 3: 0.5}[order], rel=0.01, abs=1e-3)
        else:
            assert gap > 0
    assert grid.variances()[1] == pytest.approx(
        grid.moments(2)[1] - grid.moments(1)[1] ** 2, rel=1e-9
    )

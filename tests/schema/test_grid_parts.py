"""Parts of states: masses, moments, draws and modes in an interval, against sums and quadrature."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from fedcircuits.errors import SchemaError
from fedcircuits.schema import Grid
from fedcircuits.schema.grids import shapes, tails
from fedcircuits.schema.grids.decimals import DecimalGrid, grid_from_json
from oracles.quadrature import Piece, integrate

TILTED = Grid(
    np.array([-1.5, 0.0, 2.0]),
    np.array([-3.0, 0.0, 0.5, 4.0]),
    tails=(0.6, 2.0),
    missing=True,
    tilts=np.array([-2.0, 0.0, 5.0]),
    shapes=(2.5, 6.0),
)
WHOLE = Grid(
    np.array([-7.0, 0.0, 3.0, 40.0]),
    np.array([-9.0, 0.0, 5.0, 200.0]),
    tails=(3.0, 30.0),
    integer=True,
    tilts=np.array([1.0, -4.0, -6.0]),
    shapes=(5.0, 3.5),
)
# With a floor: below a tail, below a bin, below an atom.
FLOORED = [replace(TILTED, floor=-5.0), replace(TILTED, floor=-3.0), replace(WHOLE, floor=-12.0)]
FLOORED += [replace(WHOLE, atoms=np.array([-9.0, 0.0, 3.0, 40.0]), floor=-9.0)]
GRIDS = [TILTED, WHOLE, *FLOORED]
NAMES = ["line", "integers", "floor of a tail", "of a bin", "of integers", "at an atom"]
INTERVALS = [
    (-np.inf, np.inf), (-np.inf, -1.5), (-2.0, 2.0), (0.0, 0.25), (0.1, 3.0), (2.0, 2.0),
    (2.5, 2.6), (3.0, np.inf), (6.0, 9.0), (-8.0, -4.0), (-1e-3, 1e-3), (41.0, 150.5),
    (210.0, 260.0),
]  # fmt: skip
REACH = 400_000


def by_quadrature(grid: Grid, state: int, low: float, high: float, order: int) -> float:
    """E[x**order; low <= x < high | state] from the density alone."""

    def term(x: np.ndarray) -> np.ndarray:
        held = (grid.encode(x) == state) & (x >= low) & (x < high)
        return np.where(held, np.exp(grid.log_within(x)), 0.0) * np.where(held, x, 0.0) ** order

    if grid.integer:
        every = np.arange(max(low, -REACH) // 1, min(high, REACH) + 1)
        return float(term(np.union1d(every, grid.atoms)).sum())
    total = float(term(grid.atoms).sum())
    cuts = [c for c in (low, high) if np.isfinite(c)]
    ends = np.unique([-np.inf, np.inf, *grid.edges, *cuts, grid.floor])
    for a, b in pairwise(ends):
        total += integrate(term, Piece(a, b, 1.0), panels=40)
    return total


@pytest.mark.parametrize("grid", GRIDS, ids=NAMES)
@pytest.mark.parametrize(("low", "high"), INTERVALS)
def test_masses_and_moments_agree_with_the_density(grid: Grid, low: float, high: float) -> None:
    mass, variance = grid.mass_between(low, high), grid.variances_between(low, high)
    mean, second = (grid.moments_between(low, high, order) for order in (1, 2))
    for state in range(grid.n_states - grid.missing):
        zeroth = by_quadrature(grid, state, low, high, 0)
        far = np.isinf(low) or np.isinf(high)  # heavy tails are cut off by the oracle
        assert mass[state] == pytest.approx(zeroth, abs=1e-8 if far else 1e-11)
        if zeroth < 1e-12 or (far and state in (0, grid.n_states - 1 - grid.missing)):
            continue
        first = by_quadrature(grid, state, low, high, 1) / zeroth
        assert mean[state] == pytest.approx(first, rel=1e-9, abs=1e-9)
        square = by_quadrature(grid, state, low, high, 2) / zeroth
        assert second[state] == pytest.approx(square, rel=1e-9, abs=1e-9)
        assert variance[state] == pytest.approx(square - first**2, rel=1e-6, abs=1e-8)


@pytest.mark.parametrize("grid", GRIDS, ids=NAMES)
def test_masses_of_a_partition_add_up_to_one(grid: Grid) -> None:
    ends = np.array([-np.inf, -50.0, -2.2, 0.0, 0.3, 1.0, 3.7, 8.0, 160.0, np.inf])
    total = grid.mass_between(ends[:-1], ends[1:]).sum(axis=0)
    expected = np.ones(grid.n_states)
    expected[grid.n_states - grid.missing :] = 0.0
    np.testing.assert_allclose(total, expected, rtol=1e-13)
    whole = grid.moments(1)
    parts = grid.mass_between(ends[:-1], ends[1:]) * grid.moments_between(ends[:-1], ends[1:], 1)
    np.testing.assert_allclose(parts.sum(axis=0), whole, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("grid", GRIDS, ids=NAMES)
@pytest.mark.parametrize(("low", "high"), INTERVALS)
def test_draws_and_modes_lie_in_the_interval_and_follow_it(
    grid: Grid, low: float, high: float
) -> None:
    mass = grid.mass_between(low, high)
    filled = np.flatnonzero(mass > 0)
    states = np.repeat(filled, 4000)
    x = grid.sample_between(states, low, high, np.random.default_rng(1)).reshape(-1, 4000)
    np.testing.assert_array_equal(grid.encode(x.ravel()), states)
    assert ((x >= low) & (x < high)).all()
    value, log_density = grid.modes_between(low, high)
    assert np.isneginf(log_density[mass == 0]).all() or np.isinf(high)
    for row, state in enumerate(filled):
        assert low <= value[state] < high
        assert (grid.log_within(x[row]) <= log_density[state] + 1e-9).all()
        middle = np.quantile(x[row], 0.5, method="inverted_cdf")
        # Half of the draws lie below their median: 4 sigma of 4000 draws is .032.
        upto = grid.mass_between(low, np.nextafter(middle, np.inf))[state] / mass[state]
        below = grid.mass_between(low, middle)[state] / mass[state]
        assert below - 0.032 <= 0.5 <= upto + 0.032


@pytest.mark.parametrize("grid", FLOORED, ids=NAMES[2:])
def test_what_lies_below_a_floor_has_a_density_too(grid: Grid) -> None:
    """A share too small to be drawn, and all that is asked of it agrees with its density."""
    low, high = grid.floor - 300.0, grid.floor - 1.0
    mass = grid.mass_between(low, high)
    assert mass[0] == pytest.approx(by_quadrature(grid, 0, low, high, 0), rel=1e-9)
    assert not mass[1:].any()
    assert 0 < grid.mass_between(-np.inf, grid.floor)[0] < 2e-15
    mean = by_quadrature(grid, 0, low, high, 1) / mass[0]
    assert grid.moments_between(low, high, 1)[0] == pytest.approx(mean, rel=1e-9)
    square = by_quadrature(grid, 0, low, high, 2) / mass[0]
    assert grid.variances_between(low, high)[0] == pytest.approx(square - mean**2, rel=1e-6)
    drawn = grid.sample_within(np.zeros(100_000, dtype=int), np.random.default_rng(0))
    assert drawn.min() >= grid.floor


@pytest.mark.parametrize("zero", [True, False])
def test_decimals_below_a_floor_have_a_density_per_length(zero: bool) -> None:
    atoms = np.array([0.0, 0.5]) if zero else np.array([0.5])
    grid = DecimalGrid(atoms, np.array([0.0, 1.0, 3.0]), tails=(0.2, 0.4), floor=0.0, decimals=1)
    x = np.arange(-3000, 0) / 10
    np.testing.assert_array_equal(grid.encode(x), 0)
    total = 0.1 * np.exp(grid.log_within(x)).sum()
    assert total == pytest.approx(1e-15, rel=1e-6)
    again = grid_from_json(grid.to_json())
    assert again == grid
    assert again.floor == 0.0


def test_a_floor_is_at_or_below_what_is_there() -> None:
    for changes in ({"floor": -2.0}, {"floor": -4.0, "tails": (0.0, 1.0)}):
        with pytest.raises(SchemaError, match="floor"):
            replace(TILTED, **changes)


@pytest.mark.parametrize("mean", [0.006, 0.2, 0.4999999, 0.5, 0.73, 0.99])
def test_a_tilt_keeps_the_mean(mean: float) -> None:
    tilt = shapes.tilt_of_mean(np.array([mean]))
    assert shapes.power_means(tilt, 1)[1][0] == pytest.approx(mean, rel=1e-12)


@pytest.mark.parametrize("tau", [-150.0, -3.0, -1e-7, 0.0, 1e-12, 0.4, 30.0, 190.0])
def test_places_invert_masses(tau: float) -> None:
    share = np.array([0.0, 1e-9, 0.2, 0.5, 0.9, 1.0])
    v = shapes.place(np.array(tau), share)
    total = shapes.log_integral(np.array(0.0), np.array(1.0), np.array(tau))
    below = np.exp(shapes.log_integral(np.zeros(6), v, np.array(tau)) - total)
    np.testing.assert_allclose(below, share, atol=1e-12)
    assert ((v >= 0) & (v <= 1)).all()


@pytest.mark.parametrize("scale", [0.3, 50.0, 5000.0, 1e6])
@pytest.mark.parametrize("shape", [3.2, 12.0])
@pytest.mark.parametrize("length", [1.0, 7.0, 3000.0])
def test_whole_distances_of_a_tail_are_sums(scale: float, shape: float, length: float) -> None:
    d = np.arange(1.0, length + 1)
    p = np.exp(tails.log_density(d, scale, shape, True))
    found = tails.power_means(length, scale, shape, 2, True)
    expected = [(p * d**k).sum() / p.sum() for k in range(3)]
    np.testing.assert_allclose(found, expected, rtol=1e-10)


@pytest.mark.parametrize("scale", [0.3, 50.0, 5000.0, 1e6, 1e9])
def test_all_whole_distances_of_a_tail_by_parts(scale: float) -> None:
    """The whole is the part up to a million and the rest beyond, which is such a tail again."""
    cut, shape = 1_000_000.0, 3.2
    beyond = float(tails.mass(np.array(cut), np.array(np.inf), scale, shape))
    near = tails.power_means(cut, scale, shape, 2, True)
    rest = tails.power_means(np.inf, scale + cut, shape, 2, True)
    moved = [1.0, cut + rest[1], cut**2 + 2 * cut * rest[1] + rest[2]]
    expected = [(1 - beyond) * n + beyond * m for n, m in zip(near, moved, strict=True)]
    np.testing.assert_allclose(
        tails.power_means(np.inf, scale, shape, 2, True), expected, rtol=1e-9
    )


@pytest.mark.parametrize(
    "edges",
    [[1.0, np.nextafter(1.0, 2.0)], [0.0, 5e-324], [-1e300, 1e300], [2.0**60, 2.0**60 + 512]],
)
@pytest.mark.parametrize("integer", [False, True])
def test_extremes_have_finite_answers(edges: list[float], integer: bool) -> None:
    if integer and edges != np.round(edges).tolist():
        pytest.skip("not whole")
    grid = Grid(
        np.array(edges), np.array(edges), tails=(1.0, 1.0), integer=integer, tilts=np.array([2.0])
    )
    value, log_density = grid.modes()  # two atoms that are neighbouring doubles: no endless loop
    has_value = log_density > -np.inf
    np.testing.assert_array_equal(grid.encode(value)[has_value], np.flatnonzero(has_value))
    assert np.isfinite(grid.moments(1)).all()
    np.testing.assert_allclose(grid.mass_between(), 1.0)
    states = np.arange(grid.n_states)
    assert np.isfinite(grid.sample_within(states, np.random.default_rng(0))).all()


def test_files_without_shapes_have_even_bins() -> None:
    record = TILTED.to_json()
    del record["tilts"], record["shapes"]
    grid = Grid.from_json(record)
    assert not np.any(grid.tilts)
    assert grid.shapes == (4.0, 4.0)


@pytest.mark.parametrize("shape", [2.5, 1.5, 0.8])
def test_a_tail_of_enormous_length_has_finite_means(shape: float) -> None:
    found, endless = (tails.power_means(end, 3.0, shape, 2, True) for end in (1e200, np.inf))
    line = tails.power_means(1e200, 3.0, shape, 2, False)
    for mean, whole, on_the_line in zip(found, endless, line, strict=True):
        wanted = whole if np.isfinite(whole) else on_the_line
        assert mean == pytest.approx(wanted, rel=1e-6)
        assert np.isfinite(mean)

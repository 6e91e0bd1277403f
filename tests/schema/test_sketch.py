"""Sketches: merged like unions, silent about few rows, and the grids made of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedcircuits.arrays import FloatArray
from fedcircuits.errors import SchemaError
from fedcircuits.schema import Grid, Sketch, Variable
from fedcircuits.schema.grids.groups import tail_places
from fedcircuits.schema.grids.make_grid import LEAST_ROWS, SQUARES
from fedcircuits.schema.grids.sketch import looks_discrete
from fedcircuits.schema.schema import LABEL_BINS, label_grid, variable_grid


def share_in_bins(grid: Grid, x: np.ndarray) -> np.ndarray:
    return np.bincount(grid.encode(x), minlength=grid.n_states) / x.size


# --- which values become atoms --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n_distinct", "n_rows", "expected"),
    [
        (12, 24, True),
        (12, 23, False),
        (13, 26, False),
        (13, 65, True),
        (48, 240, True),
        (48, 239, False),
        (49, 1959, False),
        (256, 10240, True),
        (256, 10239, False),
        (257, 10_000, False),
        (1, 1, False),
        (1, 2, True),
    ],
)
def test_discrete_rule_at_its_limits(n_distinct: int, n_rows: int, expected: bool) -> None:
    assert looks_discrete(n_distinct, n_rows) is expected


def test_a_column_of_few_values_has_an_atom_for_each() -> None:
    x = np.repeat([0.25, 0.5, 3.0], [7, 2, 4])
    sketch = Sketch.of(x)
    np.testing.assert_array_equal(sketch.heavy, [0.25, 0.5, 3.0])
    np.testing.assert_array_equal(sketch.heavy_rows, [7, 2, 4])
    grid = sketch.to_grid()
    np.testing.assert_array_equal(grid.atoms, [0.25, 0.5, 3.0])
    assert grid.is_discrete


@pytest.mark.parametrize("n", [13, 60, 300, 390])
def test_distinct_values_are_never_atoms(n: int, rng: np.random.Generator) -> None:
    grid = Sketch.of(rng.normal(0, 1, n)).to_grid()
    assert grid.atoms.size == 0
    assert not grid.is_discrete


def test_a_repeated_value_among_others_is_an_atom(rng: np.random.Generator) -> None:
    x = np.concatenate([np.full(30, 1.75), rng.normal(0, 1, 970), np.full(2, -0.5)])
    grid = Sketch.of(x).to_grid()
    np.testing.assert_array_equal(grid.atoms, [1.75])
    assert share_in_bins(grid, x)[grid.atom_states[0]] == pytest.approx(30 / 1002)


def test_bins_hold_about_equal_rows(rng: np.random.Generator) -> None:
    x = rng.lognormal(0, 2, 2000)
    grid = Sketch.of(x).to_grid(n_bins=10)
    assert grid.edges.size == 11
    inside = np.histogram(x, grid.edges)[0]
    np.testing.assert_allclose(inside / 2000, 0.1, atol=0.002)


@pytest.mark.parametrize(("n", "least", "most"), [(40, 4, 4), (200, 10, 10), (5000, 48, 60)])
def test_default_number_of_bins_grows_with_the_rows(
    n: int, least: int, most: int, rng: np.random.Generator
) -> None:
    assert least + 1 <= Sketch.of(rng.normal(0, 1, n)).to_grid().edges.size <= most + 1


def test_range_is_kept_where_single_rows_may_be_told(rng: np.random.Generator) -> None:
    for n in (50, 5000, 20_000):  # the last two are compressed
        x = rng.uniform(3, 5, n)  # no tail longer than an exponential's
        edges = Sketch.of(x).to_grid().edges
        assert (edges[0], edges[-1]) == (x.min(), x.max())


def test_compression_keeps_rows_and_quantiles(rng: np.random.Generator) -> None:
    x = rng.gamma(2, 3, 30_000)
    sketch = Sketch.of(x)
    assert sketch.points.size <= 4096
    assert not sketch.exact
    assert sketch.n_rows == pytest.approx(30_000)
    assert (np.diff(sketch.points) > 0).all()
    grid = sketch.to_grid(n_bins=20)
    np.testing.assert_allclose(np.histogram(x, grid.edges)[0] / 30_000, 0.05, atol=0.001)


# --- corners --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "integer"),
    [(v, False) for v in (0.0, 1.0, -7.0, 1e-300, -1e300, 1e300)]
    + [(v, True) for v in (0.0, 1.0, -7.0, -1e300, 1e300)],
)
@pytest.mark.parametrize("rows", [1, 2, 50])
def test_constant_columns(value: float, integer: bool, rows: int) -> None:
    grid = Sketch.of(np.full(rows, value)).to_grid(integer=integer)
    probe = np.array([value, value - 10 - abs(value), value + 10 + 2 * abs(value)])
    assert np.isfinite(grid.log_within(probe)).all()
    if rows > 1:
        np.testing.assert_array_equal(grid.atoms, [value])


@pytest.mark.parametrize(
    ("low", "high"), [(0.0, 1.0), (-2.0, 5.0), (1e-300, 2e-300), (-1e300, 1e300)]
)
def test_two_valued_columns(low: float, high: float) -> None:
    grid = Sketch.of(np.array([low, high, high, low, low])).to_grid()
    np.testing.assert_array_equal(grid.atoms, [low, high])
    assert grid.n_states == 5
    between = 0.5 * low + 0.5 * high
    assert grid.encode(np.array([low, between, high])).tolist() == [1, 2, 3]


@pytest.mark.parametrize("size", [1e-300, 1e300])
def test_extreme_magnitudes_make_bins(size: float, rng: np.random.Generator) -> None:
    x = rng.uniform(-1, 1, 200) * size
    grid = Sketch.of(x).to_grid()
    assert 11 <= grid.edges.size <= 15
    assert np.isfinite(grid.log_within(x)).all()
    assert np.isfinite(grid.log_within(3 * x)).all()


@pytest.mark.parametrize("sentinel", [999_999_999_999.0, -1e300])
def test_one_value_far_out_leaves_the_other_bins_alone(
    sentinel: float, rng: np.random.Generator
) -> None:
    x = rng.normal(0, 1, 999)
    alone = Sketch.of(x).to_grid(n_bins=20)
    grid = Sketch.of(np.append(x, sentinel)).to_grid(n_bins=20)
    assert grid.edges.size == 21
    np.testing.assert_allclose(grid.edges[2:-2], alone.edges[2:-2], atol=0.05)


def test_edges_apart_by_rounding_only_are_one() -> None:
    x = np.concatenate([np.arange(40.0), np.nextafter(np.arange(40.0), 100)])
    widths = np.diff(Sketch.of(x).to_grid(n_bins=79).edges)
    assert widths.min() > 0.09


def test_negative_numbers_mirror(rng: np.random.Generator) -> None:
    x = rng.gamma(2.0, 1.5, 401)
    plus, minus = (Sketch.of(y).to_grid(n_bins=7, has_zero=False) for y in (x, -x))
    assert plus.edges.size == minus.edges.size == 8
    np.testing.assert_allclose(minus.edges[[0, -1]], -plus.edges[[-1, 0]])
    assert minus.tails[0] == pytest.approx(plus.tails[1], rel=0.05)  # ties at the tenth


def test_no_value_makes_no_grid_unless_its_domain_is_known() -> None:
    nothing = Sketch.of(np.zeros(0))
    with pytest.raises(SchemaError, match="not one value was observed"):
        nothing.to_grid()
    with pytest.raises(SchemaError, match="no finite domain is declared"):
        nothing.to_grid(domain=(0.0, np.inf))
    grid = nothing.to_grid(domain=(-1.0, 3.0))
    np.testing.assert_array_equal(grid.edges, [-1.0, 3.0])
    assert grid.tails == (0.0, 0.0)


# --- declared domains and integers ----------------------------------------------------------------


def test_declared_domain_closes_the_tails(rng: np.random.Generator) -> None:
    grid = Sketch.of(rng.uniform(2, 5, 100)).to_grid(domain=(0.0, 10.0))
    assert grid.tails == (0.0, 0.0)
    assert (grid.edges[0], grid.edges[-1]) == (0.0, 10.0)
    x = np.array([0.0, 0.1, 9.9, 10.0, -0.1, 10.1])
    assert (grid.encode(x) >= 0).tolist() == [True, True, True, True, False, False]


def test_half_open_domain_closes_one_tail(rng: np.random.Generator) -> None:
    grid = Sketch.of(rng.uniform(2, 5, 100)).to_grid(domain=(0.0, np.inf))
    assert grid.tails[0] == 0.0
    assert grid.tails[1] > 0
    assert grid.edges[0] == 0.0


def test_domain_of_counts_is_cut_to_whole_numbers_inside_it() -> None:
    grid = Sketch.of(np.array([2.0, 3, 3, 5, 9, 9])).to_grid(integer=True, domain=(0.5, 10.7))
    assert (grid.edges[0], grid.edges[-1]) == (1.0, 10.0)


def test_constant_column_of_a_point_domain_is_an_atom() -> None:
    for rows in (1, 5):
        grid = Sketch.of(np.full(rows, 4.0)).to_grid(domain=(4.0, 4.0))
        assert grid.n_states == 1
        np.testing.assert_array_equal(grid.atoms, [4.0])


@given(st.lists(st.integers(-30, 30), min_size=1, max_size=80))
def test_integer_grids_have_no_empty_state_and_hold_every_integer(values: list[int]) -> None:
    x = np.array(values, dtype=float)
    grid = Sketch.of(x).to_grid(integer=True)
    around = np.arange(x.min() - 50, x.max() + 51)
    states = grid.encode(around)
    assert (states >= 0).all()
    assert set(states) == set(range(grid.n_states))
    assert np.exp(grid.log_within(around)).max() <= 1.0


# --- merging --------------------------------------------------------------------------------------


def same_grid(parts: list[np.ndarray], **options: object) -> None:
    merged = Sketch.merge([Sketch.of(part) for part in parts]).to_grid(**options)  # type: ignore[arg-type]
    union = Sketch.of(np.concatenate(parts)).to_grid(**options)  # type: ignore[arg-type]
    np.testing.assert_array_equal(merged.atoms, union.atoms)
    np.testing.assert_allclose(merged.edges, union.edges, rtol=1e-14)
    np.testing.assert_allclose(merged.tails, union.tails, rtol=1e-12)


@given(
    st.lists(
        st.lists(st.integers(0, 60).map(lambda i: i / 8), min_size=1, max_size=60),
        min_size=1,
        max_size=4,
    )
)
def test_merged_sketches_make_the_grid_of_the_union(parts: list[list[float]]) -> None:
    same_grid([np.array(part) for part in parts])


@pytest.mark.parametrize("integer", [False, True])
def test_discrete_at_each_client_but_not_in_the_union(integer: bool) -> None:
    a, b = np.repeat(np.arange(0.0, 200), 6), np.repeat(np.arange(200.0, 400), 5)
    same_grid([a, b], integer=integer)


def test_discrete_in_the_union_but_at_no_client(rng: np.random.Generator) -> None:
    parts = [rng.integers(0, 100, 2500).astype(float) for _ in range(2)]
    assert Sketch.of(parts[0]).points.size != 0
    same_grid(parts)
    assert Sketch.merge([Sketch.of(p) for p in parts]).to_grid().is_discrete


def test_heavy_at_one_client_and_rare_at_another(rng: np.random.Generator) -> None:
    a = np.concatenate([np.full(400, 2.5), rng.normal(0, 1, 600)])
    b = np.concatenate([np.full(1, 2.5), rng.normal(4, 1, 2000)])
    same_grid([a, b])


def test_heavy_at_a_small_client_but_light_in_the_union(rng: np.random.Generator) -> None:
    a = np.concatenate([np.full(6, 2.5), rng.normal(0, 1, 100)])
    b = rng.normal(4, 1, 3500)
    same_grid([a, b])
    assert Sketch.merge([Sketch.of(a), Sketch.of(b)]).to_grid().atoms.size == 0


def test_merging_keeps_the_rows(rng: np.random.Generator) -> None:
    parts = [rng.normal(0, 1, n) for n in (50, 9000, 7)]
    assert Sketch.merge([Sketch.of(p) for p in parts]).n_rows == pytest.approx(9057)


def test_order_of_clients_does_not_matter(rng: np.random.Generator) -> None:
    parts = [Sketch.of(rng.normal(i, 1, 100 + 30 * i), min_rows=4) for i in range(3)]
    assert Sketch.merge(parts).to_grid() == Sketch.merge(parts[::-1]).to_grid()


def test_weights_are_repeated_rows(rng: np.random.Generator) -> None:
    x = np.round(rng.normal(0, 2, 300), 2)
    times = rng.integers(0, 5, 300)
    weighted = Sketch.of(x, times.astype(float)).to_grid()
    assert weighted == Sketch.of(np.repeat(x, times)).to_grid()


# --- what a sketch may tell -----------------------------------------------------------------------

CANARIES = np.array([777.125, -333.0625, 0.123456789])


def told(sketch: Sketch) -> np.ndarray:
    return np.concatenate([sketch.heavy, sketch.points])


@pytest.mark.parametrize("min_rows", [2, 5, 20])
def test_canaries_among_discrete_values_are_not_told(min_rows: int) -> None:
    x = np.concatenate([np.repeat([1.0, 2.0, 3.0], 100), CANARIES])
    sketch = Sketch.of(x, min_rows=min_rows)
    assert not np.isin(CANARIES, told(sketch)).any()
    if min_rows > 3:  # not even as a mean of three rows
        np.testing.assert_array_equal(told(sketch), [1.0, 2.0, 3.0])
        assert sketch.to_grid().edges[-1] == 3.0


@pytest.mark.parametrize("min_rows", [2, 5, 20])
def test_canaries_at_the_ends_of_continuous_values_are_not_told(
    min_rows: int, rng: np.random.Generator
) -> None:
    x = np.concatenate([rng.normal(0, 1, 500), CANARIES])
    sketch = Sketch.of(x, min_rows=min_rows)
    assert not np.isin(x, told(sketch)).any()
    grid = sketch.to_grid()
    assert not np.isin(x, np.concatenate([grid.atoms, grid.edges])).any()


@given(
    st.lists(st.integers(0, 40), min_size=1, max_size=200),
    st.integers(2, 12),
)
def test_everything_told_has_enough_rows_behind_it(values: list[int], min_rows: int) -> None:
    x = np.sqrt(np.array(values, dtype=float))
    sketch = Sketch.of(x, min_rows=min_rows)
    assert (sketch.heavy_rows >= min_rows).all()
    assert (sketch.point_rows >= min_rows).all()
    few = [v for v, n in zip(*np.unique(x, return_counts=True), strict=True) if n < min_rows]
    alone = np.isin(sketch.heavy, few)
    assert not alone.any()
    assert sketch.n_rows <= x.size


@pytest.mark.parametrize("times", [2, 4])
def test_groups_of_values_held_by_too_few_rows_each_are_large_enough(times: int) -> None:
    x = np.repeat(np.arange(400.0) * 1.1, times)
    sketch = Sketch.of(x, min_rows=5)
    assert sketch.point_rows.min() >= 5
    assert sketch.n_rows == x.size


def test_a_heavy_weight_does_not_make_one_row_many() -> None:
    x = np.concatenate([np.repeat([1.0, 2.0], 50), [777.125]])
    weights = np.concatenate([np.ones(100), [60.0]])
    sketch = Sketch.of(x, weights, min_rows=5)
    assert 777.125 not in told(sketch)


def test_fewer_rows_than_the_bound_tell_nothing() -> None:
    sketch = Sketch.of(np.array([3.0, 3.0, 3.0]), min_rows=5)
    assert sketch.n_rows == 0
    with pytest.raises(SchemaError, match="not one value was observed"):
        sketch.to_grid()


def test_a_grid_of_groups_of_several_clients_follows_the_rows() -> None:
    """Mean, spread and distribution of a skewed column, agreed over groups of five rows."""
    rng = np.random.default_rng(0)
    for x in (rng.lognormal(size=426), rng.normal(size=426), rng.gamma(0.7, size=426)):
        sketch = Sketch.merge([Sketch.of(x[at::3], min_rows=5) for at in range(3)])
        assert sketch.n_rows == pytest.approx(x.size)
        rows, points = sketch.point_rows, sketch.points
        mean = rows @ points / rows.sum()
        assert mean == pytest.approx(x.mean(), rel=1e-9)
        spread = np.sqrt(rows @ (points - mean) ** 2 / rows.sum())
        assert spread == pytest.approx(x.std(), rel=1e-9)
        grid = sketch.to_grid()
        mass = np.bincount(grid.encode(x), minlength=grid.n_states) / x.size
        each = grid.moments(1)
        mean = mass @ each
        assert abs(mean - x.mean()) < 0.02 * x.std()
        spread = np.sqrt(mass @ (grid.variances() + (each - mean) ** 2))
        assert spread == pytest.approx(x.std(), rel=0.1)
        for level in (0.01, 0.05, 0.5, 0.95, 0.99):
            at = np.quantile(x, level, method="inverted_cdf")
            below = mass @ grid.mass_between(-np.inf, at)
            upto = mass @ grid.mass_between(-np.inf, np.nextafter(at, np.inf))
            assert below - 0.01 <= level <= upto + 0.01


@pytest.mark.parametrize("shift", [0, 3, 40])
def test_points_drawn_apart_stay_in_the_domain_and_keep_their_means(shift: int) -> None:
    rng = np.random.default_rng(shift)
    x = np.clip(rng.exponential(30 + shift, 300).round() - 5, 0, 255)
    sketches = [Sketch.of(x[at::2], min_rows=5) for at in range(2)]
    merged = Sketch.merge(sketches, (0.0, 255.0))
    assert merged.points.min() >= 0
    assert merged.points.max() <= 255
    rows = merged.heavy_rows.sum() + merged.point_rows.sum()
    total = merged.heavy @ merged.heavy_rows + merged.points @ merged.point_rows
    assert total / rows == pytest.approx(x.mean(), rel=0.02)
    merged.to_grid(integer=True, domain=(0.0, 255.0))


@pytest.mark.parametrize("n_clients", [1, 3])
@pytest.mark.parametrize("zeros", [0.0, 0.9])
def test_a_grid_agreed_over_groups_keeps_mean_and_spread_of_a_long_tail(
    n_clients: int, zeros: float, rng: np.random.Generator
) -> None:
    """The outermost rows are known by their mean and spread alone: no bin may end among them."""
    n = 450 if zeros == 0 else 3000
    x = np.where(rng.random(n) < zeros, 0.0, rng.lognormal(0.0, 1.2, n))
    sketches = [Sketch.of(x[at::n_clients], min_rows=5) for at in range(n_clients)]
    grid = Sketch.merge(sketches).to_grid()
    mass = np.bincount(grid.encode(x), minlength=grid.n_states) / n
    mean = mass @ grid.moments(1)
    spread = np.sqrt(mass @ (grid.variances() + (grid.moments(1) - mean) ** 2))
    assert abs(mean - x.mean()) < 0.02 * x.std()
    assert spread == pytest.approx(x.std(), rel=0.1)
    states = grid.encode(x)
    outer = states >= states[np.argsort(x)[-5]]  # of the five largest, and of all beside them
    masses = np.bincount(states[outer], minlength=grid.n_states) / outer.sum()
    assert masses @ grid.moments(1) == pytest.approx(x[outer].mean(), rel=0.15)


def test_points_of_a_skewed_group_stay_above_the_group_below() -> None:
    few = np.array([0.8, 0.85, 0.9, 0.95, 1.1, 1.29, 1.33, 1.35, 1.91, 5.03, 7, 9, 19, 20, 43.0])
    sketch = Sketch.of(np.concatenate([np.zeros(2000), few]), min_rows=5)
    assert sketch.points.size == 3
    points = Sketch.merge([sketch]).points
    assert points.sum() == pytest.approx(few.sum())
    assert points.min() > 0.75  # even places of the second group would begin at .14
    # A single group has no neighbour to stay clear of.
    alone = Sketch.merge([Sketch.of(np.concatenate([np.zeros(2000), few[-5:]]), min_rows=5)])
    assert alone.points.mean() == pytest.approx(few[-5:].mean())


@pytest.mark.parametrize("rows", [35, 60])
def test_a_tail_that_carries_the_spread_has_rows_enough_to_be_counted(rows: int) -> None:
    """One client, so that nothing but how many rows lie beyond the edge is unknown."""
    off = []
    for seed in range(12):
        rng = np.random.default_rng(seed)
        x = np.concatenate([np.zeros(3500 - rows), np.round(rng.pareto(1.0, rows), 2) + 0.01])
        grid = Sketch.merge([Sketch.of(x, min_rows=5)]).to_grid(decimals=2)
        mass = np.bincount(grid.encode(x), minlength=grid.n_states) / x.size
        mean = mass @ grid.moments(1)
        spread = np.sqrt(mass @ (grid.variances() + (grid.moments(1) - mean) ** 2))
        off.append(spread / x.std() - 1)
    assert np.abs(off).max() < 0.1
    assert np.abs(off).mean() < 0.016


@pytest.mark.parametrize("integer", [False, True])
@pytest.mark.parametrize("shape", ["heap", "two heaps", "even", "below"])
def test_rows_far_out_that_lie_close_keep_the_spread_of_their_column(
    shape: str, integer: bool
) -> None:
    """Amounts, mostly zero: the outermost rows carry the spread, and no open tail spreads less."""
    off = []
    for seed in range(6):
        rng = np.random.default_rng(seed)
        small = rng.lognormal(2, 1, 300)
        few = {
            "heap": np.concatenate([small, rng.uniform(150, 200, 20)]),
            "two heaps": np.concatenate(
                [small, rng.uniform(50, 150, 15), rng.uniform(300, 400, 20)]
            ),
            "even": np.concatenate([rng.uniform(0, 20, 300), rng.uniform(20, 200, 36)]),
            "below": -np.concatenate([small, rng.uniform(150, 200, 20)]),
        }[shape]
        x = np.zeros(3000)
        x[rng.choice(x.size, few.size, replace=False)] = few.round() if integer else few
        sketches = [Sketch.of(x[at::3], min_rows=5) for at in range(3)]
        grid = Sketch.merge(sketches).to_grid(integer=integer)
        mass = np.bincount(grid.encode(x), minlength=grid.n_states) / x.size
        mean = mass @ grid.moments(1)
        spread = np.sqrt(mass @ (grid.variances() + (grid.moments(1) - mean) ** 2))
        assert abs(mean - x.mean()) < 0.02 * x.std()
        off.append(spread / x.std() - 1)
    assert np.max(np.abs(off)) < 0.06
    assert abs(np.mean(off)) < 0.03


# --- floors --------------------------------------------------------------------------------------


def skewed(n: int, rng: np.random.Generator) -> FloatArray:
    """Amounts: never negative, densest near zero."""
    return rng.gamma(0.8, 30.0, n)


@pytest.mark.parametrize("min_rows", [1, 5])
@pytest.mark.parametrize("integer", [False, True])
@pytest.mark.parametrize("zeros", [0.0, 0.6])
def test_a_column_without_a_number_below_zero_ends_there(
    min_rows: int, integer: bool, zeros: float, rng: np.random.Generator
) -> None:
    x = np.where(rng.random(2000) < zeros, 0.0, skewed(2000, rng))
    x = np.ceil(x) if integer else x
    sketches = [Sketch.of(x[at::2], min_rows=min_rows) for at in range(2)]
    grid = Sketch.merge(sketches).to_grid(integer=integer)
    mass = np.bincount(grid.encode(x), minlength=grid.n_states) / x.size
    assert grid.floor == 0.0
    assert mass @ grid.mass_between(-np.inf, 0.0) < 1e-14
    mean = mass @ grid.moments(1)
    assert abs(mean - x.mean()) < 0.01 * x.std()
    drawn = grid.sample_within(np.repeat(np.arange(grid.n_states), 200), rng)
    assert drawn.min() >= 0
    # A value below is as the lowest state is, at next to no density: no error, no -inf.
    state, log_within = grid.locate(np.array([-3.0]))
    assert state[0] == grid.encode(np.array([0.0]))[0] == 0
    assert -100 < log_within[0] < -30


def test_a_number_with_a_sign_has_no_floor(rng: np.random.Generator) -> None:
    """Sixty rows two and a half spreads above zero: below it there may be a row by chance."""
    x = rng.normal(2.5, 1.0, 400)
    x = x[x > 0][:60]
    assert Sketch.of(x).to_grid().floor == -np.inf
    assert Sketch.of(np.append(skewed(300, rng), -1.0)).to_grid().floor == -np.inf


def test_one_client_below_zero_takes_the_floor_from_all(rng: np.random.Generator) -> None:
    parts = [skewed(300, rng), skewed(300, rng), np.array([])]
    assert Sketch.merge([Sketch.of(p) for p in parts]).to_grid().floor == 0.0
    parts[1] = parts[1] - 5
    assert Sketch.merge([Sketch.of(p) for p in parts]).to_grid().floor == -np.inf


def test_dates_have_no_floor(rng: np.random.Generator) -> None:
    seconds = skewed(300, rng)  # after 1970
    assert Sketch.of(seconds).to_grid(has_zero=False).floor == -np.inf


def test_a_sketch_that_hides_numbers_below_zero_is_none(rng: np.random.Generator) -> None:
    told = Sketch.of(rng.normal(0, 1, 100))
    assert told.never_below.size == 0
    fault = replace(told, never_below=np.zeros(1)).fault()
    assert fault is not None
    assert "below 0" in fault


def test_places_of_a_tail_keep_mean_and_spread_above_its_neighbour() -> None:
    for spread in (0.2, 1.0, 1.8):
        places = tail_places(8, 1.0, spread)
        assert places.mean() == pytest.approx(0.0, abs=1e-12)
        assert places.std() == pytest.approx(spread, rel=1e-6)
        assert places.min() >= -1.0
        assert (np.diff(places) > 0).all()


def test_whole_numbers_agreed_by_few_rows_each_have_the_density_of_all_rows(
    rng: np.random.Generator,
) -> None:
    def drawn(n: int) -> np.ndarray[Any, Any]:
        return np.round(18 + rng.gamma(6, 7, n)).clip(18, 90)

    clients, test = [drawn(350) for _ in range(4)], drawn(20_000)

    def nats(grid: Grid) -> float:
        """Of the test rows, under a categorical of the grid's states with add-one smoothing."""
        train = grid.encode(np.concatenate(clients))
        share = np.bincount(train, minlength=grid.n_states) + 1.0
        share /= share.sum()
        return float((np.log(share[grid.encode(test)]) + grid.log_within(test)).mean())

    agreed = Sketch.merge([Sketch.of(own, min_rows=5) for own in clients]).to_grid(integer=True)
    alone = Sketch.of(np.concatenate(clients)).to_grid(integer=True)
    assert nats(agreed) > nats(alone) - 0.05


def test_the_bins_of_a_label_hold_few_squares_also_in_the_tails() -> None:
    numbers = np.random.default_rng(0).lognormal(3, 1, 2000)
    variable = Variable("y", "continuous", domain=(0.0, 1e6))
    sketch = Sketch.of(numbers)
    squares = ((numbers - numbers.mean()) ** 2).sum()

    def within(grid: Grid) -> list[tuple[int, float]]:
        """Rows of every bin, and their share of all squares."""
        at = np.searchsorted(grid.edges[1:-1], numbers, side="right")
        rows = [numbers[at == k] for k in np.unique(at)]
        return [(r.size, ((r - r.mean()) ** 2).sum() / squares) for r in rows]

    found = within(label_grid(variable, sketch))
    equal = within(variable_grid(variable, sketch, LABEL_BINS[1]))
    assert min(rows for rows, _ in found) >= LEAST_ROWS
    # Only bins that cannot be cut have more than their share.
    assert all(share <= SQUARES for rows, share in found if rows > 3 * LEAST_ROWS)
    assert sum(share for _, share in found) < 0.2 * sum(share for _, share in equal)
    assert len(found) <= 1.5 * LABEL_BINS[1]


def test_amounts_that_are_mostly_zero_hardly_reach_below_it() -> None:
    amounts = np.concatenate([np.zeros(400), np.exp(np.linspace(0, 8, 100))])
    for values, side in ((amounts, 0), (-amounts, 1)):
        grid = Sketch.of(values).to_grid(integer=False)
        assert grid.tails[side] == pytest.approx(1.0)  # the smallest amount above zero

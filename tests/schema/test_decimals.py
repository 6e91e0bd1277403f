"""Numbers written with a fixed number of decimals: their grid, and models of such columns."""

import numpy as np
import pandas as pd
import pytest

import fedcircuits as fc
from fedcircuits.errors import SchemaError
from fedcircuits.schema import Grid, Sketch
from fedcircuits.schema.grids.decimals import DecimalGrid, decimals_of, grid_from_json

GRID = DecimalGrid(
    np.array([0.0, 0.3]),
    np.array([-1.2, 0.0, 0.7, 1.9]),
    (0.5, 0.8),
    tilts=np.array([0.5, -1.0, 0.0]),
    decimals=1,
)
# All values that carry mass worth counting: multiples of the step, 0.3 as typed.
VALUES = np.arange(-400_000, 400_000) / 10


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([28.1, 3.0, -0.5], 1),
        ([0.25, 1.1], 2),
        ([1 / 3, 0.5], None),
        ([1e12 + 0.5, 0.123456], None),
        ([0.1 + 0.2, 0.5], None),  # not the double that "0.3" is
    ],
)
def test_number_of_decimals_is_found(values: list[float], expected: int | None) -> None:
    assert decimals_of(np.array(values)) == expected


def test_every_state_has_mass_one_over_the_values() -> None:
    state, log_within = GRID.locate(VALUES)
    atoms = np.isin(state, GRID.atom_states)
    mass = np.exp(log_within) * np.where(atoms, 1.0, 0.1)  # counting at atoms, else the step
    total = np.bincount(state[state >= 0], mass[state >= 0], minlength=GRID.n_states)
    assert total == pytest.approx(np.ones(GRID.n_states), abs=1e-9)


@pytest.mark.parametrize(("low", "high"), [(-0.7, 0.3), (0.3, 0.31), (-np.inf, 1.25), (0.65, 5)])
def test_mass_mean_and_variance_between_are_sums_over_the_values(low: float, high: float) -> None:
    state, log_within = GRID.locate(VALUES)
    atoms = np.isin(state, GRID.atom_states)
    mass = np.exp(log_within) * np.where(atoms, 1.0, 0.1)
    mass[(low > VALUES) | (high <= VALUES)] = 0
    n = GRID.n_states
    total = np.bincount(state, mass, minlength=n)
    assert GRID.mass_between(low, high) == pytest.approx(total, abs=1e-9)
    mean = np.bincount(state, mass * VALUES, minlength=n) / np.where(total, total, 1)
    inner = slice(1, n - 1)  # moments of tails have their own slow sums
    assert GRID.moments_between(low, high, 1)[inner] == pytest.approx(mean[inner], abs=1e-9)
    square = np.bincount(state, mass * VALUES**2, minlength=n) / np.where(total, total, 1)
    variance = np.where(total > 0, square - mean**2, 0.0)
    found = np.where(total > 0, GRID.variances_between(low, high), 0.0)
    assert found[inner] == pytest.approx(variance[inner], abs=1e-9)


def test_samples_and_modes_are_values_with_these_decimals() -> None:
    rng = np.random.default_rng(0)
    states = rng.integers(GRID.n_states, size=3000)
    drawn = GRID.sample_within(states, rng)
    assert (np.round(drawn, 1) == drawn).all()
    assert (GRID.encode(drawn) == states).all()
    values, log_density = GRID.modes()
    assert (GRID.encode(values) == np.arange(GRID.n_states)).all()
    assert GRID.log_within(values) == pytest.approx(log_density)


def test_json_gives_the_same_grid_and_refuses_odd_decimals() -> None:
    again = grid_from_json(GRID.to_json())
    assert again == GRID
    assert hash(again) == hash(GRID)
    plain = Grid(GRID.atoms, GRID.edges, GRID.tails, tilts=GRID.tilts)
    assert plain != GRID
    assert plain != GRID
    with pytest.raises(SchemaError, match="1 to 6 decimals"):
        grid_from_json(GRID.to_json() | {"decimals": 400})


def test_rounded_values_are_bins_and_a_heavy_one_is_an_atom() -> None:
    rng = np.random.default_rng(1)
    x = np.round(rng.normal(26, 4, 3000), 1)
    x[:300] = 20.0
    grid = Sketch.of(x).to_grid(decimals=1)
    assert grid.atoms.tolist() == [20.0]
    assert 30 < grid.n_states < 80


def frame(n: int, seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    a = rng.normal(26, 4, n)
    return pd.DataFrame({"a": np.round(a, 1), "b": np.round(a / 10 + rng.normal(0, 0.2, n), 2)})


def test_model_of_rounded_columns_beats_independent_columns_and_keeps_decimals() -> None:
    train, test = frame(1500, 0), frame(500, 1)
    model = fc.learn(train, seed=0)
    alone = fc.learn(train, learner="factorised", seed=0)
    assert model.mean_log_prob(test) > alone.mean_log_prob(test) + 0.3
    sample = model.sample(200, seed=2)
    assert (sample["a"].round(1) == sample["a"]).all()
    assert (sample["b"].round(2) == sample["b"]).all()
    done = model.mpe({"a": 30.1})
    assert round(float(done["b"].iloc[0]), 2) == float(done["b"].iloc[0])


def test_events_count_the_values_inside() -> None:
    model = fc.learn(frame(1500, 0), seed=0)
    below = model.probability({"a": fc.below(26.1)})
    at_most = 1 - model.probability({"a": fc.above(26.1)})
    at = model.probability({"a": 26.1})
    assert at > 0
    assert at_most - below == pytest.approx(at, abs=1e-12)
    assert at == pytest.approx(np.exp(model.marginal(["a"]).log_prob({"a": [26.1]})[0]) * 0.1)
    assert model.cdf("a", 26.1) == pytest.approx(at_most, abs=1e-12)
    assert round(model.quantile("a", 0.3), 1) == model.quantile("a", 0.3)


def test_clients_agree_on_the_larger_number_of_decimals() -> None:
    table = frame(800, 3)
    one, two = table.iloc[:400].round(1), table.iloc[400:]
    fed = fc.federate({"one": one, "two": two}, seed=0)
    assert fed.schema["b"].decimals == 2
    assert (fed.sample(50, seed=1)["b"].round(2) == fed.sample(50, seed=1)["b"]).all()
    two = two.assign(b=two["b"] / 3)
    assert fc.federate({"one": one, "two": two}, seed=0).schema["b"].decimals is None


def test_queries_of_a_learned_model_are_sums_over_the_values() -> None:
    rng = np.random.default_rng(4)
    a = np.clip(np.round(rng.normal(0, 1.2, 400), 1), -4, 4)
    rows = pd.DataFrame({"a": a, "y": np.where(a + rng.normal(0, 1, 400) > 0, "up", "down")})
    model = fc.learn(rows, label="y", head=False, domains={"a": (-4, 4)}, seed=0)
    assert model.schema["a"].decimals == 1
    values = np.arange(-40, 41) / 10
    grid = model.schema["a"].grid
    assert grid is not None
    step = np.where(np.isin(values, grid.atoms), 1.0, 0.1)
    up = np.exp(model.log_prob(pd.DataFrame({"a": values, "y": "up"}))).to_numpy() * step
    down = np.exp(model.log_prob(pd.DataFrame({"a": values, "y": "down"}))).to_numpy() * step
    assert up.sum() + down.sum() == pytest.approx(1, abs=1e-9)
    given = {"a": fc.between(-0.35, 1.2)}
    inside = (values >= -0.35) & (values <= 1.2)
    share = up[inside].sum() / (up + down)[inside].sum()
    assert model.probability({"y": "up"}, given) == pytest.approx(share, abs=1e-9)
    mean = (values * up).sum() / up.sum()
    assert model.expectation("a", {"y": "up"}) == pytest.approx(mean, abs=1e-9)
    square = (values**2 * up).sum() / up.sum()
    assert model.variance("a", {"y": "up"}) == pytest.approx(square - mean**2, abs=1e-9)

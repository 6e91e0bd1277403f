"""A label that is a number: one density, mass one, every query in agreement, honest intervals."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import fedcircuits as fc
from fedcircuits.circuits import Circuit
from fedcircuits.density.queries.cells import search_quantile
from fedcircuits.errors import LearningError, StorageError
from fedcircuits.learners.hclt.head.headed.headed_circuit import HeadedCircuit
from fedcircuits.learners.hclt.head.trees.linear_part import linear_trees
from fedcircuits.learners.hclt.head.trees.number_trees import StateCells, distribution, log_masses

CAP = 6.0


def prices(n: int, seed: int) -> pd.DataFrame:
    """A number that depends on a product of columns, noisier in one town, capped from above."""
    rng = np.random.default_rng(seed)
    a, b = rng.normal(size=(2, n))
    town = rng.choice(["x", "y", "z"], size=n)
    noise = rng.normal(size=n) * np.where(town == "z", 2.0, 0.6)
    y = np.minimum(2.0 * a + 1.5 * a * b + 3.0 + noise, CAP)
    return pd.DataFrame({"a": a, "b": b, "town": town, "y": y})


@pytest.fixture(scope="module")
def model() -> HeadedCircuit:
    found = fc.learn(prices(1500, 0), label="y", n_states=4)
    assert isinstance(found, HeadedCircuit)
    return found


@pytest.fixture(scope="module")
def rows() -> pd.DataFrame:
    return prices(400, 1)


def gaps(rows: pd.DataFrame) -> pd.DataFrame:
    hidden = np.random.default_rng(5).random(rows.shape) < 0.4
    hidden[:, -1] = False
    hidden[:, 0] |= ~hidden.any(axis=1)
    return rows.mask(hidden)


def test_the_cap_is_an_atom_and_the_rest_bins(model: HeadedCircuit) -> None:
    grid = model.schema["y"].grid
    assert grid is not None
    assert CAP in grid.atoms
    assert 5 <= grid.n_states <= 40


@pytest.mark.parametrize("hidden", [False, True])
def test_the_density_of_y_has_mass_one(
    model: HeadedCircuit, rows: pd.DataFrame, hidden: bool
) -> None:
    features = (gaps(rows) if hidden else rows).drop(columns="y").iloc[:2]
    grid = model.schema["y"].grid
    assert grid is not None
    points = np.sort(np.concatenate([np.linspace(-30, 30, 4_001) + 1e-7, grid.edges]))
    for at in range(2):
        asked = pd.concat([features.iloc[[at]]] * points.size, ignore_index=True).assign(y=points)
        log_x = model.log_prob(features.iloc[[at]]).to_numpy()
        density = np.exp(model.log_prob(asked).to_numpy() - log_x)
        density[np.isin(points, grid.atoms)] = 0.0
        middle = (density[1:] + density[:-1]) / 2
        total = float((middle * np.diff(points)).sum())
        for atom in grid.atoms:
            one = features.iloc[[at]].assign(y=atom)
            total += float(np.exp(model.log_prob(one).to_numpy() - log_x)[0])
        assert total == pytest.approx(1.0, abs=0.02)


@pytest.mark.parametrize("hidden", [False, True])
def test_every_query_agrees(model: HeadedCircuit, rows: pd.DataFrame, hidden: bool) -> None:
    features = (gaps(rows) if hidden else rows).drop(columns="y").iloc[:4]
    cdf = model.cdf("y", [0.0, 3.0, 4.5, CAP], features)
    low = model.probability({"y": fc.below(3.0, inclusive=True)}, features)
    np.testing.assert_allclose(low, cdf[3.0], rtol=1e-9)
    quantiles = model.quantile("y", [0.1, 0.5, 0.9], features)
    at_quantile = [
        model.cdf("y", float(quantiles.iloc[i, j]), features.iloc[[i]]).iloc[0]
        for i in range(4)
        for j in range(3)
    ]
    wanted = np.tile([0.1, 0.5, 0.9], 4)
    assert (np.array(at_quantile) >= wanted - 1e-6).all()
    for i in range(4):
        row = features.iloc[[i]]
        given = {k: v for k, v in row.iloc[0].items() if pd.notna(v)}
        rest = model.marginal([*given, "y"])
        np.testing.assert_allclose(rest.cdf("y", [3.0], row[list(given)]), cdf.iloc[[i]][[3.0]])

        def upto(points: np.ndarray, row: pd.DataFrame = row) -> np.ndarray:
            return model.cdf("y", points.tolist(), row).to_numpy()[0]

        searched = search_quantile(upto, 0.9) if i == 0 else quantiles.iloc[i, 2]
        assert searched == pytest.approx(float(quantiles.iloc[i, 2]), rel=1e-6, abs=1e-6)
    mean, error = model.expectation("y", features, with_error=True)
    np.testing.assert_allclose(mean, model.predict(features, "y"))
    assert (error == 0).all() == (not hidden)
    draws = model.sample(4000, given=features.iloc[:1], seed=0)["y"]
    spread = float(np.sqrt(model.variance("y", features.iloc[:1]).iloc[0]) / np.sqrt(4000))
    assert draws.mean() == pytest.approx(mean.iloc[0], abs=4 * np.hypot(error.iloc[0], spread))


@pytest.mark.slow
def test_other_columns_given_the_number(model: HeadedCircuit) -> None:
    """p(x | y) by the law of total probability: averaged over y it is m(x)."""
    drawn = model.sample(400, seed=3)["y"]
    given = pd.DataFrame({"y": drawn})
    share = model.predict_proba(given, "town").mean()
    np.testing.assert_allclose(
        share, model.base.predict_proba(given.iloc[:1] * np.nan, "town").iloc[0], atol=0.06
    )
    upto = model.cdf("a", 0.0, given)
    assert upto.mean() == pytest.approx(model.cdf("a", 0.0), abs=0.06)
    assert upto[drawn > 5.5].mean() < upto[drawn < 0].mean() - 0.3


def test_intervals_cover_and_follow_the_noise(model: HeadedCircuit) -> None:
    rows = prices(2000, 2)
    ends = model.interval("y", 0.9, rows.drop(columns="y"))
    inside = (rows["y"] >= ends["low"]) & (rows["y"] <= ends["high"])
    assert 0.86 <= inside.mean() <= 0.95
    width = ends["high"] - ends["low"]
    assert width[rows["town"] == "z"].mean() > 1.3 * width[rows["town"] != "z"].mean()


def test_a_head_beats_the_circuit_alone_which_is_exact(
    model: HeadedCircuit, rows: pd.DataFrame
) -> None:
    plain = fc.learn(prices(1500, 0), label="y", n_states=4, head=False)
    assert isinstance(plain, Circuit)
    assert plain.is_exact
    errors = [float(((m.predict(rows, "y") - rows["y"]) ** 2).mean()) for m in (model, plain)]
    assert errors[0] < 0.9 * errors[1]
    constant = float(rows["y"].var())
    assert errors[1] < 0.6 * constant
    fast = plain.quantile("y", [0.2, 0.8], rows.drop(columns="y").iloc[:3])
    for i in range(3):
        row = rows.drop(columns="y").iloc[[i]]
        upto = plain.cdf("y", fast.iloc[i].tolist(), row).to_numpy()[0]
        assert (upto >= np.array([0.2, 0.8]) - 1e-9).all()


def test_the_same_after_a_file(model: HeadedCircuit, rows: pd.DataFrame, tmp_path: Path) -> None:
    model.save(tmp_path / "model.fc")
    again = fc.load(tmp_path / "model.fc")
    asked = gaps(rows).iloc[:20]
    np.testing.assert_array_equal(model.log_prob(asked), again.log_prob(asked))
    np.testing.assert_array_equal(model.predict(asked, "y"), again.predict(asked, "y"))


@pytest.mark.parametrize(
    ("name", "value"), [("quantiles", np.zeros(4)), ("shares", np.zeros(3)), ("cuts", [np.nan])]
)
def test_a_damaged_file_is_refused(model: HeadedCircuit, name: str, value: object) -> None:
    record = model.to_record()
    record.arrays[f"trees.{name}"] = np.asarray(value, dtype=float)
    with pytest.raises(StorageError):
        HeadedCircuit.from_record(record)


def test_kinds_decide_and_few_numbers_are_classes() -> None:
    frame = prices(120, 3)
    whole = frame.assign(y=np.random.default_rng(0).integers(0, 4, size=120).astype(float))
    assert fc.learn(whole, label="y", head=False).schema["y"].kind == "categorical"
    many = frame.assign(y=np.arange(120) % 30)
    assert fc.learn(many, label="y", head=False).schema["y"].kind == "continuous"
    asked = fc.learn(many, label="y", kinds={"y": "categorical"}, head=False, n_states=2)
    assert asked.schema["y"].kind == "categorical"


def test_a_client_of_a_federation_takes_classes_only() -> None:
    frame = prices(60, 4)
    table = fc.Schema.infer(frame).encode(frame)
    learner = fc.learners.Hclt(label="y").for_agreed_schema()
    with pytest.raises(LearningError, match="categorical or binary"):
        learner.fit(table, np.random.default_rng(0))


def test_masses_of_states_are_those_of_a_shifted_and_scaled_distribution() -> None:
    rng = np.random.default_rng(0)
    numbers = rng.normal(size=4000)
    cuts = np.array([-1.0, 0.0, 1.0])
    cells = StateCells.of(cuts, numbers, np.searchsorted(cuts, numbers, side="right"))
    quantiles = np.quantile(rng.normal(size=40_000), (np.arange(200) + 0.5) / 200)
    location = cells.scaled(np.array([0.0, 0.5]))
    masses = np.exp(log_masses(location, np.array([1.0, 0.5]) / cells.unit, quantiles, cells))
    np.testing.assert_allclose(masses.sum(axis=1), 1.0)
    np.testing.assert_allclose(masses[0], [0.159, 0.341, 0.341, 0.159], atol=0.01)
    np.testing.assert_allclose(masses[1], [0.001, 0.157, 0.683, 0.159], atol=0.01)
    far = distribution(np.array([-50.0, -5.0, 5.0, 50.0]), quantiles)
    assert (np.diff(far) >= 0).all()
    assert far[0] < 1e-12
    assert far[-1] > 1 - 1e-12


def test_a_line_as_trees_is_the_line() -> None:
    rng = np.random.default_rng(1)
    x = np.column_stack([rng.normal(size=(500, 2)), rng.integers(0, 3, size=500)])
    y = 2.0 * x[:, 0] - x[:, 1] + np.array([0.0, 1.0, 5.0])[x[:, 2].astype(int)]
    x[::50, 0] = np.nan
    trees = linear_trees(x, y, np.ones(500), np.array([0, 0, 3]))
    known = np.isfinite(x[:, 0])
    away = (trees.outputs(x)[:, 0] - y)[known]
    assert np.sqrt((away**2).mean()) < 0.15 * y.std()
    again = trees.plus(trees)
    np.testing.assert_allclose(again.outputs(x), 2 * trees.outputs(x))
    both = trees.beside(again)
    np.testing.assert_allclose(both.outputs(x), trees.outputs(x) * np.array([1.0, 2.0]))


def test_the_trees_tell_the_values_of_a_count_apart() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=1500)
    frame = pd.DataFrame({"x": x, "noise": rng.normal(size=1500)})
    frame["visits"] = rng.poisson(np.exp(1.5 + 0.6 * x))
    model = fc.learn(frame, label="visits", head=True, seed=0)
    assert isinstance(model, HeadedCircuit)
    rows = pd.DataFrame({"x": [-2.0, 0.0], "noise": 0.0})
    table = model.schema.encode(rows.assign(visits=np.nan))
    masses = np.exp(model.trees.outputs(table.values[:, :2]))
    means = masses @ model._states.moments(1)[model.pool.classes] / masses.sum(axis=1)
    np.testing.assert_allclose(means, np.exp(1.5 + 0.6 * rows["x"]), rtol=0.25)

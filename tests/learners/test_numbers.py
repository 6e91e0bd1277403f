"""Numbers as they are: what a learned model says of a column against the rows themselves."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import fedcircuits as fc


@pytest.fixture(scope="module")
def rows() -> pd.DataFrame:
    rng = np.random.default_rng(7)
    n = 1500
    amount = np.where(rng.random(n) < 0.3, 0.0, rng.lognormal(6, 1.6, n))
    return pd.DataFrame(
        {
            "amount": amount,
            "visits": rng.negative_binomial(2, 0.004, n).astype(float),
            "length": rng.gamma(3, 2, n) + 0.001 * amount,
        }
    )


@pytest.fixture(scope="module")
def model(rows: pd.DataFrame) -> fc.Density:
    return fc.learn(rows, seed=0)


@pytest.mark.parametrize("name", ["amount", "visits", "length"])
def test_mean_and_spread_are_those_of_the_rows(
    name: str, model: fc.Density, rows: pd.DataFrame
) -> None:
    spread = rows[name].std()
    one = model.marginal([name])
    assert abs(one.expectation(name) - rows[name].mean()) < 0.01 * spread
    assert np.sqrt(one.variance(name)) == pytest.approx(spread, rel=0.05)


def test_whole_numbers_are_sampled_and_completed_whole(
    model: fc.Density, rows: pd.DataFrame
) -> None:
    assert model.schema["visits"].kind == "count"
    drawn = model.sample(500, seed=1)["visits"]
    assert pd.api.types.is_integer_dtype(drawn)
    assert drawn.nunique() > 200
    completed = model.mpe(rows[["amount", "length"]].head(5))["visits"]
    assert (completed == completed.round()).all()


def test_samples_have_the_quantiles_of_the_rows(model: fc.Density, rows: pd.DataFrame) -> None:
    drawn = model.sample(20_000, seed=2)
    for name in ("visits", "length"):
        for p in (0.05, 0.5, 0.95):
            # 4 sigma of 20 000 draws at p = .5 is .014.
            assert (drawn[name] <= rows[name].quantile(p)).mean() == pytest.approx(p, abs=0.02)


def test_a_column_of_neighbouring_floats_is_learned_and_completed() -> None:
    rng = np.random.default_rng(3)
    shares = rng.dirichlet(np.ones(5), size=400)
    frame = pd.DataFrame({"total": shares.sum(axis=1), "first": shares[:, 0]})
    assert frame["total"].nunique() > 1
    model = fc.learn(frame, seed=0)
    completed = model.mpe(frame[["first"]].head(3))["total"]
    np.testing.assert_allclose(completed, 1.0, rtol=1e-9)
    assert np.isfinite(model.log_prob(frame)).all()

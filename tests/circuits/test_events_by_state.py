"""Events summed over states equal the circuit's own answers."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import fedcircuits as fc
from fedcircuits.density import by_state
from fedcircuits.errors import QueryError
from fedcircuits.schema import Table


@pytest.fixture(scope="module")
def model() -> fc.Density:
    rng = np.random.default_rng(0)
    z = rng.normal(size=300)
    frame = pd.DataFrame(
        {
            "x": np.where(rng.random(300) < 0.2, 1.0, z + rng.normal(size=300)),
            "n": rng.poisson(np.exp(z / 2) * 3),
            "g": np.where(z + rng.normal(size=300) > 0, "u", "v"),
            "w": rng.choice(["a", "b", "c"], 300),
        }
    )
    model = fc.learn(frame, learner="hclt", n_states=3, n_bins=8, seed=0)
    assert isinstance(model, fc.Circuit)
    return model


@pytest.fixture(scope="module")
def table(model: fc.Density) -> Table:
    rows = pd.DataFrame(
        {
            "x": [fc.between(-0.4, 1), fc.above(1.3), 0.5, None, fc.not_(fc.between(0, 9))],
            "n": [fc.above(2), None, fc.one_of([1, 3]), fc.below(4), fc.between(2, 5)],
            "g": ["u", fc.one_of(["u", "v"]), None, "v", None],
            "w": [None, None, fc.not_("a"), None, fc.one_of(["a", "c"])],
        }
    )
    return model.schema.encode(rows)


def test_probabilities_moments_and_posteriors(model: fc.Density, table: Table) -> None:
    for found, expected in (
        (by_state._log_prob(model, table), model.log_prob_table(table)),
        (by_state._moment(model, table, 1), model.moment_table(table, 1)),
        (by_state._moment(model, table, 2), model.moment_table(table, 2)),
        (by_state._posterior(model, table, 2), model.posterior_table(table, 2)),
    ):
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)
    spread = by_state._variance(model, table)[:, :2]
    np.testing.assert_allclose(spread, model.variance_table(table)[:, :2], rtol=1e-8, atol=1e-9)
    first = table.rows(slice(0, 1))
    np.testing.assert_allclose(
        by_state._covariance(model, first, [0, 1]),
        model.covariance_table(first, [0, 1]),
        rtol=1e-8,
        atol=1e-9,
    )


def test_samples_and_completions(model: fc.Density, table: Table) -> None:
    many = table.rows(np.zeros(3000, dtype=np.int64))
    drawn = by_state._sample(model, many, np.random.default_rng(0))
    own = model.sample_table(many, np.random.default_rng(1))
    for column in range(4):
        for region, _ in table.rows(slice(0, 1)).regions_at(column):
            assert region.contains(drawn[:, column]).all()
            assert region.contains(by_state._mpe(model, table.rows(slice(0, 1)))[:, column]).all()
        gap = abs(drawn[:, column].mean() - own[:, column].mean())
        assert gap < 5 * (own[:, column].std() + 1e-9) / np.sqrt(1500)


def test_an_empty_event_has_probability_zero_and_too_many_states_are_said(
    model: fc.Density, monkeypatch: pytest.MonkeyPatch
) -> None:
    empty = model.schema.encode(pd.DataFrame({"x": [fc.between(2, 1), fc.above(0)]}))
    found = by_state._log_prob(model, empty)
    assert found[0] == -np.inf
    assert np.isfinite(found[1])
    monkeypatch.setattr(by_state, "MOST_ROWS", 3)
    wide = model.schema.encode(pd.DataFrame({"x": [fc.not_(0.123)], "n": [fc.above(0)]}))
    with pytest.raises(QueryError, match="combinations of states"):
        by_state._log_prob(model, wide)

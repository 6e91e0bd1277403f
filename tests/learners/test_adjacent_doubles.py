"""A column of row sums, whose values are neighbouring doubles, is learned and completed."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import fedcircuits as fc


@pytest.mark.parametrize("learner", ["hclt", "learnspn", "factorised"])
def test_row_sums_of_shares_are_learned_and_completed(learner: str) -> None:
    rng = np.random.default_rng(0)
    shares = rng.dirichlet(np.ones(7), 400)
    frame = pd.DataFrame(
        {
            "sum": shares.sum(axis=1),
            "near": 1 + rng.integers(0, 40, 400) * 2.0**-52,
            "a": shares[:, 0],
        }
    )
    assert np.ptp(frame["sum"]) < 1e-14
    model = fc.learn(frame, learner=learner, seed=0)
    best = model.mpe()
    assert np.isfinite(best.to_numpy()).all()
    gaps = frame.head(5).assign(sum=None, near=None)
    for how in ("mean", "likeliest", "sample"):
        filled = model.impute(gaps, how, seed=0)
        assert filled["sum"].between(1 - 1e-9, 1 + 1e-9).all(), how
        assert filled["near"].between(1 - 1e-9, 1 + 1e-9).all(), how
    assert model.probability({"sum": fc.between(0.5, 1.5)}) > 0.9
    assert abs(model.quantile("sum", 0.5) - 1) < 1e-9


@pytest.mark.parametrize("size", [1.0, 1e9, 1e16])
def test_values_close_for_their_size_keep_their_spread(size: float) -> None:
    """Many floats lie between them: no bin is needed that reaches beyond."""
    rng = np.random.default_rng(0)
    x = size + rng.integers(0, 40, 600) * 500 * np.spacing(size)
    model = fc.learn(pd.DataFrame({"x": x, "y": rng.normal(size=600)}), seed=0)
    assert model.variance("x") == pytest.approx(x.var(), rel=0.02)
    drawn = model.sample(500, seed=0)["x"]
    assert drawn.between(x.min() - x.std(), x.max() + x.std()).all()

"""A user's own learner, as CONTRIBUTING shows it, passes the contract of every density."""

from __future__ import annotations

import re
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import fedcircuits as fc
from contracts.density import DensityContract
from oracles.enumeration import Points, Worlds

CONTRIBUTING = Path(__file__).parents[2] / "CONTRIBUTING.md"


def shown_learner() -> Any:
    """The class of the worked example, run as it is printed."""
    blocks = re.findall(r"```python\n(.*?)```", CONTRIBUTING.read_text(), re.S)
    code = next(block for block in blocks if "class GaussianMixtureLearner" in block)
    # dataclasses look their module up by name, so the example gets one.
    module = types.ModuleType("contributing_example")
    sys.modules[module.__name__] = module
    exec(compile(code, "CONTRIBUTING.md", "exec"), vars(module))
    return module.GaussianMixtureLearner


@pytest.fixture(scope="module")
def blobs() -> pd.DataFrame:
    """Two clusters in the plane."""
    rng = np.random.default_rng(2)
    near = rng.normal([0.0, 5.0], [1.0, 0.5], (150, 2))
    far = rng.normal([4.0, 1.0], [0.7, 2.0], (250, 2))
    return pd.DataFrame(np.concatenate([near, far]), columns=["u", "v"])


def test_the_worked_example_learns_the_clusters(blobs: pd.DataFrame) -> None:
    model = fc.learn(blobs, learner=shown_learner()(2))
    assert model.mean_log_prob(blobs) > fc.learn(blobs, learner=shown_learner()(1)).mean_log_prob(
        blobs
    )
    assert model.expectation("u") == pytest.approx(blobs["u"].mean(), abs=1e-3)


def test_a_learner_that_is_passed_is_told_the_label_too(blobs: pd.DataFrame) -> None:
    rows = blobs.assign(side=np.where(blobs["u"] > blobs["u"].mean(), "right", "left"))
    named = fc.learn(rows, label="side", learner="mixture", n_states=2)
    passed = fc.learn(rows, label="side", learner=fc.learners.Mixture(n_states=2))
    np.testing.assert_array_equal(passed.log_prob(rows), named.log_prob(rows))


class TestWorkedExample(DensityContract):
    """The contract, on the worked example."""

    @pytest.fixture(scope="class")
    @classmethod
    def density(cls) -> fc.Density:
        rng = np.random.default_rng(5)
        rows = rng.normal([[0.0, 3.0]], [[1.0, 2.0]], (200, 2))
        frame = pd.DataFrame(rows, columns=["u", "v"])
        return fc.learn(frame, learner=shown_learner()(2))

    @pytest.fixture(scope="class")
    @classmethod
    def worlds(cls) -> Worlds:
        return Worlds(
            {
                "u": Points.of_interval([-9.0, 9.0], panel=1.5),
                "v": Points.of_interval([-17.0, 23.0], panel=3.0),
            }
        )

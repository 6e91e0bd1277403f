"""An event costs at most three evaluations; its time is measured by `benchmarks/event_cost.py`."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import fedcircuits as fc
from fedcircuits.circuits import Circuit
from fedcircuits.learners import Hclt
from fedcircuits.schema import Table


@pytest.fixture(scope="module")
def model() -> fc.Density:
    rng = np.random.default_rng(0)
    z = rng.normal(size=(1500, 1))
    x = pd.DataFrame(z + rng.normal(size=(1500, 6)), columns=list("abcdef"))
    return fc.learn(x.assign(g=rng.choice(list("uvw"), 1500)), learner="hclt", seed=0)


def test_an_event_is_at_most_three_evaluations(
    model: fc.Density, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = []
    inner = type(model).log_prob_table

    def counted(self: fc.Density, table: Table) -> np.ndarray:
        rows.append(len(table))
        return inner(self, table)

    monkeypatch.setattr(type(model), "log_prob_table", counted)
    model.probability({"a": fc.above(1), "g": fc.one_of(["u", "v"])}, {"b": fc.between(0, 1)})
    assert sum(rows) <= 3


def test_an_event_about_a_model_with_a_head_is_one_about_its_circuit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without the label the density is the circuit's, which takes events as they are."""
    rng = np.random.default_rng(2)
    x = pd.DataFrame(rng.normal(size=(900, 3)), columns=list("abc"))
    label = np.where((x["a"] * x["b"] > 0) ^ (rng.random(900) < 0.05), "yes", "no")
    headed = fc.learn(x.assign(y=label), label="y", learner=Hclt(head=True))
    assert not headed.is_exact
    rows = []
    inner = Circuit.log_prob_table

    def counted(self: Circuit, table: Table) -> np.ndarray:
        rows.append(len(table))
        return inner(self, table)

    monkeypatch.setattr(Circuit, "log_prob_table", counted)
    found = headed.probability({"a": fc.above(0.2)}, {"b": fc.between(-1, 1), "c": fc.below(2)})
    assert sum(rows) <= 3
    alone = headed.marginal(["a", "b", "c"])
    assert found == pytest.approx(
        alone.probability({"a": fc.above(0.2)}, {"b": fc.between(-1, 1), "c": fc.below(2)}),
        abs=1e-12,
    )

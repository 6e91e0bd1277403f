"""`auto`: the learner that is best on validation rows, and a report that says by how much."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import fedcircuits as fc
from fedcircuits.errors import FedcircuitsError, FedcircuitsWarning

NAMES = {"hclt", "mixture", "learnspn", "factorised"}


def clustered(n: int, seed: int = 0) -> pd.DataFrame:
    """Columns that go together through a hidden group, and a label that goes with it."""
    rng = np.random.default_rng(seed)
    group = rng.integers(0, 2, size=n)
    return pd.DataFrame(
        {
            "number": np.round(rng.normal(4.0 * group, 1.0), 2),
            "colour": np.where(rng.random(n) < 0.1 + 0.8 * group, "red", "blue"),
            "label": np.where(rng.random(n) < 0.1 + 0.8 * group, "yes", "no"),
        }
    )


def told(model: fc.Density) -> tuple[dict[str, object], str]:
    assert model.fit_report is not None
    return model.fit_report.kept, " | ".join(model.fit_report.warnings)


@pytest.mark.parametrize("label", [None, "label"])
def test_the_best_on_validation_rows_wins_and_the_lead_is_told(label: str | None) -> None:
    kept, _ = told(fc.learn(clustered(300), label=label, learner="auto"))
    scores = {name: kept[f"validation score of {name}"] for name in NAMES}
    first, second = sorted(scores, key=lambda name: -scores[name])[:2]  # type: ignore[operator]
    assert kept["auto chose"] == first
    assert kept["auto chose before"] == second
    lead = scores[first] - scores[second]  # type: ignore[operator]
    assert kept["ahead by, nats a row"] == pytest.approx(lead)
    # The columns depend on each other: whoever looks is far ahead of who does not.
    assert scores[first] > scores["factorised"] + 0.1  # type: ignore[operator]


def test_ids_are_left_out_before_the_contest() -> None:
    rows = clustered(200)
    plain, _ = told(fc.learn(rows, learner="auto", seed=1))
    named = rows.assign(name=[f"row {i}" for i in range(200)])
    with pytest.warns(FedcircuitsWarning, match="left out column 'name'"):
        model = fc.learn(named, learner="auto", seed=1)
    kept, _ = told(model)
    assert "name" not in model.schema.names
    for name in NAMES:
        assert kept[f"validation score of {name}"] == plain[f"validation score of {name}"]


@pytest.mark.parametrize(("label", "chosen"), [(None, "factorised"), ("label", "hclt")])
def test_with_too_few_rows_it_says_what_it_took(label: str | None, chosen: str) -> None:
    rows = clustered(12)
    model = fc.learn(rows, label=label, learner="auto")
    kept, warnings = told(model)
    assert kept["auto chose"] == chosen
    assert "ahead by, nats a row" not in kept
    assert f"only 12 rows: too few to choose a learner on, {chosen} by default" in warnings
    assert np.isfinite(model.log_prob(rows)).all()


ODD = {
    "one row": clustered(1),
    "one column": clustered(100)[["number"]],
    "a constant column": clustered(100).assign(same=1.5),
    "one class": clustered(100).assign(label="yes"),
    "a class with two rows": clustered(100).assign(label=["rare"] * 2 + ["yes"] * 49 + ["no"] * 49),
    "a column that repeats": clustered(100).assign(again=lambda rows: rows["number"]),
    "rows without a value": clustered(100).mask(np.arange(300).reshape(100, 3) < 12),
}


@pytest.mark.parametrize("rows", ODD.values(), ids=ODD.keys())
@pytest.mark.parametrize("learner", ["auto", "learnspn", "factorised"])
def test_odd_tables_are_learned(learner: str, rows: pd.DataFrame) -> None:
    label = "label" if learner == "auto" and "label" in rows else None
    model = fc.learn(rows, label=label, learner=learner)
    found = model.log_prob(rows)
    assert np.isfinite(found).all()
    assert found.max() < 30
    assert np.isfinite(model.log_prob(model.sample(5, seed=0))).all()


@pytest.mark.parametrize("learner", ["auto", "learnspn", "factorised"])
def test_columns_that_cannot_be_learned_are_named(learner: str) -> None:
    with pytest.raises(FedcircuitsError, match="'odd'"):
        fc.learn(clustered(50).assign(odd=np.inf), learner=learner)
    with pytest.warns(fc.FedcircuitsWarning, match="left out column 'odd': no value"):
        assert "odd" not in fc.learn(clustered(50).assign(odd=np.nan), learner=learner).schema.names

"""Reports and the explorer's answers, without a browser."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import roc_auc_score

import fedcircuits as fc
from fedcircuits.errors import FedcircuitsError
from fedcircuits.report.scores import area_under_curve, label_scores, roc_curve
from fedcircuits.serving.explorer import Explorer
from fedcircuits.serving.questions import Limits


def rows(n: int = 200) -> pd.DataFrame:
    rng = np.random.default_rng(3)
    amount = rng.gamma(2.0, 10.0, n).round(2)
    return pd.DataFrame(
        {
            "day": pd.Timestamp("2025-01-01") + pd.to_timedelta(rng.integers(0, 300, n), unit="D"),
            "amount": amount,
            "size": rng.choice(["small", "large"], n),
            "loyal": np.where(amount + rng.normal(0, 5, n) > 20, "yes", "no"),
        }
    )


@pytest.fixture(scope="module")
def model() -> fc.Density:
    return fc.learn(rows(), label="loyal", learner="mixture", head=False)


def test_a_report_with_dates_and_figures(model: fc.Density, tmp_path: Path) -> None:
    page = model.report(tmp_path / "a.html", rows(), label="loyal", figures_to=tmp_path / "figures")
    text = page.read_text(encoding="utf-8")
    assert "Held-out rows" in text
    assert "What moves loyal" in text
    assert "http://" not in text.replace("http://www.w3.org", "")
    assert len(list((tmp_path / "figures").glob("*.svg"))) >= 6


def test_a_report_that_cannot_be_written_says_why(model: fc.Density, tmp_path: Path) -> None:
    with pytest.raises(FedcircuitsError, match="not a file in an existing folder"):
        model.report(tmp_path / "none" / "a.html")
    with pytest.raises(FedcircuitsError, match="no variable 'loyalty'"):
        model.report(tmp_path / "a.html", label="loyalty")


def test_scores_agree_with_scikit_learn() -> None:
    rng = np.random.default_rng(0)
    score, hit = rng.random(300).round(2), rng.random(300) < 0.4
    assert area_under_curve(score, hit) == pytest.approx(roc_auc_score(hit, score))
    false, true = roc_curve(score, hit)
    assert np.trapezoid(true, false) == pytest.approx(roc_auc_score(hit, score))
    proba = pd.DataFrame({"a": [0.9, 0.2, 0.4], "b": [0.1, 0.8, 0.6]})
    found = label_scores(proba, pd.Series(["a", "b", "a"]))
    assert found.accuracy == pytest.approx(2 / 3)
    assert found.log_loss == pytest.approx(-np.log([0.9, 0.8, 0.4]).mean())
    assert found.baseline_accuracy == pytest.approx(2 / 3)


def test_the_explorer_gives_the_probabilities_of_the_library(model: fc.Density) -> None:
    explorer = Explorer(model, Limits())
    bins = {v["name"]: v["bins"] for v in explorer.explore_variables()["variables"]}
    day = bins["day"]
    given = {"day": {"between": [day[3]["low"], day[9]["high"]]}, "size": "large"}
    answer = explorer.explore_answer(given, [])
    ends = [pd.Timestamp("1970-01-01") + pd.Timedelta(days=x) for x in given["day"]["between"]]
    event = {"day": fc.between(*ends), "size": "large"}
    assert answer["probability"] == pytest.approx(model.probability(event))
    evidence = pd.DataFrame({name: pd.Series([value]) for name, value in event.items()})
    expected = model.predict_proba(evidence, "loyal").iloc[0]
    assert answer["variables"]["loyal"] == pytest.approx(list(expected), abs=1e-12)
    for name, shares in answer["variables"].items():
        assert sum(shares) == pytest.approx(1.0), name
        assert len(shares) == len(bins[name])
    assert answer["variables"]["size"] == [1.0, 0.0] or answer["variables"]["size"] == [0.0, 1.0]
    assert sum(answer["variables"]["day"][:2]) == 0.0
    assert len(explorer.explore_sample(given, [])["rows"]) == 5


def test_a_model_of_one_variable_has_a_report(tmp_path: Path) -> None:
    rows = pd.DataFrame({"visits": [0, 1, 1, 2, 3] * 20})
    page = fc.learn(rows, learner="factorised").report(tmp_path / "one.html").read_text()
    assert "visits" in page

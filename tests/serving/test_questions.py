"""The questions without HTTP: a model that only classifies, evidence, limits."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pandas as pd
import pytest

import fedcircuits as fc
from contracts.engine import table
from fedcircuits.errors import ImpossibleEvidenceError, QueryError
from fedcircuits.serving.examples import examples
from fedcircuits.serving.explorer import Explorer
from fedcircuits.serving.questions import Limits, Questions, TooMuchError
from fedcircuits.serving.worker import answer


@pytest.fixture(scope="module")
def rows() -> pd.DataFrame:
    return table(n=120).drop(columns="customer")


@pytest.fixture(scope="module")
def voting(rows: pd.DataFrame) -> Any:
    clients = {"a": rows.iloc[:60], "b": rows.iloc[60:]}
    return fc.federate(clients, label="bought", learner="tree", operation="average")


def test_a_classifier_answers_its_one_question(voting: Any, rows: pd.DataFrame) -> None:
    questions = Questions(voting, Limits())
    asked = json.loads(rows.head(5).to_json(orient="records"))
    answer = questions.predict_proba(asked, "bought", "error", "error")
    expected = voting.predict_proba(pd.DataFrame(asked))
    assert answer["outcomes"] == ["no", "yes"]
    np.testing.assert_array_equal(answer["probabilities"], expected.to_numpy())
    with pytest.raises(QueryError, match="'bought' alone"):
        questions.predict_proba(asked, "colour", "error", "error")
    with pytest.raises(QueryError, match="a FederatedEnsemble does not answer log_prob"):
        questions.log_prob(asked, "error")
    with pytest.raises(QueryError, match="does not answer marginal"):
        questions.marginals(None, None)
    told = questions.schema()
    assert told["model"] == "FederatedEnsemble"
    assert {v["name"] for v in told["variables"]} == set(rows.columns)


def test_impossible_rows_are_null_and_impossible_densities_are_text() -> None:
    names = ["a", "b", "c"]
    schema = fc.Schema.infer(pd.DataFrame({name: ["x", "y"] for name in names}))
    both = [
        fc.build.product([fc.build.categorical(name, sure) for name in names])
        for sure in ([1.0, 0.0], [0.0, 1.0])
    ]
    model = fc.build.circuit(schema, fc.build.sum(both, [0.5, 0.5]))
    questions, strange = Questions(model, Limits()), [{"a": "x", "b": "y"}]
    assert questions.log_prob(strange, "error")["log_prob"] == ["-inf"]
    lost = questions.predict_proba(strange, "c", "error", "nan")
    assert lost["probabilities"] == [[None, None]]
    with pytest.raises(ImpossibleEvidenceError, match="row label: 0"):
        questions.predict_proba(strange, "c", "error", "error")


def test_limits_are_counted_before_anything_is_done(voting: Any) -> None:
    questions = Questions(voting, Limits(rows=3, samples=4))
    with pytest.raises(TooMuchError, match="at most 3 rows a request, found 4"):
        questions.log_prob([{}] * 4, "error")
    with pytest.raises(TooMuchError, match="at most 4 samples a request, found 6"):
        questions.sample(2, None, [{}] * 3, None, "error")


def test_every_answer_about_dates_and_times_is_json() -> None:
    days = pd.Series(pd.date_range("2024-01-01", periods=120, freq="2D"))
    rows = pd.DataFrame(
        {
            "day": days,
            "at": days + pd.to_timedelta(np.arange(120) * 7, unit="min"),
            "clock": [(d + pd.Timedelta(minutes=k)).time() for k, d in enumerate(days)],
            "took": pd.to_timedelta(np.arange(120) * 61, unit="s"),
            "x": np.linspace(0, 1, 120),
            "y": ["a", "b"] * 60,
        }
    )
    kinds = {"day": "count", "at": "continuous", "took": "continuous"}
    model = fc.learn(rows, label="y", learner="mixture", kinds=kinds)
    kinds_of = pytest.importorskip("fedcircuits.serving.requests").QUESTIONS
    asked = examples(model)
    assert len(asked["predict_proba"]["rows"][0]["day"]) == 10  # no time of day
    explored = {"given": {"y": "a"}, "without": []}
    asked = {name: kinds_of[name](**body).model_dump() for name, body in asked.items()}
    asked |= {f"explore_{name}": explored for name in ("answer", "complete", "sample")}
    found = {name: answer(Explorer(model, Limits()), name, body) for name, body in asked.items()}
    assert {name for name, reply in found.items() if reply["status"] != 200} == set()
    drawn = json.loads(json.dumps(found, allow_nan=False))["explore_sample"]["answer"]["rows"][0]
    assert pd.Timestamp(drawn["day"]).strftime("%Y-%m-%d") == drawn["day"]
    assert len(drawn["at"]) > 10

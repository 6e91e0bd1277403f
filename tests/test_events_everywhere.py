"""Command line, HTTP and Python give the same numbers for events."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from typer.testing import CliRunner

import fedcircuits as fc
from contracts.engine import table
from fedcircuits.cli.app import app
from fedcircuits.errors import FedcircuitsError, QueryError, UnknownCategoryError
from fedcircuits.schema.events.parse import from_json, from_text
from fedcircuits.serving import requests
from fedcircuits.serving.questions import Limits, Questions


@pytest.fixture(scope="module")
def model() -> fc.Density:
    rows = table(n=200).drop(columns="customer")
    return fc.learn(rows, learner="hclt", seed=1)


@pytest.fixture(scope="module")
def path(model: fc.Density, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "m.fc"
    model.save(path)
    return path


def asked(*arguments: Any) -> Any:
    result = CliRunner().invoke(app, ["query", *map(str, arguments), "--json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


CONDITIONS: list[tuple[str, str, Any, Any]] = [
    ("height", "height=0.2..1.4", {"between": [0.2, 1.4]}, fc.between(0.2, 1.4)),
    ("height", "height>0.7", {"above": 0.7}, fc.above(0.7)),
    ("height", "height<=0.7", {"at_most": 0.7}, fc.below(0.7, inclusive=True)),
    ("height", "height=..0.7", {"between": [None, 0.7]}, fc.between(None, 0.7)),
    ("visits", "visits>=2", {"at_least": 2}, fc.above(2, inclusive=True)),
    ("visits", "visits=1|3", {"one_of": [1, 3]}, fc.one_of([1, 3])),
    ("visits", "visits!=2", {"not": 2}, fc.not_(2)),
    ("colour", "colour=red|green", {"one_of": ["red", "green"]}, fc.one_of(["red", "green"])),
    ("colour", "colour!=red", {"not": "red"}, fc.not_("red")),
    ("height", "height!=0.2..1.4", {"not": {"between": [0.2, 1.4]}}, fc.not_(fc.between(0.2, 1.4))),
]


@pytest.mark.parametrize(
    ("name", "text", "body", "event"), CONDITIONS, ids=[c[1] for c in CONDITIONS]
)
def test_text_json_and_python_are_one_event(
    model: fc.Density, name: str, text: str, body: Any, event: Any
) -> None:
    given = {"size": fc.not_("small")} if "small" in str(model.schema["size"].categories) else None
    expected = model.probability({name: event}, given)
    assert 0 < expected <= 1
    assert from_text(model.schema, text, "--given")[0] == name
    assert model.probability(dict([from_text(model.schema, text, "--given")]), given) == expected
    assert model.probability({name: from_json(body)}, given) == expected


def test_command_line_http_and_python_give_the_same_numbers(model: fc.Density, path: Path) -> None:
    event, given = {"height": fc.above(0.7)}, {"visits": fc.between(1, 4), "colour": fc.not_("red")}
    expected = model.probability(event, given)
    shown = asked(
        path, "--probability", "height>0.7", "--given", "visits=1..4", "--given", "colour!=red"
    )
    assert shown["rows"][0]["probability"] == expected
    questions = Questions(model, Limits())
    body = {"visits": {"between": [1, 4]}, "colour": {"not": "red"}}
    answer = questions.probability({"height": {"above": 0.7}}, body, None, "error", "error")
    assert answer["values"] == [expected]
    by_rows = questions.probability({"height": {"above": 0.7}}, None, [body, {}], "error", "error")
    # Rows asked together may be added up in another order.
    assert by_rows["values"] == pytest.approx([expected, model.probability(event)], rel=1e-12)
    proba = asked(path, "--predict", "bought", "--given", "visits=1..4", "--given", "colour!=red")
    frame = pd.DataFrame({n: pd.Series([e]) for n, e in given.items()})
    for category, chance in model.predict_proba(frame, "bought").iloc[0].items():
        assert proba["rows"][0][str(category)] == chance
    mean = asked(path, "--expect", "height", "--given", "height>=0.2", "--given", "height<0.9")
    limits = fc.between(0.2, 0.9, closed="left")
    assert mean["rows"][0]["mean"] == model.expectation("height", {"height": limits})
    how = {"given": body, "rows": None, "impossible": "error", "unknown": "error"}
    quantiles = questions.quantile("height", [0.1, 0.9], **how)
    assert quantiles["values"][0] == model.quantile("height", [0.1, 0.9], given).tolist()
    assert questions.entropy(["colour"], body)["entropy"] == model.entropy("colour", given)
    marginals = questions.marginals(["colour", "height"], body)["marginals"]
    chances = dict(
        zip(marginals["colour"]["outcomes"], marginals["colour"]["probabilities"], strict=True)
    )
    assert chances["red"] == 0.0
    assert chances["green"] == pytest.approx(model.probability({"colour": "green"}, given))


def test_what_is_no_event_is_said(model: fc.Density) -> None:
    with pytest.raises(QueryError, match=r"NAME=LOW\.\.HIGH"):
        from_text(model.schema, "height", "--given")
    with pytest.raises(QueryError, match="expected a number, found 'tall'"):
        from_text(model.schema, "height>tall", "--given")
    with pytest.raises(QueryError, match="no variable 'weight'"):
        from_text(model.schema, "weight=3", "--given")
    with pytest.raises(QueryError, match="found 'betwen'"):
        from_json({"betwen": [1, 2]})
    with pytest.raises(QueryError, match="low, high"):
        from_json({"between": 3})


@pytest.mark.parametrize("text", ["True", "true", "TRUE", "1"])
def test_truth_is_written_as_shells_and_json_write_it(text: str) -> None:
    rows = pd.DataFrame({"told": [True, False, False] * 20, "x": range(0, 120, 2)})
    model = fc.learn(rows, learner="factorised", drop="x")
    expected = model.probability({"told": True})
    assert model.probability(dict([from_text(model.schema, f"told={text}", "--given")])) == expected
    other = dict([from_text(model.schema, f"told!={text}", "--given")])
    assert model.probability(other) == pytest.approx(1 - expected, abs=1e-12)
    with pytest.raises(UnknownCategoryError, match=r"expected one of False, True.*found 'tru'"):
        model.probability(dict([from_text(model.schema, "told=tru", "--given")]))


def test_distribution_functions_of_dates_are_asked_in_dates() -> None:
    days = pd.Timestamp("2026-01-01") + pd.to_timedelta(range(100), "D")
    rows = pd.DataFrame({"day": days, "x": [0.5, 1.5, 2.0, 4.0] * 25})
    model = fc.learn(rows, learner="factorised")
    questions = Questions(model, Limits())
    how: dict[str, Any] = {"given": None, "rows": None, "impossible": "error", "unknown": "error"}
    asked_for = ["2026-02-01", "2026-03-01"]
    found = questions.cdf("day", asked_for, **how)["values"]
    assert found == [model.cdf("day", asked_for).tolist()]
    body = requests.Cdf.model_validate({"name": "day", "x": asked_for})
    assert body.x == asked_for
    assert requests.Cdf.model_validate({"name": "x", "x": [1, 2.5]}).x == [1, 2.5]
    with pytest.raises(FedcircuitsError, match="'tall'"):
        questions.cdf("x", ["tall"], **how)

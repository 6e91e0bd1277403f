"""Events asked of models that stay at their clients: the answers of the gathered model."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

import fedcircuits as fc
from contracts.federations import ID, LABEL, split
from contracts.messages import example
from fedcircuits.errors import FederationError
from fedcircuits.federation.client.answer import SentCells
from fedcircuits.federation.wire import requests as m

GIVEN = {"height": fc.between(0.2, 1.6), "colour": fc.not_("red")}
EVENT = {"visits": fc.above(2), "size": fc.not_(fc.one_of([]))}


@pytest.fixture(scope="module", params=["horizontal", "vertical", "hybrid"])
def both(request: pytest.FixtureRequest) -> tuple[Any, Any]:
    clients = split(request.param)
    id_ = None if request.param == "horizontal" else ID
    if id_ is None:
        clients = {name: frame.drop(columns=ID) for name, frame in clients.items()}
    models = [
        fc.federate(clients, id=id_, label=LABEL, learner="factorised", placement=placement, seed=1)
        for placement in ("gathered", "remote")
    ]
    return models[0], models[1]


def test_probabilities_moments_and_completions_agree(both: tuple[Any, Any]) -> None:
    here, away = both
    given = {name: event for name, event in GIVEN.items() if name in here.schema}
    event = {name: each for name, each in EVENT.items() if name in here.schema}
    assert away.probability(event, given) == pytest.approx(here.probability(event, given), abs=1e-9)
    for name in ("height", "visits"):
        for query in ("expectation", "variance"):
            found, expected = (getattr(m, query)(name, given) for m in (away, here))
            assert found == pytest.approx(expected, rel=1e-9, abs=1e-9)
        points = [0.5, 1.0, 3.0]
        np.testing.assert_allclose(
            away.cdf(name, points, given), here.cdf(name, points, given), atol=1e-9
        )
    assert away.quantile("height", 0.5, given) == pytest.approx(
        here.quantile("height", 0.5, given), rel=1e-6
    )
    rows = pd.DataFrame({name: [event, None] for name, event in given.items()})
    np.testing.assert_allclose(
        away.predict_proba(rows, LABEL), here.predict_proba(rows, LABEL), atol=1e-9
    )
    limited = away.condition(given)
    assert limited.probability(event) == pytest.approx(here.probability(event, given), abs=1e-9)
    sample = limited.sample(30, seed=0)
    assert sample["height"].between(0.2, 1.6).all()
    assert (sample["colour"] != "red").all()
    assert away.mpe(given)["height"].between(0.2, 1.6).all()
    assert away.mutual_information("colour", LABEL) == pytest.approx(
        here.mutual_information("colour", LABEL), abs=1e-9
    )


def test_rows_by_id_with_an_event_do_not_look_up_its_cell() -> None:
    clients = split("vertical")
    away = fc.federate(clients, id=ID, label=LABEL, learner="factorised", placement="remote")
    ids = clients["a"][ID].head(3)
    visits = fc.above(1)
    with_event = away.log_prob(pd.DataFrame({ID: ids, "visits": [visits] * 3}))
    without = away.log_prob(pd.DataFrame({ID: ids}))
    assert np.isfinite(with_event).all()
    assert not np.allclose(with_event, without)


@pytest.mark.parametrize("text", ["[" * 100_000, "[1, 2", "{}", "null", '{"kind": []}'])
def test_an_event_that_cannot_be_read_is_refused(text: str) -> None:
    asked, one = example(m.Query), np.zeros((1, 1))
    query = replace(
        asked,
        columns=["height"],
        values=one,
        observed=one.astype(bool),
        events=type(asked.events)([text]),
        event_of=one.astype(np.int64),
    )
    with pytest.raises(FederationError, match="an event of a query cannot be read"):
        SentCells.of(query)

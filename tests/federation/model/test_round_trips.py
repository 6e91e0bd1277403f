"""Queries of models that stay at the clients: at most three round trips, the gathered answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pandas as pd
import pytest

import fedcircuits as fc
from contracts.federations import local
from fedcircuits.circuits import Composite
from fedcircuits.federation.wire import requests as m
from recorder import Recorder

LABEL, ID = "bought", "customer"
ATOL = 1e-9


class Counting(Recorder):
    """Counts round trips: calls of the transport, each to any number of clients."""

    trips = 0

    def call(
        self, verb: str, payloads: Mapping[str, bytes], timeout: float | None = None
    ) -> dict[str, bytes | Exception]:
        self.trips += 1
        return super().call(verb, payloads, timeout)


def rows(n: int, seed: int) -> pd.DataFrame:
    """Numbers, a count, categories, one column with many gaps, and a label of six classes."""
    rng = np.random.default_rng(seed)
    label = rng.integers(0, 6, n)
    colour = np.array(["red", "green", "blue"])[(label + rng.integers(0, 2, n)) % 3]
    mood = pd.Series(np.where(rng.random(n) < 0.5, "good", "bad")).mask(rng.random(n) < 0.4)
    return pd.DataFrame(
        {
            ID: np.arange(n) + 1000,
            "height": rng.normal(label, 1.0),
            "size": rng.normal(-label, 2.0),
            "visits": rng.poisson(1.0 + label % 3),
            "colour": colour,
            "mood": mood,
            "income": pd.Series(rng.normal(10.0, 1.0, n)).mask(rng.random(n) < 0.3),
            LABEL: np.array(list("abcdef"))[label],
        }
    )


def by_rows(k: int) -> dict[str, pd.DataFrame]:
    whole = rows(360, 0)
    return {f"c{at}": whole.iloc[at::k].reset_index(drop=True) for at in range(k)}


def by_columns(groups: list[list[str]]) -> dict[str, pd.DataFrame]:
    whole = rows(360, 0)
    return {f"c{at}": whole[[ID, *names, LABEL]] for at, names in enumerate(groups)}


CASES: dict[str, dict[str, pd.DataFrame]] = {
    "rows of 2 clients": by_rows(2),
    "rows of 4 clients": by_rows(4),
    "columns of 4 clients": by_columns(
        [["height"], ["size", "income"], ["visits", "mood"], ["colour"]]
    ),
}
Case = tuple[Any, Any, Counting]


@pytest.fixture(scope="module", params=list(CASES))
def case(request: pytest.FixtureRequest) -> Case:
    """The model gathered, the same model remote, and the transport of the remote one."""
    clients = CASES[request.param]
    how: dict[str, Any] = {"id": ID, "label": LABEL, "agreement": "product"}
    gathered = fc.federate(clients, learner="factorised", **how)
    transport = Counting(local(clients))
    remote = fc.federate(engine=transport, placement="remote", **how)
    assert len(remote.parts) >= 6 * len(clients)
    assert remote.schema["mood"].missing_state
    return gathered, remote, transport


@pytest.fixture(scope="module")
def conditioned(case: Case) -> Case:
    """The same, given some values."""
    gathered, remote, transport = case
    transport.trips = 0
    inside = remote.condition(GIVEN)
    assert transport.trips <= 3
    return gathered.condition(GIVEN), inside, transport


def asked() -> pd.DataFrame:
    """Rows with a different pattern of gaps in each."""
    whole = rows(30, 9).drop(columns=ID)
    return whole.mask(np.random.default_rng(1).random(whole.shape) < 0.4)


Query = Callable[[Any], Any]
GIVEN = {"height": 1.0, "colour": "red"}
CONDITIONED: dict[str, Query] = {
    "log_prob": lambda f: f.log_prob(asked()),
    "predict_proba of the label": lambda f: f.predict_proba(asked(), LABEL),
    "predict_proba with missing as a state": lambda f: f.predict_proba(asked(), "mood"),
    "predict_proba of a count": lambda f: f.predict_proba(asked(), "visits"),
    "predict": lambda f: f.predict(asked(), LABEL),
    "predict a number": lambda f: f.predict(asked(), "size"),
    "impute, likeliest": lambda f: f.impute(asked(), "likeliest"),
    "impute, mean": lambda f: f.impute(asked(), "mean"),
    "expectation": lambda f: f.expectation("size", asked().drop(columns="size")),
    "expectation with gaps": lambda f: f.expectation("income", asked()[["size", LABEL]]),
    "moment": lambda f: f.moment("income", 3, {LABEL: "b"}),
    "variance": lambda f: f.variance("size", asked().drop(columns="size")),
    "variance with gaps": lambda f: f.variance("income", asked()[["visits", LABEL]]),
    "covariance": lambda f: f.covariance(["size", "visits", "income"], {LABEL: "c"}),
    "mpe": lambda f: f.mpe(asked()),
    "mpe of nothing": lambda f: f.mpe(),
    "marginal": lambda f: f.marginal(["size", "mood", LABEL]).log_prob(asked()),
}
QUERIES: dict[str, Query] = {
    **CONDITIONED,
    "condition": lambda f: f.condition(GIVEN).log_prob(asked()),
    "all numbers": lambda f: f.covariance(),
}


def numbers(answer: Any) -> np.ndarray[Any, Any]:
    if isinstance(answer, pd.DataFrame):
        return pd.get_dummies(answer, dtype=float).to_numpy(dtype=float)
    if isinstance(answer, pd.Series):
        return numbers(answer.to_frame())
    return np.asarray(answer, dtype=float)


def check(query: Query, gathered: Any, remote: Any, transport: Counting, most: int = 3) -> None:
    expected = numbers(query(gathered))
    transport.trips = 0
    found = numbers(query(remote))
    assert 1 <= transport.trips <= most
    np.testing.assert_allclose(found, expected, rtol=ATOL, atol=ATOL)


@pytest.mark.parametrize("query", list(QUERIES))
@pytest.mark.filterwarnings("ignore:ignored")
def test_a_query_takes_three_round_trips_and_gives_the_gathered_answer(
    case: Case, query: str
) -> None:
    check(QUERIES[query], *case)


@pytest.mark.parametrize("query", list(CONDITIONED))
@pytest.mark.filterwarnings("ignore:ignored")
def test_a_conditioned_model_takes_three_round_trips_as_well(conditioned: Case, query: str) -> None:
    check(CONDITIONED[query], *conditioned)


@pytest.mark.parametrize("given", [None, GIVEN, "rows"])
def test_samples_take_three_round_trips_and_are_the_same_draws(case: Case, given: Any) -> None:
    gathered, remote, transport = case
    given = asked() if isinstance(given, str) else given
    transport.trips = 0
    found = remote.sample(20, given, seed=4)
    assert 1 <= transport.trips <= 3
    # The same evaluation over the parts; `gathered` itself samples from the merged circuit.
    here = Composite(gathered.schema, gathered.parts, gathered.structure)
    pd.testing.assert_frame_equal(found, here.sample(20, given, seed=4), check_like=True)
    transport.trips = 0
    filled = remote.impute(asked(), "sample", seed=4)
    assert 1 <= transport.trips <= 3
    pd.testing.assert_frame_equal(filled, here.impute(asked(), "sample", seed=4))
    transport.trips = 0
    several = remote.impute(asked(), draws=3, seed=4)
    assert 1 <= transport.trips <= 3
    for one, other in zip(several, here.impute(asked(), draws=3, seed=4), strict=True):
        pd.testing.assert_frame_equal(one, other)


def test_making_a_marginal_or_a_condition_takes_at_most_three(case: Case) -> None:
    _, remote, transport = case
    for make in (
        lambda f: f.marginal(["size", "mood"]),
        lambda f: f.condition(GIVEN),
        lambda f: f.condition(GIVEN).marginal(["size", "mood"]),
    ):
        transport.trips = 0
        made = make(remote)
        assert transport.trips <= 3
        assert made.clients


def test_rows_by_id_take_three_round_trips_too() -> None:
    clients = CASES["columns of 4 clients"]
    transport = Counting(local(clients))
    remote = fc.federate(
        engine=transport, id=ID, label=LABEL, agreement="product", placement="remote"
    )
    whole = rows(360, 0).iloc[20:40]
    for ask in (
        lambda x: remote.log_prob(x),
        lambda x: remote.predict_proba(x, LABEL),
        lambda x: remote.predict_proba(x, "visits"),
        lambda x: remote.expectation("size", x),
        lambda x: remote.variance("income", x),
    ):
        transport.trips = 0
        found = ask(whole[[ID]])
        assert 1 <= transport.trips <= 3
        hidden = {found.name} & set(whole) if isinstance(found, pd.Series) else set()
        # The label is at the server, in the weights, so it is in no row that is looked up.
        sent = whole.drop(columns=[ID, LABEL, *hidden])
        np.testing.assert_allclose(found, ask(sent), atol=ATOL)


def test_a_client_receives_the_rows_that_it_is_asked_about_and_no_others() -> None:
    clients = CASES["rows of 4 clients"]
    transport = Counting(local(clients))
    remote = fc.federate(
        engine=transport, id=ID, label=LABEL, agreement="product", placement="remote"
    )
    transport.messages.clear()
    remote.sample(40, {"height": 1.0}, seed=1)
    sizes = [
        len(query.values)
        for message in transport.messages
        if message.to_client
        and (query := m.Query.from_bytes(message.data)).questions[0].what == "sample"
    ]
    assert sum(sizes) == 40  # a row is drawn at one client, and sent to that one


KINDS: dict[str, set[str]] = {
    "log_prob": {"log_prob"},
    "predict_proba of the label": {"log_prob"},
    "predict_proba with missing as a state": {"log_prob"},
    "predict_proba of a count": {"log_prob"},
    "predict a number": {"log_prob", "moment"},
    "impute, likeliest": {"log_prob", "mpe"},
    "impute, mean": {"log_prob", "moment", "posterior"},
    "expectation": {"log_prob", "moment"},
    "variance": {"log_prob", "moment", "variance"},
    "covariance": {"log_prob", "moment", "covariance"},
    "mpe": {"log_prob", "mpe"},
    "condition": {"log_prob"},
}


@pytest.mark.parametrize("query", list(KINDS))
@pytest.mark.filterwarnings("ignore:ignored")
def test_a_query_asks_no_more_kinds_of_question_than_it_needs(case: Case, query: str) -> None:
    _, remote, transport = case
    transport.messages.clear()
    QUERIES[query](remote)
    sent = [m.Query.from_bytes(message.data) for message in transport.messages if message.to_client]
    assert {question.what for each in sent for question in each.questions} <= KINDS[query]


def test_an_ensemble_takes_one_round_trip() -> None:
    clients = CASES["rows of 4 clients"]
    transport = Counting(local(clients, "tree"))
    fed = fc.federate(engine=transport, id=ID, label=LABEL, operation="average", placement="remote")
    transport.trips = 0
    assert len(fed.predict(asked().drop(columns=LABEL))) == len(asked())
    assert transport.trips == 1

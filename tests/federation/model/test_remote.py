"""Models that stay at the clients: the same answers as gathered, and only vectors on the wire."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest

import fedcircuits as fc
from contracts.engine import table
from contracts.federations import ID, LABEL, Breaking, local, split
from fedcircuits.errors import ClientError, FedcircuitsWarning, FederationError, QueryError
from fedcircuits.federation.wire import requests as m
from recorder import Recorder

SETTINGS = ("horizontal", "vertical", "hybrid")
RULES: dict[str, dict[str, Any]] = {
    "horizontal": {"agreement": "product"},
    "vertical": {"agreement": "latent", "n_clusters": 3},
    "hybrid": {"agreement": "product"},
}
ATOL = 1e-9

Pair = tuple[Any, Any, pd.DataFrame]


@pytest.fixture(scope="module", params=SETTINGS)
def pair(request: pytest.FixtureRequest) -> Pair:
    """A federation gathered and the same one remote, and rows with gaps."""
    clients = split(request.param)
    options: dict[str, Any] = {"id": ID, "label": LABEL, "learner": "factorised"}
    options |= RULES[request.param]
    both = [fc.federate(clients, **options, placement=p) for p in ("gathered", "remote")]
    rows = table(seed=7, n=40).drop(columns=ID)
    rng = np.random.default_rng(1)
    return both[0], both[1], rows.mask(rng.random(rows.shape) < 0.3)


def numbers(answer: Any) -> Any:
    if isinstance(answer, pd.DataFrame):
        return pd.get_dummies(answer, dtype=float).to_numpy(dtype=float)
    return np.asarray(answer, dtype=float)


QUERIES: dict[str, Callable[[Any, pd.DataFrame], Any]] = {
    "log_prob": lambda f, x: f.log_prob(x),
    "mean_log_prob": lambda f, x: f.mean_log_prob(x),
    "predict_proba of the label": lambda f, x: f.predict_proba(x, LABEL),
    "predict_proba of a feature": lambda f, x: f.predict_proba(x, "colour"),
    "predict_proba of a count": lambda f, x: f.predict_proba(x, "visits"),
    "predict of a number": lambda f, x: f.predict(x, "size"),
    "mpe": lambda f, x: f.mpe(x),
    "impute": lambda f, x: f.impute(x, "mean"),
    "expectation": lambda f, x: f.expectation("size", x.drop(columns="size")),
    "third moment": lambda f, _: f.moment("height", 3, {LABEL: "yes"}),
    "variance": lambda f, x: f.variance("height", x.drop(columns="height")),
    "covariance": lambda f, _: f.covariance(["height", "size", "visits"], {"colour": "red"}),
    "marginal": lambda f, x: f.marginal(["size", "colour"]).log_prob(x),
    "condition": lambda f, x: f.condition({"height": 0.5, LABEL: "no"}).log_prob(x),
    "condition, then marginal": lambda f, x: (
        f.condition({"height": 0.5}).marginal(["visits", LABEL]).log_prob(x)
    ),
    "condition, then condition": lambda f, x: (
        f.condition({"height": 0.5}).condition({"visits": 2}).predict_proba(x, LABEL)
    ),
    "condition, then mpe": lambda f, _: f.condition({"size": 0.1}).mpe({"visits": 1}),
    "condition, then expectation": lambda f, _: f.condition(size=0.1).expectation("visits"),
}


@pytest.mark.parametrize("query", list(QUERIES))
@pytest.mark.filterwarnings("ignore:ignored")
def test_remote_answers_equal_gathered_ones(pair: Pair, query: str) -> None:
    gathered, remote, rows = pair
    expected = numbers(QUERIES[query](gathered, rows))
    np.testing.assert_allclose(
        numbers(QUERIES[query](remote, rows)), expected, rtol=ATOL, atol=ATOL
    )


def test_remote_equals_the_merged_circuit(pair: Pair) -> None:
    gathered, remote, rows = pair
    merged = gathered.merged()
    np.testing.assert_allclose(remote.log_prob(rows), merged.log_prob(rows), atol=ATOL)


@pytest.mark.parametrize("given", [None, {"height": 1.0, LABEL: "yes"}])
def test_remote_samples_follow_the_same_distribution(pair: Pair, given: Any) -> None:
    gathered, remote, _ = pair
    n = 4000
    drawn = remote.sample(n, given, seed=3)
    for name in ("size", "visits"):
        mean, sd = gathered.expectation(name, given), gathered.variance(name, given) ** 0.5
        assert abs(drawn[name].mean() - mean) < 5 * sd / n**0.5  # false alarm: 6e-7 each
    share = gathered.condition(given) if given else gathered
    expected = share.predict_proba({"colour": [None]}, "colour").iloc[0]
    counts = drawn["colour"].value_counts(normalize=True)
    for colour, p in expected.items():
        assert abs(counts.get(colour, 0.0) - p) < 5 * (p * (1 - p) / n) ** 0.5
    if given:
        assert (drawn["height"] == 1.0).all()


def test_same_seed_same_remote_sample(pair: Pair) -> None:
    _, remote, _ = pair
    pd.testing.assert_frame_equal(remote.sample(20, seed=1), remote.sample(20, seed=1))


def test_log_prob_takes_one_message_a_client(pair: Pair) -> None:
    _, remote, rows = pair
    before = remote.ledger.n_messages
    remote.log_prob(rows)
    assert remote.ledger.n_messages - before == 2 * len(remote.clients)


def test_remote_cannot_be_saved_and_says_so(pair: Pair, tmp_path: Any) -> None:
    _, remote, _ = pair
    with pytest.raises(fc.FedcircuitsError, match="stays at client"):
        remote.save(tmp_path / "m.fc")


# --- rows by id ---------------------------------------------------------------------------------


def vertical(spoil: Any = None) -> tuple[Any, Recorder]:
    engine = local(split("vertical"))
    recorder = Recorder(engine) if spoil is None else Breaking(engine, spoil)
    fed = fc.federate(
        id=ID, label=LABEL, agreement="latent", n_clusters=3, placement="remote", engine=recorder
    )
    return fed, recorder


def test_clients_look_rows_up_by_id() -> None:
    fed, recorder = vertical()
    rows = table().iloc[10:30]
    recorder.messages.clear()
    by_id = fed.predict_proba(rows[[ID]], LABEL)
    for message in recorder.messages:
        if message.to_client:  # not a cell left this side
            assert not m.Query.from_bytes(message.data).observed.any()
    sent = fed.predict_proba(rows.drop(columns=[ID, LABEL]), LABEL)
    np.testing.assert_allclose(by_id, sent, atol=ATOL)
    np.testing.assert_allclose(
        fed.log_prob(rows[[ID]]), fed.log_prob(rows.drop(columns=ID)), atol=ATOL
    )


def test_what_is_asked_for_is_not_looked_up() -> None:
    fed, recorder = vertical()
    other, _ = vertical()
    rows = table().iloc[10:30]
    for name in ("size", "visits"):
        others = rows.drop(columns=[ID, name])
        np.testing.assert_allclose(
            fed.expectation(name, rows[[ID]]), other.expectation(name, others), atol=ATOL
        )
        np.testing.assert_allclose(
            fed.variance(name, rows[[ID]]), other.variance(name, others), atol=ATOL
        )
    sizes = rows["size"].to_numpy()
    for message in recorder.messages:
        if message.verb == "query" and not message.to_client:
            for array in m.Answers.from_bytes(message.data).values.values():
                assert not np.isin(sizes, array).any()  # no cell of the client came back


def test_a_cell_sent_along_goes_before_the_one_looked_up() -> None:
    fed, _ = vertical()
    rows = table().iloc[[10]]
    asked = fed.log_prob(rows[[ID]].assign(size=3.0))
    expected = fed.log_prob(rows.drop(columns=ID).assign(size=3.0))
    np.testing.assert_allclose(asked, expected, atol=ATOL)


def test_an_id_that_nobody_holds_is_a_row_without_cells() -> None:
    fed, _ = vertical()
    assert fed.log_prob(pd.DataFrame({ID: [5]})).iloc[0] == pytest.approx(0.0, abs=1e-12)


def test_completing_a_row_by_id_is_refused_because_its_cells_stay() -> None:
    fed, _ = vertical()
    with pytest.raises(ClientError, match="their cells stay at the client"):
        fed.mpe(pd.DataFrame({ID: [1010]}))


def test_gathered_ignores_the_id_column() -> None:
    fed = fc.federate(split("vertical"), id=ID, learner="factorised", agreement="independent")
    rows = table().iloc[:5]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        answer = fed.log_prob(rows.drop(columns=LABEL))
    np.testing.assert_allclose(answer, fed.log_prob(rows.drop(columns=[ID, LABEL])))


# --- clients away -------------------------------------------------------------------------------


def away(client: str) -> Callable[[str, str, bytes], Any]:
    def spoil(verb: str, name: str, reply: bytes) -> Any:
        return TimeoutError("no answer") if (verb, name) == ("query", client) else reply

    return spoil


@pytest.mark.filterwarnings("ignore:ignored")
def test_private_variables_of_a_client_that_is_away_are_marginalised() -> None:
    fed, _ = vertical(away("b"))
    whole, _ = vertical()
    rows = table(seed=5, n=20).drop(columns=ID)
    with pytest.warns(FedcircuitsWarning, match="answered by a, c alone.*client 'b'.*no answer"):
        answer = fed.predict_proba(rows, LABEL)
    assert answer.attrs["answered"] == ("a", "c")
    assert list(answer.attrs["away"]) == ["b"]
    expected = whole.predict_proba(rows.drop(columns="visits"), LABEL)
    np.testing.assert_allclose(answer, expected, atol=ATOL)
    with pytest.warns(FedcircuitsWarning, match="client 'b'"):
        mean = fed.expectation("size", {"height": 1.0, "visits": 2})
    assert mean == pytest.approx(whole.expectation("size", {"height": 1.0}), abs=ATOL)
    with pytest.warns(FedcircuitsWarning, match="client 'b'"):
        drawn = fed.sample(5, seed=1)
    assert "visits" not in drawn.columns


def test_a_question_about_variables_that_are_away_names_the_client() -> None:
    fed, _ = vertical(away("b"))
    with pytest.raises(QueryError, match=r"no variable 'visits'.*client 'b'"):
        fed.predict_proba({"height": [1.0]}, "visits")


def test_mixture_children_that_are_away_are_dropped_and_the_rest_renormalised() -> None:
    clients = split("horizontal")
    engine = Breaking(local(clients), away("b"))
    fed = fc.federate(id=ID, label=LABEL, agreement="product", placement="remote", engine=engine)
    rows = table(seed=5, n=20).drop(columns=ID)
    with pytest.warns(FedcircuitsWarning, match="answered by a, c alone"):
        answer = fed.log_prob(rows)
    gathered = fc.federate(
        clients, id=ID, label=LABEL, agreement="product", learner="factorised"
    ).without("b")
    np.testing.assert_allclose(answer, gathered.log_prob(rows), atol=ATOL)
    with pytest.warns(FedcircuitsWarning, match="client 'b'"):
        inner = fed.condition({"height": 0.3})
    assert inner.clients == ("a", "c")


def test_everybody_away_is_an_error() -> None:
    def spoil(verb: str, _: str, reply: bytes) -> Any:
        return TimeoutError("no answer") if verb == "query" else reply

    fed, _ = vertical(spoil)
    with pytest.raises(FederationError, match="no client is left"):
        fed.log_prob(table().drop(columns=ID))


def test_a_client_that_answers_nonsense_is_an_error_and_not_away() -> None:
    def spoil(verb: str, name: str, reply: bytes) -> Any:
        if (verb, name) != ("query", "b"):
            return reply
        told = m.Answers.from_bytes(reply)
        return m.Answers({key: array[:-1] for key, array in told.values.items()}).to_bytes()

    fed, _ = vertical(spoil)
    with pytest.raises(ClientError, match=r"client 'b'.*shape \(119,\).*120 rows"):
        fed.log_prob(table().drop(columns=ID))

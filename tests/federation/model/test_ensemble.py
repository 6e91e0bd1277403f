"""Federated circuits that are no densities: average and vote over any client models."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB

import fedcircuits as fc
from contracts.engine import table
from contracts.federations import ID, LABEL, Breaking, local, split
from fedcircuits.errors import ClientError, FedcircuitsWarning, FederationError, QueryError
from fedcircuits.federation.model.definition4 import OPERATIONS, average, mixture, product, vote
from fedcircuits.federation.model.ensemble import FederatedEnsemble
from fedcircuits.learners.trees import ForestClassifier, TreeClassifier

TEST = table(seed=3, n=200).drop(columns=ID)
MIXED: dict[str, Any] = {
    "a": ForestClassifier(n_trees=10),
    "b": LogisticRegression(max_iter=500),
    "c": "gaussian-mixture",
}


def federate(clients: Any, **options: Any) -> Any:
    return fc.federate(clients, id=ID, label=LABEL, **{"operation": "average", **options})


def accuracy(fed: Any) -> float:
    return float((fed.predict(TEST) == TEST[LABEL]).mean())


# --- operations -----------------------------------------------------------------------------------


def test_operations_by_hand() -> None:
    posteriors = np.array([[[0.9, 0.1], [0.4, 0.6]], [[0.2, 0.8], [0.3, 0.7]], [[0.6, 0.4]] * 2])
    weights = np.array([0.5, 0.3, 0.2])
    np.testing.assert_allclose(
        average(posteriors, weights), [[0.63, 0.37], [0.41, 0.59]], atol=1e-12
    )
    np.testing.assert_allclose(vote(posteriors, weights), [[0.7, 0.3], [0.2, 0.8]], atol=1e-12)
    logs = np.log(posteriors[:, :, 0])
    np.testing.assert_allclose(np.exp(mixture(logs, weights)), [0.63, 0.41], atol=1e-12)
    np.testing.assert_allclose(np.exp(product(logs, weights)), [0.108, 0.072], atol=1e-12)
    assert sorted(OPERATIONS) == ["average", "mixture", "product", "vote"]


def test_mixture_carries_impossible_values() -> None:
    values = np.array([[-np.inf, -np.inf], [-np.inf, 0.0]])
    np.testing.assert_array_equal(mixture(values, np.array([1.0, 0.0])), [-np.inf, -np.inf])


# --- models side by side --------------------------------------------------------------------------


@pytest.mark.parametrize("setting", ["horizontal", "vertical", "hybrid"])
@pytest.mark.parametrize("operation", ["average", "vote"])
def test_a_forest_a_regression_and_a_density_in_every_setting(setting: str, operation: str) -> None:
    clients = split(setting, table(n=300))
    learner = {name: MIXED[name] for name in clients}
    fed = federate(clients, operation=operation, learner=learner)
    assert isinstance(fed, FederatedEnsemble)
    assert fed.setting == setting
    assert fed.clients == tuple(clients)
    proba = fed.predict_proba(TEST)
    assert list(proba.columns) == ["no", "yes"]
    np.testing.assert_allclose(proba.sum(axis=1), 1.0)
    assert proba.attrs["answered"] == fed.clients
    assert accuracy(fed) > 0.72
    assert [w.at for w in fed.psi] == [*fed.clients, "server"]
    assert fed.omega[-1].name == operation


def test_bagged_trees_equal_the_average_made_by_hand() -> None:
    clients = split("horizontal", table(n=300))
    fed = federate(clients, learner=TreeClassifier(max_depth=3), rebase=False)
    by_hand = np.zeros((len(TEST), 2))
    for name, rows in clients.items():
        model = fed.models[name].trees
        seen = TEST[list(model.features.schema.names)]
        by_hand += len(rows) / 300 * model.predict_proba(seen).to_numpy()
    np.testing.assert_allclose(fed.predict_proba(TEST), by_hand, atol=1e-12)


def test_remote_ensemble_equals_the_gathered_one() -> None:
    clients = split("vertical", table(n=300))
    learner = {"a": "forest", "b": "tree", "c": "factorised"}
    options = {"learner": learner}
    gathered, remote = (federate(clients, **options, placement=p) for p in ("gathered", "remote"))
    assert not gathered.is_remote
    assert remote.is_remote
    np.testing.assert_allclose(remote.predict_proba(TEST), gathered.predict_proba(TEST), atol=1e-12)
    known = table(n=300).iloc[100:140]
    by_id = remote.predict_proba(known[[ID]])
    np.testing.assert_allclose(by_id, gathered.predict_proba(known), atol=1e-12)


def test_rows_with_gaps_and_absent_columns_are_answered() -> None:
    clients = split("horizontal", table(n=300))
    fed = federate(clients, learner=MIXED)
    proba = fed.predict_proba(TEST[["height"]].mask(TEST["height"] > 1))
    np.testing.assert_allclose(proba.sum(axis=1), 1.0)


def test_a_scikit_model_stays_at_its_client_and_the_others_come_here() -> None:
    fed = federate(split("horizontal"), learner=MIXED)
    assert fed.is_remote
    assert [type(model).__name__ for model in fed.models.values()] == [
        "TreesClassifier", "RemoteDensity", "DensityClassifier",
    ]  # fmt: skip
    with pytest.raises(FederationError, match=r"client 'b'.*cannot be sent"):
        federate(split("horizontal"), learner=MIXED, engine="processes")


def test_posteriors_are_carried_over_to_the_shares_of_all_clients() -> None:
    rows = table(n=600)
    yes = np.flatnonzero(rows[LABEL] == "yes")
    no = np.flatnonzero(rows[LABEL] == "no")
    clients = {
        "a": rows.iloc[np.r_[yes[:250], no[:30]]],
        "b": rows.iloc[np.r_[yes[250:], no[30:]]],
    }
    options: dict[str, Any] = {"learner": "factorised"}
    plain, rebased = (federate(clients, **options, rebase=r) for r in (False, True))
    truth = (TEST[LABEL] == "yes").to_numpy()

    def loss(fed: Any) -> float:
        p = np.clip(fed.predict_proba(TEST)["yes"].to_numpy(), 1e-6, 1 - 1e-6)
        return float(-np.where(truth, np.log(p), np.log1p(-p)).mean())

    assert loss(rebased) <= loss(plain)


def test_a_one_class_client_and_a_failing_client() -> None:
    rows = table(n=300)
    clients = {
        "a": rows[rows[LABEL] == "yes"], "b": rows.iloc[:150], "c": rows.iloc[150:],
    }  # fmt: skip
    fed = federate(clients, learner={"a": GaussianNB(), "b": GaussianNB(), "c": "factorised"})
    assert fed.clients == ("a", "b", "c")

    class Fails:
        def fit(self, table: Any, rng: Any) -> Any:
            del table, rng
            raise RuntimeError("out of paper")

    fed = federate(clients, learner={"a": Fails(), "b": "tree", "c": "tree"})
    assert fed.clients == ("b", "c")
    assert "out of paper" in fed.dropped["a"]


def test_a_client_away_is_left_out_and_said() -> None:
    def spoil(verb: str, name: str, reply: bytes) -> Any:
        return TimeoutError("asleep") if (verb, name) == ("query", "b") else reply

    engine = Breaking(local(split("horizontal"), "tree"), spoil)
    fed = federate(None, engine=engine, placement="remote")
    with pytest.warns(FedcircuitsWarning, match=r"answered by a, c alone.*client 'b'"):
        answer = fed.predict(TEST)
    assert answer.attrs["answered"] == ("a", "c")
    gathered = federate(split("horizontal"), learner="tree").without("b")
    np.testing.assert_array_equal(answer, gathered.predict(TEST))


def test_what_an_ensemble_cannot_do_is_said() -> None:
    fed = federate(split("horizontal"), learner="tree")
    with pytest.raises(QueryError, match="predicts its label 'bought' alone"):
        fed.predict(TEST, "colour")
    with pytest.raises(FederationError, match=r"needs the label at every client; 'b', 'c'"):
        federate(split("vertical"), learner="tree", label_use="used")
    with pytest.raises(FederationError, match="needs a label"):
        fc.federate(split("horizontal"), id=ID, operation="vote", learner="tree")
    with pytest.raises(FederationError, match="mixture, average or vote"):
        federate(split("horizontal"), operation="shout", learner="tree")
    with pytest.raises(FederationError, match="no option 'loud'"):
        federate(split("horizontal"), learner="tree", loud=True)
    with pytest.raises(FederationError, match="cannot go on without 'z'"):
        fed.without("z")


def test_a_tree_is_no_density() -> None:
    with pytest.raises((FederationError, ClientError)):
        fc.federate(split("horizontal"), id=ID, label=LABEL, learner="tree")


def test_gaussian_mixture_is_a_density_too() -> None:
    fed = fc.federate(
        split("horizontal", table(n=300)), id=ID, label=LABEL, learner="gaussian-mixture"
    )
    assert np.isfinite(fed.log_prob(TEST)).all()
    assert float((fed.predict(TEST, LABEL) == TEST[LABEL]).mean()) > 0.75
    drawn = fed.condition({LABEL: "yes"}).sample(2000, seed=0)
    assert abs(drawn["size"].mean() - fed.expectation("size", {LABEL: "yes"})) < 0.15
    assert isinstance(drawn, pd.DataFrame)

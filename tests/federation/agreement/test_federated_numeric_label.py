"""A label that is a number, federated: its agreed states serve as classes, answers are numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

import fedcircuits as fc
from fedcircuits.density.tilt import n_states_of
from fedcircuits.errors import FedcircuitsError
from fedcircuits.federation.agreement.latent import Latent
from fedcircuits.federation.policy.policy import Policy

pytestmark = pytest.mark.slow


def houses(n: int, seed: int) -> pd.DataFrame:
    """Prices that follow size, age and town."""
    rng = np.random.default_rng(seed)
    size, age = rng.normal(size=n), rng.gamma(2.0, size=n)
    town = rng.choice(["x", "y", "z"], size=n)
    price = 100 + 20 * size - 8 * age + 15 * (town == "z") + 6 * rng.normal(size=n)
    return pd.DataFrame({"size": size, "age": age, "town": town, "price": price})


def split(rows: pd.DataFrame, how: str) -> tuple[dict[str, pd.DataFrame], dict[str, Any]]:
    if how == "rows":
        parts = {f"c{i}": rows.iloc[i::2].reset_index(drop=True) for i in range(2)}
        return parts, {}
    rows = rows.assign(id=np.arange(len(rows)))
    mine, other = ["id", "size", "price"], ["id", "age", "town", "price"]
    if how == "label on one":
        return {"a": rows[mine], "b": rows[other[:-1]]}, {"id": "id", "label_use": "sent"}
    return {"a": rows[mine], "b": rows[other]}, {"id": "id"}


@pytest.fixture(scope="module", params=["rows", "columns", "label on one"])
def federated(request: pytest.FixtureRequest) -> Any:
    clients, options = split(houses(400, 0), request.param)
    return fc.federate(clients, label="price", seed=0, **options)


@pytest.fixture(scope="module")
def rows() -> pd.DataFrame:
    return houses(150, 1)


def test_the_label_is_a_number_with_few_states(federated: Any) -> None:
    variable = federated.schema["price"]
    assert variable.kind == "continuous"
    assert 5 <= n_states_of(variable) <= 40


def test_it_predicts(federated: Any, rows: pd.DataFrame) -> None:
    features = rows.drop(columns="price")
    away = federated.predict(features, "price") - rows["price"]
    assert np.sqrt((away**2).mean()) < 0.7 * rows["price"].std()
    ends = federated.interval("price", 0.9, features)
    inside = (ends["low"] <= rows["price"]) & (rows["price"] <= ends["high"])
    assert inside.mean() > 0.8


def test_every_query_agrees(federated: Any, rows: pd.DataFrame) -> None:
    for given in ({"size": 0.3, "age": 1.0, "town": "z"}, {"town": "x"}):
        law = federated.condition(given)
        states = np.linspace(-500, 500, 200_001)
        density = np.exp(law.marginal(["price"]).log_prob(pd.DataFrame({"price": states})))
        step = states[1] - states[0]
        assert density.sum() * step == pytest.approx(1.0, abs=2e-3)
        mean = federated.expectation("price", given)
        assert (density * states).sum() * step == pytest.approx(mean, abs=0.3)
        below = federated.probability({"price": fc.between(-1e9, 90.0)}, given)
        assert density[states <= 90].sum() * step == pytest.approx(below, abs=2e-3)
        ends = federated.interval("price", 0.9, given)
        assert federated.cdf("price", list(ends), given).tolist() == pytest.approx([0.05, 0.95])
        drawn = federated.sample(3000, given, seed=1)["price"]
        assert drawn.mean() == pytest.approx(mean, abs=4 * drawn.std() / np.sqrt(3000))
    log_joint = federated.log_prob(rows.iloc[:5])
    for at in range(5):
        given = rows.iloc[at].drop("price").to_dict()
        alone = federated.condition(given).log_prob(rows.iloc[[at]][["price"]]).iloc[0]
        log_x = federated.log_prob(rows.iloc[[at]].drop(columns="price")).iloc[0]
        assert log_joint.iloc[at] == pytest.approx(alone + log_x, rel=1e-9)


@pytest.mark.parametrize(("how", "least"), [("rows", 12), ("columns", 12), ("columns", 5)])
def test_values_that_few_rows_have_are_improbable_not_impossible(how: str, least: int) -> None:
    train = houses(240, 0)
    clients, options = split(train, how)
    policy = Policy(min_rows=least)
    fed = fc.federate(clients, label="price", seed=0, policies=policy, **options)
    assert np.isfinite(fed.log_prob(train)).all()
    states = np.linspace(-500, 500, 200_001)
    density = np.exp(fed.marginal(["price"]).log_prob(pd.DataFrame({"price": states})))
    assert density.sum() * (states[1] - states[0]) == pytest.approx(1.0, abs=2e-3)
    # Joined with a neighbour, rare values are about as likely as under the model of one table.
    alone = fc.learn(train, label="price", seed=0).marginal(["price"]).log_prob(train[["price"]])
    found = fed.marginal(["price"]).log_prob(train[["price"]])
    assert found.mean() > alone.mean() - 0.15


def test_no_client_is_left_out_for_classes_with_rows_enough_for_trees() -> None:
    clients, options = split(houses(1000, 0), "rows")
    fed = fc.federate(clients, label="price", seed=0, **options)
    assert not fed.dropped
    assert sorted(fed.clients) == sorted(clients)


@pytest.mark.parametrize("sign", [1, -1])
def test_clusters_are_within_states_of_the_label(sign: int) -> None:
    rows = houses(240, 0).assign(id=np.arange(240))
    rows["price"] = sign * rows["price"]
    a, b = rows[["id", "size", "price"]], rows[["id", "age", "town"]]
    fed = fc.federate({"a": a, "b": b}, label="price", id="id", agreement=Latent(tilt=False))
    assert np.isfinite(fed.log_prob(rows.drop(columns="id").iloc[:20])).all()


def test_classes_are_states_where_hardly_a_row_is_aligned() -> None:
    rows = houses(300, 0).assign(id=np.arange(300))
    a = rows[["id", "size", "town", "price"]].iloc[:152]
    b = rows[["id", "age", "town", "price"]].iloc[149:].reset_index(drop=True)
    fed = fc.federate({"a": a, "b": b}, label="price", id="id", seed=0)
    rows = rows.drop(columns="id")
    assert np.isfinite(fed.log_prob(rows)).all()
    away = fed.predict(rows.drop(columns="price"), "price") - rows["price"]
    assert np.sqrt((away**2).mean()) < 0.8 * rows["price"].std()


def test_models_that_stay_answer_alike(rows: pd.DataFrame) -> None:
    clients, options = split(houses(240, 0), "rows")
    features = rows.drop(columns="price").iloc[:6]
    here = fc.federate(clients, label="price", seed=0, **options)
    with fc.federate(clients, label="price", seed=0, placement="remote", **options) as there:
        np.testing.assert_allclose(
            there.predict(features, "price"), here.predict(features, "price"), rtol=1e-9
        )
        np.testing.assert_allclose(
            there.log_prob(rows.iloc[:6]), here.log_prob(rows.iloc[:6]), rtol=1e-9
        )


def test_a_saved_model_is_the_same(federated: Any, rows: pd.DataFrame, tmp_path: Any) -> None:
    federated.save(tmp_path / "m.fc")
    again = fc.load(tmp_path / "m.fc")
    features = rows.drop(columns="price")
    np.testing.assert_array_equal(
        again.predict(features, "price"), federated.predict(features, "price")
    )


def test_a_few_rows_and_another_learner() -> None:
    rng = np.random.default_rng(0)
    rows = pd.DataFrame({"x": rng.normal(size=80), "price": rng.gamma(2.0, 100.0, 80).round(2)})
    clients = {"a": rows.iloc[:40], "b": rows.iloc[40:]}
    fed = fc.federate(clients, label="price", learner="factorised")
    assert fed.expectation("price") == pytest.approx(rows["price"].mean(), rel=0.1)


def test_rules_that_count_classes_say_that_a_number_has_none() -> None:
    clients, options = split(houses(120, 0), "rows")
    with pytest.raises(FedcircuitsError, match="must be categorical or binary here"):
        fc.federate(clients, label="price", agreement="joint", **options)

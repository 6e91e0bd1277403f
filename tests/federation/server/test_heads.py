"""Heads over clients: kept where rows gain for certain, coherent, stored, exact to leave."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import fedcircuits as fc
from contracts.coherence import check_coherence
from fedcircuits.federation.client.label.heads import pooled
from fedcircuits.federation.model.headed_federation import HeadedFederation
from fedcircuits.learners import Mixture
from fedcircuits.native import numpy_only

pytestmark = pytest.mark.slow

LEARNER = Mixture(n_states=4, n_iterations=8)


def rows(n: int = 2400, seed: int = 0) -> pd.DataFrame:
    """A label that two columns of one client decide together: no sum over columns sees it."""
    rng = np.random.default_rng(seed)
    x = {name: rng.integers(0, 2, n) for name in "abcd"}
    y = x["a"] ^ x["b"] ^ (rng.random(n) < 0.1) ^ ((x["c"] == 1) & (rng.random(n) < 0.2))
    frame = pd.DataFrame({name: values.astype(str) for name, values in x.items()})
    return frame.assign(y=np.where(y, "yes", "no"), id=[f"i{i}" for i in range(n)])


def federated(split: str, **options: Any) -> Any:
    table = rows()
    if split == "rows":
        frames = {c: table[at::3].drop(columns="id") for at, c in enumerate("uvw")}
        return fc.federate(frames, label="y", learner=LEARNER, **options)
    frames = {"u": table[["id", "a", "b", "y"]], "v": table[["id", "c", "d", "y"]]}
    given = {"agreement": "product", **options}
    return fc.federate(frames, id="id", label="y", learner=LEARNER, **given)


def accuracy(fed: Any) -> float:
    test = rows(1000, 1)
    told = fed.predict(test.drop(columns=["y", "id"]), "y")
    return float((told.to_numpy() == test["y"].to_numpy()).mean())


@pytest.mark.parametrize("split", ["rows", "columns"])
def test_a_head_sees_what_a_tilt_cannot_and_keeps_the_law(split: str, tmp_path: Path) -> None:
    fed = federated(split)
    assert isinstance(fed, HeadedFederation)
    assert not fed.is_exact
    assert accuracy(fed) > 0.75
    check_coherence(fed)
    fed.save(tmp_path / "model")
    loaded = fc.load(tmp_path / "model")
    test = rows(50, 2).drop(columns=["y", "id"])
    np.testing.assert_array_equal(loaded.predict_proba(test, "y"), fed.predict_proba(test, "y"))
    check_coherence(loaded)
    complete = rows(50, 2).drop(columns="id")
    with numpy_only():
        twin = fed.log_prob(complete), fed.predict_proba(test, "y")
    np.testing.assert_allclose(fed.log_prob(complete), twin[0], rtol=1e-9)
    np.testing.assert_allclose(fed.predict_proba(test, "y"), twin[1], rtol=1e-9)
    plain = federated(split, head=False)
    assert plain.is_exact
    assert accuracy(plain) < 0.65
    exact = fed.exact_part
    np.testing.assert_array_equal(exact.log_prob(test), fed.log_prob(test))  # the circuit's
    # Where columns are split a head's tables are fitted first, and those of all go on from them.
    close = 1e-12 if split == "rows" else 0.02
    told, other = (each.predict_proba(test, "y") for each in (exact, plain))
    np.testing.assert_allclose(told, other, atol=close)
    np.testing.assert_allclose(plain.log_prob(test), fed.log_prob(test), rtol=0, atol=close)


def test_who_leaves_takes_the_trees_along() -> None:
    fed = federated("rows")
    table = rows()
    rest = fc.federate(
        {c: table[at::3].drop(columns="id") for at, c in enumerate("uvw") if c != "v"},
        label="y",
        learner=LEARNER,
        schema=fed.fitted.schema,
    )
    test = rows(60, 4).drop(columns="id")
    np.testing.assert_array_equal(fed.without("v").log_prob(test), rest.log_prob(test))
    check_coherence(fed.without("v"))
    joined = rest.with_client("v", table[1::3].drop(columns="id"))
    x = test.drop(columns="y")
    np.testing.assert_allclose(joined.log_prob(x), fed.log_prob(x), rtol=0, atol=1e-12)
    # The others are not asked to score its trees: weights are of those that were scored.
    assert len(joined.fitted.head_scores) == 3
    np.testing.assert_allclose(joined.predict_proba(x, "y"), fed.predict_proba(x, "y"), atol=0.03)
    check_coherence(joined)


def test_without_columns_is_the_marginal_head_and_all(tmp_path: Path) -> None:
    fed = federated("columns")
    rest = fed.without("v")
    assert rest.clients == ("u",)
    assert not rest.is_exact
    check_coherence(rest)
    test = rows(60, 4)[["a", "b", "y"]]
    marginal = fed.marginal(["a", "b", "y"])
    np.testing.assert_array_equal(rest.log_prob(test), marginal.log_prob(test))
    for smaller in (rest, marginal):
        smaller.save(tmp_path / "model")
        np.testing.assert_array_equal(
            fc.load(tmp_path / "model").predict_proba(test.drop(columns="y"), "y"),
            rest.predict_proba(test.drop(columns="y"), "y"),
        )


def test_clients_with_some_of_the_classes_boost_trees_for_these() -> None:
    """No client has all classes: two see what makes a class by two columns together."""
    rng = np.random.default_rng(0)
    x = {name: rng.integers(0, 2, 3600) for name in "abcd"}
    y = 2 * (x["a"] ^ x["b"]) + (x["c"] ^ x["d"])
    y = np.where(rng.random(3600) < 0.1, rng.integers(0, 4, 3600), y)
    table = pd.DataFrame({name: values.astype(str) for name, values in x.items()})
    table["y"] = np.array(list("pqrs"))[y]
    frames = {c: table[1200 * at : 1200 * (at + 1)] for at, c in enumerate("uvw")}
    some = {"u": "pq", "v": "qrs", "w": "pr"}
    frames = {c: frame[frame["y"].isin(list(some[c]))] for c, frame in frames.items()}
    fed = fc.federate(frames, label="y", learner=LEARNER)
    assert sorted(fed.fitted.heads) == ["u", "v", "w"]
    plain = fc.federate(frames, label="y", learner=LEARNER, head=False)
    told, flat = (each.predict(table.drop(columns="y"), "y").to_numpy() for each in (fed, plain))
    assert (told == table["y"]).mean() > (flat == table["y"]).mean() + 0.2
    check_coherence(fed)
    rest = {c: frame for c, frame in frames.items() if c != "w"}
    again = fc.federate(rest, label="y", learner=LEARNER, schema=fed.fitted.schema)
    left = fed.without("w").predict_proba(table[:50].drop(columns="y"), "y")
    never = again.predict_proba(table[:50].drop(columns="y"), "y")
    np.testing.assert_allclose(left, never, rtol=0, atol=1e-12)


def test_clients_may_have_different_numbers_of_categories() -> None:
    table = rows()
    wide = table.assign(e=np.random.default_rng(3).choice(list("pqrstu"), len(table)))
    frames = {"u": wide[["id", "a", "b", "y"]], "v": wide[["id", "c", "d", "e", "y"]]}
    fed: Any = fc.federate(frames, id="id", label="y", learner=LEARNER, agreement="product")
    assert not fed.is_exact
    assert accuracy(fed) > 0.75


def test_models_that_stay_have_no_head() -> None:
    assert federated("rows", placement="remote").is_exact


def test_a_pool_gives_weight_to_what_is_right(rng: np.random.Generator) -> None:
    n = 4000
    labels = rng.integers(0, 2, n)
    good = np.where(labels[:, None] == np.arange(2), 1.0, 0.0) + rng.normal(0, 0.7, (n, 2))
    noise = rng.normal(size=(n, 2))
    found = pooled(np.full((n, 2), np.log(0.5)), [good, noise], labels)
    assert found.trees[0] > 1.0
    assert found.trees[1] < 0.1
    assert found.gain > 10 * found.error
    assert found.n_rows == n

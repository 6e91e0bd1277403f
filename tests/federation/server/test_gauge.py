"""What classes share of a tilt: p(y | x) stays as fitted, columns have the marginals of m(x)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

import fedcircuits as fc
from contracts.rule import small_table
from fedcircuits.circuits.queries.tilt import tilted_masses
from fedcircuits.density.tilt import n_states_of
from fedcircuits.federation.agreement import Latent, ProductOfClasses
from fedcircuits.federation.agreement.product import product_of_spaces
from fedcircuits.federation.model.federated_circuit import FederatedCircuit
from fedcircuits.federation.server.gauge import CLOSE, gauged
from fedcircuits.federation.server.tilts import combined
from fedcircuits.learners import Mixture

LEARNER = Mixture(n_states=4, n_iterations=6)


def table(n: int = 900) -> pd.DataFrame:
    """Two numbers and two categories that a label moves strongly."""
    rng = np.random.default_rng(3)
    y = rng.integers(0, 2, n)
    return pd.DataFrame(
        {
            "id": np.arange(n),
            "u": rng.normal(2.0 * y, 1.0),
            "v": rng.gamma(1 + 2 * y),
            "k": np.where(rng.random(n) < 0.2 + 0.6 * y, "p", "q"),
            "w": rng.choice(list("abc"), n),
            "y": np.where(y == 1, "yes", "no"),
        }
    )


def federated(split: str, **options: Any) -> FederatedCircuit:
    rows = table()
    if split == "rows":
        frames = {c: rows[at::3].drop(columns="id") for at, c in enumerate("abc")}
    else:
        frames = {"a": rows[["id", "u", "k", "y"]], "b": rows[["id", "v", "w"]]}
    id_ = None if split == "rows" else "id"
    given = {"agreement": ProductOfClasses(head=False), "learner": LEARNER, **options}
    return fc.federate(frames, label="y", id=id_, **given)


def masses(model: fc.Density, name: str) -> np.ndarray[Any, Any]:
    """(S,) masses of the states of a column."""
    variable = model.schema[name]
    if variable.is_coded:
        told = model.predict_proba(pd.DataFrame(index=[0], columns=["u"], dtype=float), name)
        return told.to_numpy()[0]
    assert variable.grid is not None
    value, log_within = variable.grid.modes()
    found = model.marginal([name]).log_prob(pd.DataFrame({name: value})).to_numpy()
    return np.exp(found - log_within)


@pytest.mark.parametrize("split", ["rows", "columns"])
def test_columns_have_the_marginals_of_the_rows(split: str) -> None:
    """Client models have the shares of their rows; with the label's tilt they still do."""
    fed, rows = federated(split), table()
    for name in ("u", "v"):
        grid = fed.schema[name].grid
        assert grid is not None
        share = np.bincount(grid.encode(rows[name].to_numpy()), minlength=grid.n_states) / len(rows)
        assert 0.5 * np.abs(masses(fed, name) - share).sum() < CLOSE + 1e-3
    share = rows["k"].value_counts(normalize=True)
    assert masses(fed, "k") == pytest.approx(share[["p", "q"]].to_numpy(), abs=CLOSE + 1e-3)


def test_the_posterior_of_the_label_is_that_of_the_tilt_as_fitted() -> None:
    fed = federated("rows")
    assert fed.fitted is not None
    tilt = combined(fed.fitted)
    assert tilt is not None
    builder, root = product_of_spaces(fed.fitted)
    structure, kept = builder.below(root, len(builder.parts))
    made = gauged(tilt, structure, [builder.parts[at] for at in kept])
    for before, after in zip(tilt.tables, made.tables, strict=True):
        added = after - before
        np.testing.assert_allclose(added, np.broadcast_to(added[0], added.shape), atol=1e-12)
    rows = fed.schema.select(list(tilt.columns)).encode(table()[list(tilt.columns)])
    logits = tilt.c + tilt.scores(rows)
    by_hand = np.exp(logits - np.logaddexp.reduce(logits, axis=1)[:, None])
    told = fed.predict_proba(table().drop(columns=["y", "id"]), "y").to_numpy()
    np.testing.assert_allclose(told, by_hand, atol=1e-9)


@pytest.mark.parametrize(
    "rule", [ProductOfClasses(head=False), Latent(n_classes=3, n_clusters=3, head=False)]
)
def test_models_that_stay_are_tilted_alike(rule: Any) -> None:
    rows = table().drop(columns="id")[:40]
    here = federated("columns", agreement=rule)
    away = federated("columns", agreement=rule, placement="remote")
    np.testing.assert_allclose(here.log_prob(rows), away.log_prob(rows), rtol=0, atol=1e-9)


def test_masses_are_those_of_the_tilted_circuit() -> None:
    rows = small_table(300).drop(columns=["id", "y"])
    model = fc.learn(rows, learner=LEARNER)
    rng = np.random.default_rng(0)
    factors = {v.name: rng.normal(size=(2, n_states_of(v))) for v in model.schema}
    log_z, found = tilted_masses(model, factors, 2)
    for at in range(2):
        tilted, log_of = model.tilted({name: g[at] for name, g in factors.items()})
        assert log_z[at] == pytest.approx(log_of, abs=1e-12)
        for name in factors:
            by_hand = tilted.predict_proba(pd.DataFrame({rows.columns[0]: [None]}), name)
            if name != rows.columns[0]:
                np.testing.assert_allclose(found[name][at], by_hand.to_numpy()[0], atol=1e-12)

"""Dependence across clients: XOR of two clients' features. The paper's weights cannot see it."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pandas as pd
import pytest

import fedcircuits as fc
from contracts.coherence import check_coherence
from contracts.rule import LEARNER
from fedcircuits.federation.agreement import (
    Em,
    Independent,
    Joint,
    Latent,
    ProductOfClasses,
    Rule,
)
from fedcircuits.learners import Mixture

# The rules here send the server row evidence, or are compared with such as do.
federate = functools.partial(fc.federate, trust="one owner")

ROWS = 2000


def xor(n: int, seed: int) -> pd.DataFrame:
    """y = u xor v, with a noisy copy of each beside it and something irrelevant."""
    rng = np.random.default_rng(seed)
    u, v = rng.integers(0, 2, n), rng.integers(0, 2, n)
    frame = {
        "u": u,
        "u2": np.where(rng.random(n) < 0.9, u, 1 - u),
        "v": v,
        "v2": np.where(rng.random(n) < 0.9, v, 1 - v),
        "w": rng.integers(0, 3, n),
    }
    text = pd.DataFrame(frame).astype(str)
    return text.assign(y=np.where(u ^ v, "odd", "even"), id=[f"r{i}" for i in range(n)])


def label_on_one() -> dict[str, pd.DataFrame]:
    table = xor(ROWS, 0)
    return {"a": table[["id", "u", "u2", "y"]], "b": table[["id", "v", "v2", "w"]]}


def label_on_a_third() -> dict[str, pd.DataFrame]:
    table = xor(ROWS, 0)
    return {
        "a": table[["id", "u", "u2"]],
        "b": table[["id", "v", "v2"]],
        "c": table[["id", "y", "w"]],
    }


def accuracy(fed: fc.Density) -> float:
    test = xor(1000, 1)
    told = fed.predict_proba(test.drop(columns=["y", "id"]), "y")
    return float((told.idxmax(axis=1) == test["y"]).mean())


SPLITS = [label_on_one, label_on_a_third]


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("glueing", ["naive", "combinatorial"])
def test_independent_is_at_chance(split: object, glueing: object) -> None:
    rule = Independent(n_clusters=4, glueing=glueing)  # type: ignore[arg-type]
    fed = federate(split(), id="id", label="y", learner=LEARNER, agreement=rule)  # type: ignore[operator]
    assert accuracy(fed) == pytest.approx(0.5, abs=0.06)


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("rule", [Latent(), Latent(table=True), Em(), Joint(1)])
def test_rules_over_aligned_rows_solve_it(split: object, rule: Rule) -> None:
    fed = federate(split(), id="id", label="y", learner=LEARNER, agreement=rule)  # type: ignore[operator]
    assert accuracy(fed) >= 0.95


@pytest.mark.parametrize("split", SPLITS)
def test_auto_finds_a_rule_that_solves_it(split: object) -> None:
    fed = federate(split(), id="id", label="y", learner=LEARNER)  # type: ignore[operator]
    assert accuracy(fed) >= 0.95
    assert not isinstance(fed.rule, ProductOfClasses)


def test_a_product_of_classes_cannot_by_itself() -> None:
    """Its log-odds add up over clients: by luck three of the four cells of (u, v), never all."""
    fed = federate(
        label_on_one(), id="id", label="y", learner=LEARNER, agreement=ProductOfClasses()
    )
    assert accuracy(fed) < 0.8


@pytest.mark.parametrize(
    "split", [label_on_one, pytest.param(label_on_a_third, marks=pytest.mark.slow)]
)
def test_the_default_learner_solves_it_by_default(split: object) -> None:
    """One tilt adds up over clients; `auto` sees that trees across them, or classes, do better."""
    fed: Any = fc.federate(split(), id="id", label="y")  # type: ignore[operator]
    assert accuracy(fed) >= 0.98
    assert fed.why is not None
    assert fed.why.rule == "latent, tilt=False" or not fed.is_exact


def test_a_private_label_leaves_it_at_chance() -> None:
    """What the owner does not tell, nobody can use (and the owner's clusters do not show it)."""
    fed = federate(
        label_on_a_third(),
        id="id",
        label="y",
        learner=LEARNER,
        agreement=Latent(),
        label_use="used",
    )
    assert accuracy(fed) < 0.7


def test_shared_columns_do_not_hide_it() -> None:
    """Both: a column shared, three quarters of the rows aligned."""
    table = xor(ROWS, 0)
    frames = {
        "a": table[:1750][["id", "u", "u2", "w", "y"]],
        "b": table[250:][["id", "v", "v2", "w"]],
    }
    fed = federate(frames, id="id", label="y", learner=LEARNER, agreement="latent")
    assert accuracy(fed) >= 0.95


@pytest.mark.parametrize("label_use", ["sent", "used"])
def test_rows_that_only_two_of_three_clients_hold_carry_it(label_use: str) -> None:
    """Two branches with different customers beside a register of all of them; no row is at all."""
    rows = xor(ROWS, 0)
    branch, half = rows[["id", "u", "u2", "y"]], ROWS // 2
    frames = {
        "north": branch[:half],
        "south": branch[half:],
        "register": rows[["id", "v", "v2", "w"]],
    }
    fed = fc.federate(
        frames, id="id", label="y", learner=LEARNER, agreement=Latent(), label_use=label_use
    )
    assert set(fed.schema.names) == {"u", "u2", "v", "v2", "w", "y"}
    assert accuracy(fed) > (0.9 if label_use == "sent" else 0.7)


@pytest.mark.slow
def test_auto_compares_rules_on_rows_that_two_of_three_clients_hold() -> None:
    """The label depends on both clients' columns together, which the tilt alone cannot say."""
    rows = xor(ROWS, 0)
    branch, half = rows[["id", "u", "u2", "y"]], ROWS // 2
    frames = {"north": branch[:half], "south": branch[half:], "register": rows[["id", "v", "v2"]]}
    fed = fc.federate(frames, id="id", label="y")
    assert fed.why is not None
    assert fed.why.n_rows > 100
    assert accuracy(fed) > 0.95


def test_shared_and_private_columns_of_a_client_depend_on_each_other() -> None:
    """Two latent classes cannot carry it; the client's model of all its columns does."""
    rng = np.random.default_rng(0)
    n = 1200
    shared = rng.integers(6, size=n)
    private = np.where(rng.random(n) < 0.9, shared, rng.integers(6, size=n))
    table = pd.DataFrame({"s": shared, "a": private, "b": rng.integers(2, size=n)}).astype(str)
    table["id"] = np.arange(n)
    frames = {"u": table[["id", "s", "a"]][:900], "v": table[["id", "s", "b"]][300:]}
    rule = Latent(n_classes=2, n_clusters=4)
    fed = federate(frames, id="id", learner=Mixture(n_states=16), agreement=rule)
    check_coherence(fed)
    proba = fed.predict_proba(pd.DataFrame({"s": list("012345")}), "a").to_numpy()
    # Half of the rows are of a client that has one of the two columns alone.
    assert (proba.argmax(axis=1) == np.arange(6)).all()
    assert proba.max(axis=1).min() > 0.45
    rest = fed.without("v")
    check_coherence(rest)
    assert set(rest.schema.names) == {"s", "a"}
    alone = rest.predict_proba(pd.DataFrame({"s": list("012345")}), "a").to_numpy()
    assert alone.max(axis=1).min() > 0.8

"""`joint` over split columns: one latent tree, its branches at the clients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

import fedcircuits as fc
from contracts.rule import RuleContract, both_split, columns_split, small_table
from fedcircuits.circuits import Circuit
from fedcircuits.federation.agreement import Joint
from fedcircuits.learners.hclt.learner import Hclt

pytestmark = pytest.mark.slow


class OfTrees(RuleContract):
    """The contract with a learner that goes on from where it was."""

    @classmethod
    def federate(cls, **options: Any) -> Any:
        return super().federate(**{"learner": Hclt(), **options})


class TestColumnsSplit(OfTrees):
    rule, clients = Joint(3, n_classes=4, n_clusters=4), staticmethod(columns_split)


class TestBothSplit(OfTrees):
    rule, clients = Joint(3, n_classes=4, n_clusters=4), staticmethod(both_split)


class TestWithoutALabel(OfTrees):
    rule, label = Joint(2, n_classes=3, n_clusters=4), None

    @staticmethod
    def clients() -> dict[str, pd.DataFrame]:
        return {
            name: frame.drop(columns="y", errors="ignore")
            for name, frame in columns_split().items()
        }


def linked(n: int, seed: int) -> pd.DataFrame:
    """Four columns in two pairs; what is on the left goes with what is on the right."""
    rng = np.random.default_rng(seed)
    z, w = rng.integers(6, size=n), rng.integers(3, size=n)
    return pd.DataFrame(
        {
            "left": z.astype(str),
            "left size": rng.normal(w, 0.4),
            "right": np.where(rng.random(n) < 0.9, z, rng.integers(6, size=n)).astype(str),
            "right size": rng.normal(-w, 0.4),
            "id": np.arange(n),
        }
    )


def apart(table: pd.DataFrame) -> dict[str, pd.DataFrame]:
    return {"a": table[["id", "left", "left size"]], "b": table[["id", "right", "right size"]]}


def test_most_of_what_a_product_of_clients_loses_comes_back() -> None:
    table, test = linked(4000, 0), linked(2000, 1).drop(columns="id")
    whole = fc.learn(table.drop(columns="id"), seed=0)
    options: dict[str, Any] = {"id": "id", "schema": whole.schema}
    alone = fc.federate(
        apart(table), agreement="independent", glueing="naive", n_clusters=1, **options
    )
    joint = fc.federate(apart(table), agreement="joint", **options)
    low, high = alone.mean_log_prob(test), whole.mean_log_prob(test)
    assert high - low > 1.0
    assert joint.mean_log_prob(test) > low + 0.75 * (high - low)
    # One circuit that has every branch once, and no message with a model but the last.
    assert len(joint.parts) == 1
    assert isinstance(joint.parts[0], Circuit)


def test_rounds_end_when_rows_that_nobody_fits_on_gain_no_more() -> None:
    fed = fc.federate(apart(linked(2000, 0)), id="id", agreement=Joint(60), learner=Hclt())
    by_verb = fed.ledger.table(["verb", "direction"])
    steps = by_verb[(by_verb["verb"] == "branch") & (by_verb["direction"] == "to client")]
    assert 2 * 3 <= steps["messages"].sum() < 2 * 40


def test_more_rounds_are_better_than_none() -> None:
    table, test = linked(3000, 0), linked(2000, 1).drop(columns="id")
    found = []
    for n in (0, 8):
        rule = Joint(n, n_classes=18, n_clusters=4)  # clusters that say little, to start from
        fed = fc.federate(apart(table), id="id", agreement=rule, learner=Hclt())
        found.append(fed.mean_log_prob(test))
    assert found[1] > found[0] + 0.1


def test_a_leaver_is_summed_out_and_its_branch_is_gone() -> None:
    fed = fc.federate(columns_split(), id="id", label="y", agreement=Joint(2), learner=Hclt())
    rest = fed.without("b")
    rows = small_table(50, seed=2)
    assert set(rest.schema.names) == {"x0", "x1", "x2", "y"}
    np.testing.assert_allclose(
        rest.log_prob(rows[["x0", "x1", "x2", "y"]]),
        fed.log_prob(rows[["x0", "x1", "x2", "y"]]),
        atol=1e-9,
    )


def test_learners_of_two_kinds_meet_in_one_tree() -> None:
    learners = {"a": "hclt", "b": "learnspn"}
    fed = fc.federate(
        columns_split(), id="id", label="y", learner=learners,
        agreement=Joint(1, n_classes=4, n_clusters=4),
    )  # fmt: skip
    rows = small_table(200, seed=2).drop(columns="id")
    alone = fc.federate(
        columns_split(), id="id", label="y", learner=learners,
        agreement="independent", glueing="naive", n_clusters=1,
    )  # fmt: skip
    assert fed.mean_log_prob(rows) > alone.mean_log_prob(rows)


def test_processes_make_the_same_model() -> None:
    rule = Joint(2, n_classes=4, n_clusters=4)
    test = small_table(60, seed=3).drop(columns="id")
    here, there = (
        fc.federate(columns_split(), id="id", label="y", agreement=rule, engine=e, learner=Hclt())
        for e in ("local", "processes")
    )
    assert here.log_prob(test).tolist() == there.log_prob(test).tolist()
    assert here.ledger.totals() == there.ledger.totals()

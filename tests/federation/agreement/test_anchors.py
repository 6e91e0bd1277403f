"""Anchors: shared columns tie private ones together, through one shared subspace or several."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

import fedcircuits as fc
from contracts.rule import LEARNER, RuleContract, columns_split, small_table
from fedcircuits.errors import FederationError
from fedcircuits.federation.agreement import Anchors
from fedcircuits.federation.agreement._shared.anchor_tree import (
    anchor_tree,
    conditional,
    table_information,
)


def chain() -> dict[str, pd.DataFrame]:
    """Three clients: x1 at a and b, x2 at b and c; the label at a alone."""
    table = small_table(600)
    return {
        "a": table[["id", "x0", "x1", "y"]],
        "b": table[["id", "x1", "x2", "x3"]],
        "c": table[["id", "x2", "x4"]],
    }


def chain_with_labels() -> dict[str, pd.DataFrame]:
    labels = small_table(600)["y"]
    return {name: frame.assign(y=labels) for name, frame in chain().items()}


def islands() -> dict[str, pd.DataFrame]:
    """x1 at a and b, x2 at c and d, nobody in between; e shares nothing."""
    table = small_table(400)
    return {
        "a": table[["id", "x0", "x1"]],
        "b": table[["id", "x1", "y"]],
        "c": table[["id", "x2", "x3"]],
        "d": table[["id", "x2"]],
        "e": table[["id", "x4"]],
    }


class TestAnchorsInAChain(RuleContract):
    rule, clients = Anchors(3, 3, n_rounds=3), staticmethod(chain)


class TestAnchorsInAChainWithLabels(RuleContract):
    rule, clients = Anchors(4, 4, n_rounds=3), staticmethod(chain_with_labels)


class TestAnchorsOfIslands(RuleContract):
    rule, clients, label = Anchors(2, 2, n_rounds=2), staticmethod(islands), None


def without_ids(frames: dict[str, pd.DataFrame]) -> dict[str, pd.DataFrame]:
    return {name: frame.drop(columns="id") for name, frame in frames.items()}


@pytest.mark.parametrize("frames", [chain, chain_with_labels])
def test_dependence_passes_along_a_chain_without_any_id(frames: Any) -> None:
    """What a says about c goes through x1, b's table of x1 and x2, and x2."""
    clients, test = without_ids(frames()), small_table(2000, seed=5)
    options: dict[str, Any] = {"label": "y", "learner": LEARNER}
    tied = fc.federate(clients, agreement="anchors", n_anchors=4, n_clusters=4, **options)
    loose = fc.federate(clients, agreement="independent", glueing="naive", n_clusters=1, **options)
    assert tied.mean_log_prob(test) > loose.mean_log_prob(test) + 0.1

    def told(model: Any) -> float:
        """How much x0 (at a) moves the odds of x4 (at c)."""
        rows = pd.DataFrame({"x0": ["0", "1"]})
        one = model.predict_proba(rows, "x4")["1"].to_numpy()
        return float(one[1] - one[0])

    assert told(tied) > 0.05
    assert abs(told(loose)) < 0.01


def test_islands_stay_apart() -> None:
    fed = fc.federate(without_ids(islands()), learner=LEARNER, agreement=Anchors(2, 2, n_rounds=2))
    rows = small_table(50, seed=2)
    here, there = ["x0", "x1", "y"], ["x2", "x3"]
    apart = fed.log_prob(rows[here]) + fed.log_prob(rows[there]) + fed.log_prob(rows[["x4"]])
    np.testing.assert_allclose(fed.log_prob(rows.drop(columns="id")), apart, rtol=0, atol=1e-10)


def test_latent_without_common_rows_takes_the_tree_of_anchors() -> None:
    frames = {
        "a": small_table(200, 1)[["id", "x0", "x1"]],
        "b": small_table(200, 2)[["id", "x1", "x2"]],
        "c": small_table(200, 3)[["id", "x2", "x3"]],
    }
    fed = fc.federate(without_ids(frames), learner=LEARNER, agreement="latent", n_clusters=3)
    assert isinstance(fed.rule, Anchors)


def test_anchors_need_shared_columns() -> None:
    with pytest.raises(FederationError, match="columns that several clients share"):
        fc.federate(columns_split(), id="id", learner=LEARNER, agreement="anchors")


def test_a_row_that_two_clients_hold_counts_once() -> None:
    """Half of the rows are at both clients, and all of those are at one anchor."""
    rng = np.random.default_rng(0)
    x2 = np.array(["0"] * 300 + ["1"] * 300)
    table = pd.DataFrame(
        {"id": np.arange(600), "x0": rng.choice(["0", "1"], 600), "x2": x2, "x3": x2}
    )
    frames = {
        "a": table[["id", "x0", "x2"]][:450],
        "b": pd.concat([table[:300], table[450:]])[["id", "x2", "x3"]],
    }
    shares = []
    for id_ in ("id", None):
        mine = frames if id_ else without_ids(frames)
        fed = fc.federate(mine, id=id_, learner=LEARNER, agreement=Anchors(2, 2, n_rounds=2))
        shares.append(float(np.exp(fed.log_prob(pd.DataFrame({"x2": ["0"]})).iloc[0])))
    assert shares[0] == pytest.approx(0.5, abs=0.01)  # 300 of 600 rows
    assert shares[1] == pytest.approx(600 / 900, abs=0.01)  # nobody can know


@pytest.mark.parametrize("spread", ["one client", "both clients", "both clients twice"])
def test_a_class_of_too_few_rows_for_an_anchor_is_improbable_not_impossible(spread: str) -> None:
    table = small_table(600).drop(columns="id")
    rare = {"one client": [3], "both clients": [3, 500], "both clients twice": [3, 4, 500, 501]}
    table.loc[rare[spread], "y"] = "rare"
    clients = {
        "a": table[["x0", "x1", "x2", "y"]][:350],
        "b": table[["x2", "x3", "x4", "y"]][350:].reset_index(drop=True),
    }
    fed = fc.federate(clients, label="y", learner=LEARNER, agreement=Anchors(4, 4, n_rounds=2))
    shares = np.exp(fed.log_prob(pd.DataFrame({"y": ["no", "rare", "yes"]})))
    assert shares.sum() == pytest.approx(1.0, abs=1e-12)
    n_rows = 600 - len(rare[spread])  # of classes with anchors
    assert shares[1] == pytest.approx(0.5 / (n_rows + 0.5), rel=1e-9)  # half a row
    rows = table.drop(columns="y")[:20]
    likely = fed.predict_proba(rows, "y")["rare"]
    assert ((likely > 0) & (likely < 0.02)).all()
    # Its columns are those of all rows: the class says nothing about them.
    given_rare = fed.log_prob(rows.assign(y="rare")) - np.log(shares[1])
    others = np.logaddexp(*(fed.log_prob(rows.assign(y=y)) for y in ("no", "yes")))
    expected = others - np.log(shares[0] + shares[2])
    np.testing.assert_allclose(given_rare, expected, rtol=0, atol=1e-9)


# --- the tree -------------------------------------------------------------------------------------


def test_information_of_a_table() -> None:
    assert table_information(np.array([[5.0, 0.0], [0.0, 5.0]])) == pytest.approx(np.log(2))
    assert table_information(np.outer([1.0, 3.0], [2.0, 5.0])) == pytest.approx(0.0, abs=1e-12)
    assert table_information(np.zeros((2, 2))) == 0.0


def test_the_tree_takes_the_strongest_edges() -> None:
    strong, weak = np.array([[5.0, 0.0], [0.0, 5.0]]), np.array([[5.0, 4.0], [4.0, 5.0]])
    tree = anchor_tree(4, {(0, 1): weak, (0, 2): strong, (1, 2): strong})
    assert tree.parent == (-1, 2, 0, -1)  # 0 - 2 - 1, and 3 by itself
    assert tree.order.index(0) < tree.order.index(2) < tree.order.index(1)
    assert tree.children(0) == [2]


def test_a_trace_of_the_shares_stays_within_its_stratum() -> None:
    counts = np.array([[4.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    found = conditional(counts, np.array([0, 1]), np.array([0, 0, 1]))
    assert found[0, 0] > 4
    assert found[0, 2] == 0
    assert found[1].sum() > 0  # never seen, and still something

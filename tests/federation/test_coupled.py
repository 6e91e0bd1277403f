"""Coupled roots: the clients' circuits depend on each other within a class of the label."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import fedcircuits as fc
from contracts.rule import LEARNER, RuleContract, columns_split, columns_split_label_shared
from fedcircuits.errors import FederationError
from fedcircuits.federation.agreement import Coupled
from fedcircuits.federation.client.roots import component, couple, group_log_probs, group_states
from fedcircuits.federation.model.circuit import FederatedCircuit
from fedcircuits.learners.hclt.learner import Hclt, Mixture

pytestmark = pytest.mark.slow


def within_class(n: int, seed: int = 0) -> pd.DataFrame:
    """Within each class, whether the columns of one client are high says so of the other's."""
    rng = np.random.default_rng(seed)
    y = rng.integers(2, size=n)
    z = rng.integers(2, size=n)  # the same shares in both classes
    frame = pd.DataFrame(
        {name: np.where(rng.random(n) < 0.9, z, 1 - z).astype(str) for name in ("a0", "a1", "b0")}
    )
    frame["b1"] = np.where(rng.random(n) < 0.9, z ^ y, 1 - (z ^ y)).astype(str)
    frame["y"] = np.array(["no", "yes"])[y]
    frame["id"] = np.arange(n)
    return frame


def halves(table: pd.DataFrame) -> dict[str, pd.DataFrame]:
    return {"a": table[["id", "a0", "a1", "y"]], "b": table[["id", "b0", "b1", "y"]]}


def train(table: pd.DataFrame, rule: str, learner: Any = None, **options: Any) -> Any:
    learner = Mixture(n_states=4) if learner is None else learner
    return fc.federate(
        halves(table), id="id", label="y", agreement=rule, learner=learner, **options
    )


class TestCoupled(RuleContract):
    """The contract, with circuits whose roots are sums."""

    rule, clients = Coupled(n_groups=3), staticmethod(columns_split_label_shared)

    @classmethod
    def federate(cls, **options: Any) -> FederatedCircuit:
        made: FederatedCircuit = super().federate(**{"learner": Mixture(n_states=4), **options})
        return made


class TestCoupledNothingToSplit(RuleContract):
    """Circuits without a sum at the root: what is left is the product."""

    rule, clients = Coupled(n_groups=3), staticmethod(columns_split_label_shared)


@pytest.mark.parametrize("learner", [Mixture(n_states=4), Hclt(n_states=4)])
def test_dependence_within_a_class_is_found(learner: Any) -> None:
    table, test = within_class(3000), within_class(3000, seed=1)
    product = train(table, "product", learner)
    coupled = train(table, "coupled", learner)
    gain = coupled.mean_log_prob(test) - product.mean_log_prob(test)
    # z of a client is known with error .82 from two columns: the rest of log 2 is to be gained.
    assert gain > 0.25
    names = ("weights 0", "weights 1")
    assert all(name in coupled.ingredients.tables for name in names)


def predictability(fed: Any, test: pd.DataFrame) -> float:
    """Nats that the columns of one client say about those of the other within the class."""
    mine, other = ["a0", "a1", "y"], ["b0", "b1", "y"]
    both = fed.log_prob(test) + fed.log_prob(test[["y"]])
    return float((both - fed.log_prob(test[mine]) - fed.log_prob(test[other])).mean())


def test_without_any_dependence_none_is_found() -> None:
    """Rows of one client matched with those of another at random, within the class.

    The table may still be kept: it also mends the shares of a client's own root states.
    """
    dependent, test = train(within_class(3000), "coupled"), within_class(2000, seed=1)
    assert predictability(dependent, test) > 0.2
    table = within_class(3000)
    rng = np.random.default_rng(3)
    for y in ("no", "yes"):
        rows = table.index[table["y"] == y]
        table.loc[rows, ["b0", "b1"]] = table.loc[rng.permutation(rows), ["b0", "b1"]].to_numpy()
    assert abs(predictability(train(table, "coupled"), test)) < 0.02


def test_models_that_stay_and_models_in_a_file_give_the_same_answers(tmp_path: Path) -> None:
    table, test = within_class(1500), within_class(100, seed=1)
    fed = train(table, "coupled")
    assert "weights 0" in fed.ingredients.tables
    fed.save(tmp_path / "c.fc")
    again = fc.load(tmp_path / "c.fc")
    assert again.rule == fed.rule
    np.testing.assert_allclose(again.log_prob(test), fed.log_prob(test), rtol=0, atol=1e-12)
    with train(table, "coupled", placement="remote") as remote:
        np.testing.assert_allclose(remote.log_prob(test), fed.log_prob(test), rtol=0, atol=1e-9)


def test_a_leaver_is_summed_out() -> None:
    fed = train(within_class(1500), "coupled")
    test = within_class(100, seed=1)
    rest = fed.without("b")
    assert set(rest.schema.names) == {"a0", "a1", "y"}
    mine = test[["a0", "a1", "y"]]
    np.testing.assert_allclose(rest.log_prob(mine), fed.log_prob(mine), rtol=0, atol=1e-9)


def test_it_is_for_columns_split_and_a_shared_label() -> None:
    with pytest.raises(FederationError, match="every client holds"):
        fc.federate(columns_split(), id="id", label="y", learner=LEARNER, agreement="coupled")


# --- the pieces -----------------------------------------------------------------------------------


def circuit(columns: list[str], seed: int) -> tuple[Any, Any]:
    table = within_class(800, seed)[columns]
    model: Any = fc.learn(table, learner=Mixture(n_states=5))
    return model, model.schema.encode(table)


def test_groups_add_up_to_the_circuit() -> None:
    model, table = circuit(["a0", "a1"], 0)
    groups, shares = group_states(model, table, 3, np.random.default_rng(0))
    assert shares.sum() == pytest.approx(1.0)
    log_probs = group_log_probs(model, groups, table)  # (n, K)
    assert log_probs.shape == (800, shares.size)
    np.testing.assert_allclose(
        np.exp(log_probs) @ shares, np.exp(model.log_prob_table(table)), rtol=1e-10
    )
    for k in range(shares.size):
        one = component(model, groups, k).log_prob_table(table)
        np.testing.assert_allclose(one, log_probs[:, k], rtol=0, atol=1e-10)


def test_coupling_with_the_product_of_the_shares_is_the_product() -> None:
    (a, table_a), (b, table_b) = circuit(["a0", "a1"], 0), circuit(["b0", "b1"], 1)
    rng = np.random.default_rng(0)
    found = [group_states(a, table_a, 3, rng), group_states(b, table_b, 3, rng)]
    sizes = [shares.size for _, shares in found]
    tuples = np.stack(np.unravel_index(np.arange(np.prod(sizes)), sizes), axis=1)
    weights = found[0][1][tuples[:, 0]] * found[1][1][tuples[:, 1]]
    table = within_class(200, 5)[["a0", "a1", "b0", "b1"]]
    schema = fc.Schema((*a.schema.variables, *b.schema.variables))
    whole = couple(schema, [a, b], [groups for groups, _ in found], tuples, weights)
    apart = a.log_prob(table[["a0", "a1"]]) + b.log_prob(table[["b0", "b1"]])
    np.testing.assert_allclose(whole.log_prob(table), apart, rtol=0, atol=1e-10)
    assert whole.n_nodes < a.n_nodes + b.n_nodes + tuples.shape[0] + 10  # no circuit in it twice

"""Every agreement rule keeps the contract, in every setting it is for; and what each adds."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import fedcircuits as fc
from contracts.federations import same_noise
from contracts.rule import (
    LEARNER,
    RuleContract,
    both_split,
    branches_and_register,
    columns_split,
    columns_split_label_shared,
    rows_split,
    small_table,
)
from fedcircuits.errors import FederationError
from fedcircuits.federation.agreement import (
    RULES,
    Anchors,
    Em,
    Independent,
    Joint,
    Latent,
    ProductOfClasses,
)
from fedcircuits.federation.agreement._shared.latent_classes import fit_latent_classes
from fedcircuits.federation.agreement.em import fit_joint_weights

# The rules here send the server row evidence, or are compared with such as do.
federate = functools.partial(fc.federate, trust="one owner")


class TestIndependentRowsSplit(RuleContract):
    rule, clients, align = Independent(), staticmethod(rows_split), False


class TestIndependentColumnsSplit(RuleContract):
    rule, clients = Independent(n_clusters=2), staticmethod(columns_split)


class TestIndependentNaive(RuleContract):
    rule, clients = Independent(n_clusters=3, glueing="naive"), staticmethod(columns_split)


class TestIndependentRandom(RuleContract):
    rule = Independent(n_clusters=3, n_products=4, glueing="random")
    clients = staticmethod(columns_split)


class TestIndependentBothSplit(RuleContract):
    rule, clients = Independent(), staticmethod(both_split)


class TestProductRowsSplit(RuleContract):
    rule, clients, align = ProductOfClasses(), staticmethod(rows_split), False


class TestProductColumnsSplit(RuleContract):
    rule, clients = ProductOfClasses(), staticmethod(columns_split_label_shared)


class TestProductLabelOnOne(RuleContract):
    rule, clients = ProductOfClasses(), staticmethod(columns_split)


class TestLatent(RuleContract):
    rule, clients = Latent(n_classes=6, n_clusters=4), staticmethod(columns_split)


class TestLatentLabelShared(RuleContract):
    rule = Latent(n_classes=6, n_clusters=4)
    clients = staticmethod(columns_split_label_shared)


class TestLatentBothSplit(RuleContract):
    rule, clients = Latent(n_classes=6, n_clusters=4), staticmethod(both_split)


class TestLatentBranchesAndRegister(RuleContract):
    rule, clients = Latent(n_classes=6, n_clusters=4), staticmethod(branches_and_register)


class TestProductBranchesAndRegister(RuleContract):
    rule, clients = ProductOfClasses(), staticmethod(branches_and_register)


class TestLatentWithoutLabel(RuleContract):
    rule, clients, label = Latent(6, 4), staticmethod(columns_split), None


class TestLatentTable(RuleContract):
    rule = Latent(n_classes=6, n_clusters=4, table=True)
    clients = staticmethod(columns_split)


class TestLatentTableWithNoise(RuleContract):
    rule = Latent(n_classes=6, n_clusters=4, table=True, epsilon=1.0)
    clients = staticmethod(both_split)

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def _same_noise(cls) -> Iterator[None]:
        with same_noise():
            yield


class TestEm(RuleContract):
    rule, clients = Em(n_clusters=4, n_steps=10), staticmethod(columns_split)


class TestJoint(RuleContract):
    rule, clients = Joint(1, n_classes=4, n_clusters=4), staticmethod(columns_split)


class TestJointBothSplit(RuleContract):
    rule, clients = Joint(1, n_classes=4, n_clusters=4), staticmethod(both_split)


class TestAnchors(RuleContract):
    rule, clients = Anchors(3, 3, n_rounds=3), staticmethod(both_split)


class TestAnchorsWithoutIds(RuleContract):
    rule, clients, align = Anchors(3, 3, n_rounds=3), staticmethod(both_split), False

    @classmethod
    def federate(cls, **options: Any) -> Any:
        frames = {name: frame.drop(columns="id") for name, frame in both_split().items()}
        if options.pop("backwards", False):
            frames = dict(reversed(frames.items()))
        options = {"learner": LEARNER, "agreement": cls.rule, **options}
        return federate(frames, label="y", **options)


class TestAuto(RuleContract):
    rule, clients = "auto", staticmethod(columns_split)


# --- the pieces -----------------------------------------------------------------------------------


def test_latent_classes_recover_a_mixture_of_index_tuples(rng: np.random.Generator) -> None:
    """Two classes with disjoint indices: each tuple's class is certain, q is their share."""
    z = rng.random(3000) < 0.3
    first = np.where(z, rng.integers(0, 2, 3000), rng.integers(2, 4, 3000))
    second = np.where(z, rng.integers(0, 3, 3000), rng.integers(3, 6, 3000))
    tuples, counts = np.unique(np.stack([first, second], 1), axis=0, return_counts=True)
    model = fit_latent_classes(tuples, counts.astype(float), [4, 6], 2, rng)
    posterior = model.log_joint(tuples).argmax(axis=1)
    assert len(set(zip(posterior, tuples[:, 0] < 2, strict=True))) == 2
    assert np.sort(np.exp(model.log_q)) == pytest.approx([z.mean(), 1 - z.mean()], abs=0.01)
    assert model.given_cluster(0).sum(axis=1) == pytest.approx(np.ones(4))


def test_em_on_weights_never_lowers_the_likelihood(rng: np.random.Generator) -> None:
    log_probs = [np.log(rng.dirichlet(np.ones(3), size=200)) for _ in range(2)]

    def mean(steps: int) -> float:
        tuples, q = fit_joint_weights(log_probs, steps, tolerance=0.0)
        joint = sum(t[:, tuples[:, c]] for c, t in enumerate(log_probs))
        return float(np.log(np.exp(joint) @ q).mean())

    found = [mean(steps) for steps in range(1, 12)]
    assert (np.diff(found) >= -1e-6).all()


def test_em_keeps_impossible_clusters_out(rng: np.random.Generator) -> None:
    log_probs = [np.log(rng.dirichlet(np.ones(2), size=50)), np.full((50, 2), -1.0)]
    log_probs[1][:, 1] = -np.inf
    tuples, q = fit_joint_weights(log_probs, 20)
    assert (tuples[:, 1] == 0).all()
    assert q.sum() == pytest.approx(1.0, abs=1e-4)


def test_noise_on_the_table_costs_little() -> None:
    """Laplace noise of scale 2 on counts of 1,500 rows moves the likelihood, but not far."""
    table = small_table(1500)
    frames = {"a": table[["id", "x0", "x1", "x2", "y"]], "b": table[["id", "x3", "x4"]]}
    scores = [
        federate(
            frames,
            id="id",
            label="y",
            learner=LEARNER,
            agreement="latent",
            table=True,
            n_clusters=6,
            epsilon=epsilon,
        ).mean_log_prob(table)
        for epsilon in (None, 1.0)
    ]
    assert scores[0] != scores[1]
    assert scores[1] > scores[0] - 0.1


# --- partial alignment ----------------------------------------------------------------------------


def partly_aligned(n_common: int, n: int = 1200) -> dict[str, pd.DataFrame]:
    """Two clients with n rows each of which they share some."""
    table = small_table(2 * n - n_common)
    return {"a": table[:n][["id", "x0", "x1", "x2", "y"]], "b": table[-n:][["id", "x3", "x4"]]}


def test_a_tenth_of_the_rows_aligned_carries_the_dependence() -> None:
    test = small_table(2000, seed=9)
    options = {"id": "id", "label": "y", "learner": LEARNER}
    some = federate(partly_aligned(120), agreement="latent", **options)
    every = federate(partly_aligned(1200), agreement="latent", **options)
    none = federate(
        partly_aligned(120), agreement=Independent(glueing="naive", n_clusters=1), **options
    )
    found = {m: m.mean_log_prob(test) for m in (some, every, none)}
    assert found[some] > found[none] + 0.5 * (found[every] - found[none])


def test_rows_that_only_one_client_has_are_used_too() -> None:
    fed = federate(partly_aligned(120), id="id", label="y", learner=LEARNER, agreement="latent")
    assert fed.fitted is not None
    rows = fed.fitted.rows
    for client in ("a", "b"):
        own = {key: n for key, n in rows.items() if key.client == client}
        for space in {key.job.space for key in own}:  # the features; at the owner the label too
            assert sum(n for key, n in own.items() if key.job.space == space) == 1200


def test_hardly_a_row_aligned_falls_back_to_the_plain_product() -> None:
    fed = federate(partly_aligned(12), id="id", label="y", learner=LEARNER)
    assert isinstance(fed.rule, Independent)
    assert fed.rule.glueing == "naive"
    shared = partly_aligned(12)
    shared["b"] = shared["b"].assign(y=["yes", "no"] * 600)
    assert isinstance(federate(shared, id="id", label="y", learner=LEARNER).rule, ProductOfClasses)


# --- auto and names -------------------------------------------------------------------------------


def test_auto_takes_the_setting_s_rule_where_nothing_can_be_compared() -> None:
    rows = federate(rows_split(), label="y", learner=LEARNER)
    assert isinstance(rows.rule, ProductOfClasses)
    assert isinstance(federate(rows_split(), learner=LEARNER).rule, Independent)
    columns = federate(columns_split(), id="id", learner=LEARNER)
    assert isinstance(columns.rule, Latent)


def test_why_has_every_candidate_with_its_scores_and_what_it_reveals(tmp_path: Path) -> None:
    fed = federate(columns_split(), id="id", label="y", learner=LEARNER)
    why = fed.why
    assert why is not None
    assert fed.rule is not None
    assert set(why.scores) == {"product", "latent"}
    assert all(0 < score < 1 for score in why.scores.values())
    assert why.rule == fed.rule.name
    assert [c.outcome for c in why.candidates if c.rule == why.rule] == ["taken"]
    assert all(c.reveals and c.nats is not None for c in why.candidates)
    assert why.n_rows >= 60
    assert list(why.table()["rule"]) == [c.rule for c in why.candidates]
    assert all(name in repr(why) for name in ("product", "latent", "held-out rows", "reveals"))
    fed.save(tmp_path / "model.fc")
    assert fc.load(tmp_path / "model.fc", fc.FederatedCircuit).why == why


def test_why_of_a_named_rule_says_so() -> None:
    why = federate(columns_split(), id="id", learner=LEARNER, agreement="latent").why
    assert why is not None
    assert (why.rule, why.reason, why.scores) == ("latent", "named by the caller", {})


def two_clients(n: int, seed: int, *, xor: bool) -> dict[str, pd.DataFrame]:
    """Numbers at two clients and a label: of nothing, or of two numbers at different clients."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 8))
    yes = (X[:, 0] * X[:, 4] > 0) ^ (rng.random(n) < 0.05) if xor else rng.random(n) < 0.3
    table = pd.DataFrame(X, columns=[f"x{j}" for j in range(8)])
    table = table.assign(y=np.where(yes, "yes", "no"), id=np.arange(n))
    return {
        "a": table[["id", "x0", "x1", "x2", "x3", "y"]],
        "b": table[["id", "x4", "x5", "x6", "x7", "y"]],
    }


def test_auto_leaves_no_trace_of_its_trial() -> None:
    """`product` is trained on all rows, as if it had been named."""
    split = two_clients(600, 0, xor=False)
    by_auto = federate(split, id="id", label="y", learner=LEARNER)
    assert by_auto.why is not None
    assert (by_auto.why.rule, set(by_auto.why.scores)) == ("product", {"product", "latent"})
    named = federate(split, id="id", label="y", learner=LEARNER, agreement="product")
    rows = two_clients(50, 3, xor=False)
    every = rows["a"].merge(rows["b"].drop(columns="y"), on="id").drop(columns="id")
    assert by_auto.log_prob(every).tolist() == named.log_prob(every).tolist()


@pytest.mark.parametrize("seed", [3, 5])
def test_a_trial_s_clusters_within_the_label_have_not_seen_its_held_out_rows(seed: int) -> None:
    """A label that depends on nothing is not predicted: classes within it only fit to chance."""
    split = two_clients(1000, seed, xor=False)
    why = federate(split, id="id", label="y", head=False, seed=seed).why
    assert why is not None
    assert why.scores["latent, tilt=False"] > why.scores["product"] + 0.02


def test_clusters_of_a_trial_are_those_of_the_run() -> None:
    """Clusters of all rows beside those of the trial's would tell as many bits again."""
    split = two_clients(1500, 0, xor=True)
    split = {
        name: frame.drop(columns=["x2", "x3", "x6", "x7"], errors="ignore")
        for name, frame in split.items()
    }
    fed = federate(split, id="id", label="y", head=False)
    assert fed.why is not None
    assert fed.why.rule == "latent, tilt=False"
    for client in fed.clients:
        told = [
            entry.bits
            for entry in fed.ledger.entries
            if (entry.client, entry.verb, entry.direction) == (client, "cluster", "to server")
        ]
        assert told == [5.0, 5.0, 0.0]  # within the label, without it, and the first again


def test_a_private_label_is_not_used_to_cluster() -> None:
    fed = federate(columns_split(), id="id", label="y", learner=LEARNER, label_use="used")
    assert fed.rule == Latent(label_private=True)


def test_unknown_names_and_options_are_refused() -> None:
    with pytest.raises(FederationError, match="no agreement rule 'counting'"):
        federate(columns_split(), id="id", learner=LEARNER, agreement="counting")
    unknown = r"no option 'clusters'; there are .*n_classes, n_clusters.*did you mean 'n_clusters'"
    with pytest.raises(FederationError, match=unknown):
        federate(columns_split(), id="id", learner=LEARNER, agreement="latent", clusters=3)
    with pytest.raises(FederationError, match=unknown):
        federate(columns_split(), id="id", learner=LEARNER, clusters=3)


@pytest.mark.parametrize("name", ["latent", "em"])
def test_rules_over_aligned_rows_refuse_rows_split(name: str) -> None:
    with pytest.raises(FederationError):
        federate(rows_split(), label="y", learner=LEARNER, agreement=name)


def test_product_without_a_label_is_refused() -> None:
    with pytest.raises(FederationError, match="needs a label"):
        federate(columns_split(), id="id", learner=LEARNER, agreement="product")


def test_every_rule_has_a_name_it_answers_to() -> None:
    for name, rule in RULES.items():
        assert rule().name == name

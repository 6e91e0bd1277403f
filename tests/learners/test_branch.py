"""Branches of a shared latent tree: a density for every class, by EM as in one place."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from scipy.special import logsumexp

import fedcircuits as fc
from fedcircuits.circuits.passes import chunked
from fedcircuits.circuits.queries.likelihood import node_log_probs
from fedcircuits.circuits.root_states import root_edges
from fedcircuits.learners.hclt.learner import Hclt, Mixture
from fedcircuits.learners.hclt.rounds.branch import fit_branch
from fedcircuits.learners.hclt.tree.tree_em import Smoothing

CARDS = (2, 3, 2, 4)
R = 3


def rows(n: int = 300, seed: int = 0) -> tuple[Any, sparse.csr_matrix]:
    """Codes that hang on a hidden class, some missing; soft shares of three classes."""
    rng = np.random.default_rng(seed)
    z = rng.integers(R, size=n)
    codes = np.stack(
        [np.where(rng.random(n) < 0.8, z % c, rng.integers(c, size=n)) for c in CARDS], axis=1
    )
    codes[rng.random(codes.shape) < 0.05] = -1
    share = rng.dirichlet(np.ones(R), size=n) * 0.4
    share[np.arange(n), z] += 0.6
    return codes.astype(np.int32), sparse.csr_matrix(share)


def ended(steps: Any) -> Any:
    with pytest.raises(StopIteration) as stopped:
        steps.send(None)
    return stopped.value.value


@pytest.mark.parametrize("is_tree", [True, False])
@pytest.mark.parametrize("label", [None, 2])
def test_every_class_has_mass_one(is_tree: bool, label: int | None) -> None:
    codes, shares = rows()
    worlds = np.array(list(itertools.product(*map(range, CARDS))), dtype=np.int32)
    everything = sparse.vstack([shares, sparse.csr_matrix((len(worlds), R))]).tocsr()
    steps = fit_branch(
        np.concatenate([codes, worlds]), CARDS, everything,
        label=label, is_tree=is_tree, rng=np.random.default_rng(0),
    )  # fmt: skip
    evidence = next(steps)
    np.testing.assert_allclose(np.exp(evidence[len(codes) :]).sum(axis=0), 1.0, atol=1e-6)


def test_factorised_branches_add_up_to_the_model_of_all_columns() -> None:
    """Columns on the root decompose over clients: EM apart is EM together, step by step."""
    codes, shares = rows()

    def branch(columns: list[int]) -> Any:
        cards = tuple(CARDS[j] for j in columns)
        return fit_branch(
            np.ascontiguousarray(codes[:, columns]), cards, shares, is_tree=False,
            smoothing=Smoothing(0.5, 0.5, 0.5), rng=np.random.default_rng(0),
        )  # fmt: skip

    whole, left, right = branch([0, 1, 2, 3]), branch([0, 3]), branch([1, 2])
    together, apart = next(whole), next(left) + next(right)
    for _round in range(4):
        np.testing.assert_allclose(apart, together, atol=1e-4)
        log_joint = together - np.log(R)
        told = sparse.csr_matrix(np.exp(log_joint - logsumexp(log_joint, axis=1, keepdims=True)))
        together, apart = whole.send(told), left.send(told) + right.send(told)
    np.testing.assert_allclose(apart, together, atol=1e-4)


@pytest.mark.parametrize("is_tree", [True, False])
def test_rounds_never_lose_likelihood(is_tree: bool) -> None:
    codes, shares = rows(2000)
    hardly = Smoothing(1e-6, 1e-6, 1e-6)
    steps = fit_branch(
        codes, CARDS, shares, is_tree=is_tree, smoothing=hardly, rng=np.random.default_rng(0)
    )
    evidence, score = next(steps), -np.inf
    for _round in range(6):
        q = np.asarray(shares.sum(axis=0)).ravel() / shares.sum()
        log_joint = evidence + np.log(q)
        log_total = logsumexp(log_joint, axis=1)
        assert log_total.mean() >= score - 1e-4
        score = log_total.mean()
        shares = sparse.csr_matrix(np.exp(log_joint - log_total[:, None]))
        evidence = steps.send(shares)


def test_a_label_hangs_on_the_root_so_that_strata_stay_apart() -> None:
    codes, _ = rows()
    codes[:, 0] = np.arange(len(codes)) % 2
    hard = sparse.csr_matrix(np.eye(2)[codes[:, 0]])
    steps = fit_branch(codes, CARDS, hard, label=0, rng=np.random.default_rng(0))
    evidence = next(steps)
    tree = ended(steps)
    assert tree.latent_of[0] == tree.order[0]
    assert (np.diag(tree.emissions[0]) > 0.999).all()
    # A row under the classes of the other label is very unlikely.
    other = evidence[np.arange(len(codes)), 1 - codes[:, 0]]
    own = evidence[np.arange(len(codes)), codes[:, 0]]
    assert (own - other).min() > 3.0


@pytest.mark.parametrize("learner", [Hclt(), Mixture(), Hclt(label="c")])
def test_the_circuit_has_one_child_for_each_class_in_order(learner: Any) -> None:
    rng = np.random.default_rng(1)
    frame = pd.DataFrame({"a": rng.normal(size=200), "b": rng.integers(4, size=200).astype(str)})
    frame["c"] = np.where(frame["a"] > 0, "yes", "no")
    schema = fc.Schema.infer(frame, {"c": "categorical"})
    table = schema.encode(frame)
    table = schema.with_grids(table).encode(frame)
    shares = sparse.csr_matrix(rng.dirichlet(np.ones(R), size=200))
    steps = learner.branch(table, shares, np.random.default_rng(0))
    evidence = next(steps)
    circuit = ended(steps)
    edges = root_edges(circuit)
    assert edges is not None
    assert edges[0].size == R
    for part, piece in chunked(circuit, table):
        below = node_log_probs(circuit, piece)[edges[0]].T
        # Evidence is of states; a circuit spreads a state over its bin.
        within = np.ptp(below - evidence[part], axis=1)
        np.testing.assert_allclose(within, 0.0, atol=1e-6)

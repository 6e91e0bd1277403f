"""Latent trees and EM against enumeration of all states."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from fedcircuits.learners.hclt.tree import tree_pass
from fedcircuits.learners.hclt.tree.latent_tree import LatentTree
from fedcircuits.learners.hclt.tree.starts import initial_tree
from fedcircuits.learners.hclt.tree.tree_em import (
    EmOptions,
    Smoothing,
    column_marginals,
    fit_em,
    log_prior,
    maximise,
)
from fedcircuits.learners.hclt.tree.tree_pass import expected_counts, log_likelihood

CARDS = (2, 3, 2, 4)
PARENTS = {
    "tree": (np.array([1, -1, 1, 2]), np.array([1, 0, 2, 3]), np.arange(4)),
    "star": (np.array([-1]), np.array([0]), np.zeros(4, dtype=np.int64)),
}


def random_tree(shape: str, H: int = 3, seed: int = 0) -> LatentTree:
    """Random parameters on a small tree or on one latent."""
    rng = np.random.default_rng(seed)
    parent, order, latent_of = PARENTS[shape]
    return LatentTree(
        parent=parent,
        order=order,
        latent_of=latent_of,
        root=rng.dirichlet(np.ones(H)),
        transitions=rng.dirichlet(np.ones(H), size=(len(parent), H)),
        emissions=tuple(rng.dirichlet(np.ones(card), size=H) for card in CARDS),
    )


def worlds() -> np.ndarray:
    """All complete rows over CARDS."""
    return np.array(list(itertools.product(*(range(card) for card in CARDS))))


def enumerate_states(tree: LatentTree, row: np.ndarray) -> dict[tuple[int, ...], float]:
    """Joint probability of the row and every assignment of the latents."""
    table = {}
    for states in itertools.product(range(tree.n_states), repeat=len(tree.parent)):
        value = 1.0
        for latent, above in enumerate(tree.parent):
            if above < 0:
                value *= tree.root[states[latent]]
            else:
                value *= tree.transitions[latent, states[above], states[latent]]
        for column, code in enumerate(row):
            if code >= 0:
                value *= tree.emissions[column][states[tree.latent_of[column]], code]
        table[states] = value
    return table


@pytest.mark.parametrize("shape", ["tree", "star"])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_likelihood_equals_enumeration_also_with_missing_cells(shape: str, dtype: type) -> None:
    tree = random_tree(shape)
    rows = np.array([[0, 2, 1, 3], [-1, 0, 1, -1], [1, -1, -1, 2], [-1, -1, -1, -1]])
    expected = [np.log(sum(enumerate_states(tree, row).values())) for row in rows]
    tolerance = 1e-12 if dtype is np.float64 else 1e-5
    np.testing.assert_allclose(log_likelihood(tree, rows, dtype), expected, atol=tolerance)


@pytest.mark.parametrize("shape", ["tree", "star"])
def test_mass_is_one_and_a_missing_cell_is_the_sum_over_its_states(shape: str) -> None:
    tree = random_tree(shape)
    rows = worlds()
    mass = np.exp(log_likelihood(tree, rows))
    assert mass.sum() == pytest.approx(1.0, abs=1e-12)
    marginal = np.exp(log_likelihood(tree, np.array([[1, -1, 0, -1]])))[0]
    kept = (rows[:, 0] == 1) & (rows[:, 2] == 0)
    assert marginal == pytest.approx(mass[kept].sum(), abs=1e-12)


@pytest.mark.parametrize("shape", ["tree", "star"])
def test_expected_counts_equal_enumeration(shape: str) -> None:
    tree = random_tree(shape)
    rows = np.array([[0, 2, 1, 3], [-1, 0, 1, -1], [1, 1, 0, 2]])
    weights = np.array([1.0, 2.5, 0.5])
    counts = expected_counts(tree, rows, weights)
    root = np.zeros_like(counts.root)
    pairs = np.zeros_like(counts.pairs)
    emissions = [np.zeros_like(table) for table in tree.emissions]
    for row, weight in zip(rows, weights, strict=True):
        table = enumerate_states(tree, row)
        total = sum(table.values())
        for states, value in table.items():
            share = weight * value / total
            for latent, above in enumerate(tree.parent):
                if above < 0:
                    root[states[latent]] += share
                else:
                    pairs[latent, states[above], states[latent]] += share
            for column, code in enumerate(row):
                if code >= 0:
                    emissions[column][states[tree.latent_of[column]], code] += share
    np.testing.assert_allclose(counts.root, root, atol=1e-12)
    np.testing.assert_allclose(counts.pairs, pairs, atol=1e-12)
    for mine, expected in zip(counts.emissions, emissions, strict=True):
        np.testing.assert_allclose(mine, expected, atol=1e-12)


def test_blocks_do_not_change_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    tree = random_tree("tree")
    rows = np.random.default_rng(1).integers(-1, 2, size=(500, 4))
    whole = expected_counts(tree, rows)
    blocks = [slice(0, 100), slice(100, 101), slice(101, 500)]
    monkeypatch.setattr(tree_pass, "row_blocks", lambda _n_rows, _tree: blocks)
    parts = expected_counts(tree, rows)
    assert parts.log_likelihood == pytest.approx(whole.log_likelihood, rel=1e-12)
    np.testing.assert_allclose(parts.pairs, whole.pairs, rtol=1e-10, atol=1e-12)


def test_an_impossible_row_has_minus_infinity_and_no_counts() -> None:
    tree = random_tree("tree")
    emissions = list(tree.emissions)
    emissions[0] = np.tile([1.0, 0.0], (3, 1))
    impossible = LatentTree(
        tree.parent, tree.order, tree.latent_of, tree.root, tree.transitions, tuple(emissions)
    )
    rows = np.array([[1, 0, 0, 0], [0, 0, 0, 0]])
    assert log_likelihood(impossible, rows)[0] == -np.inf
    assert np.isfinite(log_likelihood(impossible, rows)[1])
    counts = expected_counts(impossible, rows, np.array([1.0, 1.0]))
    assert counts.root.sum() == pytest.approx(1.0)


def test_a_hub_with_three_hundred_columns_does_not_underflow() -> None:
    rng = np.random.default_rng(2)
    D, H = 300, 4
    tree = LatentTree(
        parent=np.concatenate(([-1], np.zeros(D - 1, dtype=np.int64))),
        order=np.arange(D),
        latent_of=np.arange(D),
        root=np.full(H, 1 / H),
        transitions=rng.dirichlet(np.full(H, 0.05), size=(D, H)),
        emissions=tuple(rng.dirichlet(np.full(30, 0.2), size=H) for _ in range(D)),
    )
    rows = rng.integers(0, 30, size=(20, D))
    exact = log_likelihood(tree, rows)
    assert np.isfinite(exact).all()
    fast = log_likelihood(tree, rows, np.float32)
    finite = np.isfinite(fast)
    np.testing.assert_allclose(fast[finite], exact[finite], rtol=1e-4)


@pytest.mark.parametrize("shape", ["tree", "star"])
@pytest.mark.parametrize("smoothing", [Smoothing(0.0, 0.0, 0.0), Smoothing(0.7, 2.0, 1.3)])
def test_em_never_lowers_the_map_objective(shape: str, smoothing: Smoothing) -> None:
    truth = random_tree(shape, seed=5)
    rng = np.random.default_rng(6)
    all_rows = worlds()
    mass = np.exp(log_likelihood(truth, all_rows))
    codes = all_rows[rng.choice(len(all_rows), size=300, p=mass / mass.sum())]
    codes[rng.random(codes.shape) < 0.2] = -1
    weights = rng.uniform(0.5, 2.0, size=300)
    priors = column_marginals(codes, CARDS, weights)
    tree = random_tree(shape, seed=7)
    previous = -np.inf
    for _ in range(25):
        counts = expected_counts(tree, codes, weights)
        prior = 0.0 if smoothing.emission == 0 else log_prior(tree, smoothing, priors)
        objective = counts.log_likelihood + prior
        assert objective >= previous - 1e-9
        previous = objective
        tree = maximise(counts, tree, smoothing, priors)


def test_weights_equal_repeated_rows() -> None:
    tree = random_tree("tree")
    rng = np.random.default_rng(8)
    codes = rng.integers(0, 2, size=(50, 4))
    repeats = rng.integers(1, 4, size=50)
    options = EmOptions(n_iterations=5, n_warmup_epochs=0, dtype=np.float64)
    weighted = fit_em(tree, codes, repeats.astype(float), options, rng)
    copied = np.repeat(codes, repeats, axis=0)
    plain = fit_em(tree, copied, np.ones(len(copied)), options, rng)
    np.testing.assert_allclose(weighted.tree.root, plain.tree.root, atol=1e-10)


def test_em_with_warm_up_comes_near_the_truth_and_is_reproducible() -> None:
    truth = random_tree("tree", H=2, seed=9)
    all_rows = worlds()
    log_mass = log_likelihood(truth, all_rows)
    mass = np.exp(log_mass)
    draws = np.random.default_rng(10).choice(len(all_rows), size=6000, p=mass / mass.sum())
    codes = all_rows[draws]
    weights = np.ones(len(codes))
    results = []
    for _ in range(2):
        rng = np.random.default_rng(11)
        start = initial_tree(
            *PARENTS["tree"], column_marginals(codes, CARDS, weights), 4, codes, rng
        )
        options = EmOptions(n_iterations=60, batch_size=256)
        results.append(
            fit_em(start, codes[500:], weights[500:], options, rng, (codes[:500], weights[:500]))
        )
    np.testing.assert_array_equal(results[0].tree.root, results[1].tree.root)
    gap = mass @ (log_mass - log_likelihood(results[0].tree, all_rows))
    assert gap < 0.01  # Kullback-Leibler divergence, nats; sampling alone costs about .003


def test_without_rows_the_pseudo_counts_decide() -> None:
    """An emission follows the column's marginal; a transition has one pseudo-row over H states."""
    tree = random_tree("tree")
    counts = expected_counts(tree, worlds()[:1], np.zeros(1))
    priors = [np.arange(1.0, card + 1) / np.arange(1.0, card + 1).sum() for card in CARDS]
    smoothing = Smoothing(emission=0.7, transition=0.6, root=0.5)
    found = maximise(counts, tree, smoothing, priors)
    for table, prior in zip(found.emissions, priors, strict=True):
        np.testing.assert_allclose(table, np.tile(prior, (3, 1)), rtol=0, atol=1e-12)
    seen = expected_counts(tree, worlds(), np.ones(len(worlds())))
    found = maximise(seen, tree, smoothing, priors)
    pairs = seen.pairs[0] + 0.6 / 3
    wanted = pairs / pairs.sum(axis=-1, keepdims=True)
    np.testing.assert_allclose(found.transitions[0], wanted, rtol=0, atol=1e-12)
    table = seen.emissions[1] + 0.7 * priors[1]
    wanted = table / table.sum(axis=-1, keepdims=True)
    np.testing.assert_allclose(found.emissions[1], wanted, rtol=0, atol=1e-12)

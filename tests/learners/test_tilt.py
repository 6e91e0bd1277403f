"""The tilted circuit against enumeration and finite differences."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy import optimize

from fedcircuits.learners.hclt.tilt.priors import (
    TiltPrior,
    coarse_penalty,
    constant_prior,
    fine_penalty,
    tilt_layout,
    updated_prior,
)
from fedcircuits.learners.hclt.tilt.renormalise import renormalise
from fedcircuits.learners.hclt.tilt.rows import prepare_rows
from fedcircuits.learners.hclt.tilt.tilt import TiltedTree, normaliser, untilted
from fedcircuits.learners.hclt.tilt.tilt_fit import (
    TiltProblem,
    curvature,
    fit_tilt,
    score,
    start_vector,
)
from fedcircuits.learners.hclt.tree.class_tree import class_tree_of
from fedcircuits.learners.hclt.tree.latent_tree import LatentTree
from fedcircuits.learners.hclt.tree.tree_pass import TreePass, log_likelihood

CARDS = (2, 3, 4, 3)
ORDERED = np.array([False, True, True, False])


def random_model(
    n_classes: int = 3, class_transitions: bool = False, star: bool = False, seed: int = 0
) -> TiltedTree:
    """A small random tilted tree."""
    rng = np.random.default_rng(seed)
    H = 3
    parent = np.array([-1]) if star else np.array([1, -1, 1, 2])
    order = np.array([0]) if star else np.array([1, 0, 2, 3])
    emissions = tuple(rng.dirichlet(np.ones(card), size=H) for card in CARDS)
    root = rng.dirichlet(np.ones(H))
    trees = tuple(
        LatentTree(
            parent=parent,
            order=order,
            latent_of=np.zeros(4, dtype=np.int64) if star else np.arange(4),
            root=root,
            transitions=rng.dirichlet(np.ones(H), size=(len(parent), H)),
            emissions=emissions,
        )
        for _ in range(n_classes if class_transitions else 1)
    )
    return TiltedTree(
        trees=trees,
        c=rng.normal(size=n_classes),
        g=rng.normal(size=(n_classes, sum(CARDS))),
        root_logits=rng.normal(size=(n_classes, H)),
    )


def worlds() -> np.ndarray:
    """All complete rows over CARDS."""
    return np.array(list(itertools.product(*(range(card) for card in CARDS))))


def unnormalised(model: TiltedTree) -> np.ndarray:
    """(worlds, Y) e^{c + sum g} times the sum over latents, straight from the formula."""
    rows, starts = worlds(), model.starts
    table = np.empty((len(rows), model.n_classes))
    for y in range(model.n_classes):
        tree = model.tree_of(y)
        raised = tree.root * np.exp(model.root_logits[y])
        scaled = LatentTree(
            tree.parent,
            tree.order,
            tree.latent_of,
            raised,
            tree.transitions,
            tree.emissions,
        )
        tilt = model.g[y][rows + starts[:-1]].sum(axis=1)
        table[:, y] = np.exp(model.c[y] + tilt + log_likelihood(scaled, rows))
    return table


VARIANTS = [(False, False), (True, False), (False, True)]


@pytest.mark.parametrize(("class_transitions", "star"), VARIANTS)
def test_normaliser_and_flows_equal_enumeration(class_transitions: bool, star: bool) -> None:
    model = random_model(class_transitions=class_transitions, star=star)
    table = unnormalised(model)
    flows = normaliser(model, [TreePass(tree) for tree in model.trees], with_pairs=True)
    assert flows.log_z == pytest.approx(np.log(table.sum()), abs=1e-12)
    joint = table / table.sum()
    np.testing.assert_allclose(np.exp(flows.log_class - flows.log_z), joint.sum(axis=0), atol=1e-12)
    rows = worlds()
    for j, start in enumerate(model.starts[:-1]):
        for value in range(CARDS[j]):
            expected = joint[rows[:, j] == value].sum(axis=0)
            np.testing.assert_allclose(flows.cells[:, start + value], expected, atol=1e-12)
    assert flows.root.sum() == pytest.approx(1.0)
    assert flows.pairs is not None
    for latent, above in enumerate(model.trees[0].parent):
        if above >= 0:
            assert flows.pairs[:, latent].sum() == pytest.approx(1.0)


@pytest.mark.parametrize(("class_transitions", "star"), VARIANTS)
def test_renormalised_tables_hold_the_same_joint(class_transitions: bool, star: bool) -> None:
    model = random_model(class_transitions=class_transitions, star=star)
    table = unnormalised(model)
    plain = renormalise(model)
    joint = np.exp(plain.log_joint(worlds()))
    assert joint.sum() == pytest.approx(1.0, abs=1e-12)
    np.testing.assert_allclose(joint, table / table.sum(), atol=1e-10)
    np.testing.assert_allclose(plain.root.sum(axis=1), 1.0, atol=1e-12)
    for emission in plain.emissions:
        np.testing.assert_allclose(emission.sum(axis=2), 1.0, atol=1e-12)
    for latent, above in enumerate(plain.parent):
        if above >= 0:
            np.testing.assert_allclose(plain.transitions[:, latent].sum(axis=2), 1.0, atol=1e-12)


def test_missing_cells_of_the_renormalised_tables_are_sums() -> None:
    model = random_model()
    joint = unnormalised(model)
    joint /= joint.sum()
    rows = worlds()
    kept = (rows[:, 0] == 1) & (rows[:, 2] == 3)
    found = np.exp(renormalise(model).log_joint(np.array([[1, -1, 3, -1], [-1, -1, -1, -1]])))
    np.testing.assert_allclose(found[0], joint[kept].sum(axis=0), atol=1e-12)
    np.testing.assert_allclose(found[1], joint.sum(axis=0), atol=1e-12)


def test_huge_tilts_do_not_overflow() -> None:
    model = random_model()
    shifted = model.with_tilt(model.c + 900.0, model.g + 400.0, model.root_logits)
    np.testing.assert_allclose(
        renormalise(shifted).log_joint(worlds()), renormalise(model).log_joint(worlds()), atol=1e-9
    )
    flows = normaliser(shifted, [TreePass(tree) for tree in shifted.trees])
    assert flows.cells.sum() == pytest.approx(4.0)


def test_an_untilted_tree_is_the_tree_with_uniform_classes() -> None:
    tree = random_model().trees[0]
    expected = log_likelihood(tree, worlds())
    found = renormalise(untilted(tree, 2)).log_joint(worlds())
    np.testing.assert_allclose(found, np.repeat(expected[:, None], 2, axis=1) - np.log(2))
    np.testing.assert_allclose(class_tree_of(tree).log_joint(worlds())[:, 0], expected)


def labelled_rows(n: int = 80, seed: int = 1) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Random codes, labels and weights."""
    rng = np.random.default_rng(seed)
    codes = np.stack([rng.integers(0, card, size=n) for card in CARDS], axis=1)
    return codes, rng.integers(0, 3, size=n), rng.uniform(0.5, 2.0, size=n)


@pytest.mark.parametrize(("class_transitions", "star"), VARIANTS)
@pytest.mark.parametrize("with_holes", [False, True])
def test_gradient_equals_finite_differences(
    class_transitions: bool, star: bool, with_holes: bool
) -> None:
    model = random_model(class_transitions=class_transitions, star=star)
    codes, labels, weights = labelled_rows()
    if with_holes:
        codes[np.random.default_rng(6).random(codes.shape) < 0.2] = -1
    rows = prepare_rows(model, codes, labels, weights, dtype=np.float64)
    layout = tilt_layout(CARDS, ORDERED, [np.ones(card) for card in CARDS])
    prior = TiltPrior(np.array([1.0, 2.0, 0.5, 3.0]), np.array([3.0, 1.0, 2.0, 1.0]))
    problem = TiltProblem(model, rows, layout, prior)
    rng = np.random.default_rng(2)
    vector = rng.normal(scale=0.3, size=len(start_vector(problem, 0.5)))
    _, gradient = problem(vector)
    numeric = optimize.approx_fprime(vector, lambda v: problem(v)[0], 1e-6)
    np.testing.assert_allclose(gradient, numeric, atol=2e-6)


@pytest.mark.parametrize("with_holes", [False, True])
def test_scores_equal_those_of_the_renormalised_tables(with_holes: bool) -> None:
    model = random_model()
    codes, labels, weights = labelled_rows()
    if with_holes:
        codes[np.random.default_rng(6).random(codes.shape) < 0.2] = -1
    found = score(model, prepare_rows(model, codes, labels, weights, dtype=np.float64))
    joint = renormalise(model).log_joint(codes)
    share = weights / weights.sum()
    chosen = joint[np.arange(len(labels)), labels]
    assert found.nll == pytest.approx(-float(share @ chosen), abs=1e-10)
    posterior = chosen - np.logaddexp.reduce(joint, axis=1)
    assert found.cross_entropy == pytest.approx(-float(share @ posterior), abs=1e-10)


def test_the_tilt_finds_an_additive_posterior() -> None:
    truth = random_model(n_classes=3, seed=3)
    truth = truth.with_tilt(truth.c, truth.g, np.zeros_like(truth.root_logits))
    plain = renormalise(truth)
    joint = np.exp(plain.log_joint(worlds()))
    rng = np.random.default_rng(4)
    draws = rng.choice(joint.size, size=20_000, p=(joint / joint.sum()).ravel())
    codes, labels = worlds()[draws // 3], draws % 3
    base = untilted(truth.trees[0], 3)
    rows = prepare_rows(base, codes, labels, np.ones(len(codes)))
    layout = tilt_layout(CARDS, ORDERED, [np.ones(card) for card in CARDS])
    problem = TiltProblem(base, rows, layout, constant_prior(4))
    vector, report = fit_tilt(problem, start_vector(problem, 0.5), 80)
    fitted = renormalise(problem.model_at(vector)).log_joint(worlds())
    gap = (joint * (np.log(joint) - fitted)).sum()
    assert gap < 0.003  # Kullback-Leibler divergence, nats; 24 free numbers at 20,000 rows
    assert report["steps"] > 3


def test_prior_strength_rises_for_noise_and_stays_low_for_a_sharp_effect() -> None:
    layout = tilt_layout((8, 8), np.array([True, True]), [np.ones(8), np.ones(8)])
    fine = np.zeros((2, 16))
    fine[:, :8] = 0.01
    fine[0, 12], fine[1, 12] = 3.0, -3.0
    coarse = np.full((2, layout.n_coarse), 0.01)
    prior = updated_prior(fine, coarse, np.full((2, 16), 50.0), constant_prior(2), layout)
    assert prior.fine[0] > 100
    assert prior.fine[1] < 2


def test_penalties_are_quadratic_forms_with_matching_gradients() -> None:
    rng = np.random.default_rng(5)
    layout = tilt_layout(
        (20, 3, 5), np.array([True, False, True]), [np.ones(20), np.ones(3), np.ones(5)]
    )
    prior = constant_prior(3, 2.0, 3.0)
    for function, width in ((fine_penalty, layout.n_fine), (coarse_penalty, layout.n_coarse)):
        values = rng.normal(size=(2, width))
        cost, gradient = function(values, prior, layout)
        assert cost == pytest.approx(0.5 * float((gradient * values).sum()))
        other = rng.normal(size=(2, width))
        step = 1e-6
        difference = function(values + step * other, prior, layout)[0] - cost
        assert difference / step == pytest.approx(float((gradient * other).sum()), rel=1e-3)


def test_curvature_counts_rows() -> None:
    model = untilted(random_model().trees[0], 2)
    codes, _, _ = labelled_rows()
    rows = prepare_rows(model, codes, np.zeros(80, dtype=np.int64), np.ones(80))
    np.testing.assert_allclose(curvature(model, rows)[0, :2], np.bincount(codes[:, 0]) / 4)

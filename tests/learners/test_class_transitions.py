"""Gradients of the batch objective and the batch steps on class-dependent transitions."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fedcircuits.learners.hclt.tilt.class_transitions import (
    AdamOptions,
    adam_epochs,
    batch_gradient,
    make_batches,
    with_class_trees,
)
from fedcircuits.learners.hclt.tilt.renormalise import renormalise
from fedcircuits.learners.hclt.tilt.tilt import TiltedTree, untilted
from fedcircuits.learners.hclt.tree.latent_tree import LatentTree

CARDS = (2, 3, 2, 2)


def random_model(n_classes: int = 2, seed: int = 0) -> TiltedTree:
    """A small model with a tree per class and shared emissions."""
    rng = np.random.default_rng(seed)
    H = 3
    emissions = tuple(rng.dirichlet(np.ones(card) * 3, size=H) for card in CARDS)
    root = rng.dirichlet(np.ones(H))
    trees = tuple(
        LatentTree(
            parent=np.array([-1, 0, 0, 1]),
            order=np.arange(4),
            latent_of=np.arange(4),
            root=root,
            transitions=rng.dirichlet(np.ones(H) * 2, size=(4, H)),
            emissions=emissions,
        )
        for _ in range(n_classes)
    )
    return TiltedTree(
        trees=trees,
        c=rng.normal(size=n_classes),
        g=0.5 * rng.normal(size=(n_classes, sum(CARDS))),
        root_logits=0.5 * rng.normal(size=(n_classes, H)),
    )


def moved(model: TiltedTree, which: int, index: tuple[int, ...], step: float) -> TiltedTree:
    """The model with one log parameter moved, rows left unnormalised."""
    if which == 0:
        c = model.c.copy()
        c[index] += step
        return replace(model, c=c)
    if which == 1:
        g = model.g.copy()
        g[index] += step
        return replace(model, g=g)
    if which == 2:
        logits = model.root_logits.copy()
        logits[index] += step
        return replace(model, root_logits=logits)
    if which == 3:
        trees = list(model.trees)
        tables = trees[index[0]].transitions.copy()
        tables[index[1:]] *= np.exp(step)
        trees[index[0]] = replace(trees[index[0]], transitions=tables)
        return replace(model, trees=tuple(trees))
    emissions = [table.copy() for table in model.trees[0].emissions]
    emissions[which - 4][index] *= np.exp(step)
    return replace(
        model, trees=tuple(replace(tree, emissions=tuple(emissions)) for tree in model.trees)
    )


def test_batch_gradient_equals_finite_differences() -> None:
    model = random_model()
    rng = np.random.default_rng(1)
    codes = np.stack([rng.integers(0, card, size=60) for card in CARDS], axis=1)
    codes[rng.random(codes.shape) < 0.15] = -1
    weights = rng.uniform(0.5, 2.0, size=60)
    (batch,) = make_batches(model, codes, rng.integers(0, 2, size=60), weights, 60, np.arange(60))
    _, gradients = batch_gradient(model, batch)
    for which, index in [
        (0, (1,)),
        (1, (0, 3)),
        (2, (1, 2)),
        (3, (0, 1, 2, 0)),
        (3, (1, 3, 0, 1)),
        (4, (2, 1)),
        (5, (0, 2)),
    ]:
        step = 0.01
        up, _ = batch_gradient(moved(model, which, index, step), batch)
        down, _ = batch_gradient(moved(model, which, index, -step), batch)
        assert gradients[which][index] == pytest.approx((up - down) / (2 * step), abs=2e-4)


def test_class_transitions_learn_an_interaction_the_tilt_cannot() -> None:
    # The label is the exclusive or of two columns: no additive logit separates the classes.
    rng = np.random.default_rng(2)
    codes = rng.integers(0, 2, size=(3000, 2))
    labels = codes[:, 0] ^ codes[:, 1]
    tree = LatentTree(
        parent=np.array([-1, 0]),
        order=np.array([0, 1]),
        latent_of=np.arange(2),
        root=np.full(4, 0.25),
        transitions=rng.dirichlet(np.full(4, 5.0), size=(2, 4)),
        emissions=tuple(rng.dirichlet(np.full(2, 2.0), size=4) for _ in range(2)),
    )
    model = with_class_trees(untilted(tree, 2))
    batches = make_batches(model, codes, labels, np.ones(3000), 128, rng.permutation(3000))
    fitted = adam_epochs(model, batches, AdamOptions(n_epochs=30, rate=0.03), rng)
    joint = renormalise(fitted).log_joint(np.array([[0, 0], [0, 1], [1, 0], [1, 1]]))
    np.testing.assert_array_equal(joint.argmax(axis=1), [0, 1, 1, 0])
    assert np.exp(joint).sum() == pytest.approx(1.0)

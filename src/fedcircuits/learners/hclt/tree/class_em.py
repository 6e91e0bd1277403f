"""p(x | y) for its density: one tree of latents, transitions of every class shrunk to the shared.

The tilt separates classes; here the classes are agreed groups of rows (`latent` of a federation)
and what counts is how well each of them is described. Emissions are shared, transitions and root
are the class's own, with a prior around those of all classes together:

    A_y ~ counts_y + strength * A      pi_y ~ counts_y + strength * pi

Every row belongs to one class, so a step costs as much as one of a single tree.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedcircuits.arrays import FloatArray
from fedcircuits.learners.hclt.sample import Sample
from fedcircuits.learners.hclt.tree.along_axis import smoothed
from fedcircuits.learners.hclt.tree.class_tree import ClassTree
from fedcircuits.learners.hclt.tree.latent_tree import Counts, LatentTree
from fedcircuits.learners.hclt.tree.patterns import Patterns, block_patterns, row_blocks
from fedcircuits.learners.hclt.tree.tree_em import Smoothing, column_marginals
from fedcircuits.learners.hclt.tree.tree_pass import TreePass

# Pseudo-rows of every row of a class's transitions, spread as in all classes together.
STRENGTH = 2.0
N_STEPS, PATIENCE, TOLERANCE = 30, 2, 1e-3
N_STEPS_UNSEEN, N_LAST_STEPS = 10, 2  # without validation rows; on all rows in the end


@dataclass(frozen=True)
class ClassRows:
    """Rows of one class, compressed block by block."""

    blocks: list[tuple[Patterns, FloatArray]]
    weight: float


def _by_class(tree: LatentTree, sample: Sample, n_classes: int) -> list[ClassRows]:
    """Rows sorted by class."""
    assert sample.labels is not None
    found = []
    for label in range(n_classes):
        rows = np.flatnonzero(sample.labels == label)
        blocks = [
            (block_patterns(tree, sample.codes[rows[part]]), sample.weights[rows[part]])
            for part in row_blocks(rows.size, tree)
        ]
        found.append(ClassRows(blocks, float(sample.weights[rows].sum())))
    return found


def fit_class_trees(
    tree: LatentTree, train: Sample, held: Sample, everything: Sample, smoothing: Smoothing
) -> tuple[ClassTree, list[float]]:
    """EM for all classes, and the mean training log p(x | y) before every step.

    Args:
        tree: of all rows together, to start from.
        train: labelled rows, some of every class.
        held: validation rows, which end the steps; possibly none.
        everything: all rows, which the last steps see.
        smoothing: pseudo-counts of what the classes share.
    """
    assert everything.labels is not None
    n_classes = int(everything.labels.max()) + 1
    marginals = column_marginals(everything.codes, tree.cards, everything.weights)
    rows, checked = _by_class(tree, train, n_classes), _by_class(tree, held, n_classes)
    model = _start(tree, np.array([mine.weight for mine in rows]))
    best, best_score, stale, curve = model, -np.inf, 0, []
    for _step in range(N_STEPS if len(held.codes) else N_STEPS_UNSEEN):
        counts = [_counts(model, label, mine) for label, mine in enumerate(rows)]
        curve.append(sum(c.log_likelihood for c in counts) / sum(c.weight for c in counts))
        model = _maximised(model, counts, smoothing, marginals)
        if not len(held.codes):
            best = model
            continue
        score = _mean_log_likelihood(model, checked)
        stale = 0 if score > best_score + TOLERANCE else stale + 1
        if score > best_score:
            best, best_score = model, score
        if stale >= PATIENCE:
            break
    rows = _by_class(tree, everything, n_classes)
    for _step in range(N_LAST_STEPS):
        counts = [_counts(best, label, mine) for label, mine in enumerate(rows)]
        best = _maximised(best, counts, smoothing, marginals)
    return best, curve


def _start(tree: LatentTree, rows: FloatArray) -> ClassTree:
    n = len(rows)
    return ClassTree(
        parent=tree.parent,
        order=tree.order,
        latent_of=tree.latent_of,
        log_prior=np.log(rows / rows.sum()),
        root=np.tile(tree.root, (n, 1)),
        transitions=np.tile(tree.transitions, (n, 1, 1, 1)),
        emissions=tuple(np.tile(table, (n, 1, 1)) for table in tree.emissions),
    )


def _counts(model: ClassTree, label: int, rows: ClassRows) -> Counts:
    """Expected counts of the rows of one class under its own tree."""
    tree = model.tree_of(label)
    counts, tree_pass = Counts.zeros(tree), TreePass(tree, np.float32)
    for patterns, weights in rows.blocks:
        tree_pass.add_counts(patterns, weights, counts)
    return counts


def _maximised(
    model: ClassTree, counts: list[Counts], smoothing: Smoothing, marginals: list[FloatArray]
) -> ClassTree:
    """Shared tables from all counts, the classes' own around them."""
    H = model.root.shape[1]
    root = _normalised(np.sum([c.root for c in counts], axis=0) + smoothing.root / H)
    shared = _normalised(np.sum([c.pairs for c in counts], axis=0) + smoothing.transition / H)
    emissions = []
    for column, marginal in enumerate(marginals):
        table = np.sum([c.emissions[column] for c in counts], axis=0)
        table = smoothed(table, smoothing.bins[column]) if smoothing.bins else table
        table = _normalised(table + smoothing.of_column(column) * marginal)
        emissions.append(np.tile(table, (len(counts), 1, 1)))
    weights = np.array([c.weight for c in counts])
    return ClassTree(
        parent=model.parent,
        order=model.order,
        latent_of=model.latent_of,
        log_prior=np.log(weights / weights.sum()),
        root=np.stack([_normalised(c.root + STRENGTH * root) for c in counts]),
        transitions=np.stack([_normalised(c.pairs + STRENGTH * shared) for c in counts]),
        emissions=tuple(emissions),
    )


def _normalised(table: FloatArray) -> FloatArray:
    return np.asarray(table / table.sum(axis=-1, keepdims=True))


def _mean_log_likelihood(model: ClassTree, rows: list[ClassRows]) -> float:
    """Weighted mean of log p(x | y)."""
    total, weight = 0.0, 0.0
    for label, mine in enumerate(rows):
        tree_pass = TreePass(model.tree_of(label), np.float32)
        for patterns, weights in mine.blocks:
            total += float(weights @ tree_pass.pattern_log_likelihood(patterns))
        weight += mine.weight
    return total / weight

"""Transitions that depend on the class, so that the posterior is more than additive.

Starting from the fitted tilt, every class gets its own copy of the transitions, and Adam moves
transitions, root and emissions (and, slowly, the tilt) on small batches of the same objective as
the tilt's. Gradients are flows: a signed downward pass per class for the batch, weighted by
d objective / d logit, plus the normaliser's own flows. The caller keeps the result only where
validation says so.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from fedcircuits.arrays import FloatArray, IntegerArray
from fedcircuits.learners.hclt.tilt.tilt import TiltedTree, normaliser
from fedcircuits.learners.hclt.tilt.tilted_pass import TiltedPass, sums_by_index
from fedcircuits.learners.hclt.tree.latent_tree import LatentTree, TreePass, block_patterns
from fedcircuits.learners.hclt.tree.patterns import Patterns

_FLOOR = 1e-7


@dataclass(frozen=True)
class AdamOptions:
    """Rates of the batch steps.

    Attributes:
        n_epochs: Passes over the rows.
        batch_size: Rows of a batch.
        rate: Step of transitions, root and emissions.
        tilt_rate: Step of the tilt, which L-BFGS has already placed.
    """

    n_epochs: int = 2
    batch_size: int = 512
    rate: float = 0.01
    tilt_rate: float = 0.0005


@dataclass(frozen=True)
class Batch:
    """One compressed batch: patterns, (R, Y) targets and weights (R,)."""

    patterns: Patterns
    target: FloatArray
    weights: FloatArray


def with_class_trees(model: TiltedTree) -> TiltedTree:
    """The same model with a copy of the tree for every class."""
    if len(model.trees) > 1:
        return model
    return replace(model, trees=model.trees * model.n_classes)


def make_batches(
    model: TiltedTree,
    codes: IntegerArray,
    labels: IntegerArray,
    weights: FloatArray,
    batch_size: int,
    rng: np.random.Generator,
) -> list[Batch]:
    """Random batches, compressed once and used in every epoch."""
    tree = model.trees[0]
    scaled = weights / weights.mean()
    shuffled = rng.permutation(len(codes))
    batches = []
    for first in range(0, max(len(codes) - batch_size // 2, 1), batch_size):
        rows = shuffled[first : first + batch_size]
        target = np.zeros((len(rows), model.n_classes))
        target[np.arange(len(rows)), labels[rows]] = 1.0
        batches.append(
            Batch(
                patterns=block_patterns(tree, codes[rows]),
                target=target,
                weights=scaled[rows] / len(rows),
            )
        )
    return batches


def batch_gradient(model: TiltedTree, batch: Batch) -> tuple[float, list[FloatArray]]:
    """Objective of a batch and its gradient.

    Returns:
        cross-entropy + NLL / D, and gradients with respect to c (Y,), g (Y, W), root logits (Y, H),
        log transitions (Y, L, H, H), then the log emissions of every column (H, card_j); the logs
        are taken as free numbers, :func:`_to_logits` accounts for the rows summing to one.
    """
    Y, D = model.n_classes, model.trees[0].n_columns
    flows = normaliser(model, [TreePass(tree) for tree in model.trees], with_pairs=True)
    assert flows.pairs is not None
    root_weights = model.root_weights()
    logits = np.empty_like(batch.target)
    passes, ups = [], []
    for y in range(Y):
        tilted = TiltedPass(model, y, np.float32, root_weights[y])
        logs, total, up = tilted.upward(batch.patterns)
        logits[:, y] = logs[batch.patterns.row_index]
        passes.append(tilted)
        ups.append((total, up))
    log_total = np.logaddexp.reduce(logits, axis=1)
    chosen = (logits * batch.target).sum(axis=1)
    weight = float(batch.weights.sum())
    value = float(batch.weights @ (log_total - chosen))
    value += (weight * flows.log_z - float(batch.weights @ chosen)) / D
    residual = np.exp(logits - log_total[:, None]) - (1.0 + 1.0 / D) * batch.target
    residual *= batch.weights[:, None]

    share = weight / D
    d_c = residual.sum(axis=0) + share * np.exp(flows.log_class - flows.log_z)
    d_g = share * flows.cells
    d_root = share * flows.root
    d_pairs = share * flows.pairs
    d_emissions = [share * table for table in flows.emissions]
    for y, (tilted, (total, up)) in enumerate(zip(passes, ups, strict=True)):
        pull = sums_by_index(batch.patterns.row_index, residual[:, y], len(total))
        mine = [np.zeros_like(table) for table in d_emissions]
        d_root[y] += tilted.add_flows(batch.patterns, up, total, pull, mine, d_pairs[y])
        d_g[y] += np.concatenate([table.sum(axis=0) for table in mine])
        for table, flow in zip(d_emissions, mine, strict=True):
            table += flow
    return value, [d_c, d_g, d_root, d_pairs, *d_emissions]


def _to_logits(gradient: FloatArray, probabilities: FloatArray) -> FloatArray:
    """Gradient with respect to softmax logits from that with respect to free logs (last axis)."""
    return np.asarray(gradient - probabilities * gradient.sum(axis=-1, keepdims=True))


def _softmax(logits: FloatArray) -> FloatArray:
    values = np.exp(logits - logits.max(axis=-1, keepdims=True)) + _FLOOR
    return np.asarray(values / values.sum(axis=-1, keepdims=True))


def adam_epochs(
    model: TiltedTree, batches: list[Batch], options: AdamOptions, rng: np.random.Generator
) -> TiltedTree:
    """Move all parameters by Adam over the batches.

    Args:
        model: With a tree per class (see :func:`with_class_trees`).
        batches: Compressed batches.
        options: Rates.
        rng: Order of the batches.
    """
    base = model.trees[0]
    transitions = np.log(np.stack([tree.transitions for tree in model.trees]) + _FLOOR)
    parameters = [
        model.c.copy(),
        model.g.copy(),
        model.root_logits.copy(),
        transitions,
        *[np.log(table + _FLOOR) for table in base.emissions],
    ]
    rates = [options.tilt_rate] * 2 + [options.rate] * (len(parameters) - 2)
    first = [np.zeros_like(values) for values in parameters]
    second = [np.zeros_like(values) for values in parameters]
    n_total = options.n_epochs * len(batches)
    step = 0
    for _ in range(options.n_epochs):
        for number in rng.permutation(len(batches)):
            step += 1
            _, gradients = batch_gradient(model, batches[number])
            decay = 1.0 - 0.9 * step / n_total
            for i, gradient in enumerate(gradients):
                if i >= 3:
                    gradient = _to_logits(gradient, _softmax(parameters[i]))
                first[i] += 0.1 * (gradient - first[i])
                second[i] += 0.01 * (gradient * gradient - second[i])
                mean = first[i] / (1.0 - 0.9**step)
                spread = np.sqrt(second[i] / (1.0 - 0.99**step))
                parameters[i] -= rates[i] * decay * mean / (spread + 1e-8)
            model = _assembled(base, parameters)
    return model


def _assembled(base: LatentTree, parameters: list[FloatArray]) -> TiltedTree:
    """The tilted tree of Adam's parameter list."""
    c, g, root_logits, transitions = parameters[:4]
    emissions = tuple(_softmax(table) for table in parameters[4:])
    tables = _softmax(transitions)
    trees = tuple(replace(base, transitions=tables[y], emissions=emissions) for y in range(len(c)))
    return TiltedTree(trees=trees, c=c.copy(), g=g.copy(), root_logits=root_logits.copy())

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
import numpy.typing as npt

from fedcircuits.arrays import FloatArray, IntegerArray
from fedcircuits.learners.hclt.tilt.compiled_transitions import CompiledSteps
from fedcircuits.learners.hclt.tilt.tilt import TiltedTree, normaliser
from fedcircuits.learners.hclt.tilt.tilted_pass import TiltedPass, sums_by_index
from fedcircuits.learners.hclt.tree.latent_tree import LatentTree
from fedcircuits.learners.hclt.tree.patterns import Patterns, block_patterns
from fedcircuits.learners.hclt.tree.tree_pass import TreePass
from fedcircuits.native import addresses, kernels

_FLOOR = 1e-7


@dataclass(frozen=True)
class AdamOptions:
    """Rates of the batch steps.

    Attributes:
        n_epochs: Passes over the rows.
        batch_size: Rows of a batch.
        rate: Step of transitions, root and emissions.
        tilt_rate: Step of the tilt, which L-BFGS has already placed.
        dtype: Float type of passes over a batch.
    """

    n_epochs: int = 2
    batch_size: int = 512
    rate: float = 0.01
    tilt_rate: float = 0.0005
    dtype: npt.DTypeLike = np.float32


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
    shuffled: npt.NDArray[np.int64],
) -> list[Batch]:
    """Batches of rows in the order given, compressed once and used in every epoch."""
    tree = model.trees[0]
    scaled = weights / weights.mean()
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


def batch_gradient(
    model: TiltedTree, batch: Batch, dtype: npt.DTypeLike = np.float32
) -> tuple[float, list[FloatArray]]:
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
        tilted = TiltedPass(model, y, dtype, root_weights[y])
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
        root_flow, cells, pairs = tilted.flows(batch.patterns, up, total, pull, with_pairs=True)
        d_root[y] += root_flow
        assert pairs is not None
        d_pairs[y] += pairs
        d_g[y] += cells.sum(axis=1)
        for table, flow in zip(d_emissions, np.split(cells, model.starts[1:-1]), strict=True):
            table += flow.T
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
    free = [model.c.copy(), model.g.copy(), model.root_logits.copy()]
    tables = SoftmaxTables([transitions, *[np.log(table + _FLOOR) for table in base.emissions]])
    first = [np.zeros_like(values) for values in free]
    second = [np.zeros_like(values) for values in free]
    rates = (options.tilt_rate, options.tilt_rate, options.rate)
    n_total = options.n_epochs * len(batches)
    model = _assembled(base, free, tables.chances)
    native = kernels()
    compiled = None
    if native is not None:
        compiled = CompiledSteps(model, tables, batches, options.dtype, _FLOOR)
    step = 0
    for _ in range(options.n_epochs):
        for number in rng.permutation(len(batches)):
            step += 1
            decay = 1.0 - 0.9 * step / n_total
            scales = 1.0 / (1.0 - 0.9**step), 1.0 / (1.0 - 0.99**step)
            if native is not None and compiled is not None:
                compiled.step(
                    native, number, options.rate * decay, options.tilt_rate * decay, scales
                )
                continue
            _, gradients = batch_gradient(model, batches[number], options.dtype)
            for i, rate in enumerate(rates):
                _adam(gradients[i], first[i], second[i], free[i], rate * decay, scales)
            tables.step(gradients[len(free) :], options.rate * decay, scales)
            model = _assembled(base, free, tables.chances)
    return model if compiled is None else compiled.model()


def _adam(
    gradient: FloatArray,
    first: FloatArray,
    second: FloatArray,
    values: FloatArray,
    rate: float,
    scales: tuple[float, float],
) -> None:
    """One step of Adam, in place; `scales` correct the moments for their start at zero."""
    first += 0.1 * (gradient - first)
    second += 0.01 * (gradient * gradient - second)
    values -= rate * (first * scales[0]) / (np.sqrt(second * scales[1]) + 1e-8)


class SoftmaxTables:
    """Tables of logits that Adam moves; their softmax over the last axis, `chances`, follows."""

    def __init__(self, logits: list[FloatArray]) -> None:
        """Start at logits (..., width) each, which are taken over."""
        self.logits = logits
        self.chances = [_softmax(table) for table in logits]
        self._first = [np.zeros_like(table) for table in logits]
        self._second = [np.zeros_like(table) for table in logits]
        sizes = [(table.size // table.shape[-1], table.shape[-1]) for table in logits]
        self.sizes = np.array(sizes, dtype=np.int64)
        own = (self._first, self._second, self.logits, self.chances)
        self.at = [addresses(arrays) for arrays in own]

    def step(self, gradients: list[FloatArray], rate: float, scales: tuple[float, float]) -> None:
        """One step by gradients with respect to the logs of the chances, taken as free numbers."""
        state = zip(gradients, self.chances, self._first, self._second, self.logits, strict=True)
        for gradient, chances, first, second, logits in state:
            _adam(_to_logits(gradient, chances), first, second, logits, rate, scales)
            chances[:] = _softmax(logits)


def _assembled(base: LatentTree, free: list[FloatArray], chances: list[FloatArray]) -> TiltedTree:
    """The tilted tree of Adam's parameters."""
    c, g, root_logits = (values.copy() for values in free)
    tables, *emissions = (values.copy() for values in chances)
    trees = tuple(
        replace(base, transitions=tables[y], emissions=tuple(emissions)) for y in range(len(c))
    )
    return TiltedTree(trees=trees, c=c, g=g, root_logits=root_logits)

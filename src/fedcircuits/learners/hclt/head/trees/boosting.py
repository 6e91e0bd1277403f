"""Training the boosted trees of a head: gradient boosting of a loss, ended by held-out rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedcircuits.arrays import BoolArray, FloatArray, IntArray, IntegerArray
from fedcircuits.learners.hclt.features import Values
from fedcircuits.learners.hclt.head.trees.boosted_trees import BoostedTrees
from fedcircuits.learners.hclt.head.trees.compiled_boosting import Watched, compiled_steps
from fedcircuits.learners.hclt.head.trees.tree_growing import (
    MISSING_BIN,
    Binning,
    Grown,
    Limits,
    TreeGrower,
    bools,
)
from fedcircuits.native import kernels

Loss = Literal["squared_error", "gamma"]

# Categories that are told apart in one column; with more, codes count as numbers.
MOST_CATEGORIES = MISSING_BIN
# Steps without gain on held-out rows after which boosting ends, and what counts as a gain.
_PATIENCE, _LEAST_GAIN = 20, 1e-7
# Steps before boosting ends at all: interactions alone gain nothing at first.
_LEAST_STEPS = 60


@dataclass(frozen=True)
class BoostOptions:
    """Sizes of a booster.

    Attributes:
        n_steps: most boosting steps; held-out rows end them sooner.
        rate: learning rate.
        n_leaves: most leaves of a tree.
        min_rows: least rows behind a leaf.
        ridge: L2 penalty on the leaves' values.
        column_share: share of the columns each split looks at.
        row_share: share of the rows each step looks at.
        at_random: whether numbers are split at places drawn at random (extremely random trees).
        line: penalty of the logistic regression that classes start from; none if not given.
    """

    n_steps: int = 200
    rate: float = 0.07
    n_leaves: int = 31
    min_rows: int = 20
    ridge: float = 1.0
    column_share: float = 0.5
    row_share: float = 1.0
    at_random: bool = False
    line: float | None = None

    @property
    def draws(self) -> bool:
        """Whether rows or places of splits are drawn for every step."""
        return self.at_random or self.row_share < 1


def boost(
    rows: Values,
    labels: IntegerArray,
    weights: FloatArray,
    n_codes: IntegerArray,
    options: BoostOptions,
    seed: int,
    held: tuple[Values, IntegerArray, FloatArray] | None = None,
    start: BoostedTrees | None = None,
) -> BoostedTrees:
    """Boosted trees with one output for two classes (the log-odds of the second), else one a class.

    Args:
        rows: (n, D) values, NaN where missing, categories by code.
        labels: (n,) classes; every class occurs.
        weights: (n,) row weights.
        n_codes: (D,) number of categories, 0 for numbers.
        options: sizes.
        seed: of the choice of columns.
        held: rows, labels and weights that end the boosting when they no longer gain.
        start: what the outputs start from; the result is what is added to it.
    """
    n_classes = int(labels.max()) + 1
    kind = _two_classes if n_classes == 2 else _many_classes
    return _boosted(kind, n_classes, rows, labels, weights, n_codes, options, seed, held, start)


def boost_numbers(
    rows: Values,
    targets: FloatArray,
    weights: FloatArray,
    n_codes: IntegerArray,
    options: BoostOptions,
    seed: int,
    held: tuple[Values, FloatArray, FloatArray] | None = None,
    loss: Loss = "squared_error",
) -> BoostedTrees:
    """Boosted trees with one output: the mean of a number, or with "gamma" the log of its mean.

    Args:
        rows: (n, D) values, NaN where missing, categories by code.
        targets: (n,) numbers, positive for "gamma".
        weights: (n,) row weights.
        n_codes: (D,) number of categories, 0 for numbers.
        options: sizes.
        seed: of the choice of columns.
        held: rows, numbers and weights that end the boosting when they no longer gain.
        loss: what the trees minimise.
    """
    kind = _gamma if loss == "gamma" else _squared
    return _boosted(kind, 1, rows, targets, weights, n_codes, options, seed, held)


# --- losses: of outputs (n, K), gradients and hessians (n, K) and the loss of each row (n,) ------

Part = tuple[FloatArray, FloatArray, FloatArray]
Targets = FloatArray | IntegerArray


def _two_classes(outputs: FloatArray, labels: Targets) -> Part:
    f = outputs[:, 0]
    native = kernels()
    if native is not None:
        target = np.asarray(labels, dtype=np.float64)
        gradient, hessian, loss = (np.empty(f.size) for _ in range(3))
        native.call("two_class_loss", f.size, f, target, gradient, hessian, loss)
        return gradient[:, None], hessian[:, None], loss
    p = 1.0 / (1.0 + np.exp(-f))
    loss = np.logaddexp(0.0, f) - labels * f
    return (p - labels)[:, None], (p * (1.0 - p))[:, None], loss


def _many_classes(outputs: FloatArray, labels: Targets) -> Part:
    top = outputs.max(axis=1, keepdims=True)
    p = np.exp(outputs - top)
    total = p.sum(axis=1, keepdims=True)
    p /= total
    mine = np.arange(len(labels)), labels.astype(np.int64)
    loss = (np.log(total) + top)[:, 0] - outputs[mine]
    gradient = p.copy()
    gradient[mine] -= 1.0
    return gradient, p * (1.0 - p), loss


def _squared(outputs: FloatArray, targets: Targets) -> Part:
    away = outputs[:, 0] - targets
    return away[:, None], np.ones((len(targets), 1)), 0.5 * away * away


def _gamma(outputs: FloatArray, targets: Targets) -> Part:
    share: FloatArray = np.asarray(targets * np.exp(-outputs[:, 0]), dtype=float)
    return (1.0 - share)[:, None], share[:, None], outputs[:, 0] + share


def _start(
    kind: Callable[..., Part], n_classes: int, targets: Targets, w: FloatArray
) -> FloatArray:
    """(K,) the best constant outputs."""
    if kind in (_squared, _gamma):
        mean = np.average(targets, weights=w)
        return np.array([mean if kind is _squared else np.log(mean)])
    share = np.bincount(targets.astype(np.int64), w, minlength=n_classes) / w.sum()
    logs = np.log(np.maximum(share, np.finfo(float).tiny))
    return np.array([logs[1] - logs[0]]) if n_classes == 2 else logs - logs.mean()


# --- boosting -------------------------------------------------------------------------------------


def _boosted(
    kind: Callable[..., Part],
    n_classes: int,
    rows: Values,
    targets: Targets,
    weights: FloatArray,
    n_codes: IntegerArray,
    options: BoostOptions,
    seed: int,
    held: tuple[Values, Targets, FloatArray] | None,
    start: BoostedTrees | None = None,
) -> BoostedTrees:
    """Trees that take a loss down step by step, a tree an output and step."""
    rng = np.random.default_rng(seed)
    is_category = np.asarray((n_codes > 0) & (n_codes <= MOST_CATEGORIES))
    binning = Binning.of(rows, is_category, rng)
    n_columns = max(1, int(np.ceil(options.column_share * rows.shape[1])))
    limits = Limits(options.n_leaves, options.min_rows, options.ridge, n_columns, options.at_random)
    grower = TreeGrower(binning.bins(rows), binning, limits)
    w = weights / weights.mean()
    baseline = _start(kind, n_classes, targets, w)
    baseline = baseline if start is None else np.zeros(baseline.size)
    outputs = np.tile(baseline, (len(rows), 1)) if start is None else start.outputs(rows)
    grown: list[tuple[Grown, FloatArray]] = []
    losses: list[float] = []
    if held is not None:
        held_bins = binning.bins(held[0])
        held_rows = np.arange(len(held[0]), dtype=np.int32)
        held_leaves = np.zeros_like(held_rows)
        held_outputs = np.tile(baseline, (len(held[0]), 1))
        if start is not None:
            held_outputs = start.outputs(held[0])
        held_share = held[2] / held[2].sum()
        losses.append(float(held_share @ kind(held_outputs, held[1])[2]))
    native, n_steps = kernels(), options.n_steps
    if native is not None and kind is _two_classes and not options.draws:
        watched = None
        if held is not None:
            known, log_odds = np.asarray(held[1], dtype=float), held_outputs[:, 0].copy()
            ends = _LEAST_STEPS, _PATIENCE, _LEAST_GAIN
            watched = Watched(held_bins, known, held_share, log_odds, losses, *ends)
        labels, log_odds = np.asarray(targets, dtype=float), outputs[:, 0].copy()
        taken = native, grower, labels, w, log_odds, n_steps, options.rate, rng, watched
        grown, n_steps = compiled_steps(*taken), 0
    for _ in range(n_steps):
        gradient, hessian, _ = kind(outputs, targets)
        drawn = _drawn(len(rows), options, rng)
        for k in range(baseline.size):
            tree, leaf_of = grower.grow(w * gradient[:, k], w * hessian[:, k], rng, drawn)
            g, h = tree.totals.T
            values = np.where(tree.nodes[:, 0] < 0, -options.rate * g / (h + options.ridge), 0.0)
            outputs[:, k] += values[leaf_of]
            if held is not None:
                tree.find_leaves(held_bins, held_rows, held_leaves)
                held_outputs[:, k] += values[held_leaves]
            grown.append((tree, values))
        if held is None:
            continue
        losses.append(float(held_share @ kind(held_outputs, held[1])[2]))
        recent = losses[-_PATIENCE:]
        if len(losses) > _LEAST_STEPS and min(recent) > losses[-_PATIENCE - 1] - _LEAST_GAIN:
            break
    if losses:  # steps up to the best one
        grown = grown[: max(int(np.argmin(losses)), 1) * baseline.size]
    return _as_arrays(grown, binning, int(n_codes.max(initial=0)), baseline)


def _drawn(
    n_rows: int, options: BoostOptions, rng: np.random.Generator
) -> NDArray[np.int32] | None:
    """Rows of one step, rising; None for all."""
    if options.row_share >= 1:
        return None
    size = max(int(np.ceil(options.row_share * n_rows)), min(2 * options.min_rows, n_rows))
    return np.sort(rng.permutation(n_rows)[:size]).astype(np.int32)


def _as_arrays(
    grown: list[tuple[Grown, FloatArray]], binning: Binning, n_codes: int, baseline: FloatArray
) -> BoostedTrees:
    """The trees over values instead of bins."""
    is_category = binning.is_category
    known = np.zeros((is_category.size, n_codes if is_category.any() else 0), dtype=bool)
    for at in np.flatnonzero(is_category):
        known[at, binning.cuts[at].astype(np.int64)] = True
    sizes = np.array([len(tree.nodes) for tree, _ in grown])
    starts = np.cumsum(sizes) - sizes
    nodes = np.concatenate([tree.nodes for tree, _ in grown])  # (N, 5)
    feature, inner = nodes[:, 0], nodes[:, 0] >= 0
    is_set = inner & is_category[np.maximum(feature, 0)]
    shift = np.repeat(starts, sizes)
    sides = bools(np.concatenate([tree.sets for tree, _ in grown])[is_set])  # (C, BINS)
    sets = np.zeros((len(sides), known.shape[1]), dtype=bool)
    for row, at in enumerate(feature[is_set]):
        codes = binning.cuts[at].astype(np.int64)
        sets[row, codes] = sides[row, : codes.size]
    return BoostedTrees(
        feature=np.where(inner, feature, -1),
        threshold=_thresholds(nodes, inner & ~is_set, binning),
        left=np.where(inner, nodes[:, 2] + shift, -1),
        right=np.where(inner, nodes[:, 3] + shift, -1),
        value=np.concatenate([values for _, values in grown]),
        missing_left=inner & (nodes[:, 4] > 0),
        categories=np.where(is_set, np.cumsum(is_set) - 1, -1),
        left_categories=sets,
        known_categories=known,
        roots=starts,
        output=np.arange(len(grown)) % baseline.size,
        baseline=baseline,
    )


def _thresholds(nodes: IntArray, numeric: BoolArray, binning: Binning) -> FloatArray:
    """(N,) threshold of every numeric split; infinity where all values go left."""
    answer = np.zeros(len(nodes))
    for at, cuts in enumerate(binning.cuts):
        mine = numeric & (nodes[:, 0] == at)
        answer[mine] = np.append(cuts, np.inf)[nodes[mine, 1]]
    return answer

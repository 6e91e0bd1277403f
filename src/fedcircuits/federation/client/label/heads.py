"""What a client does about a head of the label: boosts trees, and pools them with the tilt."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from functools import reduce

import numpy as np

from fedcircuits.arrays import Arrays, BoolArray, FloatArray, IntArray
from fedcircuits.density.contracts import LearnsHead
from fedcircuits.density.tilt import log_softmax
from fedcircuits.federation.client.dispatch import handles, seconds_since
from fedcircuits.federation.client.state import ClientState
from fedcircuits.federation.plan.weights import known_log_shares
from fedcircuits.federation.wire import requests as m
from fedcircuits.federation.wire.seeds import named_rng
from fedcircuits.schema import Table

LEAST_CLASS_ROWS = 20  # rows of every class that trees are boosted from
LIMITS, LIMIT_COST = (2.0, 3.0, 4.0, 6.0), 5e-4
_RIDGE = 1.0


class Heads(ClientState):
    """The part of a client that boosts trees of the label."""

    @handles(m.FIT_HEAD)
    def _fit_head(self, request: m.FitHead) -> m.HeadFitted:
        """Trees over the client's own columns."""
        start = time.process_time()
        learner = self._learner.of_densities(None)
        codes, known = self._classes()
        rows = np.flatnonzero(known)
        several = classes_with_rows(codes[rows], request.n_classes)
        able = isinstance(learner, LearnsHead) and learner.heads
        if not able or several.sum() < 2:
            return m.HeadFitted({}, np.zeros(1))
        assert isinstance(learner, LearnsHead)
        table = self._have().columns(request.columns).rows(rows)
        seed = int(named_rng(self._seed, self.name, "head").integers(2**31))
        trees = fit_trees(learner, table, codes[rows], several, request.min_rows, seed)
        return m.HeadFitted(trees, seconds_since(start))


def classes_with_rows(classes: IntArray, n_classes: int) -> BoolArray:
    """(Y,) which classes have rows enough to boost trees from."""
    return np.bincount(classes, minlength=n_classes) >= LEAST_CLASS_ROWS


def fit_trees(
    learner: LearnsHead,
    table: Table,
    classes: IntArray,
    several: BoolArray,
    min_rows: int,
    seed: int,
) -> Arrays:
    """Trees of a client, one output a class; one of few rows stays where its share puts it.

    Args:
        learner: that boosts trees.
        table: rows.
        classes: (n,) their classes.
        several: (Y,) classes with rows enough; trees are boosted from rows of these.
        min_rows: least rows behind a leaf.
        seed: of the boosting.
    """
    if several.all():
        return learner.fit_head(table, classes, min_rows, seed)
    rows = np.flatnonzero(several[classes])
    number = np.cumsum(several) - 1
    trees = learner.fit_head(table.rows(rows), number[classes[rows]], min_rows, seed)
    counts = np.bincount(classes, minlength=several.size).astype(float)
    return over_more_classes(trees, several, known_log_shares(counts))


def over_more_classes(trees: Arrays, several: BoolArray, log_shares: FloatArray) -> Arrays:
    """The same trees with an output for every class, where they are of some of the classes.

    Args:
        trees: of the classes that have rows enough.
        several: (Y,) which these are.
        log_shares: (Y,) of all; beyond them nothing is said of the other classes, and of these
            nothing on average.
    """
    from fedcircuits.learners.hclt.head.trees.boosted_trees import BoostedTrees

    kept, n_columns = np.flatnonzero(several), len(trees["known_categories"])
    n_outputs = 1 if kept.size == 2 else kept.size
    made = BoostedTrees.from_arrays(trees, n_columns, n_outputs)
    baseline = made.baseline
    made = replace(made, output=kept[made.output], baseline=np.zeros(several.size))
    if kept.size == 2:  # the log-odds of the second: half of them for either class
        baseline = np.array([-0.5, 0.5]) * baseline[0]
        both = [(-0.5, kept[0]), (0.5, kept[1])]
        halves = [
            replace(part, value=by * part.value, output=np.full_like(part.output, y))
            for part in made.parted()
            for by, y in both
        ]
        made = reduce(BoostedTrees.plus, halves)
    beyond = np.zeros(several.size)
    beyond[kept] = baseline - log_shares[kept]
    beyond[kept] -= beyond[kept].mean()
    return replace(made, baseline=log_shares + beyond).arrays()


def pooled(log_tilt: FloatArray, outputs: Sequence[FloatArray], labels: IntArray) -> m.PoolWeights:
    """The likeliest pool on left-out rows, and what a pool of half of them gains on the others.

    Args:
        log_tilt: (n, Y) log t(y | x).
        outputs: (n, Y) of each client's trees.
        labels: (n,) classes.
    """
    n = len(labels)
    before = log_tilt[np.arange(n), labels]
    gains = log_of_label(log_tilt, outputs, labels) - before
    theta = _fitted(log_tilt, outputs, labels)
    logits = _logits(theta, log_tilt, outputs)
    moved = log_softmax(logits) - log_tilt
    losses = []
    for limit in LIMITS:
        spread = moved - moved.mean(axis=1, keepdims=True)
        near = log_softmax(log_tilt + np.clip(spread, -limit / 2, limit / 2))
        losses.append(-float(near[np.arange(n), labels].mean()))
    limit = next(a for a, at in zip(LIMITS, losses, strict=True) if at <= min(losses) + LIMIT_COST)
    n_trees = len(outputs)
    return m.PoolWeights(
        float(theta[0]),
        theta[1 : 1 + n_trees],
        theta[1 + n_trees :],
        limit,
        -float(before.mean()),
        float(gains.mean()),
        float(gains.std() / np.sqrt(n)),
        n,
    )


def log_of_label(
    log_tilt: FloatArray, outputs: Sequence[FloatArray], labels: IntArray
) -> FloatArray:
    """(n,) log-posterior of each row's class by a pool that was fitted on other rows."""
    n = len(labels)
    half, answer = np.arange(n) % 2 == 1, np.empty(n)
    for part in (half, ~half):
        theta = _fitted(log_tilt[~part], [f[~part] for f in outputs], labels[~part])
        after = log_softmax(_logits(theta, log_tilt[part], [f[part] for f in outputs]))
        answer[part] = after[np.arange(part.sum()), labels[part]]
    return answer


def _logits(theta: FloatArray, log_tilt: FloatArray, outputs: Sequence[FloatArray]) -> FloatArray:
    shift = theta[1 + len(outputs) :]
    answer = theta[0] * log_tilt + shift
    for weight, f in zip(theta[1:], outputs, strict=False):
        answer = answer + weight * f
    return np.asarray(answer)


def _fitted(log_tilt: FloatArray, outputs: Sequence[FloatArray], labels: IntArray) -> FloatArray:
    """Weights (1 + S + Y,) of the tilt, the trees and the classes."""
    from scipy import optimize  # takes longer to import than the rest of the package

    n, n_classes = log_tilt.shape
    n_trees, every = len(outputs), np.arange(n)
    start = np.concatenate([[1.0], np.zeros(n_trees + n_classes)])

    def loss(theta: FloatArray) -> tuple[float, FloatArray]:
        log_q = log_softmax(_logits(theta, log_tilt, outputs))
        away = np.exp(log_q)
        away[every, labels] -= 1.0
        gap = theta - start
        value = -float(log_q[every, labels].sum()) + 0.5 * _RIDGE * float(gap @ gap)
        slope = [(away * log_tilt).sum(), *((away * f).sum() for f in outputs), *away.sum(axis=0)]
        return value, np.array(slope) + _RIDGE * gap

    bounds = [(0.0, None)] * (1 + n_trees) + [(None, None)] * n_classes
    first = start + np.concatenate([[-0.5], np.full(n_trees, 0.5), np.zeros(n_classes)])
    found = optimize.minimize(loss, first, jac=True, method="L-BFGS-B", bounds=bounds)
    return np.asarray(found.x)

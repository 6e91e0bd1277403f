"""What a client does about a head of the label: boosts trees, and pools them with the tilt."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from fedcircuits.arrays import FloatArray, IntArray
from fedcircuits.density.contracts import LearnsHead
from fedcircuits.density.tilt import log_softmax
from fedcircuits.federation.client.dispatch import handles, seconds_since
from fedcircuits.federation.client.state import ClientState
from fedcircuits.federation.wire import requests as m
from fedcircuits.federation.wire.seeds import named_rng

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
        counts = np.bincount(codes[known], minlength=request.n_classes)
        able = isinstance(learner, LearnsHead) and learner.heads
        if not able or counts.min() < LEAST_CLASS_ROWS:
            return m.HeadFitted({}, np.zeros(1))
        assert isinstance(learner, LearnsHead)
        rows = np.flatnonzero(known)
        table = self._have().columns(request.columns).rows(rows)
        seed = int(named_rng(self._seed, self.name, "head").integers(2**31))
        trees = learner.fit_head(table, codes[rows], request.min_rows, seed)
        return m.HeadFitted(trees, seconds_since(start))


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

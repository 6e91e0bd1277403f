"""The geometric pool of two posteriors: q = softmax(a log t + b f + c).

t(y | x) is the tilted circuit's own posterior, f the outputs of boosted trees; a, b >= 0 and c are
fitted on rows neither has seen. The log-odds of q between two classes stay within a limit of those
of t, which bounds q / t by its exponential: enough for almost all the gain, and small enough to
sample given the label by rejection.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import optimize

from fedcircuits.arrays import FloatArray, IntArray, IntegerArray
from fedcircuits.density.tilt import by_class, log_softmax

# How far log-odds may move: the least of these that costs at most so many nats a row.
LIMITS, LIMIT_COST = (2.0, 3.0, 4.0, 6.0), 5e-4
# Ridge on the distance of (a, b) from (1, 0) and on c, in rows.
_RIDGE, _SHIFT_RIDGE = 3.0, 100.0


@dataclass(frozen=True)
class Pool:
    """Weights of the two posteriors.

    Attributes:
        tilt: a, the weight of log t.
        trees: b, the weight of the trees' outputs.
        shift: (P,) c, by class.
        classes: (P,) codes of the label that the trees know; the others keep t.
        limit: how far the log-odds of q between two classes may be from those of t.
    """

    tilt: float
    trees: float
    shift: FloatArray
    classes: IntArray
    limit: float

    def log_posterior(self, log_joint: FloatArray, outputs: FloatArray) -> FloatArray:
        """(n, Y) log q(y | x).

        Args:
            log_joint: (n, Y) log p(x, y) of the circuit, up to a constant for each row.
            outputs: (n, K) of the trees.
        """
        answer = log_softmax(log_joint)
        known = answer[:, self.classes]
        share = np.logaddexp.reduce(known, axis=1)[:, None]  # log t(the classes the trees know)
        known = known - share
        moved = limited(known, self._logits(known, outputs), self.limit)
        answer[:, self.classes] = moved + share
        return answer

    def _logits(self, log_tilt: FloatArray, outputs: FloatArray) -> FloatArray:
        """(n, P) a log t + b f + c."""
        return np.asarray(self.tilt * log_tilt + self.trees * by_class(outputs) + self.shift)


def limited(log_tilt: FloatArray, logits: FloatArray, limit: float) -> FloatArray:
    """(n, P) log q with no two classes' log-odds further than `limit` from those of t.

    Args:
        log_tilt: (n, P) log t, normalised.
        logits: (n, P) unlimited logits.
        limit: the largest difference.
    """
    moved = np.where(np.isfinite(log_tilt), logits - log_tilt, 0.0)
    if moved.shape[1] == 2:
        middle = moved.mean(axis=1)
    else:  # halfway between the classes that t and q believe in
        weight = np.exp(log_tilt) + np.exp(log_softmax(logits))
        middle = (weight * moved).sum(axis=1) / 2
    moved -= middle[:, None]
    return log_softmax(log_tilt + np.clip(moved, -limit / 2, limit / 2))


def fit_pool(
    log_tilt: FloatArray,
    outputs: FloatArray,
    labels: IntegerArray,
    weights: FloatArray,
) -> Pool:
    """The likeliest pool of two posteriors on rows that neither was fitted to.

    Args:
        log_tilt: (n, P) log t, normalised.
        outputs: (n, K) of the trees.
        labels: (n,) classes 0 .. P - 1.
        weights: (n,) row weights.
    """
    n, n_classes = log_tilt.shape
    every = np.arange(n)
    f = by_class(outputs)
    finite = np.maximum(log_tilt, -700.0)
    share = weights / weights.sum()
    ridge = np.full(2 + n_classes, _SHIFT_RIDGE / weights.sum())
    ridge[:2] = _RIDGE / weights.sum()

    def loss(theta: FloatArray) -> tuple[float, FloatArray]:
        logits = log_softmax(theta[0] * finite + theta[1] * f + theta[2:])
        away = np.exp(logits)
        away[every, labels] -= 1.0
        away *= share[:, None]
        gap = theta - start
        value = -float(share @ logits[every, labels]) + 0.5 * float(ridge @ gap**2)
        slope = np.concatenate([[(away * finite).sum(), (away * f).sum()], away.sum(axis=0)])
        return value, slope + ridge * gap

    start = np.concatenate([[1.0, 0.0], np.zeros(n_classes)])
    bounds = [(0.0, None), (0.0, None)] + [(None, None)] * n_classes
    first = np.concatenate([[0.5, 0.5], np.zeros(n_classes)])
    found = optimize.minimize(loss, first, jac=True, method="L-BFGS-B", bounds=bounds)
    a, b = found.x[:2]
    logits = a * log_tilt + b * f + found.x[2:]
    losses = [-float(share @ limited(log_tilt, logits, at)[every, labels]) for at in LIMITS]
    limit = next(
        at for at, lost in zip(LIMITS, losses, strict=True) if lost <= min(losses) + LIMIT_COST
    )
    return Pool(float(a), float(b), np.asarray(found.x[2:]), np.arange(n_classes), limit)

"""Calibration of per-class models from several clients: one weight each, one bias a class.

    log p(y | x) = b_y + sum_S a_S log p(x_S | y) + const

The product of per-class models (all a = 1) counts evidence twice where clients' columns are
dependent; two or three weights mend that. It changes p(y | x) only, not the density, and is kept
only where it lowers the log-loss of rows it was not fitted on.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy.optimize import minimize
from scipy.special import logsumexp

from fedcircuits.density import Density
from fedcircuits.schema import Table
from fedcircuits.schema.grid import FloatArray, IntArray

RIDGE = 1.0  # pseudo-rows that pull every weight towards 1


@dataclass(frozen=True)
class Calibration:
    """What was fitted.

    Attributes:
        weights: (S,) a.
        bias: (Y,) b, the log-prior included.
        gain: by how much the held-out log-loss fell, nats per row.
    """

    weights: FloatArray
    bias: FloatArray
    gain: float

    def log_posterior(self, log_probs: FloatArray) -> FloatArray:
        """(n, Y) log p(y | x) from log p(x_S | y) (n, S, Y)."""
        logits = self.bias + np.einsum("s,nsy->ny", self.weights, log_probs)
        return np.asarray(logits - logsumexp(logits, axis=1, keepdims=True))


def fit_calibration(
    log_probs: FloatArray, labels: IntArray, log_prior: FloatArray
) -> Calibration | None:
    """Fit on every other row, judge on the rest, refit on all; None where it does not help.

    Args:
        log_probs: (n, S, Y) log p(x_S | y) of rows.
        labels: (n,) their classes.
        log_prior: (Y,) log q(y).
    """
    usable = np.isfinite(log_probs).all(axis=(1, 2))
    log_probs, labels = log_probs[usable], labels[usable]
    if len(labels) < 100:
        return None
    half = np.arange(len(labels)) % 2 == 0
    plain = Calibration(np.ones(log_probs.shape[1]), log_prior, 0.0)
    trial = _fit(log_probs[half], labels[half], log_prior)
    gain = _loss(plain, log_probs[~half], labels[~half]) - _loss(
        trial, log_probs[~half], labels[~half]
    )
    if gain <= 0:
        return None
    best = _fit(log_probs, labels, log_prior)
    return Calibration(best.weights, best.bias, gain)


def log_loss(log_joint: FloatArray, labels: IntArray) -> float:
    """Mean -log p(y | x) from log p(x, y) (n, Y); infinite where a label was held impossible."""
    if len(labels) == 0:
        return float("nan")
    total = logsumexp(log_joint, axis=1)
    with np.errstate(invalid="ignore"):
        chosen = log_joint[np.arange(len(labels)), labels] - total
    return -float(np.where(np.isnan(chosen), -np.inf, chosen).mean())


def label_log_joint(model: Density, table: Table, label: str | None) -> FloatArray:
    """(n, Y) log p(x, y) for every class, or (n, 1) log p(x) of a model without the label."""
    if label is None or label not in model.schema:
        return model.log_prob_table(table)[:, None]
    at = model.schema.position(label)
    observed = table.observed.copy()
    observed[:, at] = False
    hidden = replace(table, observed=observed)
    with np.errstate(divide="ignore"):
        log_posterior = np.log(model.posterior_table(hidden, at))
    return np.asarray(model.log_prob_table(hidden)[:, None] + log_posterior)


def _loss(model: Calibration, log_probs: FloatArray, labels: IntArray) -> float:
    return -float(model.log_posterior(log_probs)[np.arange(len(labels)), labels].mean())


def _fit(log_probs: FloatArray, labels: IntArray, log_prior: FloatArray) -> Calibration:
    n, n_spaces, n_classes = log_probs.shape

    def unpack(theta: FloatArray) -> Calibration:
        return Calibration(theta[:n_spaces], log_prior + theta[n_spaces:], 0.0)

    def objective(theta: FloatArray) -> tuple[float, FloatArray]:
        model = unpack(theta)
        log_posterior = model.log_posterior(log_probs)
        error = np.exp(log_posterior)
        error[np.arange(n), labels] -= 1.0  # (n, Y)
        pull = theta - start
        loss = -log_posterior[np.arange(n), labels].sum() + 0.5 * RIDGE * (pull @ pull)
        slope = np.concatenate([np.einsum("ny,nsy->s", error, log_probs), error.sum(axis=0)])
        return float(loss / n), (slope + RIDGE * pull) / n

    start = np.concatenate([np.ones(n_spaces), np.zeros(n_classes)])
    return unpack(minimize(objective, start, jac=True, method="L-BFGS-B").x)

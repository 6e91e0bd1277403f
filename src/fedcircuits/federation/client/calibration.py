"""Calibration of per-class models from several clients: one weight each, one bias a class.

    log p(y | x) = b_y + sum_S a_S log p(x_S | y) + const

The product of per-class models (all a = 1) counts evidence twice where clients' columns are
dependent; two or three weights mend that. What a client's columns say can also mean more or less
next to what another's say: products of two clients' evidence, and squares of one client's, are
added where they are worth it,

    + sum_{S < T} p_STy e_Sy e_Ty  + sum_S s_Sy e_Sy^2,    e_Sy = log p(x_S | y) - its mean over y,

with e cut off at +-4. A client whose cells are missing has e = 0, and its terms vanish. All of it
changes p(y | x) only, not the density, and is kept only where it lowers the log-loss of rows it was
not fitted on.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
from scipy.special import logsumexp

from fedcircuits.arrays import FloatArray, IntArray
from fedcircuits.density import Density
from fedcircuits.schema import Table

RIDGE = 1.0  # pseudo-rows that pull every weight towards 1, and every other term towards 0
LEAST_ROWS = 100
LARGEST_EVIDENCE = 4.0  # of e: a ratio of e^8 between two classes


@dataclass(frozen=True)
class Calibration:
    """What was fitted.

    Attributes:
        weights: a (S,); with more terms (S + P Y,), p following pair by pair and class by class;
            with squares too (S + P Y + S Y,), s last. P is the number of pairs of subspaces.
        bias: (Y,) b, the log-prior included.
        gain: by how much the held-out log-loss fell, nats per row.
    """

    weights: FloatArray
    bias: FloatArray
    gain: float

    def log_posterior(self, log_probs: FloatArray) -> FloatArray:
        """(n, Y) log p(y | x) from log p(x_S | y) (n, S, Y)."""
        n_spaces, n_classes = log_probs.shape[1:]
        logits = self.bias + np.einsum("s,nsy->ny", self.weights[:n_spaces], log_probs)
        if self.weights.size > n_spaces:
            more = self.weights[n_spaces:].reshape(-1, n_classes)  # (T, Y)
            logits = logits + np.einsum("nty,ty->ny", _products(log_probs, len(more)), more)
        return np.asarray(logits - logsumexp(logits, axis=1, keepdims=True))


def fit_calibration(
    log_probs: FloatArray, labels: IntArray, log_prior: FloatArray
) -> Calibration | None:
    """Fit on each half, judge on the other, refit the winner on all; None where none helps.

    Weights alone, weights with pairs, and weights with pairs and squares are compared.

    Args:
        log_probs: (n, S, Y) log p(x_S | y) of rows.
        labels: (n,) their classes.
        log_prior: (Y,) log q(y).
    """
    usable = np.isfinite(log_probs).all(axis=(1, 2))
    log_probs, labels = log_probs[usable], labels[usable]
    if len(labels) < LEAST_ROWS:
        return None
    n_spaces = log_probs.shape[1]
    n_pairs = n_spaces * (n_spaces - 1) // 2
    forms = [0] if n_spaces == 1 else [0, n_pairs, n_pairs + n_spaces]
    plain = _losses(Calibration(np.ones(n_spaces), log_prior, 0.0), log_probs, labels)
    best, best_form = plain, -1
    for n_products in forms:
        losses = _held_out(log_probs, labels, log_prior, n_products)
        if losses.mean() < best.mean():
            best, best_form = losses, n_products
    if best_form < 0:
        return None
    found = _fit(log_probs, labels, log_prior, best_form)
    return Calibration(found.weights, found.bias, float((plain - best).mean()))


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


def _products(log_probs: FloatArray, n_products: int) -> FloatArray:
    """(n, T, Y) the first T products of centred evidence: pairs first, then squares."""
    centred = log_probs - log_probs.mean(axis=2, keepdims=True)
    evidence = np.clip(centred, -LARGEST_EVIDENCE, LARGEST_EVIDENCE)  # (n, S, Y)
    spaces = range(log_probs.shape[1])
    factors = [*combinations(spaces, 2), *((s, s) for s in spaces)][:n_products]
    return np.stack([evidence[:, s] * evidence[:, t] for s, t in factors], axis=1)


def _losses(model: Calibration, log_probs: FloatArray, labels: IntArray) -> FloatArray:
    """(n,) -log p(y | x) of rows."""
    return -model.log_posterior(log_probs)[np.arange(len(labels)), labels]


def _held_out(
    log_probs: FloatArray, labels: IntArray, log_prior: FloatArray, n_products: int
) -> FloatArray:
    """(n,) loss of every row under a fit of the half that it is not in."""
    answer = np.empty(len(labels))
    half = np.arange(len(labels)) % 2 == 0
    for fitted, judged in ((half, ~half), (~half, half)):
        model = _fit(log_probs[fitted], labels[fitted], log_prior, n_products)
        answer[judged] = _losses(model, log_probs[judged], labels[judged])
    return answer


def _fit(
    log_probs: FloatArray, labels: IntArray, log_prior: FloatArray, n_products: int
) -> Calibration:
    """Weights, products and biases by penalised maximum likelihood, a convex problem."""
    n, n_spaces, n_classes = log_probs.shape
    products = _products(log_probs, n_products) if n_products else np.zeros((n, 0, n_classes))
    # A product counts in units of its own spread, so that one ridge suits all.
    scale = np.maximum(products.std(axis=0), 1e-6)  # (T, Y)
    products = products / scale
    n_more = products.shape[1] * n_classes

    def objective(theta: FloatArray) -> tuple[float, FloatArray]:
        weights, more, bias = np.split(theta, [n_spaces, n_spaces + n_more])
        logits = log_prior + bias + np.einsum("s,nsy->ny", weights, log_probs)
        logits += np.einsum("nty,ty->ny", products, more.reshape(-1, n_classes))
        log_posterior = logits - logsumexp(logits, axis=1, keepdims=True)
        error = np.exp(log_posterior)
        error[np.arange(n), labels] -= 1.0  # (n, Y)
        pull = theta - start
        loss = -log_posterior[np.arange(n), labels].sum() + 0.5 * RIDGE * (pull @ pull)
        slope = np.concatenate(
            [
                np.einsum("ny,nsy->s", error, log_probs),
                np.einsum("ny,nty->ty", error, products).ravel(),
                error.sum(axis=0),
            ]
        )
        return float(loss / n), (slope + RIDGE * pull) / n

    from scipy.optimize import minimize  # slow to import

    start = np.concatenate([np.ones(n_spaces), np.zeros(n_more + n_classes)])
    found = minimize(objective, start, jac=True, method="L-BFGS-B").x
    weights, more, bias = np.split(found, [n_spaces, n_spaces + n_more])
    return Calibration(np.concatenate([weights, more / scale.ravel()]), log_prior + bias, 0.0)

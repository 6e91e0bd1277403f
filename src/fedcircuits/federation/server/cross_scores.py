"""Weights of clients' tables and trees from what they score on each other's rows.

    q(y | x) = softmax(a T + b F + b' F' + shift)

T, F and F' are the means over clients of their tables, first trees and later trees. Clients sent
means and covariances of the scores over groups of rows of one class (`requests/head_scores.py`).
Within a group the scores of a mean over any clients are taken to be Gaussian, so the weights of
those that are left when one leaves follow from the same numbers, and nobody is asked again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from fedcircuits.arrays import FloatArray
from fedcircuits.density.tilt import log_softmax
from fedcircuits.federation.wire import requests as m

LIMITS, LIMIT_COST = (2.0, 3.0, 4.0, 6.0), 5e-4
# Ridge on the distance of weights from those of the tables alone, and on shifts, in rows.
_RIDGE, _SHIFT_RIDGE = 3.0, 100.0
# Places of a Gaussian: nodes of a quadrature for two classes, draws for more.
_NODES, _DRAWS = 9, 32


@dataclass(frozen=True)
class FittedPool:
    """Weights of the clients' mean scores, and what they gain.

    Attributes:
        tilt: a.
        trees: (2,) b and b'.
        shift: (Y,) constants.
        limit: how far log-odds of q may be from those of the tables.
        log_loss: of the tables alone, nats a row.
        gain: what the trees take off it.
        error: standard error of the gain.
    """

    tilt: float
    trees: FloatArray
    shift: FloatArray
    limit: float
    log_loss: float
    gain: float
    error: float


@dataclass(frozen=True)
class _Groups:
    """Groups of rows of all clients.

    Attributes:
        classes: (G,).
        n_rows: (G,).
        means: (G, L, 3) of T, F and F'.
        covariances: (G, L, 3, 3).
        n_classes: Y.
    """

    classes: FloatArray
    n_rows: FloatArray
    means: FloatArray
    covariances: FloatArray
    n_classes: int


def fitted_pool(
    scores: Mapping[str, m.HeadScores], weights: Mapping[str, float], log_shares: FloatArray
) -> FittedPool | None:
    """The likeliest weights of some clients' models on the rows of all; None where none scored.

    Args:
        scores: what clients said, by client.
        weights: of the clients that have trees.
        log_shares: (Y,) logs of the class shares of all rows.
    """
    groups = _joined(scores, weights, log_shares)
    if groups is None:
        return None
    theta = _fitted(groups)
    return _judged(groups, theta)


def _joined(
    scores: Mapping[str, m.HeadScores], weights: Mapping[str, float], log_shares: FloatArray
) -> _Groups | None:
    """The groups of all clients, scored by the mean of those models that each has scored."""
    n_classes = log_shares.size
    base = log_shares[1:] - log_shares[:1] if n_classes == 2 else log_shares - log_shares.mean()
    found = []
    for client in sorted(scores):
        told = scores[client]
        who = [at for at, c in enumerate(told.clients) if c in weights]
        who.sort(key=lambda at: told.clients[at])
        if not who or not told.classes.size:
            continue
        share = np.array([weights[told.clients[at]] for at in who])
        share /= share.sum()
        place = np.array(who)[:, None] * m.PARTS + np.arange(m.PARTS)  # (M, 3)
        means = np.einsum("c,glcp->glp", share, told.means[:, :, place])
        means[:, :, :2] += base[:, None]
        apart = told.covariances[:, :, place[:, :, None, None], place[None, None]]
        both = np.einsum("c,glcpdq,d->glpq", share, apart, share)
        found.append((told.classes, told.n_rows, means, both))
    if not found:
        return None
    classes, n_rows, means, both = (np.concatenate(parts) for parts in zip(*found, strict=True))
    return _Groups(classes, n_rows.astype(float), means, both, n_classes)


def _places(n_logits: int, *, two: bool) -> tuple[FloatArray, FloatArray, FloatArray]:
    """(M, L) places of one or of two Gaussians, and (M,) their weights."""
    if n_logits == 1:
        node, weight = np.polynomial.hermite_e.hermegauss(_NODES)
        weight = weight / weight.sum()
        if not two:
            return node[:, None], node[:, None], weight
        first, second = np.repeat(node, _NODES), np.tile(node, _NODES)
        return first[:, None], second[:, None], np.outer(weight, weight).ravel()
    drawn = np.random.default_rng(0).normal(size=(2, _DRAWS // 2, n_logits))
    first, second = np.concatenate([drawn, -drawn], axis=1)
    return first, second, np.full(_DRAWS, 1.0 / _DRAWS)


def _whole(logits: FloatArray) -> FloatArray:
    """(..., Y) logits of all classes: a single one is that of the second of two."""
    if logits.shape[-1] > 1:
        return logits
    return np.concatenate([np.zeros_like(logits), logits], axis=-1)


def _fitted(groups: _Groups) -> FloatArray:
    """(3 + L,) weights and shifts."""
    from scipy import optimize  # takes longer to import than the rest of the package

    n_logits = groups.means.shape[1]
    place, _, weight = _places(n_logits, two=False)
    start = np.concatenate([[1.0, 0.0, 0.0], np.zeros(n_logits)])
    ridge = np.concatenate([np.full(3, _RIDGE), np.full(n_logits, _SHIFT_RIDGE)])
    every = np.arange(groups.classes.size)
    rows = groups.n_rows[:, None] * weight  # (G, M)

    def loss(theta: FloatArray) -> tuple[float, FloatArray]:
        slope = groups.covariances @ theta[:3]  # (G, L, 3)
        spread = np.sqrt(np.maximum(slope @ theta[:3], 1e-12))  # (G, L)
        middle = groups.means @ theta[:3] + theta[3:]
        logits = _whole(middle[:, None] + spread[:, None] * place)  # (G, M, Y)
        log_q = log_softmax(logits)
        away = np.exp(log_q)
        away[every, :, groups.classes] -= 1.0
        away *= rows[:, :, None]
        if n_logits == 1:
            away = away[:, :, 1:]
        flat = away.sum(axis=1)  # (G, L)
        wide = (away * place).sum(axis=1) / spread
        by_weight = (flat[:, :, None] * groups.means + wide[:, :, None] * slope).sum(axis=(0, 1))
        gap = theta - start
        value = -float((rows * log_q[every, :, groups.classes]).sum())
        slopes = np.concatenate([by_weight, flat.sum(axis=0)]) + ridge * gap
        return value + 0.5 * float(ridge @ gap**2), slopes

    bounds = [(0.0, None)] * 3 + [(None, None)] * n_logits
    first = start + np.concatenate([[-0.5, 0.3, 0.5], np.zeros(n_logits)])
    found = optimize.minimize(loss, first, jac=True, method="L-BFGS-B", bounds=bounds)
    return np.asarray(found.x)


def _judged(groups: _Groups, theta: FloatArray) -> FittedPool:
    """The pool with its limit, and what it gains over the tables alone."""
    from fedcircuits.learners.hclt.head.pool import limited

    n_logits = groups.means.shape[1]
    first, second, weight = _places(n_logits, two=True)
    alone = np.array([1.0, 0.0, 0.0])
    cov = groups.covariances
    spread = np.sqrt(np.maximum(cov @ alone @ alone, 1e-12))  # (G, L) of the tables
    along = cov @ alone @ theta[:3] / spread
    rest = np.sqrt(np.maximum(cov @ theta[:3] @ theta[:3] - along**2, 0.0))
    tables = groups.means @ alone
    tables = tables[:, None] + spread[:, None] * first  # (G, M, L)
    moved = groups.means @ theta[:3] + theta[3:]
    moved = moved[:, None] + along[:, None] * first + rest[:, None] * second
    log_t = log_softmax(_whole(tables)).reshape(-1, groups.n_classes)
    logits = _whole(moved).reshape(-1, groups.n_classes)
    labels = np.repeat(groups.classes, weight.size)
    every = np.arange(labels.size)
    rows = np.outer(groups.n_rows, weight).ravel()
    share = rows / rows.sum()
    before = log_t[every, labels]
    found = []
    for limit in LIMITS:
        after = limited(log_t, logits, limit)[every, labels]
        found.append((-float(share @ after), limit, after))
    best = min(at for at, _, _ in found)
    _, limit, after = next(each for each in found if each[0] <= best + LIMIT_COST)
    gain = float(share @ (after - before))
    error = float(np.sqrt(share @ (after - before - gain) ** 2 / rows.sum()))
    shift = np.concatenate([[0.0], theta[3:]]) if n_logits == 1 else theta[3:]
    log_loss = -float(share @ before)
    return FittedPool(float(theta[0]), theta[1:3], shift, limit, log_loss, gain, error)

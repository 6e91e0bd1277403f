"""Weights of clients' tables and trees from what they score on each other's rows.

    q(y | x) = softmax(a T + b F + b' F' + log class shares + shift)

T, F and F' are the means over clients of their tables, first trees and later trees, class shares
taken out of them: whatever the weights, rare classes stay rare. Clients sent
slopes and curvatures of their rows' loss in the scores of every model (`requests/head_scores.py`):
a step of Newton's method from the answers of single models to those of a mean. Models enter one by
one, so the weights of those that are left when one leaves follow from the same numbers, and nobody
is asked again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from fedcircuits.arrays import FloatArray, IntArray
from fedcircuits.federation.plan.weights import known_log_shares
from fedcircuits.federation.wire import requests as m

# Clients whose models a client scores, and how many of them count: others take the places of those
# that leave.
MOST_SCORED, MOST_USED = 8, 6
# Least limit: so many times the spread of log-odds between tables and pool.
LIMITS, SPREADS = (2.0, 3.0, 4.0, 6.0), 3.0
# Ridge on the distance of weights from those of the tables alone, and on shifts, in rows.
_RIDGE, _SHIFT_RIDGE = 3.0, 100.0


@dataclass(frozen=True)
class FittedPool:
    """Weights of the clients' mean scores, and what they gain.

    Attributes:
        tilt: a.
        trees: (2,) b and b'.
        shift: (Y,) constants, beside the class shares.
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


def fitted_pool(
    scores: Mapping[str, m.HeadScores],
    weights: Mapping[str, float],
    counts: Mapping[str, FloatArray],
) -> FittedPool | None:
    """The likeliest weights of some clients' models on the rows of all; None where none scored.

    Args:
        scores: replies by client.
        weights: of the clients that have trees.
        counts: (Y,) rows of each class, by client.
    """
    from scipy import optimize  # takes longer to import than the rest of the package

    n_classes = next(iter(counts.values())).size
    n_logits = 1 if n_classes == 2 else n_classes
    alone = np.concatenate([[1.0, 0.0, 0.0], np.zeros(n_logits)])  # (3 + L,) the tables alone
    slope, curvature = np.zeros(alone.size), np.zeros((alone.size, alone.size))
    rows = loss = 0.0
    spoken = {client: _speakers(client, sent, weights) for client, sent in scores.items()}
    most = max((sum(each.values()) for each in spoken.values()), default=0.0)
    for client in sorted(scores):
        sent, speak = scores[client], sorted(spoken[client])
        if not speak:
            continue
        share = np.array([spoken[client][at] for at in speak])
        count = (
            float(share.sum() / most) ** 2
        )  # rows that little of the mean has scored weigh little
        share /= share.sum()
        used, means, base = _means(sent, speak, share, counts[client], n_logits)
        for at, by in zip(speak, count * share, strict=True):
            second = sent.curvatures[at][np.ix_(used, used)]
            slope += by * means.T @ (sent.slopes[at][used] + second @ base)
            curvature += by * means.T @ second @ means
            rows += by * float(sent.n_rows[at])
            loss += by * float(sent.losses[at])
    if not rows:
        return None
    ridge = np.concatenate([np.full(3, _RIDGE), np.full(n_logits, _SHIFT_RIDGE)])
    whole = curvature + np.diag(ridge)
    bounds = [(0.0, None)] * 3 + [(None, None)] * n_logits

    def penalised(at: FloatArray) -> tuple[float, FloatArray]:
        value = slope @ at + at @ whole @ at / 2 - (ridge * alone) @ at
        return float(value), np.asarray(slope + whole @ at - ridge * alone)

    start = alone + np.concatenate([[-0.5, 0.3, 0.5], np.zeros(n_logits)])
    found = optimize.minimize(penalised, start, jac=True, method="L-BFGS-B", bounds=bounds)
    theta = np.asarray(found.x)
    moved = theta - alone
    squares = float(moved @ curvature @ moved)  # of log-odds moved, weighted by p (1 - p)
    gain = -float(slope @ moved + theta @ curvature @ theta / 2 - alone @ curvature @ alone / 2)
    spread = np.sqrt(squares * min(n_logits, 2) / np.trace(curvature[3:, 3:]))
    limit = next((at for at in LIMITS if at >= SPREADS * spread), LIMITS[-1])
    shift = np.concatenate([[0.0], theta[3:]]) if n_logits == 1 else theta[3:]
    error = float(np.sqrt(squares)) / rows
    return FittedPool(float(theta[0]), theta[1:3], shift, limit, loss / rows, gain / rows, error)


def those_after(client: str, clients: Iterable[str]) -> list[str]:
    """Return the other clients by name, beginning after this one and going round."""
    names = sorted(clients)
    return [c for c in names if c > client] + [c for c in names if c < client]


def _speakers(client: str, sent: m.HeadScores, weights: Mapping[str, float]) -> dict[int, float]:
    """Places of the models by which a client's rows are scored, and the weight of each.

    Those of others, or that of one half of its rows where it weighs more than they do together.
    """
    place = {c: at for at, c in enumerate(sent.clients) if c in weights and sent.n_rows[at]}
    others = those_after(client, place)[:MOST_USED]
    own = [client] if client in place else []
    who = max(others, own, key=lambda some: sum(weights[c] for c in some))
    return {place[c]: weights[c] for c in who}


def _means(
    sent: m.HeadScores, speak: list[int], share: FloatArray, counts: FloatArray, n_logits: int
) -> tuple[IntArray, FloatArray, FloatArray]:
    """Places (u,) of the numbers of some models, and the map of weights to those of their means.

    The map (u, 3 + L) takes weights of mean scores and shifts; what it gives is added to the rows'
    class shares, (u,), which come last.
    """
    parts, shifts = np.arange(m.PARTS), np.arange(n_logits)
    used = [m.PARTS * at + parts for at in speak]
    used.append(m.PARTS * len(sent.clients) + shifts)
    log_shares = known_log_shares(counts)
    base = log_shares[1:] - log_shares[:1] if n_logits == 1 else log_shares - log_shares.mean()
    last = np.zeros((n_logits, m.PARTS + n_logits))
    last[shifts, m.PARTS + shifts] = 1.0
    of_models = [by * np.eye(m.PARTS, m.PARTS + n_logits) for by in share]
    fixed = np.concatenate([np.zeros(m.PARTS * len(speak)), base])
    return np.concatenate(used), np.concatenate([*of_models, last]), fixed

"""Fine-tuning for the label: ascent on log p(y | x), with a share of the likelihood.

By Fisher's identity the gradient of log p(y | x) = log p(x, y) - log p(x) is the expected counts of
a row with its label less those without it: two E-steps, no gradient tape. The parameters stay
those of one density, so every query sees the result.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from fedcircuits.learners.einet.network.network import Network, Parameters, normalise_
from fedcircuits.learners.einet.passes.downward import expected_counts
from fedcircuits.learners.einet.passes.forward import log_likelihood
from fedcircuits.learners.einet.training.ascent import Moments, gradient, move_
from fedcircuits.learners.einet.training.rows import Rows


@dataclass(frozen=True)
class FineTuning:
    """How the label is fitted after EM.

    Attributes:
        epochs: At most; those are kept that lower the loss of held-out rows.
        batch: Rows a step.
        rate: First learning rate; it falls to zero along half a cosine.
        likelihood: Weight of the log-likelihood beside log p(y | x); it is a sum over many
            variables, so that a small weight keeps it.
        pseudo_count: Rows' worth of uniform flow added to every sum, for all rows together.
    """

    epochs: int
    batch: int
    rate: float = 0.02
    likelihood: float = 0.1
    pseudo_count: float = 1.0


def label_loss(network: Network, params: Parameters, rows: Rows, batch: int) -> float:
    """Return the mean of -log p(y | x) over rows whose label is known."""
    total = 0.0
    for part in rows.in_order(min(batch, len(rows)), params.device):
        joint = log_likelihood(network, params, part.x, part.observed, part.labels)
        total += float((log_likelihood(network, params, part.x, part.observed, None) - joint).sum())
    return total / len(rows)


def fine_tuned(
    network: Network, params: Parameters, rows: Rows, held_out: Rows, how: FineTuning, seed: int
) -> tuple[Parameters, list[float]]:
    """Return the parameters of the best epoch, and the held-out loss before and after each epoch.

    Args:
        network: The network.
        params: After EM; they are copied, not changed.
        rows: To train on, with labels.
        held_out: To choose the epoch on, with labels.
        how: Epochs and steps.
        seed: Orders the rows.
    """
    params, best = params.clone(), params
    losses = [label_loss(network, params, held_out, how.batch)]
    moments, batch = Moments(), min(how.batch, len(rows))
    per_epoch, share = max(1, len(rows) // batch), batch / len(rows)
    for epoch in range(how.epochs):
        for number, part in enumerate(rows.epoch(batch, (seed, epoch), params.device)):
            slopes: dict[str, Tensor] = {}
            for labels, factor in ((part.labels, 1 + how.likelihood), (None, -1.0)):
                counts = expected_counts(
                    network, params, part.x, part.observed, labels, part.weights, None
                )
                found = gradient(network, params, counts, how.pseudo_count, share)
                for name, slope in found.items():
                    moved = slope.mul_(factor)
                    slopes[name] = slopes[name].add_(moved) if name in slopes else moved
            done = (epoch + number / per_epoch) / how.epochs
            rate = 0.5 * how.rate * (1 + math.cos(math.pi * done))
            params = move_(network, params, slopes, rate, moments)
        losses.append(label_loss(network, params, held_out, how.batch))
        if not math.isfinite(losses[-1]):
            break  # the best epoch so far stays
        if losses[-1] < min(losses[:-1]):
            best = params.clone()
    normalise_(network, best.weights, best.root)
    return best, losses

"""Randomised response on cluster indices, and the table that is estimated from it.

A client sends the index of a row truthfully with probability e^eps / (e^eps + K - 1), else one of
the others at random: whatever is sent, no index is more than e^eps times likelier than another. The
server knows the channel and inverts it for the table of counts as a whole.
"""

from __future__ import annotations

import numpy as np

from fedcircuits.arrays import FloatArray, IntArray


def truth_probability(epsilon: float, n_values: int) -> float:
    """Probability that a value is sent as it is."""
    return float(1.0 / (1.0 + (n_values - 1) * np.exp(-epsilon)))


def randomise(values: IntArray, n_values: int, epsilon: float, draws: FloatArray) -> IntArray:
    """Return the values (n,) to send: true with `truth_probability`, else one of the others.

    Args:
        values: (n,) in 0..n_values-1.
        n_values: K.
        epsilon: of local differential privacy, for one value.
        draws: (2, n) uniform numbers in (0, 1) that only the client knows.
    """
    if n_values < 2:
        return values
    lies = draws[0] >= truth_probability(epsilon, n_values)
    others = (draws[1] * (n_values - 1)).astype(values.dtype)
    others += others >= values  # any value but the true one
    return np.where(lies, others, values)


def estimated_table(
    sent: IntArray, sizes: list[int], marginals: list[FloatArray], epsilon: float
) -> FloatArray:
    """The table of counts (K_1, ..., K_C) behind randomised indices, without cells below zero.

    The inverse of the channel is unbiased but noisy; the estimate is shrunk towards independence
    by the share of its distance from there that noise alone would explain.

    Args:
        sent: (n, C) randomised indices.
        sizes: K_c of each client.
        marginals: C arrays (K_c,) of shares, which clients send exactly.
        epsilon: as for `randomise`.
    """
    found = np.zeros(sizes)
    np.add.at(found, tuple(sent.T), 1.0)
    energy = 1.0  # of one row's column of the inverse channel
    independent = np.ones(())
    for axis, (k, marginal) in enumerate(zip(sizes, marginals, strict=True)):
        inverse = _inverse_channel(k, epsilon)
        energy *= float(np.square(inverse[:, 0]).sum())
        found = np.moveaxis(np.tensordot(inverse, found, axes=(1, axis)), 0, axis)
        independent = np.multiply.outer(independent, marginal)
    independent = independent * len(sent)
    apart = found - independent
    # The expected square of the noise, and two standard deviations: it varies like a chi-square.
    noise = len(sent) * (energy - 1.0) * (1.0 + 2.0 * np.sqrt(2.0 / found.size))
    square = float(np.square(apart).sum())
    kept = max(square - noise, 0.0) / square if square > 0 else 0.0
    return np.maximum(independent + kept * apart, 0.0)


def _inverse_channel(n_values: int, epsilon: float) -> FloatArray:
    """(K, K) inverse of the matrix p(sent | true)."""
    if n_values < 2:
        return np.ones((1, 1))
    truth = truth_probability(epsilon, n_values)
    lie = (1.0 - truth) / (n_values - 1)
    return np.asarray((np.eye(n_values) - lie) / (truth - lie))

"""Weights of the sums at the server: rho of section 3.3, the last step of Algorithm 1.

rho (section 3.3, "infer weights"): the weight of child i of a sum is rho(N_i) over the sum of its
siblings', rho being the rows behind the client leaves below. The paper defines rho for client
leaves; a product also has sums for children, so here rho recurses: a client leaf counts the rows it
was trained on, a sum or product adds its children. In the horizontal case this is |D_c| / |D|.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedcircuits.arrays import FloatArray


def shares(counts: Sequence[float] | FloatArray) -> FloatArray:
    """Return counts as weights that sum to one."""
    array = np.asarray(counts, dtype=float)
    total = array.sum()
    if total <= 0:
        raise ValueError("weights need at least one row behind them")
    return np.asarray(array / total)


def log_shares(counts: Sequence[float] | FloatArray) -> FloatArray:
    """Logarithms of `shares`; a count of zero gives -inf."""
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(shares(counts)))


def known_log_shares(counts: FloatArray) -> FloatArray:
    """(Y,) logarithms of class shares; a class without a row counts as half a row."""
    return np.asarray(np.log(np.maximum(counts, 0.5) / counts.sum()))


def comparisons(counts: FloatArray) -> FloatArray:
    """(Y, Y) rows by which each class is compared with each other one: a b / (a + b)."""
    both = counts[:, None] + counts
    found = np.divide(counts[:, None] * counts, both, out=np.zeros_like(both), where=both > 0)
    np.fill_diagonal(found, 0.0)
    return found


def rho(children: Sequence[float]) -> float:
    """rho of a sum or product: the rows behind all its children together."""
    return float(np.sum(children))

"""What families with a table of probabilities share: checks, look-ups, draws."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fedcircuits.arrays import FloatArray, IntArray
from fedcircuits.schema.grids.powers import common_exponent, times_power

SUM_TOLERANCE = 1e-9


def table_faults(params: Mapping[str, FloatArray], name: str, n_states: int) -> list[str]:
    """Faults of a table (L, n_states) whose rows must be probabilities."""
    if name not in params:
        return [f"lacks the parameter {name}"]
    table = params[name]
    if table.ndim != 2 or table.shape[1] != n_states:
        return [f"{name} must give {n_states} numbers a leaf, found shape {table.shape}"]
    if not (np.isfinite(table).all() and (table >= 0).all()):
        return [f"{name} must be finite and not negative"]
    off = np.abs(table.sum(axis=1) - 1)
    if (off > SUM_TOLERANCE).any():
        return [f"{name} must sum to one, found {table.sum(axis=1)[off.argmax()]:.12g}"]
    return []


def log_table(table: FloatArray) -> FloatArray:
    """Logarithm of probabilities, -inf for zero without a warning."""
    with np.errstate(divide="ignore"):
        return np.log(table)


def log_lookup(table: FloatArray, states: IntArray) -> FloatArray:
    """(L, n) logarithms of (L, s) probabilities at states (n,); -inf at a state outside 0..s-1."""
    if states.size < table.shape[1]:  # take the logarithm of whichever is smaller
        answer = log_table(table.take(states, axis=1, mode="clip"))
    else:
        answer = log_table(table).take(states, axis=1, mode="clip")
    if states.size and (states.min() < 0 or states.max() >= table.shape[1]):
        answer[:, (states < 0) | (states >= table.shape[1])] = -np.inf
    return answer


def draw_states(table: FloatArray, which: IntArray, rng: np.random.Generator) -> IntArray:
    """(m,) a state drawn from row which[i] of the table (L, s), by inversion."""
    cumulative = np.cumsum(table, axis=1)  # (L, s)
    u = rng.random(which.size) * cumulative[which, -1]
    answer = np.empty(which.size, dtype=np.int64)
    # Leaf by leaf keeps memory at m, not m times s; a state of mass zero is never hit because
    # side="right" steps over equal cumulative values.
    order = np.argsort(which, kind="stable")
    leaves, starts = np.unique(which[order], return_index=True)
    for leaf, rows in zip(leaves, np.split(order, starts[1:]), strict=True):
        answer[rows] = np.searchsorted(cumulative[leaf], u[rows], side="right")
    # Rounding can put u on the very end; the last state of positive mass owns it.
    last = table.shape[1] - 1 - (table[:, ::-1] > 0).argmax(axis=1)  # (L,)
    return np.asarray(np.minimum(answer, last[which]), dtype=np.int64)


def table_moment(table: FloatArray, numbers: FloatArray, order: int) -> FloatArray:
    """(L,) E[x**order] of values (s,) with probabilities (L, s)."""
    exponent = np.asarray(common_exponent(numbers).max(initial=0))
    return times_power(table @ np.ldexp(numbers, -exponent) ** order, exponent, order)


def table_variance(
    table: FloatArray, means: FloatArray, variances: FloatArray | None = None
) -> FloatArray:
    """(L,) variance of mixtures (L, s) of s states, from their means and variances (s,).

    A row need not sum to one: what is left out is no value. A row of zeros has variance 0.
    """
    total = table.sum(axis=1, keepdims=True)
    share = np.divide(table, total, out=np.zeros_like(table), where=total > 0)  # (L, s)
    away = means[None, :] - (share @ means)[:, None]  # (L, s)
    with np.errstate(over="ignore", invalid="ignore"):
        spread = away**2 if variances is None else away**2 + variances
        return np.asarray(np.where(share > 0, share * spread, 0.0).sum(axis=1))

"""Truncated exponentials: the shape of the density inside a bin.

A bin is mapped to places v in [0, 1]; its density is proportional to exp(tilt * v). A tilt of 0 is
the uniform density; any mean strictly inside the bin has one tilt. On the integers the whole number
k stands for the cell [k, k + 1), so a truncated geometric distribution is the same shape, and a
draw is the floor of a draw on the line.

All functions work place by place on arrays, and none subtracts nearly equal numbers.
"""

from __future__ import annotations

from math import comb

import numpy as np

from fedcircuits.arrays import FloatArray, IntArray

# Beyond this tilt a density is a spike at one end, better described by a narrower bin.
MAX_TILT = 200.0
# An exponential has lost e**-REACH of its height beyond this many mean lengths: nothing is there.
_REACH = 48.0
_FEW_CELLS = 64
_NODES, _WEIGHTS = (np.asarray(part) for part in np.polynomial.legendre.leggauss(48))


def places_in(x: FloatArray, low: FloatArray, high: FloatArray) -> FloatArray:
    """Places v in [0, 1] of numbers x between low and high."""
    with np.errstate(over="ignore"):
        # Halved where the length of the bin would overflow (halving may round tiny numbers).
        unit = np.where(np.isinf(high - low), 0.5, 1.0)
    return np.asarray((x * unit - low * unit) / (high * unit - low * unit))


def log_length(low: FloatArray, high: FloatArray) -> FloatArray:
    """log(high - low), also where the difference is too large for a float."""
    with np.errstate(over="ignore"):
        unit = np.where(np.isinf(high - low), 0.5, 1.0)
    return np.asarray(np.log(high * unit - low * unit) - np.log(unit))


def log_mean_exp(tau: FloatArray) -> FloatArray:
    """log of the mean of exp(tau * v) over v in [0, 1], that is log((exp(tau) - 1) / tau)."""
    tau = np.asarray(tau, dtype=float)
    size = np.abs(tau)
    safe = np.maximum(size, 1e-300)
    away = np.log(-np.expm1(-safe) / safe) + np.maximum(tau, 0.0)
    return np.where(size < 1e-5, tau / 2 + tau**2 / 24, away)


def log_integral(start: FloatArray, length: FloatArray, tilt: FloatArray) -> FloatArray:
    """log of the integral of exp(tilt * v) over [start, start + length]; -inf for no length."""
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(length) + tilt * start + log_mean_exp(tilt * length))


def place(tau: FloatArray, share: FloatArray) -> FloatArray:
    """The v in [0, 1] below which a density proportional to exp(tau * v) has mass `share`."""
    tau, share = np.broadcast_arrays(np.asarray(tau, dtype=float), np.asarray(share, dtype=float))
    size = np.abs(tau)
    falling = np.where(tau > 0, 1 - share, share)  # mirrored, so that the density falls
    safe = np.maximum(size, 1e-300)
    with np.errstate(divide="ignore"):
        v = -np.log1p(falling * np.expm1(-safe)) / safe
    v = np.where(size < 1e-8, falling, np.minimum(v, 1.0))
    return np.where(tau > 0, 1 - v, v)


def tilt_of_mean(mean: FloatArray) -> FloatArray:
    """The tilt whose density on [0, 1] has this mean, at most MAX_TILT to either side."""
    mean = np.asarray(mean, dtype=float)
    low, high = np.full(mean.shape, -MAX_TILT), np.full(mean.shape, MAX_TILT)
    for _ in range(60):  # bisection: the mean grows with the tilt
        middle = 0.5 * (low + high)
        less = mean_place(middle) < mean
        low, high = np.where(less, middle, low), np.where(less, high, middle)
    return np.where(mean == 0.5, 0.0, 0.5 * (low + high))


def _places(tau: FloatArray) -> tuple[FloatArray, FloatArray]:
    """(..., q) quadrature places in [0, 1] and their weights, which add up to one.

    Gauss-Legendre on the part of [0, 1] where exp(tau * v) is not negligible: exact to rounding for
    polynomials times the exponential.
    """
    tau = np.asarray(tau, dtype=float)
    reach = np.minimum(1.0, _REACH / np.maximum(np.abs(tau), 1e-300))  # (...,)
    from_top = 0.5 * reach[..., None] * (1 + _NODES)  # distance from the dense end
    weights = _WEIGHTS * np.exp(-np.abs(tau)[..., None] * from_top)
    v = np.where((tau > 0)[..., None], 1 - from_top, from_top)
    return v, weights / weights.sum(axis=-1, keepdims=True)


def power_means(tau: FloatArray, order: int) -> list[FloatArray]:
    """E[v**k] for k = 0 .. order of a density proportional to exp(tau * v) on [0, 1]."""
    v, weights = _places(tau)
    return [np.asarray((weights * v**k).sum(axis=-1)) for k in range(order + 1)]


def mean_place(tau: FloatArray) -> FloatArray:
    """E[v] of a density proportional to exp(tau * v) on [0, 1]."""
    v, weights = _places(tau)
    return np.asarray((weights * v).sum(axis=-1))


def place_variance(tau: FloatArray) -> FloatArray:
    """Var[v] of a density proportional to exp(tau * v) on [0, 1], without cancellation."""
    v, weights = _places(tau)
    mean = (weights * v).sum(axis=-1, keepdims=True)
    return np.asarray((weights * (v - mean) ** 2).sum(axis=-1))


def power_mean_between(
    low: FloatArray,
    high: FloatArray,
    tau: FloatArray,
    order: int,
    cell: tuple[FloatArray, FloatArray] | None,
) -> FloatArray:
    """E[x**order] of x between low and high with density proportional to exp(tau * v).

    Args:
        low: ends of the interval, where v is 0 ...
        high: ... and 1.
        tau: tilt over the interval.
        order: of the moment, 0 or more.
        cell: None on the line; on the integers, the tilt over one cell and the length of a cell: x
            is then rounded down to the start of its cell.
    """
    v, weights = _places(tau)
    low, high = np.asarray(low, dtype=float)[..., None], np.asarray(high, dtype=float)[..., None]
    with np.errstate(over="ignore", invalid="ignore"):
        x = low * (1 - v) + high * v
        raw = [np.asarray((weights * x**k).sum(axis=-1)) for k in range(order + 1)]
        if cell is None:
            return raw[order]
        # x = k + r with r in [0, cell) independent of k: solve for the moments of k one by one.
        rest = [mean * cell[1] ** k for k, mean in enumerate(power_means(cell[0], order))]
        whole = [raw[0]]
        for n in range(1, order + 1):
            taken = sum(comb(n, i) * whole[i] * rest[n - i] for i in range(n))
            whole.append(np.asarray(raw[n] - taken))
        # Few cells are added up one by one: nothing is subtracted there.
        at = np.arange(_FEW_CELLS)
        k = low + at * cell[1][..., None]  # (..., cells)
        count = np.round((high - low) / cell[1][..., None])
        weight = np.where(
            at < count, np.exp(_from_top(tau / np.maximum(count[..., 0], 1), at, count)), 0
        )
        direct = (weight * k**order).sum(axis=-1) / np.maximum(weight.sum(axis=-1), 1e-300)
        return np.where(count[..., 0] <= _FEW_CELLS, direct, whole[order])


def _from_top(tilt: FloatArray, at: IntArray, count: FloatArray) -> FloatArray:
    """(..., cells) logarithm of the weight of cells, 0 for the heaviest of the first `count`."""
    tilt = tilt[..., None]
    return np.asarray(np.where(tilt > 0, tilt * (at - count + 1), tilt * at))

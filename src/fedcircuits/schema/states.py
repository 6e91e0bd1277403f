"""What lies inside one state of a grid: a bin, the integers of a bin, an open tail."""

from __future__ import annotations

from math import comb, inf, log

import numpy as np
from scipy.special import zeta

from fedcircuits.arrays import FloatArray, IntArray

TAIL_SHAPE = 4.0
FINE = 1e7  # scale of a tail from which on whole numbers are as good as the line

# --- uniform values -------------------------------------------------------------------------------


def common_exponent(*arrays: FloatArray) -> IntArray:
    """The least e with all |values| <= 2**e, place by place.

    Powers are taken of values divided by 2**e (which is exact) and multiplied back at the end: what
    is too large for a float becomes infinite only then, and nothing is infinity minus infinity.
    """
    largest = np.max([np.abs(array) for array in arrays], axis=0)
    return np.asarray(np.frexp(largest)[1], dtype=np.int64)


def times_power(values: FloatArray, exponent: IntArray, order: int) -> FloatArray:
    """values * 2**(exponent * order); infinite, without a warning, where no float is as large."""
    with np.errstate(over="ignore", under="ignore"):
        return np.asarray(np.ldexp(values, np.clip(exponent * order, -(2**30), 2**30)))


def uniform_moment(low: FloatArray, high: FloatArray, order: int) -> FloatArray:
    """E[x**order] of x uniform on [low, high]: the mean of low**i * high**(order - i)."""
    exponent = common_exponent(low, high)
    a, b = np.ldexp(low, -exponent), np.ldexp(high, -exponent)
    mean = np.mean([a**i * b ** (order - i) for i in range(order + 1)], axis=0)
    return times_power(mean, exponent, order)


def uniform_variance(low: FloatArray, high: FloatArray) -> FloatArray:
    """Variance of x uniform on [low, high]."""
    with np.errstate(over="ignore"):
        return np.asarray((high - low) ** 2 / 12)


# --- whole numbers --------------------------------------------------------------------------------


def power_sum(low: int, high: int, order: int) -> int:
    """Sum of i**order over the integers low..high, exactly (Faulhaber by telescoping)."""
    if high < low:
        return 0
    # (i+1)^(k+1) - i^(k+1) = sum_j C(k+1, j) i^j, summed over i, solved for the highest power.
    sums: list[int] = []
    for k in range(order + 1):
        total = (high + 1) ** (k + 1) - low ** (k + 1)
        total -= sum(comb(k + 1, j) * sums[j] for j in range(k))
        sums.append(total // (k + 1))
    return sums[order]


def integers_moment(low: int, high: int, taken: list[int], order: int) -> float:
    """E[x**order] of x uniform on the integers low..high without those taken."""
    total = power_sum(low, high, order) - sum(t**order for t in taken)
    return _quotient(total, high - low + 1 - len(taken))


def integers_variance(low: int, high: int, taken: list[int]) -> float:
    """Variance of x uniform on the integers low..high without those taken, in whole numbers."""
    n = high - low + 1 - len(taken)
    first, second = (
        power_sum(0, high - low, k) - sum((t - low) ** k for t in taken) for k in (1, 2)
    )
    return _quotient(n * second - first**2, n**2)


def _quotient(total: int, count: int) -> float:
    """total / count of whole numbers of any size, infinite where no float is as large."""
    try:
        return total / count
    except OverflowError:
        return inf if total > 0 else -inf


# --- Lomax tails ----------------------------------------------------------------------------------


def log_tail(distance: FloatArray, scale: float, integer: bool) -> FloatArray:
    """Log-density of a tail at a distance >= 0 from its edge (>= 1 on the integers)."""
    if integer:
        # Survival S(d) = (1 + d/s)^-shape; P(d) = S(d - 1) - S(d), without cancellation.
        step = np.log1p(1.0 / (distance - 1 + scale))
        log_mass: FloatArray = np.log(-np.expm1(-TAIL_SHAPE * step))
        return log_mass - TAIL_SHAPE * _log1p_ratio(distance - 1, scale)
    log_peak = log(TAIL_SHAPE) - log(scale)
    return log_peak - (TAIL_SHAPE + 1) * _log1p_ratio(distance, scale)


def _log1p_ratio(distance: FloatArray, scale: float) -> FloatArray:
    """log(1 + distance / scale), also where the ratio is too large for a float."""
    with np.errstate(over="ignore", divide="ignore"):
        ratio = distance / scale
        far = np.log(distance) - log(scale)
    return np.where(np.isinf(ratio), far, np.log1p(ratio))


def tail_moment(edge: float, sign: float, scale: float, integer: bool, order: int) -> float:
    """E[(edge + sign * distance)**order] in a tail; infinite from order 4 on."""
    if order >= TAIL_SHAPE:
        return inf if sign > 0 or order % 2 == 0 else -inf
    exponent = common_exponent(np.array(edge), np.array(scale))
    if integer:
        exponent = np.maximum(exponent, 0)  # a whole distance is never below 1
    unit = float(np.ldexp(1.0, -exponent))
    distance = _distance_moments(scale, integer, unit)
    total = sum(
        comb(order, i) * (edge * unit) ** (order - i) * sign**i * distance[i]
        for i in range(order + 1)
    )
    return float(times_power(np.array(total), exponent, order))


def tail_variance(scale: float, integer: bool) -> float:
    """Variance of the distance in a tail."""
    exponent = np.maximum(common_exponent(np.array(scale)), 0)
    _, first, second, _ = _distance_moments(scale, integer, float(np.ldexp(1.0, -exponent)))
    return float(times_power(np.array(max(second - first**2, 0.0)), exponent, 2))


def _distance_moments(scale: float, integer: bool, unit: float) -> list[float]:
    """E[(distance * unit)**k] of a tail for k = 0..3."""
    s = scale * unit
    line = [1.0, s / 3, s**2 / 3, s**3]
    if not integer:
        return line
    if scale > FINE:  # the distance, rounded up, is the one on the line and a uniform rest
        return [
            1.0,
            line[1] + unit / 2,
            line[2] + unit * line[1] + unit**2 / 3,
            line[3] + 1.5 * unit * line[2] + unit**2 * line[1] + unit**3 / 4,
        ]
    # E[d^k] = sum_{d>=0} ((d+1)^k - d^k) S(d) with S(d) = s^4 (d + s)^-4; expand in (d + s).
    answer = [1.0]
    for order in (1, 2, 3):
        total = 0.0
        for j in range(order):  # coefficient of d^j in (d+1)^k - d^k
            for i in range(j + 1):  # d^j = ((d+s) - s)^j
                weight = comb(order, j) * comb(j, i) * (-scale) ** (j - i)
                total += weight * float(zeta(TAIL_SHAPE - i, scale))
        answer.append(total * scale**TAIL_SHAPE * unit**order)
    return answer

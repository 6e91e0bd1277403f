"""Scales values of any magnitude by powers of two, so that powers of them stay finite."""

from __future__ import annotations

import numpy as np

from fedcircuits.arrays import FloatArray, IntArray

LEAST_EXPONENT = -1000  # 2**-e is to be a float, of the smallest numbers too


def common_exponent(*arrays: FloatArray) -> IntArray:
    """The least e from LEAST_EXPONENT on with all |values| <= 2**e, place by place.

    Powers are taken of values divided by 2**e (which is exact) and multiplied back at the end: what
    is too large for a float becomes infinite only then, and nothing is infinity minus infinity.
    """
    largest = np.max([np.abs(array) for array in arrays], axis=0)
    return np.asarray(np.maximum(np.frexp(largest)[1], LEAST_EXPONENT), dtype=np.int64)


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

"""Masses of intervals under a normal distribution, right to the last digit in either tail."""

from __future__ import annotations

import numpy as np
from scipy.special import erfcx, log_ndtr, ndtri_exp

from fedcircuits.arrays import FloatArray
from fedcircuits.schema.variable import Variable

LOG_ROOT_TWO_PI = 0.5 * float(np.log(2 * np.pi))
ROOT_HALF = float(np.sqrt(0.5))


def log_density(z: FloatArray) -> FloatArray:
    """Log-density of the standard normal."""
    with np.errstate(over="ignore"):  # further away than 1e154: -inf
        return -0.5 * z * z - LOG_ROOT_TWO_PI


def log_interval_mass(a: FloatArray, b: FloatArray) -> FloatArray:
    """log(Phi(b) - Phi(a)) for a <= b, through log-CDFs on the nearer tail.

    A plain difference of CDFs is exactly 0 at nine standard deviations. Log-CDFs lose digits
    where they are large and close together, so their difference is taken from scaled functions
    (erfcx), and a very short interval from the density at its middle.
    """
    a, b = np.broadcast_arrays(np.asarray(a, dtype=float), np.asarray(b, dtype=float))
    with np.errstate(divide="ignore", invalid="ignore", over="ignore", under="ignore"):
        flip = a + b > 0  # both ends beyond the mean: mirror, so that CDFs are small numbers
        low, high = np.where(flip, -b, a), np.where(flip, -a, b)
        width, middle = b - a, 0.5 * (a + b)
        log_high, log_low = log_ndtr(high), log_ndtr(low)
        # Phi(z) = exp(-z^2/2) erfcx(-z / sqrt 2) / 2: the squares' difference is a product.
        scaled = np.log(erfcx(-low * ROOT_HALF) / erfcx(-high * ROOT_HALF))
        scaled = scaled - width * np.abs(middle)
        ratio = np.where((high < -1) & np.isfinite(low), scaled, log_low - log_high)
        tail = log_high + np.log(-np.expm1(np.minimum(ratio, 0.0)))
        # Third-order accurate in the width; what is left out is below (width * middle)^4 / 1920.
        short = log_density(middle) + np.log(width) + np.log1p((middle**2 - 1) * width**2 / 24)
        # The expansion needs |middle| * width small as well: the density varies on that scale.
        is_short = width * np.maximum(1.0, np.abs(middle)) < 1e-3
    answer = np.where(is_short, short, tail)
    return np.where(b > a, np.where(np.isneginf(log_high), -np.inf, answer), -np.inf)


def draw_between(a: FloatArray, b: FloatArray, rng: np.random.Generator) -> FloatArray:
    """One standard normal value from each interval [a, b], by inversion on the nearer tail."""
    flip = a + b > 0  # where CDFs are near one, their logarithms keep no digits: mirror
    low, high = np.where(flip, -b, a), np.where(flip, -a, b)
    log_u = np.log1p(-rng.random(a.size))  # of a uniform number in (0, 1]
    log_cdf = np.logaddexp(log_ndtr(low), log_u + log_interval_mass(low, high))
    z = np.clip(ndtri_exp(np.minimum(log_cdf, 0.0)), low, high)
    return np.where(flip, -z, z)


def log_mass_slopes(a: FloatArray, b: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """log(Phi(b) - Phi(a)) and its slopes in the mean and in log sd, with sd = 1.

    For an interval on another scale the slope in the mean is to be divided by sd.
    """
    log_mass = log_interval_mass(a, b)
    at_a, at_b = np.exp(log_density(a) - log_mass), np.exp(log_density(b) - log_mass)
    a, b = np.where(np.isfinite(a), a, 0.0), np.where(np.isfinite(b), b, 0.0)  # 0 times inf is 0
    return log_mass, at_a - at_b, a * at_a - b * at_b


def default_floor(variable: Variable, x: FloatArray) -> float:
    """A standard deviation below which a column is constant for all purposes."""
    low, high = variable.domain or (float(x.min()), float(x.max()))
    reach = high - low if np.isfinite(high - low) else float(x.max() - x.min())
    return 1e-3 * (reach or float(np.abs(x).max()) or 1.0)

"""Lomax (Pareto II) tails: the density beyond the outer edges of a grid.

The distance d from the edge has survival function S(d) = (1 + d / scale)**-shape. Given that d is
beyond d0, the rest d - d0 is again a Lomax distance, of scale `scale + d0` and the same shape. On
the integers the distance is rounded up, so it is at least 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import comb, inf, log
from typing import Any

import numpy as np

from fedcircuits.arrays import FloatArray
from fedcircuits.schema.grids.powers import common_exponent, times_power

# Up to so many whole distances are added up one by one.
_FEW = 1_000_000
_NODES, _WEIGHTS = (np.asarray(part) for part in np.polynomial.legendre.leggauss(64))


@dataclass(frozen=True)
class Tail:
    """One open tail of a grid.

    Attributes:
        edge: where it begins.
        sign: 1 for a tail to the right, -1 to the left.
        scale: of the distance.
        shape: of the distance.
        integer: whether values are whole.
        reach: the distance at which it ends, possibly infinite.
    """

    edge: float
    sign: float
    scale: float
    shape: float
    integer: bool
    reach: float = inf

    def log_density(self, x: FloatArray) -> FloatArray:
        """Log-density (n,) of values (n,) of the tail."""
        at = log_density(np.abs(x - self.edge), self.scale, self.shape, self.integer)
        return at if self.reach == inf else at - log(self._whole)

    @property
    def _whole(self) -> float:
        """The mass of an endless tail up to where this one ends."""
        return float(mass(np.array(0.0), np.array(self.reach), self.scale, self.shape))

    def distances(self, low: Any, high: Any) -> tuple[Any, Any]:
        """The distances (near, far] from the edge that make up the values in [low, high)."""
        if self.integer:
            low, high = np.ceil(low), np.ceil(high)
        ahead = self.sign > 0
        near, far = (
            (low - self.edge, high - self.edge) if ahead else (self.edge - high, self.edge - low)
        )
        if self.integer and ahead:  # the integer at distance d stands for (d - 1, d]
            near, far = near - 1, far - 1
        near = np.clip(near, 0.0, self.reach)
        return near, np.clip(far, near, self.reach)

    def masses(self, low: FloatArray, high: FloatArray) -> FloatArray:
        """(...,) P(low <= x < high)."""
        inside = mass(*self.distances(low, high), self.scale, self.shape)
        return inside if self.reach == inf else np.minimum(inside / self._whole, 1.0)

    def moment(self, low: float, high: float, order: int) -> float:
        """E[x**order | low <= x < high]; 0 where the interval has no mass."""
        near, far = self.distances(low, high)
        if not far > near:
            return 0.0
        start, scale = float(self.edge + self.sign * near), float(self.scale + near)
        # Powers are taken in a unit near the largest number; whole distances keep theirs.
        whole = self.integer and max(scale, abs(start)) < 2.0**60
        exponent = np.zeros((), dtype=np.int64)
        if not whole:
            exponent = common_exponent(np.array(start), np.array(scale))
        unit = float(np.ldexp(1.0, -exponent))
        powers = power_means(float(far - near) * unit, scale * unit, self.shape, order, whole)
        total = sum(
            comb(order, i) * (start * unit) ** (order - i) * self.sign**i * powers[i]
            for i in range(order + 1)
            if start or i == order
        )
        return float(times_power(np.array(total), exponent, order))

    def variance(self, low: float, high: float) -> float:
        """Var[x | low <= x < high]."""
        near, far = self.distances(low, high)
        if not far > near:
            return 0.0
        scale = float(self.scale + near)
        whole = self.integer and scale < 2.0**60
        exponent = np.zeros((), dtype=np.int64) if whole else common_exponent(np.array(scale))
        unit = float(np.ldexp(1.0, -exponent))
        _, first, second = power_means(float(far - near) * unit, scale * unit, self.shape, 2, whole)
        return float(times_power(np.array(max(second - first**2, 0.0)), exponent, 2))

    def draw(self, u: FloatArray, low: FloatArray, high: FloatArray) -> FloatArray:
        """(n,) values at shares u (n,) of the mass in [low, high) (n,)."""
        near, far = self.distances(low, high)
        inside = mass(np.zeros(u.size), far - near, self.scale + near, self.shape)
        distance = near + quantile(u * inside, self.scale + near, self.shape)
        if self.integer:
            distance = np.floor(distance) + 1
        return np.asarray(self.edge + self.sign * np.minimum(distance, far))

    def mode(self, low: float, high: float) -> float:
        """The value of highest density in [low, high): the one nearest to the edge."""
        if self.integer:
            if self.sign > 0:
                return float(max(self.edge + 1, np.ceil(low)))
            return float(min(self.edge, np.ceil(high)) - 1)
        if self.sign > 0:
            return float(max(np.nextafter(self.edge, inf), low))
        return float(np.nextafter(min(self.edge, high), -inf))


def log_ratio(distance: FloatArray, scale: FloatArray | float) -> FloatArray:
    """log(1 + distance / scale), also where the ratio is too large for a float."""
    with np.errstate(over="ignore", divide="ignore"):
        ratio = distance / scale
        far = np.log(distance) - np.log(scale)
    return np.where(np.isinf(ratio), far, np.log1p(ratio))


def log_density(distance: FloatArray, scale: float, shape: float, integer: bool) -> FloatArray:
    """Log-density of a tail at a distance >= 0 from its edge (>= 1 on the integers)."""
    if integer:
        # P(d) = S(d - 1) - S(d), without cancellation.
        step = np.log1p(1.0 / (distance - 1 + scale))
        log_mass: FloatArray = np.log(-np.expm1(-shape * step))
        return log_mass - shape * log_ratio(distance - 1, scale)
    log_peak = log(shape) - log(scale)
    return log_peak - (shape + 1) * log_ratio(distance, scale)


def mass(near: FloatArray, far: FloatArray, scale: float, shape: float) -> FloatArray:
    """P(near < d <= far), without cancellation; 0 where far <= near."""
    near = np.maximum(near, 0.0)
    length = np.maximum(far - near, 0.0)
    with np.errstate(invalid="ignore"):
        inside = -np.expm1(-shape * log_ratio(length, scale + near))
        below = np.exp(-shape * log_ratio(near, scale))
    return np.where(np.isinf(length), below, np.where(length > 0, below * inside, 0.0))


def quantile(share: FloatArray, scale: FloatArray | float, shape: float) -> FloatArray:
    """The distance with mass `share` below it."""
    with np.errstate(over="ignore"):
        return np.asarray(scale * np.expm1(-np.log1p(-share) / shape))


def power_means(
    length: float, scale: float, shape: float, order: int, integer: bool
) -> list[float]:
    """E[d**k | d <= length] for k = 0 .. order, d rounded up on the integers; inf where infinite.

    Args:
        length: longest distance, possibly infinite; whole on the integers.
        scale: of the tail, in the unit of the distance.
        shape: of the tail.
        order: highest power.
        integer: whether distances are rounded up.
    """
    if not integer:
        return [_line(length, scale, shape, k) for k in range(order + 1)]
    if scale > 1e8:  # rounding up adds an independent uniform rest, to all the digits there are
        line = [_line(length, scale, shape, k) for k in range(order + 1)]
        return [
            sum(comb(k, i) * line[i] / (k - i + 1) for i in range(k + 1)) for k in range(order + 1)
        ]
    if length <= _FEW:
        d = np.arange(1.0, length + 1)
        p = np.exp(log_density(d, scale, shape, True))
        p /= p.sum()
        return [float((p * d**k).sum()) for k in range(order + 1)]
    whole = [_all_integers(scale, shape, k) for k in range(order + 1)]
    if length > 1e100:  # nothing beyond has mass; powers of it may be more than a double holds
        line = [_line(length, scale, shape, k) for k in range(order + 1)]
        return [w if np.isfinite(w) else on for w, on in zip(whole, line, strict=True)]
    beyond = float(np.exp(-shape * log_ratio(np.array(length), scale)))
    rest = [_all_integers(scale + length, shape, k) for k in range(order + 1)]
    moved = [
        sum(comb(k, i) * length ** (k - i) * rest[i] for i in range(k + 1))
        for k in range(order + 1)
    ]
    return [
        (w - beyond * m) / (1 - beyond) if np.isfinite(w) else inf
        for w, m in zip(whole, moved, strict=True)
    ]


def _line(length: float, scale: float, shape: float, order: int) -> float:
    """E[d**order | d <= length] on the line."""
    if order == 0:
        return 1.0
    if np.isinf(length):
        return _full(scale, shape, order)
    reach = float(log_ratio(np.array(length), scale))  # in u = log(1 + d / scale)
    # Integrated over u by panels short enough for Gauss-Legendre to be exact to rounding.
    panels = int(np.ceil(max((shape + order) * reach / 30, 1)))
    width = reach / panels
    u = (np.arange(panels)[:, None] + 0.5 * (1 + _NODES)) * width  # (panels, q)
    with np.errstate(over="ignore", under="ignore"):
        log_weight = np.log(_WEIGHTS) - shape * u
        weight = np.exp(log_weight)
        log_d = np.log(scale) + np.log(np.expm1(np.minimum(u, 700))) + np.maximum(u - 700, 0)
        return float(np.exp(log_weight + order * log_d).sum() / weight.sum())


def _full(scale: float, shape: float, order: int) -> float:
    """E[d**order] on the line: scale**k k! / ((shape - 1) ... (shape - k))."""
    if order >= shape:
        return inf
    answer = 1.0
    for k in range(1, order + 1):
        answer *= scale * k / (shape - k)
    return answer


def _all_integers(scale: float, shape: float, order: int) -> float:
    """E[d**order] of the distance rounded up: sum over k >= 0 of ((k+1)**order - k**order) S(k).

    The first terms one by one, the rest by the Euler-Maclaurin formula.
    """
    if order == 0:
        return 1.0
    if order >= shape:
        return inf
    first = int(max(4096 - scale, 0))
    k = np.arange(float(first))
    total = float((((k + 1) ** order - k**order) * np.exp(-shape * log_ratio(k, scale))).sum())
    # From `first` on: f(x) = step(x) * S(first) * T(x) with T of scale `scale + first`, x >= 0.
    rest = scale + first
    head = float(np.exp(-shape * log_ratio(np.array(float(first)), scale)))
    # step(x) = (first + x + 1)**order - (first + x)**order as coefficients of x.
    up = np.polynomial.polynomial.polypow([first + 1.0, 1.0], order)
    down = np.polynomial.polynomial.polypow([float(first), 1.0], order)
    step = (up - down)[:order]
    # The integral of x**j T(x) is E[d**(j+1)] / (j+1).
    integral = sum(c * _full(rest, shape, j + 1) / (j + 1) for j, c in enumerate(step))
    slopes = [1.0]  # derivatives of T at 0
    for i in range(5):
        slopes.append(slopes[-1] * -(shape + i) / rest)

    def derivative(n: int) -> float:
        value = 0.0
        for i in range(min(n, order - 1) + 1):
            factorial = float(np.prod(np.arange(1, i + 1)))
            value += comb(n, i) * step[i] * factorial * slopes[n - i]
        return value

    corrections = derivative(0) / 2 - derivative(1) / 12 + derivative(3) / 720
    corrections -= derivative(5) / 30240
    return total + head * (float(integral) + corrections)

"""Gaussian leaf truncated to an interval and renormalised there."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from fedcircuits.arrays import FloatArray, IntArray
from fedcircuits.circuits.leaves.base import (
    LeafFamily,
    Params,
    interval_faults,
    shape_faults,
    weighted_rows,
)
from fedcircuits.circuits.leaves.normal import (
    LOG_ROOT_TWO_PI,
    default_floor,
    draw_between,
    log_density,
    log_interval_mass,
    log_mass_slopes,
)
from fedcircuits.circuits.leaves.within import Within, cut_leaves
from fedcircuits.circuits.nodes import Leaf
from fedcircuits.errors import LearningError
from fedcircuits.schema.events import Region
from fedcircuits.schema.grids.grid import Grid
from fedcircuits.schema.grids.powers import common_exponent, times_power
from fedcircuits.schema.variable import Variable


def _standard_ends(params: Params) -> tuple[FloatArray, FloatArray]:
    """(L,) both ends of the interval in standard deviations from the mean."""
    return (
        (params["low"] - params["mean"]) / params["sd"],
        (params["high"] - params["mean"]) / params["sd"],
    )


_NEGLIGIBLE = 80.0  # nats below the mode


@cache
def _legendre() -> tuple[FloatArray, FloatArray]:
    """Return nodes (160,) and weights (160,) of Gauss-Legendre quadrature on [-1, 1]."""
    from scipy.special import roots_legendre  # slow to import

    nodes, weights = roots_legendre(160)
    return nodes, weights


def _quadrature(params: Params) -> tuple[FloatArray, FloatArray, FloatArray]:
    """(L, 1) mode, (L, q) nodes from there and (L, q) weights: sum w f(mode + node) = E[f(x)].

    Gauss-Legendre between the points where the density is negligible against its mode.
    """
    mean, sd, low, high = (params[name][:, None] for name in TruncatedGaussian.parameters)  # (L, 1)
    mode = np.clip(mean, low, high)
    z = np.abs(mode - mean) / sd
    # The density falls by d nats at t standard deviations from the mode: z t + t^2 / 2 = d.
    reach = sd * 2 * _NEGLIGIBLE / (z + np.sqrt(z**2 + 2 * _NEGLIGIBLE))
    start, end = np.maximum(low - mode, -reach), np.minimum(high - mode, reach)
    nodes, node_weights = _legendre()
    offset = start + (end - start) * 0.5 * (1 + nodes)
    fall = 0.5 * (offset / sd) * (offset / sd + 2 * (mode - mean) / sd)
    weight = node_weights * np.exp(-fall)
    return mode, offset, weight / weight.sum(axis=1, keepdims=True)


class TruncatedGaussian(LeafFamily):
    """Normal distribution given that it falls into [low, high]."""

    name = "truncated_gaussian"
    kinds = ("continuous",)
    parameters = ("mean", "sd", "low", "high")

    def check(self, params: Params, variable: Variable, grid: Grid | None) -> list[str]:
        del grid
        faults = shape_faults(params, self.parameters)
        if faults:
            return faults
        if (params["sd"] <= 0).any():
            faults.append(f"sd must be positive, found {params['sd'].min():g}")
        faults += interval_faults(params, variable)
        if not faults and np.isneginf(log_interval_mass(*_standard_ends(params))).any():
            faults.append("the interval has no mass: its ends are too far from the mean")
        return faults

    def log_prob(self, params: Params, grid: Grid | None, x: FloatArray) -> FloatArray:
        del grid
        z = (x[None, :] - params["mean"][:, None]) / params["sd"][:, None]  # (L, n)
        log_norm = np.log(params["sd"]) + log_interval_mass(*_standard_ends(params))  # (L,)
        inside = (x[None, :] >= params["low"][:, None]) & (x[None, :] <= params["high"][:, None])
        return np.where(inside, log_density(z) - log_norm[:, None], -np.inf)

    def sample(
        self, params: Params, grid: Grid | None, which: IntArray, rng: np.random.Generator
    ) -> FloatArray:
        del grid
        a, b = (end[which] for end in _standard_ends(params))
        z = draw_between(a, b, rng)
        draw = params["mean"][which] + params["sd"][which] * z
        return np.clip(draw, params["low"][which], params["high"][which])

    def mode(self, params: Params, grid: Grid | None) -> tuple[FloatArray, FloatArray]:
        at = np.clip(params["mean"], params["low"], params["high"])
        z = (at - params["mean"]) / params["sd"]
        log_norm = np.log(params["sd"]) + log_interval_mass(*_standard_ends(params))
        del grid
        return at, log_density(z) - log_norm

    def moment(
        self, params: Params, grid: Grid | None, variable: Variable, order: int
    ) -> FloatArray:
        del grid, variable
        # By quadrature, exact to rounding: the closed recursion subtracts large numbers where the
        # mean is far outside the interval, or the interval short against sd.
        mode, offset, weight = _quadrature(params)
        x = mode + offset
        exponent = common_exponent(*x.T)  # (L,)
        powers = np.ldexp(x, -exponent[:, None]) ** order
        return times_power((weight * powers).sum(axis=1), exponent, order)

    def variance(self, params: Params, grid: Grid | None, variable: Variable) -> FloatArray:
        del grid, variable
        _, offset, weight = _quadrature(params)
        away = offset - (weight * offset).sum(axis=1, keepdims=True)
        with np.errstate(over="ignore"):
            return np.asarray((weight * away**2).sum(axis=1))

    def support(self, params: Params, grid: Grid | None) -> FloatArray:
        del grid
        return np.stack([params["low"], params["high"]], axis=1)

    def within(
        self, params: Params, grid: Grid | None, variable: Variable, region: Region
    ) -> Within:
        log_whole = log_interval_mass(*_standard_ends(params))  # (L,)

        def mass(part: Params) -> FloatArray:
            return np.asarray(log_interval_mass(*_standard_ends(part)) - log_whole)

        def mode(part: Params) -> FloatArray:
            return np.clip(part["mean"], part["low"], part["high"])

        def density(at: FloatArray) -> FloatArray:
            z = (at - params["mean"]) / params["sd"]
            return np.asarray(log_density(z) - np.log(params["sd"]) - log_whole)

        del grid
        return cut_leaves(self, params, variable, region, mass, mode, density)

    def fit(
        self, variable: Variable, x: FloatArray, weights: FloatArray | None = None, **options: Any
    ) -> Leaf:
        """Weighted maximum likelihood by L-BFGS on (mean, log sd).

        Options:
            low, high: the interval (default: the variable's domain, or the range of the values).
            min_sd: floor of the standard deviation.
        """
        x, w = weighted_rows(x, weights)
        least = options.get("min_sd")
        least = default_floor(variable, x) if least is None else float(least)
        low, high = variable.domain or (-np.inf, np.inf)
        low, high = float(options.get("low", low)), float(options.get("high", high))
        # An open end is closed at the data; a domain that was only seen, not declared, gives way.
        if not np.isfinite(low) or ("low" not in options and not variable.closed):
            low = min(low, float(x.min())) if np.isfinite(low) else float(x.min())
        if not np.isfinite(high) or ("high" not in options and not variable.closed):
            high = max(high, float(x.max())) if np.isfinite(high) else float(x.max())
        if x.min() < low or x.max() > high:
            raise LearningError(
                f"variable {variable.name!r}: values from {x.min():g} to {x.max():g} leave the "
                f"interval [{low:g}, {high:g}]"
            )
        if not low < high:
            low, high = low - least, high + least  # a constant column still needs an interval
        share, span = w / w.sum(), high - low
        mean = float(share @ x)
        sd = float(np.sqrt(share @ (x - mean) ** 2))

        def loss(theta: FloatArray) -> tuple[float, FloatArray]:
            m, s = low + span * theta[0], float(np.exp(theta[1]))
            ends = np.array((low - m) / s), np.array((high - m) / s)
            log_mass, by_mean, by_log_sd = log_mass_slopes(*ends)
            spread = (sd**2 + (mean - m) ** 2) / s**2
            value = float(0.5 * spread + np.log(s) + LOG_ROOT_TWO_PI + log_mass)
            in_mean = span * ((m - mean) / s**2 + by_mean / s)
            return value, np.array([in_mean, 1.0 - spread + by_log_sd])

        from scipy.optimize import minimize  # slow to import

        start = np.array([(mean - low) / span, np.log(max(sd, least))])
        bounds = [(-5.0, 6.0), (np.log(least), np.log(10 * span))]
        best = minimize(
            loss, start, jac=True, method="L-BFGS-B", bounds=bounds,
            options={"ftol": 1e-15, "gtol": 1e-9},
        )  # fmt: skip
        found = {"mean": low + span * best.x[0], "sd": float(np.exp(best.x[1]))}
        return Leaf(variable.name, self.name, {**found, "low": low, "high": high})

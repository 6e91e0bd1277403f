"""Gaussian leaf truncated to an interval and renormalised there."""

from __future__ import annotations

from math import comb
from typing import Any

import numpy as np
from scipy.optimize import minimize
from scipy.stats import truncnorm

from fedcircuits.circuits.leaves.base import LeafFamily, Params, as_weights, shape_faults
from fedcircuits.circuits.leaves.gaussian import default_floor
from fedcircuits.circuits.leaves.normal import LOG_ROOT_TWO_PI, log_density, log_interval_mass
from fedcircuits.circuits.nodes import Leaf
from fedcircuits.schema.grid import FloatArray, Grid, IntArray
from fedcircuits.schema.variable import Variable


def _standard_ends(params: Params) -> tuple[FloatArray, FloatArray]:
    """(L,) both ends of the interval in standard deviations from the mean."""
    return (
        (params["low"] - params["mean"]) / params["sd"],
        (params["high"] - params["mean"]) / params["sd"],
    )


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
        if (params["low"] >= params["high"]).any():
            faults.append("low must be below high")
        if not faults and np.isneginf(log_interval_mass(*_standard_ends(params))).any():
            faults.append("the interval has no mass: its ends are too far from the mean")
        if variable.closed and variable.domain is not None:
            low, high = variable.domain
            if (params["low"] < low).any() or (params["high"] > high).any():
                faults.append(f"the interval leaves the declared domain {variable.domain}")
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
        a, b = _standard_ends(params)
        draw = truncnorm.rvs(
            a[which], b[which], loc=params["mean"][which], scale=params["sd"][which],
            size=which.size, random_state=rng,
        )  # fmt: skip
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
        a, b = _standard_ends(params)
        log_mass = log_interval_mass(a, b)
        at_a, at_b = np.exp(log_density(a) - log_mass), np.exp(log_density(b) - log_mass)
        # E[z^k] = (k-1) E[z^(k-2)] - (b^(k-1) phi(b) - a^(k-1) phi(a)) / mass
        standard = [np.ones_like(a)]
        for k in range(1, order + 1):
            before = (k - 1) * standard[k - 2] if k > 1 else 0.0
            standard.append(before - (b ** (k - 1) * at_b - a ** (k - 1) * at_a))
        terms = [
            comb(order, i) * params["mean"] ** (order - i) * params["sd"] ** i * standard[i]
            for i in range(order + 1)
        ]
        return np.sum(terms, axis=0)

    def support(self, params: Params, grid: Grid | None) -> FloatArray:
        del grid
        return np.stack([params["low"], params["high"]], axis=1)

    def fit(
        self, variable: Variable, x: FloatArray, weights: FloatArray | None = None, **options: Any
    ) -> Leaf:
        """Weighted maximum likelihood by L-BFGS on (mean, log sd).

        Options:
            low, high: the interval (default: the variable's domain, or the range of the values).
            min_sd: floor of the standard deviation.
        """
        w = as_weights(x, weights)
        low, high = variable.domain or (float(x.min()), float(x.max()))
        low, high = float(options.get("low", low)), float(options.get("high", high))
        if not low < high:
            low, high = low - 0.5, high + 0.5  # a constant column still needs an interval
        share, span = w / w.sum(), high - low
        mean = float(share @ x)
        sd = float(np.sqrt(share @ (x - mean) ** 2))
        least = options.get("min_sd")
        least = default_floor(variable, x) if least is None else float(least)

        def loss(theta: FloatArray) -> float:
            m, s = low + span * theta[0], max(float(np.exp(theta[1])), least)
            mass = log_interval_mass(np.array((low - m) / s), np.array((high - m) / s))
            spread = (sd**2 + (mean - m) ** 2) / s**2
            return float(0.5 * spread + np.log(s) + LOG_ROOT_TWO_PI + mass)

        start = np.array([(mean - low) / span, np.log(max(sd, least))])
        bounds = [(-5.0, 6.0), (np.log(least), np.log(10 * span))]
        best = minimize(loss, start, method="L-BFGS-B", bounds=bounds, options={"ftol": 1e-14})
        found = {"mean": low + span * best.x[0], "sd": float(np.exp(best.x[1]))}
        return Leaf(variable.name, self.name, {**found, "low": low, "high": high})

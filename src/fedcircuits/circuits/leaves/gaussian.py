"""Gaussian leaf on the whole line."""

from __future__ import annotations

from math import comb
from typing import Any

import numpy as np

from fedcircuits.arrays import FloatArray, IntArray
from fedcircuits.circuits.leaves.base import LeafFamily, Params, shape_faults, weighted_rows
from fedcircuits.circuits.leaves.normal import LOG_ROOT_TWO_PI, default_floor, log_density
from fedcircuits.circuits.leaves.truncated_gaussian import TruncatedGaussian
from fedcircuits.circuits.leaves.within import Within
from fedcircuits.circuits.nodes import Leaf
from fedcircuits.schema.events import Region
from fedcircuits.schema.grids.grid import Grid
from fedcircuits.schema.grids.powers import common_exponent, times_power
from fedcircuits.schema.variable import Variable

_OPEN_ENDS = {"low": -np.inf, "high": np.inf}


class Gaussian(LeafFamily):
    """Normal distribution with parameters mean and sd."""

    name = "gaussian"
    kinds = ("continuous",)
    parameters = ("mean", "sd")

    def check(self, params: Params, variable: Variable, grid: Grid | None) -> list[str]:
        del grid
        faults = shape_faults(params, self.parameters)
        if not faults and (params["sd"] <= 0).any():
            faults.append(f"sd must be positive, found {params['sd'].min():g}")
        if variable.closed:
            faults.append(
                f"a Gaussian leaks mass out of the declared domain {variable.domain}; "
                "use a truncated one"
            )
        return faults

    def log_prob(self, params: Params, grid: Grid | None, x: FloatArray) -> FloatArray:
        del grid
        # In place: four passes over (L, n) and one allocation. The factor 1/2 goes into the scale.
        z = x[None, :] - params["mean"][:, None]  # (L, n)
        with np.errstate(over="ignore"):  # further than 1e154 sd away: log-density -inf
            z *= (np.sqrt(0.5) / params["sd"])[:, None]
            z *= z
        return np.subtract(-(LOG_ROOT_TWO_PI + np.log(params["sd"]))[:, None], z, out=z)

    def sample(
        self, params: Params, grid: Grid | None, which: IntArray, rng: np.random.Generator
    ) -> FloatArray:
        del grid
        return params["mean"][which] + params["sd"][which] * rng.standard_normal(which.size)

    def mode(self, params: Params, grid: Grid | None) -> tuple[FloatArray, FloatArray]:
        del grid
        return params["mean"], log_density(np.zeros(1)) - np.log(params["sd"])

    def moment(
        self, params: Params, grid: Grid | None, variable: Variable, order: int
    ) -> FloatArray:
        del grid, variable
        # E[(mean + sd z)^k]; odd moments of z vanish, even ones are double factorials.
        exponent = common_exponent(params["mean"], params["sd"])
        mean, sd = np.ldexp(params["mean"], -exponent), np.ldexp(params["sd"], -exponent)
        total = np.zeros_like(mean)
        double_factorial = 1.0
        for i in range(0, order + 1, 2):
            double_factorial *= max(i - 1, 1)
            total += comb(order, i) * mean ** (order - i) * sd**i * double_factorial
        return times_power(total, exponent, order)

    def variance(self, params: Params, grid: Grid | None, variable: Variable) -> FloatArray:
        del grid, variable
        with np.errstate(over="ignore"):
            return np.square(params["sd"])

    def support(self, params: Params, grid: Grid | None) -> FloatArray:
        del grid
        return np.tile([-np.inf, np.inf], (params["mean"].size, 1))

    def within(
        self, params: Params, grid: Grid | None, variable: Variable, region: Region
    ) -> Within:
        del grid
        ends = {name: np.full(params["mean"].size, e) for name, e in _OPEN_ENDS.items()}
        return TruncatedGaussian().within({**params, **ends}, None, variable, region)

    def fit(
        self, variable: Variable, x: FloatArray, weights: FloatArray | None = None, **options: Any
    ) -> Leaf:
        """Weighted mean and standard deviation.

        Options:
            min_sd: floor of the standard deviation (default 1e-3 of the variable's range, or of
                the values' magnitude if it is constant).
        """
        x, w = weighted_rows(x, weights)
        mean = float(np.average(x, weights=w))
        sd = float(np.sqrt(np.average((x - mean) ** 2, weights=w)))  # centred first
        floor = options.get("min_sd")
        sd = max(sd, default_floor(variable, x) if floor is None else float(floor))
        return Leaf(variable.name, self.name, {"mean": mean, "sd": sd})

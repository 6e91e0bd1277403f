"""Uniform leaf on an interval."""

from __future__ import annotations

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
from fedcircuits.circuits.leaves.within import Within, cut_leaves
from fedcircuits.circuits.nodes import Leaf
from fedcircuits.schema.events import Region
from fedcircuits.schema.grids.grid import Grid
from fedcircuits.schema.grids.powers import uniform_moment, uniform_variance
from fedcircuits.schema.variable import Variable


class Uniform(LeafFamily):
    """Uniform density on [low, high]."""

    name = "uniform"
    kinds = ("continuous",)
    parameters = ("low", "high")

    def check(self, params: Params, variable: Variable, grid: Grid | None) -> list[str]:
        del grid
        return shape_faults(params, self.parameters) or interval_faults(params, variable)

    def log_prob(self, params: Params, grid: Grid | None, x: FloatArray) -> FloatArray:
        del grid
        low, high = params["low"][:, None], params["high"][:, None]  # (L, 1)
        inside = (x[None, :] >= low) & (x[None, :] <= high)
        return np.where(inside, -np.log(high - low), -np.inf)

    def sample(
        self, params: Params, grid: Grid | None, which: IntArray, rng: np.random.Generator
    ) -> FloatArray:
        del grid
        low, high = params["low"][which], params["high"][which]
        return low + (high - low) * rng.random(which.size)

    def mode(self, params: Params, grid: Grid | None) -> tuple[FloatArray, FloatArray]:
        del grid
        low, high = params["low"], params["high"]
        return 0.5 * (low + high), -np.log(high - low)

    def moment(
        self, params: Params, grid: Grid | None, variable: Variable, order: int
    ) -> FloatArray:
        del grid, variable
        return uniform_moment(params["low"], params["high"], order)

    def variance(self, params: Params, grid: Grid | None, variable: Variable) -> FloatArray:
        del grid, variable
        return uniform_variance(params["low"], params["high"])

    def support(self, params: Params, grid: Grid | None) -> FloatArray:
        del grid
        return np.stack([params["low"], params["high"]], axis=1)

    def within(
        self, params: Params, grid: Grid | None, variable: Variable, region: Region
    ) -> Within:
        width = params["high"] - params["low"]  # (L,)

        def mass(part: Params) -> FloatArray:
            with np.errstate(divide="ignore"):
                return np.asarray(np.log((part["high"] - part["low"]) / width))

        def mode(part: Params) -> FloatArray:
            return np.asarray(0.5 * (part["low"] + part["high"]))

        del grid
        return cut_leaves(self, params, variable, region, mass, mode, lambda _: -np.log(width))

    def fit(
        self, variable: Variable, x: FloatArray, weights: FloatArray | None = None, **options: Any
    ) -> Leaf:
        """The smallest interval that holds every value of positive weight.

        Options:
            min_width: floor of its width (default 1e-3 of the variable's range or magnitude).
        """
        seen, _ = weighted_rows(x, weights)
        low, high = float(seen.min()), float(seen.max())
        floor = options.get("min_width")
        if floor is None:
            reach = (variable.domain[1] - variable.domain[0]) if variable.domain else 0.0
            floor = 1e-3 * ((reach if np.isfinite(reach) else 0.0) or abs(high) or 1.0)
        grow = max(0.0, float(floor) - (high - low)) / 2
        low, high = low - grow, high + grow
        if variable.closed and variable.domain is not None:  # a floor must not leave the domain
            low, high = max(low, variable.domain[0]), min(high, variable.domain[1])
        return Leaf(variable.name, self.name, {"low": low, "high": high})

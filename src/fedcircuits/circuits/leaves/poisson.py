"""Poisson leaf for counts."""

from __future__ import annotations

from math import comb
from typing import Any

import numpy as np
from scipy.special import gammaln, xlogy

from fedcircuits.arrays import FloatArray, IntArray
from fedcircuits.circuits.leaves.base import LeafFamily, Params, shape_faults, weighted_rows
from fedcircuits.circuits.leaves.within import Points, TableWithin, Within
from fedcircuits.circuits.nodes import Leaf
from fedcircuits.errors import LearningError
from fedcircuits.schema.events import NumberSet, Region
from fedcircuits.schema.grids.grid import Grid
from fedcircuits.schema.variable import Variable


class Poisson(LeafFamily):
    """Poisson distribution with parameter rate."""

    name = "poisson"
    kinds = ("count",)
    parameters = ("rate",)

    def check(self, params: Params, variable: Variable, grid: Grid | None) -> list[str]:
        del grid
        faults = shape_faults(params, self.parameters)
        if not faults and (params["rate"] <= 0).any():
            faults.append(f"rate must be positive, found {params['rate'].min():g}")
        if variable.closed and variable.domain not in (None, (0.0, np.inf)):
            faults.append(
                f"a Poisson leaks mass out of the declared domain {variable.domain}; use a table"
            )
        return faults

    def log_prob(self, params: Params, grid: Grid | None, x: FloatArray) -> FloatArray:
        del grid
        rate = params["rate"][:, None]  # (L, 1)
        legal = (x >= 0) & (x == np.floor(x)) & np.isfinite(x)
        k = np.where(legal, x, 0.0)[None, :]
        return np.where(legal[None, :], xlogy(k, rate) - rate - gammaln(k + 1), -np.inf)

    def sample(
        self, params: Params, grid: Grid | None, which: IntArray, rng: np.random.Generator
    ) -> FloatArray:
        del grid
        return rng.poisson(params["rate"][which]).astype(float)

    def mode(self, params: Params, grid: Grid | None) -> tuple[FloatArray, FloatArray]:
        at = np.floor(params["rate"])
        log_density = xlogy(at, params["rate"]) - params["rate"] - gammaln(at + 1)
        del grid
        return at, log_density

    def moment(
        self, params: Params, grid: Grid | None, variable: Variable, order: int
    ) -> FloatArray:
        del grid, variable
        # Touchard polynomials: E[x^(k+1)] = rate * sum_i C(k, i) E[x^i].
        raw = [np.ones_like(params["rate"])]
        with np.errstate(over="ignore"):
            for k in range(order):
                terms = (comb(k, i) * raw[i] for i in range(k + 1))
                raw.append(params["rate"] * np.sum(list(terms), axis=0))
        return raw[order]

    def variance(self, params: Params, grid: Grid | None, variable: Variable) -> FloatArray:
        del grid, variable
        return params["rate"]

    def support(self, params: Params, grid: Grid | None) -> FloatArray:
        del grid
        return np.tile([0.0, np.inf], (params["rate"].size, 1))

    def within(
        self, params: Params, grid: Grid | None, variable: Variable, region: Region
    ) -> Within:
        del variable
        assert isinstance(region, NumberSet)
        # Counts further than `reach` from the likeliest one in an interval have no mass beside it.
        least, most = float(params["rate"].min()), float(params["rate"].max())
        listed = [np.zeros(0)]
        for interval in region.intervals:
            low, high = max(interval.low, 0.0), interval.high
            if high < low:
                continue
            first, last = (min(max(rate, low), high) for rate in (least, most))
            reach = 40 * np.sqrt(last) + 60
            if low > most:  # beyond all rates masses fall at least like (most / low)**k
                reach = min(reach, 60 + 100 / np.log(low / most))
            start, end = max(low, np.floor(first - reach)), min(high, np.floor(last + reach))
            listed.append(np.arange(start, end + 1))
        counts = np.unique(np.concatenate(listed))
        log_masses = self.log_prob(params, grid, counts)  # (L, k)
        return TableWithin(log_masses, log_masses, Points.of_numbers(counts))

    def fit(
        self, variable: Variable, x: FloatArray, weights: FloatArray | None = None, **options: Any
    ) -> Leaf:
        """The weighted mean.

        Options:
            min_rate: floor of the rate (default 1e-3).
        """
        x, w = weighted_rows(x, weights)
        if (x < 0).any():
            raise LearningError(
                f"variable {variable.name!r}: a Poisson has no negative counts, found "
                f"{x.min():g}; use a table"
            )
        rate = float(np.average(x, weights=w))
        return Leaf(variable.name, self.name, {"rate": max(rate, options.get("min_rate", 1e-3))})

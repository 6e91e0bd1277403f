"""Categorical leaf; with two categories, a Bernoulli leaf."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedcircuits.arrays import FloatArray, IntArray
from fedcircuits.circuits.leaves.base import LeafFamily, Params, weighted_rows
from fedcircuits.circuits.leaves.tables import (
    draw_states,
    log_lookup,
    log_table,
    table_faults,
    table_moment,
    table_variance,
)
from fedcircuits.circuits.leaves.within import Points, TableWithin, Within
from fedcircuits.circuits.nodes import Leaf
from fedcircuits.schema.events import CodeSet, Region
from fedcircuits.schema.grids.grid import Grid
from fedcircuits.schema.variable import Variable


class Categorical(LeafFamily):
    """A probability for each code of a categorical or binary variable."""

    name = "categorical"
    kinds = ("categorical", "binary")
    parameters = ("probs",)

    @property
    def support_is_states(self) -> bool:
        return True

    def check(self, params: Params, variable: Variable, grid: Grid | None) -> list[str]:
        del grid
        return table_faults(params, "probs", variable.n_codes)

    def table_of(self, params: Params) -> FloatArray | None:
        return params["probs"]

    def locate(self, grid: Grid | None, x: FloatArray) -> tuple[IntArray, FloatArray | None]:
        del grid
        return x.astype(np.int64), None

    def log_prob(self, params: Params, grid: Grid | None, x: FloatArray) -> FloatArray:
        del grid
        return log_lookup(params["probs"], x.astype(np.int64))

    def sample(
        self, params: Params, grid: Grid | None, which: IntArray, rng: np.random.Generator
    ) -> FloatArray:
        del grid
        return draw_states(params["probs"], which, rng).astype(float)

    def mode(self, params: Params, grid: Grid | None) -> tuple[FloatArray, FloatArray]:
        del grid
        best = params["probs"].argmax(axis=1)
        return best.astype(float), log_table(params["probs"].max(axis=1))

    def moment(
        self, params: Params, grid: Grid | None, variable: Variable, order: int
    ) -> FloatArray:
        del grid
        # Strings have no moments beyond order 0; zero keeps other columns' answers in shape.
        numbers = np.zeros(len(variable.categories))
        numbers = numbers if variable.numbers is None else variable.numbers
        return table_moment(params["probs"][:, : numbers.size], numbers, order)

    def variance(self, params: Params, grid: Grid | None, variable: Variable) -> FloatArray:
        del grid
        numbers = variable.numbers
        if numbers is None:
            return np.zeros(params["probs"].shape[0])
        return table_variance(params["probs"][:, : numbers.size], numbers)

    def support(self, params: Params, grid: Grid | None) -> FloatArray:
        del grid
        return (params["probs"] > 0).astype(float)

    def within(
        self, params: Params, grid: Grid | None, variable: Variable, region: Region
    ) -> Within:
        del grid
        assert isinstance(region, CodeSet)
        log_probs = log_table(params["probs"])  # (L, k)
        return TableWithin(
            np.where(region.mask, log_probs, -np.inf), log_probs, Points.of_codes(variable)
        )

    def n_parameters(self, params: Params) -> int:
        leaves, codes = params["probs"].shape
        return int(leaves * (codes - 1))

    def fit(
        self, variable: Variable, x: FloatArray, weights: FloatArray | None = None, **options: Any
    ) -> Leaf:
        """Smoothed relative frequencies.

        Options:
            smoothing: pseudo-count added to every category (default 0.1).
        """
        x, w = weighted_rows(x, weights)
        smoothing = float(options.get("smoothing", 0.1))
        counts = np.bincount(x.astype(np.int64), w, minlength=variable.n_codes) + smoothing
        return Leaf(variable.name, self.name, {"probs": counts / counts.sum()})

"""Histogram leaf: masses on the atoms, bins and tails of a grid."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from fedcircuits.arrays import FloatArray, IntArray
from fedcircuits.circuits.leaves.base import LeafFamily, Params, weighted_rows
from fedcircuits.circuits.leaves.tables import (
    draw_states,
    log_lookup,
    log_table,
    table_faults,
    table_variance,
)
from fedcircuits.circuits.leaves.within import TableWithin, Within
from fedcircuits.circuits.nodes import Leaf
from fedcircuits.errors import LearningError
from fedcircuits.schema.events import NumberSet, Region
from fedcircuits.schema.events.cut import Cut
from fedcircuits.schema.grids.grid import Grid
from fedcircuits.schema.grids.sketch import Sketch
from fedcircuits.schema.schema import variable_grid
from fedcircuits.schema.variable import Kind, Variable


class Histogram(LeafFamily):
    """p(x) = mass of the state of x, times the grid's density within that state."""

    name = "histogram"
    kinds: ClassVar[tuple[Kind, ...]] = ("continuous",)
    parameters = ("masses",)
    has_grid = True
    integer = False

    def check(self, params: Params, variable: Variable, grid: Grid | None) -> list[str]:
        if grid is None:
            return ["needs a grid"]
        faults = table_faults(params, "masses", grid.n_states)
        if grid.integer != self.integer:
            found = "integers" if grid.integer else "the line"
            faults.append(f"its grid is over {found}, not what a {variable.kind} variable needs")
        if grid.missing != variable.missing_state:
            faults.append("grid and variable disagree on whether missing is a state")
        if variable.closed and variable.domain is not None:
            open_low = np.isfinite(variable.domain[0]) and grid.tails[0] > 0
            open_high = np.isfinite(variable.domain[1]) and grid.tails[1] > 0
            if (
                open_low
                or open_high
                or grid.edges[0] < variable.domain[0]
                or grid.edges[-1] > variable.domain[1]
            ):
                faults.append(f"its grid leaves the declared domain {variable.domain}")
        return faults

    def table_of(self, params: Params) -> FloatArray | None:
        return params["masses"]

    def locate(self, grid: Grid | None, x: FloatArray) -> tuple[IntArray, FloatArray | None]:
        assert grid is not None
        return grid.locate(x)

    def log_prob(self, params: Params, grid: Grid | None, x: FloatArray) -> FloatArray:
        assert grid is not None
        states, log_within = grid.locate(x)
        return log_lookup(params["masses"], states) + log_within

    def sample(
        self, params: Params, grid: Grid | None, which: IntArray, rng: np.random.Generator
    ) -> FloatArray:
        assert grid is not None
        return grid.sample_within(draw_states(params["masses"], which, rng), rng)

    def mode(self, params: Params, grid: Grid | None) -> tuple[FloatArray, FloatArray]:
        assert grid is not None
        value, log_within = grid.modes()  # (s,), (s,)
        log_density = log_table(params["masses"]) + log_within[None, :]  # (L, s)
        best = log_density.argmax(axis=1)
        return value[best], log_density.max(axis=1)

    def moment(
        self, params: Params, grid: Grid | None, variable: Variable, order: int
    ) -> FloatArray:
        del variable
        assert grid is not None
        per_state = grid.moments(order)  # (s,), possibly infinite in a tail
        with np.errstate(invalid="ignore", over="ignore"):
            terms = np.where(params["masses"] > 0, params["masses"] * per_state[None, :], 0.0)
            # Infinite to both sides: there is no such moment, NaN.
            return np.asarray(terms.sum(axis=1))

    def variance(self, params: Params, grid: Grid | None, variable: Variable) -> FloatArray:
        del variable
        assert grid is not None
        n = grid.n_states - grid.missing
        return table_variance(params["masses"][:, :n], grid.moments(1)[:n], grid.variances()[:n])

    def support(self, params: Params, grid: Grid | None) -> FloatArray:
        del grid
        return (params["masses"] > 0).astype(float)

    def within(
        self, params: Params, grid: Grid | None, variable: Variable, region: Region
    ) -> Within:
        del variable
        assert grid is not None
        assert isinstance(region, NumberSet)
        cut = Cut.of(grid, region)
        log_masses = log_table(params["masses"])  # (L, s)
        return TableWithin(log_masses + log_table(cut.shares), log_masses, cut)

    def n_parameters(self, params: Params) -> int:
        leaves, states = params["masses"].shape
        return int(leaves * (states - 1))

    def fit(
        self, variable: Variable, x: FloatArray, weights: FloatArray | None = None, **options: Any
    ) -> Leaf:
        """Smoothed relative frequencies of the states of a grid.

        Options:
            grid: the grid (default: the variable's, or one made from these values).
            n_bins: number of quantile bins of a grid made here.
            smoothing: pseudo-count added to every state (default 0.1).
        """
        x, w = weighted_rows(x, weights)
        grid = options.get("grid", variable.grid)
        if grid is None:
            real = np.isfinite(x)
            sketch = Sketch.of(x[real], w[real])
            grid = variable_grid(variable, sketch, options.get("n_bins"))
        states = grid.encode(x)
        if (states < 0).any():
            raise LearningError(
                f"variable {variable.name!r}: its grid has no state for {x[states < 0][0]:g}"
            )
        smoothing = float(options.get("smoothing", 0.1))
        counts = np.bincount(states, w, minlength=grid.n_states) + smoothing
        return Leaf(variable.name, self.name, {"masses": counts / counts.sum()}, grid)


class CountTable(Histogram):
    """The same on an integer grid: a table of counts with gaps and open tails."""

    name = "count_table"
    kinds = ("count",)
    integer = True

"""Discretised Gaussian leaf: exact masses of the levels 0..top of a pixel.

Level k stands for x = k / top. Edges lie halfway between levels; the lowest level takes everything
below the first edge and the highest everything above the last, so the masses sum to one.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fedcircuits.arrays import FloatArray, IntArray
from fedcircuits.circuits.leaves.base import LeafFamily, Params, shape_faults, weighted_rows
from fedcircuits.circuits.leaves.normal import log_interval_mass, log_mass_slopes
from fedcircuits.circuits.leaves.tables import draw_states, table_moment, table_variance
from fedcircuits.circuits.leaves.within import Points, TableWithin, Within
from fedcircuits.circuits.nodes import Leaf
from fedcircuits.errors import LearningError
from fedcircuits.schema.events import Region
from fedcircuits.schema.grids.grid import Grid
from fedcircuits.schema.variable import Variable


def level_log_mass(
    mean: FloatArray, sd: FloatArray, top: FloatArray, level: FloatArray
) -> FloatArray:
    """Log-mass of a level under a Gaussian on the scale level / top (arrays broadcast)."""
    return log_interval_mass(*_standard_ends(mean, sd, top, level))


def _standard_ends(
    mean: FloatArray, sd: FloatArray, top: FloatArray, level: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Both ends of a level's bin in standard deviations from the mean."""
    low = np.where(level <= 0, -np.inf, (level - 0.5) / top)
    high = np.where(level >= top, np.inf, (level + 0.5) / top)
    return (low - mean) / sd, (high - mean) / sd


class DiscretisedGaussian(LeafFamily):
    """Gaussian with mean and sd on the scale 0..1, integrated over each level's bin."""

    name = "discretised_gaussian"
    kinds = ("count",)
    parameters = ("mean", "sd", "top")

    def check(self, params: Params, variable: Variable, grid: Grid | None) -> list[str]:
        del grid
        faults = shape_faults(params, self.parameters)
        if faults:
            return faults
        if (params["sd"] <= 0).any():
            faults.append(f"sd must be positive, found {params['sd'].min():g}")
        top = params["top"]
        if (top < 1).any() or (top != np.floor(top)).any() or (top > 65535).any():
            faults.append("top must be a whole number from 1 to 65535")
        elif np.unique(top).size > 1:
            faults.append("top must be the same in all leaves of a variable")
        declared = variable.domain if variable.closed else None
        if not faults and declared not in (None, (0.0, float(top[0]))):
            faults.append(f"levels 0..{top[0]:g} are not the declared domain {declared}")
        return faults

    def log_prob(self, params: Params, grid: Grid | None, x: FloatArray) -> FloatArray:
        del grid
        mean, sd, top = (params[name][:, None] for name in self.parameters)  # (L, 1)
        legal = (x >= 0) & (x == np.floor(x)) & (x <= params["top"][0])
        level = np.where(legal, x, 0.0)[None, :]
        return np.where(legal[None, :], level_log_mass(mean, sd, top, level), -np.inf)

    def _log_masses(self, params: Params) -> FloatArray:
        """(L, top + 1) log-mass of every level."""
        mean, sd, top = (params[name][:, None] for name in self.parameters)
        return level_log_mass(mean, sd, top, np.arange(params["top"][0] + 1)[None, :])

    def sample(
        self, params: Params, grid: Grid | None, which: IntArray, rng: np.random.Generator
    ) -> FloatArray:
        del grid
        return draw_states(np.exp(self._log_masses(params)), which, rng).astype(float)

    def mode(self, params: Params, grid: Grid | None) -> tuple[FloatArray, FloatArray]:
        del grid
        log_masses = self._log_masses(params)
        return log_masses.argmax(axis=1).astype(float), log_masses.max(axis=1)

    def moment(
        self, params: Params, grid: Grid | None, variable: Variable, order: int
    ) -> FloatArray:
        del grid, variable
        levels = np.arange(params["top"][0] + 1)
        return table_moment(np.exp(self._log_masses(params)), levels, order)

    def variance(self, params: Params, grid: Grid | None, variable: Variable) -> FloatArray:
        del grid, variable
        return table_variance(np.exp(self._log_masses(params)), np.arange(params["top"][0] + 1))

    def support(self, params: Params, grid: Grid | None) -> FloatArray:
        del grid
        return np.stack([np.zeros_like(params["top"]), params["top"]], axis=1)

    def within(
        self, params: Params, grid: Grid | None, variable: Variable, region: Region
    ) -> Within:
        del grid, variable
        levels = np.arange(params["top"][0] + 1)
        log_masses = self._log_masses(params)
        inside = np.where(region.contains(levels), log_masses, -np.inf)
        return TableWithin(inside, log_masses, Points.of_numbers(levels))

    def n_parameters(self, params: Params) -> int:
        return 2 * params["mean"].size

    def fit(
        self, variable: Variable, x: FloatArray, weights: FloatArray | None = None, **options: Any
    ) -> Leaf:
        """Weighted maximum likelihood of the masses by L-BFGS on (mean, log sd).

        Options:
            top: highest level (default: the declared domain's, or 255).
            min_sd: floor of the standard deviation (default: a tenth of a level).
        """
        x, w = weighted_rows(x, weights)
        declared = variable.domain[1] if variable.closed and variable.domain else np.inf
        top = float(options.get("top", declared if np.isfinite(declared) else 255.0))
        least = float(options.get("min_sd", 0.1 / top))
        if x.min() < 0 or x.max() > top:
            raise LearningError(
                f"variable {variable.name!r}: levels are 0..{top:g}, found {x.min():g} to "
                f"{x.max():g}"
            )
        counts = np.bincount(x.astype(np.int64), w, minlength=int(top) + 1)
        levels = np.flatnonzero(counts)
        share = counts[levels] / counts.sum()
        at = levels / top
        mean = float(share @ at)
        sd = max(float(np.sqrt(share @ (at - mean) ** 2)), least)

        def loss(theta: FloatArray) -> tuple[float, FloatArray]:
            s = np.exp(theta[1])
            ends = _standard_ends(theta[0], s, np.asarray(top), levels.astype(float))
            log_mass, by_mean, by_log_sd = log_mass_slopes(*ends)
            slopes = -np.array([share @ by_mean / s, share @ by_log_sd])
            return -float(share @ log_mass), slopes

        from scipy.optimize import minimize  # slow to import

        bounds = [(-3.0, 4.0), (np.log(least), np.log(10.0))]
        best = minimize(
            loss, np.array([mean, np.log(sd)]), jac=True, method="L-BFGS-B", bounds=bounds,
            options={"ftol": 1e-15, "gtol": 1e-9},
        )  # fmt: skip
        found = {"mean": float(best.x[0]), "sd": float(np.exp(best.x[1])), "top": top}
        return Leaf(variable.name, self.name, found)

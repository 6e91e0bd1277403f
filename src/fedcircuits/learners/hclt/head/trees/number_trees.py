"""The distribution that boosted trees give a number: location and scale by row, one shape for all.

z = (y - location(x)) / scale(x) has the same distribution in every row: that of the out-of-fold
residuals, linear between some of their quantiles and exponential beyond the outer ones. The trees'
outputs for a row are the logarithms of the masses this gives to the states of the label's grid, so
that they are pooled with the circuit's posterior as outputs for classes are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcircuits.arrays import FloatArray, IntArray, IntegerArray
from fedcircuits.errors import StorageError
from fedcircuits.learners.hclt.head.trees.boosted_trees import BoostedTrees

# Least share of the mass that follows the label's own distribution, whatever the row.
FLOOR = 1e-3
# Share of the residuals beyond the outer quantile of each side that sets the length of a tail.
TAIL_SHARE = 0.05


@dataclass(frozen=True, eq=False)
class StateCells:
    """Intervals of the real line, and how the states of a number are spread over them.

    Attributes:
        cuts: (C - 1,) ends between C cells, rising; the first and the last cell are open.
        shares: (C, P) share of every state among the rows of a cell; an atom shares the cell
            around it with the state of the other values there.
        masses: (P,) share of a state among all rows.
        centre: what is subtracted from numbers ...
        unit: ... and what they are then divided by, before trees see them.
    """

    cuts: FloatArray
    shares: FloatArray
    masses: FloatArray
    centre: float
    unit: float

    @staticmethod
    def of(cuts: FloatArray, numbers: FloatArray, states: IntegerArray) -> StateCells:
        """The cells of the states that occur.

        Args:
            cuts: (C - 1,) ends between cells, rising.
            numbers: (n,) the label.
            states: (n,) 0 .. P - 1.
        """
        n_cells, n_states = cuts.size + 1, int(states.max()) + 1
        cell = np.searchsorted(cuts, numbers, side="right")  # (n,)
        rows = np.bincount(cell * n_states + states, minlength=n_cells * n_states)
        rows = rows.reshape(n_cells, n_states).astype(float)
        masses = rows.sum(axis=0) / rows.sum()
        total = rows.sum(axis=1, keepdims=True)
        shares = np.where(total > 0, rows / np.maximum(total, 1.0), masses)
        unit = float(numbers.std()) or 1.0
        return StateCells(cuts, shares, masses, float(numbers.mean()), unit)

    def scaled(self, numbers: FloatArray) -> FloatArray:
        """(n,) numbers as the trees see them."""
        return np.asarray((numbers - self.centre) / self.unit)


@dataclass(frozen=True, eq=False)
class NumberTrees:
    """Boosted trees whose outputs are log-masses of the states of a number.

    Attributes:
        trees: two outputs: the location, and the log of the scale.
        quantiles: (q,) of the standardised residuals, at (i + 1/2) / q, rising.
        cells: where the states lie.
    """

    trees: BoostedTrees
    quantiles: FloatArray
    cells: StateCells

    @property
    def roots(self) -> IntArray:
        """(T,) first node of every tree."""
        return self.trees.roots

    @property
    def n_leaves(self) -> int:
        """Leaves of all trees."""
        return self.trees.n_leaves

    @property
    def n_numbers(self) -> int:
        """Free parameters: those of the trees, the quantiles, the shares of the states."""
        return self.trees.n_numbers + self.quantiles.size + self.cells.shares.size

    def outputs(self, values: FloatArray) -> FloatArray:
        """(n, P) log-masses for rows (n, D), NaN where missing, categories by code."""
        return self.outputs_of_bins(self.trees.bins(values))

    def column_bins(self, column: int, values: FloatArray) -> IntArray:
        """(n,) number of the interval or category of values of one column."""
        return self.trees.column_bins(column, values)

    def outputs_of_bins(self, bins: NDArray[np.uint16]) -> FloatArray:
        """(n, P) log-masses for rows (D, n) given by their intervals."""
        location, log_scale = self.trees.outputs_of_bins(bins).T
        return log_masses(location, np.exp(log_scale), self.quantiles, self.cells)

    # --- storage ----------------------------------------------------------------------------------

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Arrays by name, for a file."""
        cells = self.cells
        return self.trees.arrays() | {
            "quantiles": self.quantiles,
            "cuts": cells.cuts,
            "shares": cells.shares,
            "masses": cells.masses,
            "centre_unit": np.array([cells.centre, cells.unit]),
        }

    @staticmethod
    def from_arrays(
        arrays: Mapping[str, NDArray[Any]], n_columns: int, n_outputs: int
    ) -> NumberTrees:
        """Inverse of `arrays`; anything that is not as it should be is a `StorageError`."""
        own = {
            name: np.asarray(arrays[name], dtype=float)
            for name in ("quantiles", "cuts", "shares", "masses", "centre_unit")
        }
        rest = {k: v for k, v in arrays.items() if k not in own}
        trees = BoostedTrees.from_arrays(rest, n_columns, 2)
        dimensions = {name: 2 if name == "shares" else 1 for name in own}
        ok = (
            all(np.isfinite(v).all() and v.ndim == dimensions[k] for k, v in own.items())
            and own["quantiles"].size > 1
            and bool((np.diff(own["quantiles"]) > 0).all())
            and bool((np.diff(own["cuts"]) > 0).all())
            and own["shares"].shape == (own["cuts"].size + 1, n_outputs)
            and own["masses"].shape == (n_outputs,)
            and bool((own["shares"] >= 0).all() and (own["masses"] > 0).all())
            and bool((np.abs(own["shares"].sum(axis=1) - 1) < 1e-9).all())
            and own["centre_unit"].shape == (2,)
            and own["centre_unit"][1] > 0
        )
        if not ok:
            raise StorageError("the distribution of a number in the file is not valid")
        centre, unit = own["centre_unit"].tolist()
        cells = StateCells(own["cuts"], own["shares"], own["masses"], centre, unit)
        return NumberTrees(trees, own["quantiles"], cells)


def log_masses(
    location: FloatArray, scale: FloatArray, quantiles: FloatArray, cells: StateCells
) -> FloatArray:
    """(n, P) log-masses of the states in rows with these locations and scales (n,)."""
    ends = cells.scaled(cells.cuts)  # (k - 1,)
    upto = distribution((ends - location[:, None]) / scale[:, None], quantiles)
    upto = np.pad(upto, ((0, 0), (1, 1)), constant_values=(0.0, 1.0))
    inside = np.diff(upto, axis=1) @ cells.shares
    return np.asarray(np.log((1 - FLOOR) * np.maximum(inside, 0.0) + FLOOR * cells.masses))


def distribution(z: FloatArray, quantiles: FloatArray) -> FloatArray:
    """P(residual <= z): linear between the quantiles, exponential beyond the outer ones."""
    n = quantiles.size
    outer = 0.5 / n
    answer = np.interp(z, quantiles, (np.arange(n) + 0.5) / n)
    few = max(int(TAIL_SHARE * n), 1)
    low = max(float(quantiles[few] - quantiles[0]), 1e-12)
    high = max(float(quantiles[-1] - quantiles[-1 - few]), 1e-12)
    # The length over which the mass falls by e, had the tail the slope of its last quantiles.
    steep = 1.0 / np.log((few + 0.5) / 0.5)
    below, above = z < quantiles[0], z > quantiles[-1]
    answer[below] = outer * np.exp((z[below] - quantiles[0]) / (low * steep))
    answer[above] = 1 - outer * np.exp((quantiles[-1] - z[above]) / (high * steep))
    return np.asarray(answer)

"""Grids of numbers written with a fixed number of decimals (28.1, 0.25): values on a lattice.

Such values repeat because they were rounded, not because they carry a mass of their own. Their bins
hold whole multiples of the step 10**-decimals, so that samples and completions have as many
decimals as the rows, and an event asks for just the values inside it. The work is done by a grid
over the integers, in units of the step. The base measure stays that of other numbers, counting
measure on the atoms plus length elsewhere: the mass of a value in a bin is divided by the step.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import inf, log
from typing import Any

import numpy as np

from fedcircuits.arrays import FloatArray, IntArray
from fedcircuits.errors import SchemaError
from fedcircuits.schema.grids.grid import Grid

MOST_DECIMALS = 6
LARGEST = 2.0**50  # in steps: beyond, doubles have no room for the decimals


def decimals_of(values: FloatArray) -> int | None:
    """The number of decimals that all the values (n,) are written with, None if not a small one."""
    for decimals in range(1, MOST_DECIMALS + 1):
        scale = 10.0**decimals
        if values.size == 0 or np.abs(values).max() * scale > LARGEST:
            return None
        if np.array_equal(np.rint(values * scale) / scale, values):
            return decimals
    return None


@dataclass(frozen=True, eq=False)
class DecimalGrid(Grid):
    """States of a numeric variable whose values have a fixed number of decimals.

    Attributes:
        decimals: how many, at least 1.
    """

    decimals: int = 1

    def __post_init__(self) -> None:
        if self.integer or not 1 <= self.decimals <= MOST_DECIMALS:
            raise SchemaError(
                f"not a grid: expected 1 to {MOST_DECIMALS} decimals of numbers that are not "
                f"whole, found {self.decimals}"
            )
        super().__post_init__()

    @staticmethod
    def of_steps(whole: Grid, decimals: int) -> DecimalGrid:
        """The grid that `whole`, over the integers, is in units of the step."""
        scale = 10.0**decimals
        return DecimalGrid(
            whole.atoms / scale,
            whole.edges / scale,
            (whole.tails[0] / scale, whole.tails[1] / scale),
            missing=whole.missing,
            tilts=whole.tilts,
            shapes=whole.shapes,
            floor=whole.floor / scale,
            decimals=decimals,
        )

    @property
    def is_spaced(self) -> bool:
        """Always: values are multiples of the step."""
        return True

    @property
    def _scale(self) -> float:
        return float(10.0**self.decimals)

    @cached_property
    def _whole(self) -> Grid:
        """The same states over the integers, in steps."""
        return Grid(
            np.rint(self.atoms * self._scale),
            np.rint(self.edges * self._scale),
            (self.tails[0] * self._scale, self.tails[1] * self._scale),
            integer=True,
            missing=self.missing,
            tilts=self.tilts,
            shapes=self.shapes,
            floor=float(np.rint(self.floor * self._scale)),
        )

    @cached_property
    def _intervals(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        lower, upper, volume = self._whole._intervals
        return lower / self._scale, upper / self._scale, volume / self._scale

    @cached_property
    def _log_steps(self) -> FloatArray:
        """(n_states + 1,) log of one over the step, 0 for atoms, missing and (last) no state."""
        answer = np.zeros(self.n_states + 1)
        answer[self.interval_states] = self.decimals * log(10.0)
        return answer

    def __eq__(self, other: object) -> bool:
        same = super().__eq__(other)
        if same is True:
            return isinstance(other, DecimalGrid) and other.decimals == self.decimals
        return same

    def __hash__(self) -> int:
        return super().__hash__()

    def _steps(self, x: FloatArray) -> FloatArray:
        """Values (n,) as the nearest number of steps."""
        return np.asarray(np.rint(np.asarray(x, dtype=float) * self._scale))

    def _first_step(self, x: Any) -> FloatArray:
        """The lowest number of steps that is not below x (...,), compared as doubles."""
        x = np.asarray(x, dtype=float)
        with np.errstate(over="ignore"):  # the largest doubles are beyond every value
            steps = np.rint(x * self._scale)
        steps = np.where(steps / self._scale < x, steps + 1, steps)
        return np.asarray(np.where((steps - 1) / self._scale >= x, steps - 1, steps))

    def encode(self, x: FloatArray) -> IntArray:
        """State of each value: (n,) -> (n,), read to the nearest multiple of the step."""
        return self._whole.encode(self._steps(x))

    def locate(self, x: FloatArray) -> tuple[IntArray, FloatArray]:
        """State (n,) of each value, -1 for none, and its log-density (n,) given the state."""
        steps = self._steps(x)
        state, log_within = self._whole.locate(steps)
        log_within += self._log_steps[state]
        if self.at_floor and self._log_steps[0] == 0:  # below an atom values have a length
            log_within[(steps < self._whole.floor) & (state == 0)] += self.decimals * log(10.0)
        return state, log_within

    def mass_between(self, low: Any = -inf, high: Any = inf) -> FloatArray:
        """(..., n_states) P(low <= x < high | state) for ends (...,); 0 for the missing state."""
        return self._whole.mass_between(self._first_step(low), self._first_step(high))

    def moments_between(self, low: Any, high: Any, order: int) -> FloatArray:
        """(..., n_states) E[x**order | state, low <= x < high]; 0 where that has no mass."""
        ends = self._first_step(low), self._first_step(high)
        return np.asarray(self._whole.moments_between(*ends, order) / self._scale**order)

    def variances_between(self, low: Any, high: Any) -> FloatArray:
        """(..., n_states) Var[x | state, low <= x < high]."""
        ends = self._first_step(low), self._first_step(high)
        return np.asarray(self._whole.variances_between(*ends) / self._scale**2)

    def _value(self, states: IntArray, low: Any, high: Any, u: FloatArray) -> FloatArray:
        ends = self._first_step(low), self._first_step(high)
        return np.asarray(self._whole._value(states, *ends, u) / self._scale)

    def modes_between(self, low: float = -inf, high: float = inf) -> tuple[FloatArray, FloatArray]:
        """(n_states,) a value of highest density in the part of each state in [low, high)."""
        ends = float(self._first_step(low)), float(self._first_step(high))
        value, log_density = self._whole.modes_between(*ends)
        return value / self._scale, log_density + self._log_steps[:-1]

    def to_json(self) -> dict[str, Any]:
        """Plain values; floats survive JSON exactly."""
        return super().to_json() | {"decimals": self.decimals}


def grid_from_json(record: dict[str, Any]) -> Grid:
    """Inverse of `Grid.to_json` and `DecimalGrid.to_json`."""
    grid = Grid.from_json(record)
    decimals = record.get("decimals")
    if decimals is None:
        return grid
    parts = (grid.atoms, grid.edges, grid.tails, grid.integer, grid.missing)
    return DecimalGrid(*parts, grid.tilts, grid.shapes, grid.floor, decimals=int(decimals))

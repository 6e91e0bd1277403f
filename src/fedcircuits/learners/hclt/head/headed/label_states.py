"""The states of a label: its categories, or the states of the grid of a number (`LabelStates`)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedcircuits.arrays import FloatArray, IntArray
from fedcircuits.density import powers
from fedcircuits.learners.prepare import column_codes, n_states
from fedcircuits.schema import Grid, Variable
from fedcircuits.schema.events import NumberSet, Region
from fedcircuits.schema.events.cut import Cut


@dataclass(frozen=True)
class LabelStates:
    """What a model of a label's states needs of the label itself.

    Attributes:
        variable: the label.
    """

    variable: Variable

    @property
    def grid(self) -> Grid | None:
        """The grid of a number, None for categories."""
        return self.variable.grid

    @property
    def _numbers(self) -> FloatArray:
        """(S,) the codes of categories as encoded values."""
        return np.arange(n_states(self.variable), dtype=float)

    def codes(self, values: FloatArray) -> IntArray:
        """(n,) states of encoded values; -1 where no state holds a value."""
        return column_codes(self.variable, values)

    def log_within(self, values: FloatArray) -> FloatArray:
        """(n,) log-density of values given their states."""
        return np.zeros(values.size) if self.grid is None else self.grid.log_within(values)

    def draw(self, states: IntArray, rng: np.random.Generator) -> FloatArray:
        """(n,) a value of each state."""
        return states.astype(float) if self.grid is None else self.grid.sample_within(states, rng)

    def moments(self, order: int) -> FloatArray:
        """(S,) E[y**order | state]."""
        if self.grid is None:
            return powers(self.variable, self._numbers, order)
        return self.grid.moments(order)

    def variances(self) -> FloatArray:
        """(S,) Var[y | state]."""
        return np.zeros(self._numbers.size) if self.grid is None else self.grid.variances()

    def modes(self) -> tuple[FloatArray, FloatArray]:
        """(S,) a likeliest value of each state, and its log-density given the state."""
        if self.grid is None:
            return self._numbers, np.zeros(self._numbers.size)
        return self.grid.modes()

    def shares(self, region: Region) -> FloatArray:
        """(S,) P(region | state)."""
        if self.grid is None or not isinstance(region, NumberSet):
            return region.contains(self._numbers).astype(float)
        return Cut.of(self.grid, region).shares

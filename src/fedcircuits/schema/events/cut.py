"""An event on a grid: the part of every state that belongs to it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from fedcircuits.arrays import FloatArray, IntArray
from fedcircuits.schema.events.region import Interval, NumberSet
from fedcircuits.schema.grids.grid import Grid
from fedcircuits.schema.grids.states import MISSING_CODE


@dataclass(frozen=True, eq=False)
class Cut:
    """The states of a grid given that the value lies in a set.

    Attributes:
        grid: the grid.
        region: the set.
    """

    grid: Grid
    region: NumberSet

    @staticmethod
    def of(grid: Grid, region: NumberSet) -> Cut:
        """The cut; equal ones are made once, since one event is asked of many groups of leaves."""
        return _cut(grid, region)

    @cached_property
    def _ends(self) -> tuple[FloatArray, FloatArray]:
        """(k,) ends of the region's intervals, written as [low, high)."""
        ends = [_half_open(interval, self.grid.integer) for interval in self.region.intervals]
        low, high = np.array(ends, dtype=float).reshape(-1, 2).T
        return low, high

    @cached_property
    def _parts(self) -> FloatArray:
        """(k, n_states) P(interval | state)."""
        shares = self.grid.mass_between(*self._ends)
        if not self.grid.is_spaced:
            # A single number has a probability at an atom alone, not in the bin around it.
            points = np.array([i.is_point for i in self.region.intervals], dtype=bool)
            smooth = np.ones(self.grid.n_states, dtype=bool)
            smooth[self.grid.atom_states] = False
            shares[np.ix_(points, smooth)] = 0.0
        return shares

    @cached_property
    def shares(self) -> FloatArray:
        """(n_states,) P(region | state)."""
        total = np.minimum(self._parts.sum(axis=0), 1.0)
        if self.grid.missing:
            total[-1] = float(self.region.missing)
        return np.asarray(total)

    @cached_property
    def _weights(self) -> FloatArray:
        """(k, n_states) P(interval | state, region), 0 where a state has no part in the region."""
        total = self._parts.sum(axis=0)
        share = np.divide(self._parts, total, out=np.zeros_like(self._parts), where=total > 0)
        return np.asarray(share)

    def moments(self, order: int) -> FloatArray:
        """(n_states,) E[x**order | state, region]; 0 where there is no value."""
        each = self.grid.moments_between(*self._ends, order)  # (k, n_states)
        with np.errstate(invalid="ignore", over="ignore"):
            return np.asarray(np.where(self._weights > 0, self._weights * each, 0.0).sum(axis=0))

    def variances(self) -> FloatArray:
        """(n_states,) Var[x | state, region]."""
        mean = self.grid.moments_between(*self._ends, 1)
        inside = self.grid.variances_between(*self._ends)
        with np.errstate(invalid="ignore", over="ignore"):
            away = mean - np.where(self._weights > 0, self._weights * mean, 0.0).sum(axis=0)
            spread = np.where(self._weights > 0, self._weights * (inside + away**2), 0.0)
            return np.asarray(spread.sum(axis=0))

    def draw(self, cells: IntArray, rng: np.random.Generator) -> FloatArray:
        """(m,) one value from the region's part of each of the states (m,)."""
        answer = np.full(cells.size, MISSING_CODE)
        real = np.flatnonzero(self._weights.sum(axis=0)[cells] > 0)
        upto = np.cumsum(self._weights, axis=0)[:, cells[real]]  # (k, m)
        u = rng.random(real.size) * upto[-1:].reshape(-1)
        chosen = np.minimum((upto <= u).sum(axis=0), len(self._weights) - 1)
        low, high = (end[chosen] for end in self._ends)
        answer[real] = self.grid.sample_between(cells[real], low, high, rng)
        return answer

    def modes(self) -> tuple[FloatArray, FloatArray]:
        """(n_states,) a value of highest density in the region, its log-density given the state.

        -inf where the state has no part in the region.
        """
        value = np.full(self.grid.n_states, MISSING_CODE)
        log_density = np.full(self.grid.n_states, -np.inf)
        for low, high in zip(*self._ends, strict=True):
            at, density = self.grid.modes_between(float(low), float(high))
            better = density > log_density
            value, log_density = np.where(better, at, value), np.maximum(density, log_density)
        log_density[self.shares == 0] = -np.inf
        if self.grid.missing and self.region.missing:
            value[-1], log_density[-1] = MISSING_CODE, 0.0
        return value, log_density


@lru_cache(maxsize=1024)
def _cut(grid: Grid, region: NumberSet) -> Cut:
    return Cut(grid, region)


def _half_open(interval: Interval, integer: bool) -> tuple[float, float]:
    """The interval as [low, high)."""
    low, high = interval.low, interval.high
    with np.errstate(over="ignore"):  # beyond the largest double
        after_low, after_high = (float(np.nextafter(end, np.inf)) for end in (low, high))
    if integer:
        return low, max(high + 1, after_high)
    return (
        low if interval.closed_low else after_low,
        after_high if interval.closed_high else high,
    )

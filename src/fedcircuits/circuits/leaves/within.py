"""Leaves given an event: L leaves over one variable, each given that its value lies in a set.

Two forms cover every family: a table of cells with a weight each (codes, levels, states of a grid),
and a mixture of leaves of other families, one for each interval of the event.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

import numpy as np

from fedcircuits.arrays import BoolArray, FloatArray, IntArray
from fedcircuits.circuits.leaves.tables import draw_states, table_variance
from fedcircuits.schema.events import NumberSet, Region
from fedcircuits.schema.variable import Variable

if TYPE_CHECKING:
    from fedcircuits.circuits.leaves.base import LeafFamily, Params

_LOWEST = float(np.finfo(np.float64).min)


class Within(ABC):
    """L leaves given an event.

    Attributes:
        log_mass: (L,) log-probability of the event under each leaf. Where it is -inf, the other
            answers mean nothing, and are finite.
    """

    log_mass: FloatArray

    @abstractmethod
    def moment(self, order: int) -> FloatArray:
        """(L,) E[x**order; there is a value | event]; order 0 gives P(a value | event)."""

    @abstractmethod
    def variance(self) -> FloatArray:
        """(L,) variance given the event and that there is a value."""

    @abstractmethod
    def sample(self, which: IntArray, rng: np.random.Generator) -> FloatArray:
        """(m,) one encoded value from each of the leaves `which` (m,)."""

    @abstractmethod
    def mode(self) -> tuple[FloatArray, FloatArray]:
        """(L,) an encoded value of highest density in the event, and (L,) that log-density.

        The density is that of the leaf itself, not divided by the event's probability.
        """


class Cells(Protocol):
    """What lies inside the k cells of a table, as far as it belongs to an event."""

    def moments(self, order: int) -> FloatArray:
        """(k,) E[x**order | cell], 0 where a cell has no value."""
        ...

    def variances(self) -> FloatArray:
        """(k,) variance inside each cell."""
        ...

    def draw(self, cells: IntArray, rng: np.random.Generator) -> FloatArray:
        """(m,) an encoded value from each of the cells (m,)."""
        ...

    def modes(self) -> tuple[FloatArray, FloatArray]:
        """(k,) a value of highest density in each cell, (k,) that log-density given the cell."""
        ...


@dataclass(frozen=True, eq=False)
class Points:
    """Cells of one value each.

    Attributes:
        values: (k,) encoded values.
        numbers: (k,) the same as the numbers whose moments are meant, 0 where there is none.
        there: (k,) whether a cell is a value at all ("observed to be missing" is not).
    """

    values: FloatArray
    numbers: FloatArray
    there: BoolArray

    @staticmethod
    def of_codes(variable: Variable) -> Points:
        """The codes of a categorical or binary variable."""
        codes = np.arange(variable.n_codes, dtype=float)
        there = codes < len(variable.categories)
        numbers = np.zeros(codes.size)
        if variable.numbers is not None:
            numbers[there] = variable.numbers
        return Points(codes, numbers, there)

    @staticmethod
    def of_numbers(values: FloatArray) -> Points:
        """Numbers that are their own codes."""
        return Points(values, values, np.ones(values.size, dtype=bool))

    def moments(self, order: int) -> FloatArray:
        with np.errstate(over="ignore"):
            return np.where(self.there, self.numbers**order, 0.0)

    def variances(self) -> FloatArray:
        return np.zeros(self.values.size)

    def draw(self, cells: IntArray, rng: np.random.Generator) -> FloatArray:
        del rng
        return np.asarray(self.values[cells])

    def modes(self) -> tuple[FloatArray, FloatArray]:
        return self.values, np.zeros(self.values.size)


@dataclass(frozen=True, eq=False)
class _Weighted(Within):
    """Leaves given an event that is cut into k cells or intervals.

    Attributes:
        log_weights: (L, k) log-probability of the event's part of each.
    """

    log_weights: FloatArray

    @cached_property
    def log_mass(self) -> FloatArray:  # type: ignore[override]
        if self.log_weights.shape[1] == 0:
            return np.full(self.log_weights.shape[0], -np.inf)
        top = np.maximum(self.log_weights.max(axis=1), _LOWEST)
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(np.exp(self.log_weights - top[:, None]).sum(axis=1)) + top)

    @cached_property
    def _shares(self) -> FloatArray:
        """(L, k) probability of each given the event, 0 where it is impossible."""
        shares: FloatArray = np.exp(self.log_weights - np.maximum(self.log_mass, _LOWEST)[:, None])
        return shares


@dataclass(frozen=True, eq=False)
class TableWithin(_Weighted):
    """Leaves that are tables of cells.

    Attributes:
        log_cells: (L, k) log-probability of each whole cell.
        cells: what lies inside.
    """

    log_cells: FloatArray
    cells: Cells

    def moment(self, order: int) -> FloatArray:
        value = self.cells.moments(order)  # (k,)
        with np.errstate(invalid="ignore", over="ignore"):
            return np.asarray(np.where(self._shares > 0, self._shares * value, 0.0).sum(axis=1))

    def variance(self) -> FloatArray:
        there = self.cells.moments(0) > 0
        return table_variance(
            self._shares[:, there], self.cells.moments(1)[there], self.cells.variances()[there]
        )

    def sample(self, which: IntArray, rng: np.random.Generator) -> FloatArray:
        return self.cells.draw(draw_states(self._shares, which, rng), rng)

    def mode(self) -> tuple[FloatArray, FloatArray]:
        if self.log_weights.shape[1] == 0:
            return np.zeros(self.log_mass.size), self.log_mass
        value, log_within = self.cells.modes()
        # A cell whose part in the event has no mass has no mode there, whatever its own mass.
        log_density = np.where(self.log_weights > -np.inf, self.log_cells + log_within, -np.inf)
        best = log_density.argmax(axis=1)
        return value[best], log_density.max(axis=1)


@dataclass(frozen=True, eq=False)
class MixtureWithin(_Weighted):
    """Leaves cut into one leaf for each interval of the event.

    Attributes:
        family: of the leaves inside the intervals.
        parts: parameters of the L leaves inside each of the k intervals.
        variable: of the leaves.
        modes: (L, k) encoded values of highest density in the intervals, ends left out if open.
        log_densities: (L, k) log-density of the leaf itself there.
    """

    family: LeafFamily
    parts: tuple[Params, ...]
    variable: Variable
    modes: FloatArray
    log_densities: FloatArray

    def _moments(self, order: int) -> FloatArray:
        """(L, k) moments inside the intervals, 0 where an interval is impossible."""
        each = [self.family.moment(part, None, self.variable, order) for part in self.parts]
        return np.where(self._shares > 0, np.stack(each, axis=1), 0.0)

    def moment(self, order: int) -> FloatArray:
        if not self.parts:
            return np.zeros(self.log_mass.size)
        return np.asarray((self._shares * self._moments(order)).sum(axis=1))

    def variance(self) -> FloatArray:
        if not self.parts:
            return np.zeros(self.log_mass.size)
        mean = self._moments(1)
        each = [self.family.variance(part, None, self.variable) for part in self.parts]
        inside = np.where(self._shares > 0, np.stack(each, axis=1), 0.0)
        away = mean - (self._shares * mean).sum(axis=1, keepdims=True)
        return np.asarray((self._shares * (inside + away**2)).sum(axis=1))

    def sample(self, which: IntArray, rng: np.random.Generator) -> FloatArray:
        chosen = draw_states(self._shares, which, rng)
        answer = np.empty(which.size)
        for at, part in enumerate(self.parts):
            mine = np.flatnonzero(chosen == at)
            if mine.size:
                answer[mine] = self.family.sample(part, None, which[mine], rng)
        return answer

    def mode(self) -> tuple[FloatArray, FloatArray]:
        if not self.parts:
            return np.zeros(self.log_mass.size), self.log_mass
        best = self.log_densities.argmax(axis=1)
        rows = np.arange(best.size)
        return self.modes[rows, best], self.log_densities[rows, best]


def cut_leaves(
    family: LeafFamily,
    params: Params,
    variable: Variable,
    region: Region,
    log_mass: Callable[[Params], FloatArray],
    mode: Callable[[Params], FloatArray],
    log_density: Callable[[FloatArray], FloatArray],
) -> MixtureWithin:
    """Leaves with parameters "low" and "high" given an event, cut at its intervals.

    A single number has no mass in a family without atoms.

    Args:
        family: of the leaves and of their parts.
        params: (L,) parameters.
        variable: of the leaves.
        region: the event.
        log_mass: of parts inside the leaves, (L,) share in the mass of the leaves.
        mode: of such parts, (L,) a value of highest density.
        log_density: of the leaves at one value each, (L,).
    """
    assert isinstance(region, NumberSet)
    parts, weights, modes, densities = [], [], [], []
    for interval in region.intervals:
        if interval.is_point:
            continue
        low = np.maximum(params["low"], interval.low)
        high = np.minimum(params["high"], interval.high)
        inside = low < high
        part = {
            **params,
            "low": np.where(inside, low, params["low"]),
            "high": np.where(inside, high, params["high"]),
        }
        parts.append(part)
        weights.append(np.where(inside, log_mass(part), -np.inf))
        first = interval.low if interval.closed_low else np.nextafter(interval.low, np.inf)
        last = interval.high if interval.closed_high else np.nextafter(interval.high, -np.inf)
        at = np.clip(mode(part), first, np.maximum(last, first))
        modes.append(at)
        densities.append(np.where(inside, log_density(at), -np.inf))
    size = params["low"].size
    empty = np.zeros((size, 0))
    return MixtureWithin(
        np.stack(weights, axis=1) if weights else empty,
        family,
        tuple(parts),
        variable,
        np.stack(modes, axis=1) if modes else empty,
        np.stack(densities, axis=1) if densities else empty,
    )

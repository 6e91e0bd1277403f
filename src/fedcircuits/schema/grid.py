"""Grids: how a numeric column is cut into states, without leaving its original scale.

A grid has *atoms* (values that repeat and carry a point mass), *bins* between edges, two *tails*
beyond the outer edges and, where a learner models missingness, a state for "missing". A
distribution over the states is a density on the original scale,

    p(x) = P(state of x) * within(x),

where `within` is 1 at an atom, uniform in a bin and a Lomax (Pareto II) density in an open tail.
The base measure is counting measure on the atoms plus length elsewhere; on an integer grid it is
counting measure on the integers throughout.

Open tails are heavy on purpose: a value far outside the training range has a small positive
density, not a cliff. Their shape is 4, so that moments up to the third are finite.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from math import inf
from typing import Any

import numpy as np

from fedcircuits.arrays import BoolArray, FloatArray, IntArray
from fedcircuits.errors import SchemaError
from fedcircuits.schema import states
from fedcircuits.schema.states import TAIL_SHAPE

# "Observed to be missing" is encoded as an atom at plus infinity: no real value is ever there,
# because infinite input is refused.
MISSING_CODE = inf


@dataclass(frozen=True, eq=False)
class Grid:
    """States of one numeric variable.

    Attributes:
        atoms: (k,) sorted values with a point mass each.
        edges: (m,) sorted, m >= 1; bins lie between neighbours, tails beyond the outer ones.
        tails: scale of the left and of the right tail; 0 closes that side.
        integer: whether the variable lives on the integers.
        missing: whether there is a last state for "observed to be missing".
    """

    atoms: FloatArray
    edges: FloatArray
    tails: tuple[float, float] = (1.0, 1.0)
    integer: bool = False
    missing: bool = False

    def __post_init__(self) -> None:
        atoms = np.array(self.atoms, dtype=float, order="C").reshape(-1)
        edges = np.array(self.edges, dtype=float, order="C").reshape(-1)
        faults = []
        if edges.size == 0:
            faults.append("a grid needs at least one edge")
        if not (np.isfinite(atoms).all() and np.isfinite(edges).all()):
            faults.append("atoms and edges must be finite")
        if (np.diff(atoms) <= 0).any() or (np.diff(edges) <= 0).any():
            faults.append("atoms and edges must increase strictly")
        if not faults and atoms.size and (atoms[0] < edges[0] or atoms[-1] > edges[-1]):
            faults.append("the edges must enclose the atoms")
        if len(self.tails) != 2 or not all(0 <= s < inf for s in self.tails):
            faults.append(f"tail scales must be two finite numbers >= 0, found {self.tails}")
        if self.integer and ((atoms != np.round(atoms)).any() or (edges != np.round(edges)).any()):
            faults.append("an integer grid has integer atoms and edges")
        if self.integer and edges.size == 1 and not np.array_equal(atoms, edges):
            faults.append("a lone edge of an integer grid must be an atom, no tail owns it")
        if faults:
            raise SchemaError("not a grid: " + "; ".join(faults))
        for array in (atoms, edges):
            array.setflags(write=False)
        object.__setattr__(self, "atoms", atoms)
        object.__setattr__(self, "edges", edges)
        object.__setattr__(self, "tails", (float(self.tails[0]), float(self.tails[1])))
        if self.n_states == 0:
            raise SchemaError("not a grid: no state is left (no atom, no bin, both tails closed)")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Grid):
            return NotImplemented
        return (
            np.array_equal(self.atoms, other.atoms)
            and np.array_equal(self.edges, other.edges)
            and (self.tails, self.integer, self.missing)
            == (other.tails, other.integer, other.missing)
        )

    def __hash__(self) -> int:
        return hash((self.atoms.tobytes(), self.edges.tobytes(), self.tails, self.integer))

    # --- the states -------------------------------------------------------------------------

    @cached_property
    def _intervals(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Lower end, upper end and volume of the m + 1 intervals (tail, bins, tail).

        Volume is length, or the number of integers that are not atoms. On an integer grid a bin
        owns its lower edge but not its upper one, except the last, which owns both.
        """
        lower = np.concatenate([[-inf], self.edges])
        upper = np.concatenate([self.edges, [inf]])
        volume = np.empty(lower.size)
        volume[0] = inf if self.tails[0] > 0 else 0.0
        volume[-1] = inf if self.tails[1] > 0 else 0.0
        if self.integer:
            inside = np.diff(self.edges)
            if inside.size:
                inside[-1] += 1  # the last bin owns its upper edge
                atom_bin = np.clip(
                    np.searchsorted(self.edges, self.atoms, side="right") - 1, 0, inside.size - 1
                )
                inside = inside - np.bincount(atom_bin, minlength=inside.size)
            volume[1:-1] = inside
        else:
            volume[1:-1] = np.diff(self.edges)
        return lower, upper, volume

    @cached_property
    def _numbering(self) -> tuple[IntArray, IntArray]:
        """State of every atom (k,) and of every interval (m + 1,), -1 for an empty interval.

        States are numbered by position, so neighbouring states are neighbours on the axis.
        """
        lower, _, volume = self._intervals
        filled = np.flatnonzero(volume > 0)
        keys = np.concatenate([self.atoms, lower[filled]])
        # At equal positions the atom comes first: it *is* the lower end of the bin.
        is_interval = np.concatenate([np.zeros(self.atoms.size), np.ones(filled.size)])
        rank = np.empty(keys.size, dtype=np.int64)
        rank[np.lexsort((is_interval, keys))] = np.arange(keys.size)
        of_interval = np.full(lower.size, -1, dtype=np.int64)
        of_interval[filled] = rank[self.atoms.size :]
        return rank[: self.atoms.size], of_interval

    @property
    def n_states(self) -> int:
        """Number of states, the missing one included."""
        return int(self.atoms.size + (self._intervals[2] > 0).sum() + self.missing)

    @property
    def is_discrete(self) -> bool:
        """Whether atoms stand for all the values: at most one bin, for what was never seen."""
        return self.atoms.size > 0 and self.edges.size <= 2

    @property
    def atom_states(self) -> IntArray:
        """(k,) state of each atom."""
        return self._numbering[0]

    def _interval_of(self, x: FloatArray) -> IntArray:
        """Index of the interval that holds each number (atoms not considered)."""
        index = np.searchsorted(self.edges, x, side="right")
        # The last bin owns its upper edge; a lone edge without an atom belongs to a tail.
        if self.edges.size > 1:
            index = np.where(x == self.edges[-1], self.edges.size - 1, index)
        return index

    def encode(self, x: FloatArray) -> IntArray:
        """State of each value: (n,) -> (n,); -1 where no state of the grid holds the value."""
        of_atom, of_interval = self._numbering
        state = of_interval[self._interval_of(x)]
        if self.atoms.size:
            slot = np.minimum(np.searchsorted(self.atoms, x), self.atoms.size - 1)
            state = np.where(self.atoms[slot] == x, of_atom[slot], state)
        if self.integer:
            state = np.where((x == np.floor(x)) | np.isinf(x), state, -1)
        at_missing = x == MISSING_CODE
        return np.where(at_missing, self.n_states - 1 if self.missing else -1, state)

    @cached_property
    def _log_uniform(self) -> FloatArray:
        """(n_states + 1,) log-density within each state, 0 for tails; last, for no state, -inf."""
        _, of_interval = self._numbering
        volume = self._intervals[2]
        answer = np.zeros(self.n_states + 1)
        bins = (of_interval >= 0) & np.isfinite(volume)
        answer[of_interval[bins]] = -np.log(volume[bins])
        answer[-1] = -inf
        return answer

    def locate(self, x: FloatArray) -> tuple[IntArray, FloatArray]:
        """State (n,) of each value, -1 for none, and its log-density (n,) given the state."""
        state = self.encode(x)
        log_within = self._log_uniform[state]  # state -1 is the last entry
        of_interval = self._numbering[1]
        for side, interval, edge in ((0, 0, self.edges[0]), (1, -1, self.edges[-1])):
            if self.tails[side] == 0:
                continue
            rows = np.flatnonzero(state == of_interval[interval])
            if rows.size:
                log_within[rows] = states.log_tail(
                    np.abs(x[rows] - edge), self.tails[side], self.integer
                )
        return state, log_within

    def log_within(self, x: FloatArray) -> FloatArray:
        """Log-density of each value given its state: (n,) -> (n,); -inf where there is no state."""
        return self.locate(x)[1]

    # --- what a leaf over the states needs to know of them ---------------------------------------

    def sample_within(self, states: IntArray, rng: np.random.Generator) -> FloatArray:
        """One value from each state: (n,) -> (n,)."""
        of_atom, of_interval = self._numbering
        u = rng.random(states.size)
        answer = np.full(states.size, MISSING_CODE)
        for state, atom in zip(of_atom, self.atoms, strict=True):
            answer[states == state] = atom
        lower, upper, _ = self._intervals
        for index in np.flatnonzero(of_interval >= 0):
            rows = np.flatnonzero(states == of_interval[index])
            if rows.size == 0:
                continue
            if index in (0, lower.size - 1):
                scale = self.tails[0] if index == 0 else self.tails[1]
                distance = scale * np.expm1(-np.log1p(-u[rows]) / TAIL_SHAPE)
                if self.integer:
                    distance = np.floor(distance) + 1
                answer[rows] = upper[0] - distance if index == 0 else lower[-1] + distance
            elif self.integer:
                answer[rows] = self._free_integer(index, u[rows])
            else:
                answer[rows] = lower[index] + u[rows] * (upper[index] - lower[index])
        return answer

    def _free_integer(self, index: Any, u: FloatArray) -> FloatArray:
        """The integers of a bin that are not atoms, at shares u in [0, 1) of their number."""
        lower, upper, volume = self._intervals
        rank = np.minimum(np.floor(u * volume[index]), volume[index] - 1)
        atoms = self.atoms[(self.atoms >= lower[index]) & (self.atoms <= upper[index])]
        # The atom in place i has atoms[i] - lower - i free integers before it; nothing is listed,
        # because a bin of counts may be as wide as the counts are large.
        before = atoms - lower[index] - np.arange(atoms.size)
        return np.asarray(lower[index] + rank + np.searchsorted(before, rank, side="right"))

    def moments(self, order: int) -> FloatArray:
        """(n_states,) E[x**order | state]; 0 for the missing state, which has no value."""
        of_atom, of_interval = self._numbering
        answer = np.zeros(self.n_states)
        with np.errstate(over="ignore"):
            answer[of_atom] = self.atoms**order
        answer[of_interval[1:-1][self._filled_bins]] = (
            [states.integers_moment(*bin_, order) for bin_ in self._free_integers()]
            if self.integer
            else states.uniform_moment(*self._bins, order)
        )
        for side, edge, sign in ((0, self.edges[0], -1.0), (-1, self.edges[-1], 1.0)):
            if of_interval[side] >= 0:
                scale = self.tails[side]
                value = states.tail_moment(float(edge), sign, scale, self.integer, order)
                answer[of_interval[side]] = value
        return answer

    def variances(self) -> FloatArray:
        """(n_states,) Var[x | state], without cancellation; 0 for an atom and for missing."""
        _, of_interval = self._numbering
        answer = np.zeros(self.n_states)
        answer[of_interval[1:-1][self._filled_bins]] = (
            [states.integers_variance(*bin_) for bin_ in self._free_integers()]
            if self.integer
            else states.uniform_variance(*self._bins)
        )
        for side in (0, -1):
            if of_interval[side] >= 0:
                answer[of_interval[side]] = states.tail_variance(self.tails[side], self.integer)
        return answer

    @property
    def _filled_bins(self) -> BoolArray:
        """(m - 1,) whether a bin holds anything but atoms."""
        return self._numbering[1][1:-1] >= 0

    @property
    def _bins(self) -> tuple[FloatArray, FloatArray]:
        """Lower and upper ends of the filled bins."""
        return self.edges[:-1][self._filled_bins], self.edges[1:][self._filled_bins]

    def _free_integers(self) -> Iterator[tuple[int, int, list[int]]]:
        """Lowest and highest integer of every filled bin, and the atoms among them."""
        for index in np.flatnonzero(self._filled_bins):
            a, b = self.edges[index : index + 2]
            last = index == self.edges.size - 2  # and owns its upper edge
            taken = (self.atoms >= a) & ((self.atoms < b) | ((self.atoms == b) & last))
            yield int(a), int(b) - (not last), [int(atom) for atom in self.atoms[taken]]

    def modes(self) -> tuple[FloatArray, FloatArray]:
        """(n_states,) a value of highest density in each state, and that log-density."""
        of_atom, of_interval = self._numbering
        value = np.full(self.n_states, MISSING_CODE)
        value[of_atom] = self.atoms
        lower, upper, _ = self._intervals
        for index in np.flatnonzero(of_interval >= 0):
            if index == 0:
                at = upper[0] - 1 if self.integer else np.nextafter(upper[0], -inf)
                value[of_interval[index]] = at
            elif index == lower.size - 1:
                at = lower[-1] + 1 if self.integer else np.nextafter(lower[-1], inf)
                value[of_interval[index]] = at
            elif self.integer:
                value[of_interval[index]] = self._free_integer(index, np.array([0.5]))[0]
            else:
                middle = 0.5 * (lower[index] + upper[index])
                while (
                    self.atoms == middle
                ).any():  # the density there is the atom's, not the bin's
                    middle = 0.5 * (middle + upper[index])
                value[of_interval[index]] = middle
        return value, self.log_within(value)

    # --- as JSON ----------------------------------------------------------------------------------

    def to_json(self) -> dict[str, Any]:
        """Plain values; floats survive JSON exactly."""
        return {
            "atoms": self.atoms.tolist(),
            "edges": self.edges.tolist(),
            "tails": list(self.tails),
            "integer": self.integer,
            "missing": self.missing,
        }

    @staticmethod
    def from_json(record: dict[str, Any]) -> Grid:
        """Inverse of `to_json`."""
        return Grid(
            np.array(record["atoms"], dtype=float),
            np.array(record["edges"], dtype=float),
            tails=tuple(record["tails"]),
            integer=bool(record["integer"]),
            missing=bool(record["missing"]),
        )


__all__ = ["MISSING_CODE", "TAIL_SHAPE", "BoolArray", "FloatArray", "Grid", "IntArray"]

"""The states of a grid: atoms, bins, tails, and which of them holds a value."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import inf

import numpy as np

from fedcircuits.arrays import FloatArray, IntArray
from fedcircuits.errors import SchemaError
from fedcircuits.schema.grids.shapes import MAX_TILT

TAIL_SHAPE = 4.0  # of a tail nothing else is known of

# "Observed to be missing" is encoded as an atom at plus infinity: no real value is ever there,
# because infinite input is refused.
MISSING_CODE = inf

# Share of the lowest state that lies below a floor: too little to be drawn or to count in a sum.
BELOW_FLOOR = 1e-15


@dataclass(frozen=True, eq=False)
class GridStates:
    """Atoms, bins and tails of one numeric variable, numbered along the axis.

    Attributes:
        atoms: (k,) sorted values with a point mass each.
        edges: (m,) sorted, m >= 1; bins lie between neighbours, tails beyond the outer ones.
        tails: scale of the left and of the right tail; 0 closes that side.
        integer: whether the variable lives on the integers.
        missing: whether there is a last state for "observed to be missing".
        tilts: (m - 1,) tilt of the density in each bin, towards its upper end where positive (see
            `fedcircuits.schema.grids.shapes`); None for 0 throughout.
        shapes: shape of the left and of the right tail.
        floor: where the left tail ends, at most the lowest edge; -inf where it does not. What lies
            below belongs to the lowest state, of which it has a share of BELOW_FLOOR.
    """

    atoms: FloatArray
    edges: FloatArray
    tails: tuple[float, float] = (1.0, 1.0)
    integer: bool = False
    missing: bool = False
    tilts: FloatArray | None = None
    shapes: tuple[float, float] = (TAIL_SHAPE, TAIL_SHAPE)
    floor: float = -inf

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
        tilts = np.zeros(max(edges.size - 1, 0)) if self.tilts is None else self.tilts
        tilts = np.array(tilts, dtype=float, order="C").reshape(-1)
        if tilts.size != max(edges.size - 1, 0) or not (np.abs(tilts) <= MAX_TILT).all():
            faults.append(
                f"tilts are one number a bin between {-MAX_TILT:g} and {MAX_TILT:g}, found "
                f"{tilts.size} for {max(edges.size - 1, 0)} bin(s)"
            )
        if len(self.shapes) != 2 or not all(1 < s < inf for s in self.shapes):
            faults.append(f"tail shapes must be two finite numbers > 1, found {self.shapes}")
        if not faults and self.floor != -inf:
            faults += self._floor_faults(atoms, edges)
        if faults:
            raise SchemaError("not a grid: " + "; ".join(faults))
        for array in (atoms, edges, tilts):
            array.setflags(write=False)
        object.__setattr__(self, "atoms", atoms)
        object.__setattr__(self, "edges", edges)
        object.__setattr__(self, "tilts", tilts)
        for name in ("tails", "shapes"):
            low, high = getattr(self, name)
            object.__setattr__(self, name, (float(low), float(high)))
        if self.n_states == 0:
            raise SchemaError("not a grid: no state is left (no atom, no bin, both tails closed)")

    def _floor_faults(self, atoms: FloatArray, edges: FloatArray) -> list[str]:
        """What is wrong with a floor."""
        if not self.floor <= edges[0]:
            return [f"a floor lies at or below the lowest edge, found {self.floor}"]
        if not self.tails[0] > 0:
            return ["a floor is where a left tail ends, and that side is closed"]
        if self.integer and self.floor != np.round(self.floor):
            return [f"an integer grid has an integer floor, found {self.floor}"]
        if self.floor == edges[0] and edges.size == 1 and atoms.size == 0:
            return ["above a floor at the lowest edge there is an atom or a bin"]
        return []

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, GridStates):
            return NotImplemented
        return (
            np.array_equal(self.atoms, other.atoms)
            and np.array_equal(self.edges, other.edges)
            and np.array_equal(self._tilts, other._tilts)
            and (self.tails, self.shapes, self.integer, self.missing, self.floor)
            == (other.tails, other.shapes, other.integer, other.missing, other.floor)
        )

    def __hash__(self) -> int:
        return hash((self.atoms.tobytes(), self.edges.tobytes(), self.tails, self.integer))

    @property
    def _tilts(self) -> FloatArray:
        """(m - 1,) the tilts, which are always given once a grid is made."""
        assert self.tilts is not None
        return self.tilts

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
        volume[0] = inf if self.tails[0] > 0 and not self.at_floor else 0.0
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
        if self.at_floor:
            of_interval[0] = 0  # the lowest state owns what lies below it
        return rank[: self.atoms.size], of_interval

    @property
    def at_floor(self) -> bool:
        """Whether the lowest edge is the floor, so that no left tail is left."""
        return bool(self.floor == self.edges[0])

    @property
    def n_states(self) -> int:
        """Number of states, the missing one included."""
        return int(self.atoms.size + (self._intervals[2] > 0).sum() + self.missing)

    @property
    def is_discrete(self) -> bool:
        """Whether atoms stand for all the values: at most one bin, for what was never seen."""
        return self.atoms.size > 0 and self.edges.size <= 2

    @property
    def is_spaced(self) -> bool:
        """Whether values lie apart (on the integers), so that each has a mass of its own."""
        return self.integer

    @property
    def atom_states(self) -> IntArray:
        """(k,) state of each atom."""
        return self._numbering[0]

    @property
    def interval_states(self) -> IntArray:
        """States that are bins or tails, along the axis."""
        return self._numbering[1][self._intervals[2] > 0]

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

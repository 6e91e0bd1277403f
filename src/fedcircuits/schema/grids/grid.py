"""Grids: how a numeric column is cut into states, without leaving its original scale.

A grid has *atoms* (values that repeat and carry a point mass), *bins* between edges, two *tails*
beyond the outer edges and, where a learner models missingness, a state for "missing". A
distribution over the states is a density on the original scale,

    p(x) = P(state of x) * within(x),

where `within` is 1 at an atom, a truncated exponential in a bin (uniform where its tilt is 0) and a
Lomax (Pareto II) density in an open tail. The base measure is counting measure on the atoms plus
length elsewhere; on an integer grid it is counting measure on the integers throughout.

Open tails are heavy on purpose: a value far outside the training range has a small positive
density, not a cliff. Moments from the order of a tail's shape on are infinite.

The methods `..._between` answer for the part of every state in a half-open interval [low, high). A
closed upper end is written `np.nextafter(high, np.inf)`, an open lower one likewise.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cached_property
from math import inf
from typing import Any

import numpy as np

from fedcircuits.arrays import Array, BoolArray, FloatArray, IntArray
from fedcircuits.errors import SchemaError
from fedcircuits.native import kernels
from fedcircuits.schema.grids.inside import Pieces, pieces_of
from fedcircuits.schema.grids.shapes import MAX_TILT, places_in
from fedcircuits.schema.grids.tails import Tail

TAIL_SHAPE = 4.0  # of a tail nothing else is known of

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
        tilts: (m - 1,) tilt of the density in each bin, towards its upper end where positive (see
            `fedcircuits.schema.grids.shapes`); None for 0 throughout.
        shapes: shape of the left and of the right tail.
    """

    atoms: FloatArray
    edges: FloatArray
    tails: tuple[float, float] = (1.0, 1.0)
    integer: bool = False
    missing: bool = False
    tilts: FloatArray | None = None
    shapes: tuple[float, float] = (TAIL_SHAPE, TAIL_SHAPE)

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

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Grid):
            return NotImplemented
        return (
            np.array_equal(self.atoms, other.atoms)
            and np.array_equal(self.edges, other.edges)
            and np.array_equal(self._tilts, other._tilts)
            and (self.tails, self.shapes, self.integer, self.missing)
            == (other.tails, other.shapes, other.integer, other.missing)
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

    @property
    def interval_states(self) -> IntArray:
        """States that are bins or tails, along the axis."""
        of_interval = self._numbering[1]
        return of_interval[of_interval >= 0]

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

    # --- the density within a state -------------------------------------------------------------

    @cached_property
    def pieces(self) -> Pieces:
        """The filled bins, as pieces."""
        filled = self.filled_bins
        high = self.edges[1:].copy()
        if self.integer and high.size:
            high[-1] += 1  # the last bin owns its upper edge
        return pieces_of(
            self.edges[:-1][filled], high[filled], self._tilts[filled], self.atoms, self.integer
        )

    @property
    def filled_bins(self) -> BoolArray:
        """(m - 1,) whether a bin holds anything but atoms."""
        return np.asarray(self._numbering[1][1:-1] >= 0)

    @cached_property
    def _bin_states(self) -> IntArray:
        """(b,) states of the filled bins."""
        return self._numbering[1][1:-1][self.filled_bins]

    @cached_property
    def _log_at_start(self) -> FloatArray:
        """(n_states + 1,) log-density at the start of a bin, 0 for others; last (no state) -inf."""
        answer = np.zeros(self.n_states + 1)
        if self.pieces.n_bins:
            volume = self._intervals[2][1:-1]
            answer[self._bin_states] = self.pieces.log_at_start(volume[volume > 0])
        answer[-1] = -inf
        return answer

    @cached_property
    def _ramp(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """(n_states + 1,) tilt, lower and upper end of the bin of every state; tilt 0 if none."""
        answer = np.zeros((3, self.n_states + 1))
        answer[2] = 1.0
        if self.pieces.n_bins:
            answer[:, self._bin_states] = self.pieces.ramps
        return answer[0], answer[1], answer[2]

    def locate(self, x: FloatArray) -> tuple[IntArray, FloatArray]:
        """State (n,) of each value, -1 for none, and its log-density (n,) given the state."""
        native = kernels()
        if native is None:
            state = self.encode(x)
            log_within = self._log_at_start[state]  # state -1 is the last entry
            if self._tilts.any():
                tilt, low, high = (part[state] for part in self._ramp)
                rows = np.flatnonzero(tilt)
                log_within[rows] += tilt[rows] * places_in(x[rows], low[rows], high[rows])
        else:
            state, log_within = np.empty(x.size, dtype=np.int64), np.empty(x.size)
            x = np.ascontiguousarray(x, dtype=float)
            in_tails = np.zeros(1, dtype=np.int64)
            native.call("grid_locate", x.size, x, *self._compiled[0], state, log_within, in_tails)
            if not in_tails[0]:
                return state, log_within
        for number, tail in self._tails:
            rows = np.flatnonzero(state == number)
            if rows.size:
                log_within[rows] = tail.log_density(x[rows])
        return state, log_within

    @cached_property
    def _compiled(self) -> tuple[tuple[ctypes.c_void_p, ...], tuple[Array, ...]]:
        """Addresses of what the compiled loop reads, and the arrays they belong to."""
        missing = self.n_states - 1 if self.missing else -1
        sizes = [self.edges.size, self.atoms.size, self.n_states, int(self.integer), missing]
        tails = [number for number, _ in self._tails]
        arrays = (
            np.array([*sizes, *tails, -1, -1], dtype=np.int64),
            *(self.edges, self.atoms, *self._numbering),
            *(self._log_at_start, np.array(self._ramp)),
        )
        return tuple(ctypes.c_void_p(array.ctypes.data) for array in arrays), arrays

    def __getstate__(self) -> dict[str, Any]:
        """For copies: all but what holds addresses of this process."""
        return {name: value for name, value in self.__dict__.items() if name != "_compiled"}

    def log_within(self, x: FloatArray) -> FloatArray:
        """Log-density of each value given its state: (n,) -> (n,); -inf where there is no state."""
        return self.locate(x)[1]

    @cached_property
    def _tails(self) -> list[tuple[int, Tail]]:
        """State and density of every open tail."""
        states, scales, shapes = self._numbering[1], self.tails, self.shapes
        ends = ((0, -1.0), (-1, 1.0))  # place and direction of the left and of the right tail
        return [
            (
                int(states[at]),
                Tail(float(self.edges[at]), sign, scales[at], shapes[at], self.integer),
            )
            for at, sign in ends
            if scales[at] > 0
        ]

    # --- parts of states: everything about the values in [low, high) ------------------------------

    def mass_between(self, low: Any = -inf, high: Any = inf) -> FloatArray:
        """(..., n_states) P(low <= x < high | state) for ends (...,); 0 for the missing state."""
        low, high = np.broadcast_arrays(np.asarray(low, float), np.asarray(high, float))
        answer = np.zeros((*low.shape, self.n_states))
        ends = low[..., None], high[..., None]
        answer[..., self._numbering[0]] = (ends[0] <= self.atoms) & (self.atoms < ends[1])
        if self.pieces.n_bins:
            answer[..., self._bin_states] = self.pieces.masses(low, high)
        for state, tail in self._tails:
            answer[..., state] = tail.masses(low, high)
        return answer

    def moments_between(self, low: Any, high: Any, order: int) -> FloatArray:
        """(..., n_states) E[x**order | state, low <= x < high]; 0 where that has no mass."""
        low, high = np.broadcast_arrays(np.asarray(low, float), np.asarray(high, float))
        answer = np.zeros((*low.shape, self.n_states))
        with np.errstate(over="ignore"):
            answer[..., self._numbering[0]] = self.atoms**order
        if self.pieces.n_bins:
            answer[..., self._bin_states] = self.pieces.moments(low, high, order)
        for state, tail in self._tails:
            for at in np.ndindex(low.shape):
                answer[(*at, state)] = tail.moment(float(low[at]), float(high[at]), order)
        return np.where(self.mass_between(low, high) > 0, answer, 0.0)

    def variances_between(self, low: Any, high: Any) -> FloatArray:
        """(..., n_states) Var[x | state, low <= x < high], without cancellation."""
        low, high = np.broadcast_arrays(np.asarray(low, float), np.asarray(high, float))
        answer = np.zeros((*low.shape, self.n_states))
        if self.pieces.n_bins:
            answer[..., self._bin_states] = self.pieces.variances(low, high)
        for state, tail in self._tails:
            for at in np.ndindex(low.shape):
                answer[(*at, state)] = tail.variance(float(low[at]), float(high[at]))
        return answer

    def sample_between(
        self, states: IntArray, low: Any, high: Any, rng: np.random.Generator
    ) -> FloatArray:
        """(n,) one value from the part in [low, high) of each state (n,); low, high () or (n,)."""
        return self._value(states, low, high, rng.random(states.size))

    def value_at(self, states: IntArray, low: Any, high: Any, u: FloatArray) -> FloatArray:
        """(n,) the value with share u (n,) of the mass that a state has in [low, high) below it."""
        left = [state for state, tail in self._tails if tail.sign < 0]
        outwards = np.isin(states, left)  # a tail is measured from its edge
        return self._value(states, low, high, np.where(outwards, np.clip(1 - u, 0, 1 - 1e-16), u))

    def _value(self, states: IntArray, low: Any, high: Any, u: FloatArray) -> FloatArray:
        """(n,) the value at share u (n,) of each state (n,), tails passed from their edges."""
        low, high = (np.broadcast_to(np.asarray(end, float), states.shape) for end in (low, high))
        at_atom = np.full(self.n_states, MISSING_CODE)
        at_atom[self._numbering[0]] = self.atoms
        answer = at_atom[states]
        rows = np.flatnonzero(np.isin(states, self._bin_states))
        if rows.size:
            bins = np.searchsorted(self._bin_states, states[rows])
            answer[rows] = self.pieces.draw(bins, u[rows], low[rows], high[rows])
        for state, tail in self._tails:
            rows = np.flatnonzero(states == state)
            answer[rows] = tail.draw(u[rows], low[rows], high[rows])
        return answer

    def modes_between(self, low: float = -inf, high: float = inf) -> tuple[FloatArray, FloatArray]:
        """(n_states,) a value of highest density in the part of each state in [low, high).

        Returns the values and their log-densities, -inf where no float lies in the part.
        """
        value = np.full(self.n_states, MISSING_CODE)
        value[self._numbering[0]] = self.atoms
        for number, state in enumerate(self._bin_states):
            value[state] = self.pieces.mode(number, low, high, self.atoms)
        for state, tail in self._tails:
            value[state] = tail.mode(low, high)
        found, log_density = self.locate(value)
        inside = (low <= value) & (value < high)
        inside |= (value == MISSING_CODE) & (high == inf) & (low == -inf)
        return value, np.where(inside & (found == np.arange(self.n_states)), log_density, -inf)

    # --- what a leaf over the states needs: the same for whole states --------------------------

    def sample_within(self, states: IntArray, rng: np.random.Generator) -> FloatArray:
        """One value from each state: (n,) -> (n,)."""
        return self.sample_between(states, -inf, inf, rng)

    def moments(self, order: int) -> FloatArray:
        """(n_states,) E[x**order | state]; 0 for the missing state, which has no value."""
        return self.moments_between(-inf, inf, order)

    def variances(self) -> FloatArray:
        """(n_states,) Var[x | state], without cancellation; 0 for an atom and for missing."""
        return self.variances_between(-inf, inf)

    def modes(self) -> tuple[FloatArray, FloatArray]:
        """(n_states,) a value of highest density in each state, and that log-density."""
        return self.modes_between()

    # --- as JSON ----------------------------------------------------------------------------------

    def to_json(self) -> dict[str, Any]:
        """Plain values; floats survive JSON exactly."""
        return {
            "atoms": self.atoms.tolist(),
            "edges": self.edges.tolist(),
            "tails": list(self.tails),
            "integer": self.integer,
            "missing": self.missing,
            "tilts": self._tilts.tolist(),
            "shapes": list(self.shapes),
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
            # Files written before bins had a shape: even bins, tails of shape 4.
            tilts=record.get("tilts"),
            shapes=tuple(record.get("shapes", (TAIL_SHAPE, TAIL_SHAPE))),
        )

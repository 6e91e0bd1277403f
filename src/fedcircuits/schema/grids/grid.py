"""Grids: how a numeric column is cut into states, without leaving its original scale.

A grid has *atoms* (values that repeat and carry a point mass), *bins* between edges, two *tails*
beyond the outer edges and, where a learner models missingness, a state for "missing". A
distribution over the states is a density on the original scale,

    p(x) = P(state of x) * within(x),

where `within` is 1 at an atom, a truncated exponential in a bin (uniform where its tilt is 0) and a
Lomax (Pareto II) density in an open tail. The base measure is counting measure on the atoms plus
length elsewhere; on an integer grid it is counting measure on the integers throughout.

Open tails are heavy on purpose: a value far outside the training range has a small positive
density, not a cliff. Moments from the order of a tail's shape on are infinite. A left tail may end
at a *floor* (amounts and counts end at zero): what lies below belongs to the lowest state, of which
it has a share too small to be drawn, with a Lomax density again.

The methods `..._between` answer for the part of every state in a half-open interval [low, high). A
closed upper end is written `np.nextafter(high, np.inf)`, an open lower one likewise.
"""

from __future__ import annotations

import ctypes
from functools import cached_property
from math import inf, log
from typing import Any

import numpy as np

from fedcircuits.arrays import Array, BoolArray, FloatArray, IntArray, IntegerArray
from fedcircuits.native import kernels
from fedcircuits.schema.grids.inside import Pieces, pieces_of
from fedcircuits.schema.grids.shapes import places_in
from fedcircuits.schema.grids.states import BELOW_FLOOR, MISSING_CODE, TAIL_SHAPE, GridStates
from fedcircuits.schema.grids.tails import Tail


class Grid(GridStates):
    """States of one numeric variable and the density within each of them.

    Made from the attributes of `GridStates`: atoms, edges, tails, integer, missing, tilts, shapes,
    floor.
    """

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
        self.add_tails(x, state, log_within)
        return state, log_within

    def add_tails(self, x: FloatArray, state: IntegerArray, log_within: FloatArray) -> None:
        """Write the log-density of values (n,) in open tails, whose states (n,) are known."""
        for number, tail in self._tails:
            rows = np.flatnonzero(state == number)
            if rows.size:
                log_within[rows] = tail.log_density(x[rows])
        if self._below is not None:
            rows = np.flatnonzero((x < self.floor) & (state == 0))
            if rows.size:
                log_within[rows] = self._below.log_density(x[rows]) + log(BELOW_FLOOR)

    @property
    def compiled_parts(self) -> tuple[Array, ...]:
        """What the compiled loops read of a grid (`grid_locate` in `native/kernels.c`)."""
        return self._compiled[1]

    @cached_property
    def _compiled(self) -> tuple[tuple[ctypes.c_void_p, ...], tuple[Array, ...]]:
        """Addresses of what the compiled loop reads, and the arrays they belong to."""
        missing = self.n_states - 1 if self.missing else -1
        sizes = [self.edges.size, self.atoms.size, self.n_states, int(self.integer), missing]
        tails = [number for number, _ in self._tails]  # values below the lowest edge count too
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
                Tail(
                    float(self.edges[at]),
                    sign,
                    scales[at],
                    shapes[at],
                    self.integer,
                    inf if sign > 0 else float(self.edges[0] - self.floor),
                ),
            )
            for at, sign in ends
            if scales[at] > 0 and not (sign < 0 and self.at_floor)
        ]

    @cached_property
    def _below(self) -> Tail | None:
        """What lies below the floor, a part of the lowest state."""
        if self.floor == -inf:
            return None
        return Tail(self.floor, -1.0, self.tails[0], self.shapes[0], self.integer)

    # --- parts of states: everything about the values in [low, high) ------------------------------

    def mass_between(self, low: Any = -inf, high: Any = inf) -> FloatArray:
        """(..., n_states) P(low <= x < high | state) for ends (...,); 0 for the missing state."""
        low, high = np.broadcast_arrays(np.asarray(low, float), np.asarray(high, float))
        answer = self._masses_above(low, high)
        if self._below is not None:
            answer[..., 0] = np.minimum(answer[..., 0] + self._mass_below(low, high), 1.0)
        return answer

    def _masses_above(self, low: FloatArray, high: FloatArray) -> FloatArray:
        """(..., n_states) P(low <= x < high | state) without what lies below the floor."""
        answer = np.zeros((*low.shape, self.n_states))
        ends = low[..., None], high[..., None]
        answer[..., self._numbering[0]] = (ends[0] <= self.atoms) & (self.atoms < ends[1])
        if self.pieces.n_bins:
            answer[..., self._bin_states] = self.pieces.masses(low, high)
        for state, tail in self._tails:
            answer[..., state] = tail.masses(low, high)
        return answer

    def _mass_below(self, low: FloatArray, high: FloatArray) -> FloatArray:
        """(...,) P(low <= x < high, x below the floor | lowest state)."""
        if self._below is None or not (low < self.floor).any():
            return np.zeros(low.shape)
        return np.asarray(BELOW_FLOOR * self._below.masses(low, high))

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
        above = self._masses_above(low, high)
        answer = np.where(above > 0, answer, 0.0)
        for at, share in self._shares_below(low, high, above):
            assert self._below is not None
            moment = self._below.moment(float(low[at]), float(high[at]), order)
            answer[(*at, 0)] = (1 - share) * answer[(*at, 0)] + share * moment
        return answer

    def _shares_below(
        self, low: FloatArray, high: FloatArray, above: FloatArray
    ) -> list[tuple[tuple[int, ...], float]]:
        """Of every interval with mass below the floor: its place and the share of that mass.

        Args:
            low: (...,) lower ends ...
            high: (...,) ... and upper ends.
            above: (..., n_states) masses above the floor.
        """
        below = self._mass_below(low, high)
        places = (tuple(map(int, at)) for at in np.argwhere(below > 0))
        return [(at, float(below[at] / (below[at] + above[(*at, 0)]))) for at in places]

    def variances_between(self, low: Any, high: Any) -> FloatArray:
        """(..., n_states) Var[x | state, low <= x < high], without cancellation."""
        low, high = np.broadcast_arrays(np.asarray(low, float), np.asarray(high, float))
        answer = np.zeros((*low.shape, self.n_states))
        if self.pieces.n_bins:
            answer[..., self._bin_states] = self.pieces.variances(low, high)
        for state, tail in self._tails:
            for at in np.ndindex(low.shape):
                answer[(*at, state)] = tail.variance(float(low[at]), float(high[at]))
        if self._below is None or not (low < self.floor).any():
            return answer
        above = self._masses_above(low, high)
        means = self.moments_between(np.maximum(low, self.floor), high, 1)
        for at, share in self._shares_below(low, high, above):
            ends = float(low[at]), float(high[at])
            apart = self._below.moment(*ends, 1) - means[(*at, 0)] * (above[(*at, 0)] > 0)
            answer[(*at, 0)] = (
                (1 - share) * answer[(*at, 0)]
                + share * self._below.variance(*ends)
                + share * (1 - share) * apart**2
            )
        return answer

    def sample_between(
        self, states: IntArray, low: Any, high: Any, rng: np.random.Generator
    ) -> FloatArray:
        """(n,) one value from the part in [low, high) of each state (n,); low, high () or (n,)."""
        return self._value(states, low, high, rng.random(states.size))

    def value_at(self, states: IntArray, low: Any, high: Any, u: FloatArray) -> FloatArray:
        """(n,) the value with share u (n,) of the mass that a state has in [low, high) below it."""
        return self._value(states, low, high, u)

    def _value(self, states: IntArray, low: Any, high: Any, u: FloatArray) -> FloatArray:
        """(n,) the value at share u (n,) of what each state (n,) has in [low, high)."""
        low, high = (np.broadcast_to(np.asarray(end, float), states.shape) for end in (low, high))
        under = np.flatnonzero((states == 0) & (low < self.floor))
        if under.size and self._below is not None:
            ends = low[under], high[under]
            if all((end == end[0]).all() for end in ends):  # one look for all rows
                ends = ends[0][:1], ends[1][:1]
            below = self._mass_below(*ends)
            above = self._masses_above(*ends)[:, 0]
            share = below / np.maximum(below + above, 1e-300)
            goes = u[under] < share
            u = u.copy()
            u[under] = np.where(goes, u[under], u[under] - share) / np.where(
                goes, share, np.maximum(1 - share, 1e-300)
            )
            answer = self._above(states, low, high, u)
            rows = under[goes]
            answer[rows] = self._below.draw(_outwards(u[rows]), low[rows], high[rows])
            return answer
        return self._above(states, low, high, u)

    def _above(
        self, states: IntArray, low: FloatArray, high: FloatArray, u: FloatArray
    ) -> FloatArray:
        """(n,) the value at share u (n,) of what states (n,) have in [low, high) above a floor."""
        at_atom = np.full(self.n_states, MISSING_CODE)
        at_atom[self._numbering[0]] = self.atoms
        answer = at_atom[states]
        rows = np.flatnonzero(np.isin(states, self._bin_states))
        if rows.size:
            bins = np.searchsorted(self._bin_states, states[rows])
            answer[rows] = self.pieces.draw(bins, u[rows], low[rows], high[rows])
        for state, tail in self._tails:
            rows = np.flatnonzero(states == state)
            shares = _outwards(u[rows]) if tail.sign < 0 else u[rows]
            answer[rows] = tail.draw(shares, low[rows], high[rows])
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
        if self._below is not None and not high > self.floor:
            value[0] = self._below.mode(low, high)
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
            **({} if self.floor == -inf else {"floor": self.floor}),
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
            floor=float(record.get("floor", -inf)),
        )


def _outwards(u: FloatArray) -> FloatArray:
    """(n,) shares along the axis as shares of a left tail, which is passed from its edge."""
    return np.clip(1 - u, 0, 1 - 1e-16)

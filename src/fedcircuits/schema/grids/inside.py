"""The bins of a grid as pieces, each a truncated exponential, and what is asked of them.

A bin on the line is one piece. A bin on the integers is one piece for every run of consecutive
integers that are not atoms; the integer k stands for the cell [k, k + 1). All pieces of a bin
follow one exponential over the bin.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from fedcircuits.arrays import FloatArray, IntArray
from fedcircuits.schema.grids import shapes
from fedcircuits.schema.grids.powers import common_exponent, times_power


@dataclass(frozen=True)
class Pieces:
    """The P pieces of all the bins of a grid, in order.

    Attributes:
        of_bin: (P,) number of the bin among the filled bins, not decreasing.
        low: (P,) lower end of the bin of a piece ...
        high: (P,) ... and its upper end (of its cells on the integers).
        tilt: (P,) tilt of the bin.
        first: (P,) lower end of the piece ...
        last: (P,) ... and its upper end.
        integer: whether values are whole.
        n_bins: number of filled bins.
    """

    of_bin: IntArray
    low: FloatArray
    high: FloatArray
    tilt: FloatArray
    first: FloatArray
    last: FloatArray
    integer: bool
    n_bins: int

    def places(self, x: FloatArray) -> FloatArray:
        """(..., P) places v of numbers (..., P) in the bins of the pieces."""
        return shapes.places_in(x, self.low, self.high)

    @cached_property
    def log_total(self) -> FloatArray:
        """(n_bins,) log of the integral of exp(tilt * v) over all the pieces of a bin."""
        return self._join(shapes.log_integral(*self._span, self.tilt))

    @property
    def ramps(self) -> FloatArray:
        """(3, n_bins) tilt, lower end and upper end of every bin."""
        return np.stack([self.tilt, self.low, self.high])[:, self._starts]

    def log_at_start(self, volume: FloatArray) -> FloatArray:
        """(n_bins,) log-density where a bin begins; on the integers, log-mass of the first cell.

        Args:
            volume: (n_bins,) lengths of the bins, or numbers of their integers: an even bin has
                density 1 / volume, to the last digit.
        """
        tilt, low, high = self.ramps
        answer = -self.log_total - shapes.log_length(low, high)
        if self.integer:
            answer = answer + shapes.log_mean_exp(tilt / (high - low))
        even = (tilt == 0) & np.isfinite(volume)
        answer[even] = -np.log(volume[even])
        return answer

    @cached_property
    def _starts(self) -> IntArray:
        return np.searchsorted(self.of_bin, np.arange(self.n_bins))

    def _join(self, logs: FloatArray) -> FloatArray:
        """(..., P) logarithms added up within each bin: (..., n_bins)."""
        return np.asarray(np.logaddexp.reduceat(logs, self._starts, axis=-1))

    def _add(self, values: FloatArray) -> FloatArray:
        """(..., P) values added up within each bin: (..., n_bins)."""
        return np.asarray(np.add.reduceat(values, self._starts, axis=-1))

    def mean_places(self, tilt: FloatArray | None = None) -> FloatArray:
        """(n_bins,) mean place of each bin; an integer stands at the middle of its cell.

        Args:
            tilt: (P,) tilts instead of those of the pieces.
        """
        tilt = self.tilt if tilt is None else tilt
        start, length = self._span
        log_mass = shapes.log_integral(start, length, tilt)
        share = np.exp(log_mass - self._join(log_mass)[self.of_bin])
        mean = self._add(share * (start + length * shapes.mean_place(tilt * length)))
        if not self.integer:
            return mean
        at = self._starts
        cell = self.high[at] - self.low[at]
        return mean + (0.5 - shapes.mean_place(tilt[at] / cell)) / cell

    @cached_property
    def _span(self) -> tuple[FloatArray, FloatArray]:
        """(P,) places where the pieces start, and their lengths."""
        start = self.places(self.first)
        return start, self.places(self.last) - start

    def tilts_for(self, places: FloatArray) -> FloatArray:
        """(n_bins,) tilts that give the bins these mean places, as far as MAX_TILT allows."""
        low = np.full(self.n_bins, -shapes.MAX_TILT)
        high = -low
        for _ in range(48):  # bisection: the mean grows with the tilt
            middle = 0.5 * (low + high)
            less = self.mean_places(middle[self.of_bin]) < places
            low, high = np.where(less, middle, low), np.where(less, high, middle)
        even = self.mean_places(np.zeros(self.of_bin.size))
        return np.where(np.abs(places - even) < 1e-12, 0.0, 0.5 * (low + high))

    def cut(self, low: FloatArray, high: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """The parts of the pieces in [low, high): their ends and their masses given the bin.

        Args:
            low: (...,) lower ends, possibly infinite ...
            high: (...,) ... and upper ends.

        Returns:
            Lower ends (..., P), upper ends (..., P), masses (..., P), 0 for an empty part.
        """
        low, high = (np.asarray(end, dtype=float)[..., None] for end in (low, high))
        if self.integer:
            low, high = np.ceil(low), np.ceil(high)
        first = np.clip(low, self.first, self.last)
        last = np.maximum(np.clip(high, self.first, self.last), first)
        start = self.places(first)
        log_mass = shapes.log_integral(start, self.places(last) - start, self.tilt)
        mass = np.exp(log_mass - self.log_total[self.of_bin])
        return first, last, np.asarray(mass)

    def masses(self, low: FloatArray, high: FloatArray) -> FloatArray:
        """(..., n_bins) P(low <= x < high | bin)."""
        return np.minimum(self._add(self.cut(low, high)[2]), 1.0)

    def _tau(self, first: FloatArray, last: FloatArray) -> FloatArray:
        return self.tilt * (self.places(last) - self.places(first))

    @cached_property
    def _cell(self) -> FloatArray | None:
        """(P,) tilt over one unit, on the integers."""
        return self.tilt / (self.high - self.low) if self.integer else None

    def _shares(self, mass: FloatArray) -> FloatArray:
        """(..., P) shares of the pieces in the mass of their bin, 0 where there is none."""
        total = self._add(mass)[..., self.of_bin]
        return np.divide(mass, total, out=np.zeros_like(mass), where=total > 0)

    def moments(self, low: FloatArray, high: FloatArray, order: int) -> FloatArray:
        """(..., n_bins) E[x**order | bin, low <= x < high]; 0 where the interval has no mass."""
        first, last, mass = self.cut(low, high)
        exponent = common_exponent(first, last)
        value = shapes.power_mean_between(
            np.ldexp(first, -exponent),
            np.ldexp(last, -exponent),
            self._tau(first, last),
            order,
            None if self._cell is None else (self._cell, np.ldexp(1.0, -exponent)),
        )
        share = self._shares(mass)
        with np.errstate(invalid="ignore", over="ignore"):
            terms = np.where(share > 0, share * times_power(value, exponent, order), 0.0)
            return self._add(terms)

    def variances(self, low: FloatArray, high: FloatArray) -> FloatArray:
        """(..., n_bins) Var[x | bin, low <= x < high], without cancellation."""
        first, last, mass = self.cut(low, high)
        share, tau = self._shares(mass), self._tau(first, last)
        mean = first * (1 - (v := shapes.mean_place(tau))) + last * v  # (..., P)
        with np.errstate(over="ignore"):
            spread = shapes.place_variance(tau) * (last - first) ** 2
            if self._cell is not None:
                spread = np.maximum(spread - shapes.place_variance(self._cell), 0.0)
            middle = self._add(share * mean)[..., self.of_bin]
            return self._add(share * (spread + (mean - middle) ** 2))

    def draw(self, bins: IntArray, u: FloatArray, low: FloatArray, high: FloatArray) -> FloatArray:
        """(n,) values at shares u (n,) of the mass that bins (n,) have in [low, high) (n,)."""
        answer = np.empty(bins.size)
        starts, ends = self._starts, np.append(self._starts[1:], self.of_bin.size)
        for bin_ in np.unique(bins):
            rows = np.flatnonzero(bins == bin_)
            part = self._of(slice(starts[bin_], ends[bin_]))
            answer[rows] = part._draw_in_one(u[rows], low[rows], high[rows])
        return answer

    def _of(self, part: slice) -> Pieces:
        of_bin = np.zeros(part.stop - part.start, dtype=np.int64)
        return replace(
            self,
            of_bin=of_bin,
            low=self.low[part],
            high=self.high[part],
            tilt=self.tilt[part],
            first=self.first[part],
            last=self.last[part],
            n_bins=1,
        )

    def _draw_in_one(self, u: FloatArray, low: FloatArray, high: FloatArray) -> FloatArray:
        """(n,) values of the only bin."""
        first, last, mass = self.cut(low, high)  # (n, P)
        upto = np.cumsum(mass, axis=1)
        goal = u * upto[:, -1]
        at = np.minimum((upto <= goal[:, None]).sum(axis=1), mass.shape[1] - 1)
        # Rounding may step beyond the last part that has mass.
        last_filled = mass.shape[1] - 1 - (mass[:, ::-1] > 0).argmax(axis=1)
        at = np.minimum(at, last_filled)
        rows = np.arange(u.size)
        mine = mass[rows, at]
        before = upto[rows, at] - mine
        share = np.divide(goal - before, mine, out=np.zeros_like(mine), where=mine > 0)
        tau = self._tau(first, last)[rows, at]
        v = shapes.place(tau, np.clip(share, 0.0, 1.0))
        a, b = first[rows, at], last[rows, at]
        with np.errstate(over="ignore"):
            length = b - a
        x = np.where(np.isinf(length), a * (1 - v) + b * v, a + v * length)
        if self.integer:
            return np.asarray(np.clip(np.floor(x), a, np.maximum(b - 1, a)))
        return np.asarray(np.clip(x, a, np.maximum(np.nextafter(b, a), a)))

    def mode(self, bin_: int, low: float, high: float, atoms: FloatArray) -> float:
        """A value of highest density in the part of a bin in [low, high), not an atom if it can be.

        The density at an atom is the atom's, not the bin's, and atoms may be neighbouring floats.
        """
        first, last, mass = self.cut(np.array(low), np.array(high))  # (P,)
        mine = np.flatnonzero((self.of_bin == bin_) & (mass > 0))
        if mine.size == 0:
            return float(self.low[self._starts[bin_]])
        lowest, highest = float(first[mine[0]]), float(last[mine[-1]])
        tilt = self.tilt[mine[0]]
        if tilt == 0:
            ends = np.array([low]), np.array([high])
            value = float(self.draw(np.array([bin_]), np.array([0.5]), *ends)[0])
        elif tilt < 0:
            value = lowest
        else:
            value = highest - 1 if self.integer else float(np.nextafter(highest, -np.inf))
        for towards in (np.inf, -np.inf) if tilt < 0 else (-np.inf, np.inf):
            at = value
            for _ in range(atoms.size + 1):
                if not (atoms == at).any():
                    break
                at = float(np.nextafter(at, towards))
            if lowest <= at <= highest:
                return at
        return value


def pieces_of(
    low: FloatArray, high: FloatArray, tilts: FloatArray, atoms: FloatArray, integer: bool
) -> Pieces:
    """The pieces of filled bins.

    Args:
        low: (b,) lower ends of the filled bins ...
        high: (b,) ... and upper ends, on the integers those of the cells.
        tilts: (b,) of the bins.
        atoms: (k,) atoms of the grid, which integer bins leave out.
        integer: whether the bins are over the integers.
    """
    bins = np.arange(low.size)
    if not integer or atoms.size == 0:
        return Pieces(bins, low, high, tilts, low, high, integer, low.size)
    of_bin, first, last = [], [], []
    for bin_ in bins:
        inside = atoms[(atoms >= low[bin_]) & (atoms < high[bin_])]
        begins = np.append(low[bin_], inside + 1)
        ends = np.append(inside, high[bin_])
        filled = begins < ends
        if not filled.any():  # atoms so large that no float lies between them
            begins, ends, filled = low[[bin_]], high[[bin_]], np.array([True])
        of_bin.append(np.full(int(filled.sum()), bin_))
        first.append(begins[filled])
        last.append(ends[filled])
    at = np.concatenate([*of_bin, np.zeros(0, dtype=np.int64)]).astype(np.int64)
    ends_of = np.concatenate([*first, np.zeros(0)]), np.concatenate([*last, np.zeros(0)])
    return Pieces(at, low[at], high[at], tilts[at], *ends_of, integer, low.size)

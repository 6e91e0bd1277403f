"""Sketches: what a client sends of a numeric column so that one grid can be agreed.

A sketch holds the *heavy* values (repeated often enough to be atoms) with their counts, and
weighted points of the rest in order. Sketches add up across clients, and a grid made from one
client's sketch is the grid made from its data. With `min_rows` > 1 a sketch reveals nothing that
fewer than `min_rows` rows stand behind: a heavy value is named only if that many rows hold it,
and every point is the mean of at least that many neighbouring rows. Where too few rows are left
over to make one point, they are not sent at all. Rows are counted, whatever their weights.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedcircuits.arrays import BoolArray, FloatArray
from fedcircuits.schema.grids.column import Column, Points
from fedcircuits.schema.grids.decimals import DecimalGrid
from fedcircuits.schema.grids.grid import Grid
from fedcircuits.schema.grids.groups import MAX_POINTS, grouped, outer_rows, points_apart
from fedcircuits.schema.grids.make_grid import make_grid, unseen_grid

FEW_VALUES = 12  # this many distinct values, each twice on average, are discrete at once ...
SOME_VALUES = 48  # ... so are these, if they repeat ...
REPEATS = 5  # this often on average ...
MANY_VALUES = 256  # ... and these, where each has the rows of a bin
ROWS_PER_VALUE = 40
# Among more values an atom stands out: its rows are this many times those of its neighbours. Values
# rounded to few digits repeat, too, but about as often as the next ones.
STANDS_OUT, NEIGHBOURS = 4.0, 5
# Share of the rows that makes a value an atom among continuous ones, if it repeats that often too:
# in a short table the share alone would make an atom of every single value.
HEAVY_SHARE = 0.0025
OTHERS_SHARE = 0.05  # share of the rows that may be sent as means in a discrete column
OUTER_SHARE = 0.01  # of the rows (a sixth of those without atoms): outermost groups kept together
# Of the rows (a third of those without atoms) that an open tail has at least: how many rows of a
# group lie beyond an edge is known to a few, which count the less the more there are.
TAIL_SHARE = 0.005


def looks_discrete(n_distinct: int, n_rows: float) -> bool:
    """Whether a numeric column is discrete: few distinct values, or more that repeat."""
    few = n_distinct <= FEW_VALUES and n_rows >= 2 * n_distinct
    some = n_distinct <= SOME_VALUES and n_rows >= REPEATS * n_distinct
    return few or some or (n_distinct <= MANY_VALUES and n_rows >= ROWS_PER_VALUE * n_distinct)


def _is_atom(rows: FloatArray) -> BoolArray:
    """Which of all the distinct values of a column are atoms, from the rows behind each (k,)."""
    if looks_discrete(rows.size, rows.sum()):
        return np.ones(rows.size, dtype=bool)
    heavy = np.asarray(rows >= max(REPEATS, HEAVY_SHARE * rows.sum()))
    at = np.flatnonzero(heavy)
    width = min(NEIGHBOURS, (rows.size - 1) // 2)
    if at.size and width:
        padded = np.pad(rows, width, mode="reflect")
        around = np.lib.stride_tricks.sliding_window_view(padded, 2 * width + 1)[at]
        others = np.delete(around, width, axis=1)  # (heavy values, 2 * width)
        heavy[at] = rows[at] >= STANDS_OUT * np.median(others, axis=1)
    return heavy


@dataclass(frozen=True)
class Sketch:
    """Mergeable summary of one numeric column.

    Attributes:
        heavy: (k,) sorted values listed one by one; all of them if the column is discrete.
        heavy_rows: (k,) rows behind each.
        points: (m,) sorted values (or group means) of the other rows.
        point_rows: (m,) rows behind each point.
        point_spreads: (m,) standard deviation of the rows behind each point.
        ends: (2,) lowest and highest value where single rows may be sent, otherwise (0,).
        exact: whether every value is sent as it is, with no mean of several and none left out.
        outer: (2,) rows of the outermost groups of all clients, lower and upper, or of the largest
            where all are too many; of merged sketches.
        never_below: (1,) zero where no row is below zero, otherwise (0,).
    """

    heavy: FloatArray
    heavy_rows: FloatArray
    points: FloatArray
    point_rows: FloatArray
    point_spreads: FloatArray
    ends: FloatArray
    exact: bool = True
    outer: FloatArray = field(default_factory=lambda: np.zeros(2))
    never_below: FloatArray = field(default_factory=lambda: np.zeros(0))

    def fault(self) -> str | None:
        """Return what is wrong with a sketch that somebody sent, None where nothing is."""
        pairs = ((self.heavy, self.heavy_rows), (self.points, self.point_rows))
        every = (*pairs[0], *pairs[1], self.point_spreads, self.ends, self.never_below)
        if any(part.ndim != 1 or part.dtype.kind != "f" for part in every):
            return "not lists of numbers"
        if not all(np.isfinite(part).all() for part in every):
            return "numbers that are not finite"
        if self.point_spreads.size != self.points.size or self.ends.size not in (0, 2):
            return "spreads or ends of other points"
        for values, rows in pairs:
            if values.size != rows.size or (rows <= 0).any() or (np.diff(values) < 0).any():
                return "values without rows, or not in order"
        below = any((part < 0).any() for part in (self.heavy, self.points, self.ends))
        if self.never_below.size and (below or self.never_below.tolist() != [0.0]):
            return "numbers below 0 where none is said to be"
        return "spreads below 0" if (self.point_spreads < 0).any() else None

    @property
    def n_rows(self) -> float:
        """Rows with a value."""
        return float(self.heavy_rows.sum() + self.point_rows.sum())

    @staticmethod
    def of(x: FloatArray, weights: FloatArray | None = None, *, min_rows: int = 1) -> Sketch:
        """Sketch of the observed values x (n,)."""
        if weights is not None:
            x, weights = x[weights > 0], weights[weights > 0]
        values, inverse, holders = np.unique(x, return_inverse=True, return_counts=True)
        rows = np.bincount(inverse, weights, minlength=values.size).astype(float)
        listed = _is_atom(rows) & (holders >= min_rows)
        points, point_rows, spreads = grouped(
            values[~listed], rows[~listed], holders[~listed], min_rows, rows.sum() / MAX_POINTS
        )
        exact = int(listed.sum()) + points.size == values.size
        # Only where single rows may be sent is the range sent.
        ends = values[[0, -1]] if min_rows <= 1 and values.size else values[:0]
        positive = np.zeros(int(values.size > 0 and values[0] >= 0))
        heavy = values[listed], rows[listed]
        return Sketch(*heavy, points, point_rows, spreads, ends, exact=exact, never_below=positive)

    @staticmethod
    def merge(sketches: list[Sketch], domain: tuple[float, float] | None = None) -> Sketch:
        """One sketch for all clients: heavy values add up, points are pooled.

        Means of several rows are drawn apart first: groups of several clients overlap, and their
        means alone would put all rows of a group on one side of an edge that goes through it.

        Args:
            sketches: of the clients.
            domain: interval that no point may leave.
        """
        heavy, inverse = np.unique(np.concatenate([s.heavy for s in sketches]), return_inverse=True)
        heavy_rows = np.bincount(
            inverse, np.concatenate([s.heavy_rows for s in sketches]), minlength=heavy.size
        ).astype(float)
        apart = [
            points_apart(
                (s.points, s.point_rows, s.point_spreads),
                float(np.ptp(s.heavy)) if s.heavy.size else np.inf,
                domain,
                s.never_below.size > 0,
            )
            for s in sketches
        ]
        points, point_rows, spreads = (np.concatenate(parts) for parts in zip(*apart, strict=True))
        order = np.argsort(points, kind="stable")
        ends = np.zeros(0)
        if all(s.ends.size or s.n_rows == 0 for s in sketches) and any(
            s.ends.size for s in sketches
        ):
            every = np.concatenate([s.ends for s in sketches])
            ends = np.array([every.min(), every.max()])
        exact = all(s.exact for s in sketches)
        rest = points[order], point_rows[order], spreads[order]
        groups_of = [outer_rows(s.point_rows) for s in sketches if s.points.size and not s.exact]
        groups = np.array([np.zeros(2), *groups_of])
        outer = _outer(groups, float(point_rows.sum()), float(heavy_rows.sum()))
        seen = [s for s in sketches if s.n_rows > 0]
        positive = np.zeros(int(len(seen) > 0 and all(s.never_below.size for s in seen)))
        return Sketch(heavy, heavy_rows, *rest, ends, exact, outer, positive)

    def to_grid(
        self,
        *,
        integer: bool = False,
        domain: tuple[float, float] | None = None,
        n_bins: int | None = None,
        missing: bool = False,
        atom_share: float | None = None,
        decimals: int | None = None,
        has_zero: bool = True,
    ) -> Grid:
        """The grid: a state per value where values repeat, quantile bins elsewhere.

        Args:
            integer: whether the variable lives on the integers.
            domain: declared interval; closes the tails.
            n_bins: number of quantile bins, by default one per 20 rows up to 48.
            missing: whether the grid has a state for missing values.
            atom_share: share of the rows from which a value is an atom, by default a small one;
                given for a label, whose long bins are cut on.
            decimals: with which all values are written, None if not with a small number.
            has_zero: whether zero means anything, so that it may be a floor; of dates it does not.
        """
        if decimals is not None and not integer and self.n_rows:
            scale = 10.0**decimals
            ends = None if domain is None else (_steps(domain[0], scale), _steps(domain[1], scale))
            options: dict[str, Any] = {"atom_share": atom_share, "has_zero": has_zero}
            whole = self._in_steps(scale).to_grid(
                integer=True, domain=ends, n_bins=n_bins, missing=missing, **options
            )
            return DecimalGrid.of_steps(whole, decimals)
        if self.n_rows == 0:
            return unseen_grid(integer, domain, missing)
        atoms, atom_rows, points = self._split(atom_share)
        if integer and not self.exact:
            points = _on_integers(points)
        ends, known = self._range()
        column = Column(
            atoms,
            atom_rows,
            points,
            ends,
            known,
            self._tail_scales(*ends),
            self.n_rows,
            (float(self.outer[0]), float(self.outer[1])),
            0.0 if has_zero and self.never_below.size else -np.inf,
        )
        return make_grid(
            column,
            integer=integer,
            domain=domain,
            n_bins=n_bins,
            missing=missing,
            few_squares=atom_share is not None,
        )

    def _in_steps(self, scale: float) -> Sketch:
        """The sketch of the values times `scale`, which are whole."""
        return Sketch(
            np.rint(self.heavy * scale),
            self.heavy_rows,
            np.asarray(_steps(self.points, scale)),  # means of several rows are not whole
            self.point_rows,
            self.point_spreads * scale,
            np.rint(self.ends * scale),
            self.exact,
            self.outer,
            self.never_below,
        )

    def _range(self) -> tuple[tuple[float, float], tuple[bool, bool]]:
        """Lowest and highest value as far as known, and whether no row lies beyond them."""
        low = min([*self.heavy[:1], *self.points[:1], *self.ends[:1]])
        high = max([*self.heavy[-1:], *self.points[-1:], *self.ends[1:]])
        if self.exact or self.ends.size:
            return (float(low), float(high)), (True, True)
        # The outermost point may be a mean: only a value named lies where it is.
        known = (bool(np.isin(low, self.heavy)), bool(np.isin(high, self.heavy)))
        return (float(low), float(high)), known

    def _split(self, atom_share: float | None) -> tuple[FloatArray, FloatArray, Points]:
        """Atoms, their rows, and the other points, by what all rows of the sketch say together.

        What is heavy at one client may be light in the union, and the other way round.
        """
        every = np.concatenate([self.heavy, self.points])
        values, inverse = np.unique(every, return_inverse=True)
        every_rows = np.concatenate([self.heavy_rows, self.point_rows])
        rows = np.bincount(inverse, every_rows, values.size).astype(float)
        # Equal points of several clients: the standard deviation of all, near enough.
        weighted = np.concatenate([np.zeros(self.heavy.size), self.point_rows * self.point_spreads])
        spreads = np.bincount(inverse, weighted, values.size) / np.maximum(rows, 1e-300)
        if atom_share is not None:
            atom = rows >= max(REPEATS, atom_share * rows.sum())
        elif self.exact:
            atom = _is_atom(rows)
        else:  # a point may be a mean: it says nothing of repeats
            atom = np.isin(values, self.heavy)
            # Rare values of a discrete column are sent as means, but the others stay atoms.
            few_others = self.point_rows.sum() < OTHERS_SHARE * self.n_rows
            discrete = few_others and looks_discrete(self.heavy.size, self.n_rows)
            if self.points.size and not discrete:
                atom &= rows >= max(REPEATS, HEAVY_SHARE * self.n_rows)
        return values[atom], rows[atom], Points(values[~atom], rows[~atom], spreads[~atom])

    def _tail_scales(self, lowest: float, highest: float) -> tuple[float, float]:
        """How far beyond the data the tails reach: from the outermost tenth of the rows.

        Where all of these have one value (amounts of zero), as far as from it to the next value.
        """
        values = np.concatenate([self.heavy, self.points])
        rows = np.concatenate([self.heavy_rows, self.point_rows])
        order = np.argsort(values, kind="stable")
        share = np.cumsum(rows[order]) / rows.sum()
        at_low, at_high = np.minimum(np.searchsorted(share, [0.1, 0.9]), values.size - 1)
        low, high = values[order][at_low] - lowest, highest - values[order][at_high]
        distinct = np.unique(np.append(values, [lowest, highest]))
        spread = abs(highest) / 10 or 1.0
        steps = np.maximum(np.diff(distinct), 1e-6 * (highest - lowest))
        steps = steps if steps.size else np.array([spread])
        return float(low) or float(steps[0]), float(high) or float(steps[-1])


def _outer(groups: FloatArray, apart: float, others: float) -> FloatArray:
    """(2,) least rows of the open tails.

    Args:
        groups: (K, 2) of the outermost groups, lower and upper; of one without rows first.
        apart: rows of points.
        others: rows of heavy values.
    """
    largest = groups.max(axis=0)
    kept = np.minimum(groups.sum(axis=0), min(OUTER_SHARE * (apart + others), apart / 6))
    least = np.where(largest > 0, min(TAIL_SHARE * (apart + others), apart / 3), 0.0)
    return np.asarray(np.max([largest, kept, least], axis=0))


def _steps(x: Any, scale: float) -> Any:
    """Numbers times `scale`, without the last digits that multiplying leaves."""
    return np.round(np.asarray(x, dtype=float) * scale, 6)


def _on_integers(points: Points) -> Points:
    """Points that are means of whole numbers shared out to the integers on both sides.

    Means stay what they are; a point between two integers would count for a bin that none of its
    rows is in.
    """
    low = np.floor(points.values)
    upper = points.values - low
    every = np.concatenate([low, low + 1.0])
    shares = np.concatenate([points.rows * (1.0 - upper), points.rows * upper])
    every, shares, spreads = (
        part[shares > 0] for part in (every, shares, np.tile(points.spreads, 2))
    )
    values, inverse = np.unique(every, return_inverse=True)
    rows = np.bincount(inverse, shares, values.size).astype(float)
    wide = np.bincount(inverse, shares * spreads, values.size) / rows
    return Points(values, rows, wide)

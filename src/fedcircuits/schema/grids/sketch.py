"""Sketches: what a client sends of a numeric column so that one grid can be agreed.

A sketch holds the *heavy* values (repeated often enough to be atoms) with their counts, and
weighted points of the rest in order. Sketches add up across clients, and a grid made from one
client's sketch is the grid made from its data. With `min_rows` > 1 a sketch reveals nothing that
fewer than `min_rows` rows stand behind: a heavy value is named only if that many rows hold it,
and every point is the mean of at least that many neighbouring rows. Where too few rows are left
over to make one point, they are not sent at all. Rows are counted, whatever their weights.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedcircuits.arrays import BoolArray, FloatArray, IntArray
from fedcircuits.schema.grids.decimals import DecimalGrid
from fedcircuits.schema.grids.grid import Grid
from fedcircuits.schema.grids.make_grid import Column, Points, make_grid, unseen_grid

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
MAX_POINTS = 4096
MOST_APART = 8  # points that stand for one group of rows
FEW_GROUPS = 3  # fewer are not drawn apart
EVEN_END = 3**0.5  # where rows that lie evenly end, in standard deviations from their mean


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
        outer: (2,) rows of the largest outermost group of a client, lower and upper; of merged
            sketches.
    """

    heavy: FloatArray
    heavy_rows: FloatArray
    points: FloatArray
    point_rows: FloatArray
    point_spreads: FloatArray
    ends: FloatArray
    exact: bool = True
    outer: FloatArray = field(default_factory=lambda: np.zeros(2))

    def fault(self) -> str | None:
        """Return what is wrong with a sketch that somebody sent, None where nothing is."""
        pairs = ((self.heavy, self.heavy_rows), (self.points, self.point_rows))
        every = (*pairs[0], *pairs[1], self.point_spreads, self.ends)
        if any(part.ndim != 1 or part.dtype.kind != "f" for part in every):
            return "not lists of numbers"
        if not all(np.isfinite(part).all() for part in every):
            return "numbers that are not finite"
        if self.point_spreads.size != self.points.size or self.ends.size not in (0, 2):
            return "spreads or ends of other points"
        for values, rows in pairs:
            if values.size != rows.size or (rows <= 0).any() or (np.diff(values) < 0).any():
                return "values without rows, or not in order"
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
        points, point_rows, spreads = _group(
            values[~listed], rows[~listed], holders[~listed], min_rows, rows.sum() / MAX_POINTS
        )
        exact = int(listed.sum()) + points.size == values.size
        # Only where single rows may be sent is the range sent.
        ends = values[[0, -1]] if min_rows <= 1 and values.size else values[:0]
        return Sketch(values[listed], rows[listed], points, point_rows, spreads, ends, exact)

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
        apart = [_apart(s, domain) for s in sketches]
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
        grouped = [s.point_rows for s in sketches if s.points.size and not s.exact]
        outer = np.max([np.zeros(2), *(rows[[0, -1]] for rows in grouped)], axis=0)
        return Sketch(heavy, heavy_rows, *rest, ends, exact, outer)

    def to_grid(
        self,
        *,
        integer: bool = False,
        domain: tuple[float, float] | None = None,
        n_bins: int | None = None,
        missing: bool = False,
        atom_share: float | None = None,
        decimals: int | None = None,
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
        """
        if decimals is not None and not integer and self.n_rows:
            scale = 10.0**decimals
            ends = None if domain is None else (_steps(domain[0], scale), _steps(domain[1], scale))
            whole = self._in_steps(scale).to_grid(
                integer=True, domain=ends, n_bins=n_bins, missing=missing, atom_share=atom_share
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


def _apart(
    sketch: Sketch, domain: tuple[float, float] | None
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Points in place of groups of one client, with the same rows, means and spreads.

    Where points would leave the domain the group is narrower instead.

    Evenly apart; an outer group wider than its neighbour is a tail: it begins where the neighbour
    ends and falls off outwards. One or two groups that spread less than the values beside them that
    repeat are what is left of these: they stay, so that a column of few values has a state each.

    Returns:
        The points in order, their rows, and spreads of zero.
    """
    means, rows, spreads = sketch.points, sketch.point_rows, sketch.point_spreads
    among = float(np.ptp(sketch.heavy)) if sketch.heavy.size else np.inf
    if means.size < FEW_GROUPS and spreads.max(initial=0.0) <= among:
        return means, rows, spreads
    values, shares = [], []
    for at, (mean, count, spread) in enumerate(zip(means, rows, spreads, strict=True)):
        n = int(np.clip(round(count), 1, MOST_APART)) if spread > 0 else 1
        places = (np.arange(n) + 0.5) / n - 0.5
        away = spread / (float(np.sqrt(np.mean(places**2))) or 1.0) * places
        if means.size > 1 and at in (0, means.size - 1):
            beside = 1 if at == 0 else means.size - 2
            if spread > spreads[beside]:
                # Rows of the neighbour, which is narrow, end about here.
                room = max(abs(mean - means[beside]) - EVEN_END * spreads[beside], spread / 8)
                away = _tail_places(n, room, spread)
                away = -away[::-1] if at == 0 else away
        if domain is not None and n > 1:
            room = min((domain[0] - mean) / away[0], (domain[1] - mean) / away[-1])
            away = away * max(0.0, min(1.0, room))
        values.append(mean + away)
        shares.append(np.full(n, count / n))
    points, share = np.concatenate(values), np.concatenate(shares)
    order = np.argsort(points, kind="stable")
    return points[order], share[order], np.zeros(points.size)


def _tail_places(n: int, room: float, spread: float) -> FloatArray:
    """(n,) places about a mean, falling off upwards, none lower than -room; spread as given.

    Powers of an exponential's quantiles: the larger the spread, the higher the power.
    """
    steps = -np.log1p(-(np.arange(n) + 0.5) / n)
    low, high = 0.0, 30.0
    for _ in range(40):
        power = 0.5 * (low + high)
        raised = (steps / steps[-1]) ** power
        away = room * (raised / raised.mean() - 1.0)
        low, high = (power, high) if away.std() < spread else (low, power)
    return np.asarray(away)


def _group(
    values: FloatArray, rows: FloatArray, holders: IntArray, min_rows: int, least_weight: float
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Neighbouring values joined into means, each of `min_rows` rows and of `least_weight` or more.

    What is left at the upper end joins the last group; too few rows for one group give none.

    Returns:
        The means, their rows and the standard deviations within the groups.
    """
    if holders.sum() < min_rows:
        return values[:0], rows[:0], rows[:0]
    if values.size <= MAX_POINTS and (holders >= min_rows).all():
        return values, rows, np.zeros(values.size)
    row_sum, weight_sum = np.cumsum(holders), np.cumsum(rows)
    # Views: a search in them takes a quarter of the time that NumPy takes to start one.
    row_view, weight_view = row_sum.data, weight_sum.data
    starts = [0]
    while True:  # at most MAX_POINTS rounds: a group has a share of the weight
        before = starts[-1]
        row_goal = min_rows + (row_view[before - 1] if before else 0)
        weight_goal = least_weight + (weight_view[before - 1] if before else 0.0)
        last = bisect_left(row_view, row_goal, before)
        last = max(last, bisect_left(weight_view, weight_goal, before))
        if last + 1 >= values.size or row_view[-1] - row_view[last] < min_rows:
            break
        starts.append(last + 1)
    sums = np.add.reduceat(rows, starts)
    shares = rows / np.repeat(sums, np.diff([*starts, values.size]))
    means = np.add.reduceat(shares * values, starts)
    away = values - np.repeat(means, np.diff([*starts, values.size]))
    size = np.abs(away).max(initial=0.0) or 1.0  # squares are taken of numbers up to 1
    return means, sums, size * np.sqrt(np.add.reduceat(shares * (away / size) ** 2, starts))

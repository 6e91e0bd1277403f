"""Sketches: what a client tells of a numeric column so that one grid can be agreed.

A sketch holds the *heavy* values (repeated often enough to be atoms) with their counts, and
weighted points of the rest in order. Sketches add up across clients, and a grid made from one
client's sketch is the grid made from its data. With `min_rows` > 1 a sketch reveals nothing that
fewer than `min_rows` rows stand behind: a heavy value is named only if that many rows hold it,
and every point is the mean of at least that many neighbouring rows. Where too few rows are left
over to make one point, they are not told at all. Rows are counted, whatever their weights.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedcircuits.arrays import BoolArray, FloatArray, IntArray
from fedcircuits.errors import SchemaError
from fedcircuits.schema.grid import Grid

FEW_VALUES = 12  # this many distinct values, each twice on average, are discrete at once ...
MANY_VALUES = 256  # ... and up to this many if they repeat
REPEATS = 5  # this often on average
# Share of the rows that makes a value an atom among continuous ones, if it repeats that often too:
# in a short table the share alone would make an atom of every single value.
HEAVY_SHARE = 0.0025
OTHERS_SHARE = 0.05  # share of the rows that may be told as means in a discrete column
MAX_BINS = 48
ROWS_PER_BIN = 20
MAX_POINTS = 4096


def looks_discrete(n_distinct: int, n_rows: float) -> bool:
    """Whether a numeric column is discrete: few distinct values, or more that repeat."""
    few = n_distinct <= FEW_VALUES and n_rows >= 2 * n_distinct
    return few or (n_distinct <= MANY_VALUES and n_rows >= REPEATS * n_distinct)


def _is_atom(rows: FloatArray) -> BoolArray:
    """Which of all the distinct values of a column are atoms, from the rows behind each (k,)."""
    if looks_discrete(rows.size, rows.sum()):
        return np.ones(rows.size, dtype=bool)
    return np.asarray(rows >= max(REPEATS, HEAVY_SHARE * rows.sum()))


@dataclass(frozen=True)
class Sketch:
    """Mergeable summary of one numeric column.

    Attributes:
        heavy: (k,) sorted values listed one by one; all of them if the column is discrete.
        heavy_rows: (k,) rows behind each.
        points: (m,) sorted values (or group means) of the other rows.
        point_rows: (m,) rows behind each point.
        exact: whether every value is told as it is, with no mean of several and none left out.
    """

    heavy: FloatArray
    heavy_rows: FloatArray
    points: FloatArray
    point_rows: FloatArray
    exact: bool = True

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
        points, point_rows = _group(
            values[~listed], rows[~listed], holders[~listed], min_rows, rows.sum() / MAX_POINTS
        )
        exact = int(listed.sum()) + points.size == values.size
        return Sketch(values[listed], rows[listed], points, point_rows, exact)

    @staticmethod
    def merge(sketches: list[Sketch]) -> Sketch:
        """One sketch for all clients: heavy values add up, points are pooled."""
        heavy, inverse = np.unique(np.concatenate([s.heavy for s in sketches]), return_inverse=True)
        heavy_rows = np.bincount(
            inverse, np.concatenate([s.heavy_rows for s in sketches]), minlength=heavy.size
        ).astype(float)
        points = np.concatenate([s.points for s in sketches])
        point_rows = np.concatenate([s.point_rows for s in sketches])
        order = np.argsort(points, kind="stable")
        exact = all(s.exact for s in sketches)
        return Sketch(heavy, heavy_rows, points[order], point_rows[order], exact)

    def to_grid(
        self,
        *,
        integer: bool = False,
        domain: tuple[float, float] | None = None,
        n_bins: int | None = None,
        missing: bool = False,
    ) -> Grid:
        """The grid: a state per value where values repeat, quantile bins elsewhere.

        Args:
            integer: whether the variable lives on the integers.
            domain: declared interval; closes the tails.
            n_bins: number of quantile bins, by default one per 20 rows up to 48.
            missing: whether the grid has a state for missing values.
        """
        if self.n_rows == 0:
            return _unseen_grid(integer, domain, missing)
        lowest = min([*self.heavy[:1], *self.points[:1]])
        highest = max([*self.heavy[-1:], *self.points[-1:]])
        atoms, points, point_rows = self._split()
        edges = np.array([lowest, highest])
        if points.size:
            count = n_bins or int(np.clip(point_rows.sum() // ROWS_PER_BIN, 4, MAX_BINS))
            edges = np.concatenate([edges, _quantiles(points, point_rows, count)])
        if integer:
            edges = np.round(edges)
        tails = self._tail_scales(lowest, highest)
        if domain is not None:
            low, high = _ends(domain, integer)
            edges = np.concatenate([edges, [v for v in (low, high) if np.isfinite(v)]])
            tails = (
                0.0 if np.isfinite(low) else tails[0],
                0.0 if np.isfinite(high) else tails[1],
            )
        edges = _apart(np.unique(edges))
        if edges.size == 1 and (integer or tails == (0.0, 0.0)):
            atoms = edges  # one value, and tails that own none of it: it is all there is
        return Grid(atoms, edges, tails=tails, integer=integer, missing=missing)

    def _split(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Atoms, and points with their rows, by what all rows of the sketch say together.

        What is heavy at one client may be light in the union, and the other way round.
        """
        values, inverse = np.unique(np.concatenate([self.heavy, self.points]), return_inverse=True)
        rows = np.bincount(
            inverse, np.concatenate([self.heavy_rows, self.point_rows]), values.size
        ).astype(float)
        if self.exact:
            atom = _is_atom(rows)
        else:  # a point may be a mean: it says nothing of repeats
            atom = np.isin(values, self.heavy)
            # Rare values of a discrete column are told as means, but the others stay atoms.
            few_others = self.point_rows.sum() < OTHERS_SHARE * self.n_rows
            discrete = few_others and looks_discrete(self.heavy.size, self.n_rows)
            if self.points.size and not discrete:
                atom &= rows >= max(REPEATS, HEAVY_SHARE * self.n_rows)
        return values[atom], values[~atom], rows[~atom]

    def _tail_scales(self, lowest: float, highest: float) -> tuple[float, float]:
        """How far beyond the data the tails reach: from the outermost tenth of the rows."""
        values = np.concatenate([self.heavy, self.points])
        rows = np.concatenate([self.heavy_rows, self.point_rows])
        order = np.argsort(values, kind="stable")
        share = np.cumsum(rows[order]) / rows.sum()
        at_low, at_high = np.minimum(np.searchsorted(share, [0.1, 0.9]), values.size - 1)
        low, high = values[order][at_low], values[order][at_high]
        spread = (highest - lowest) / 10 or abs(highest) / 10 or 1.0
        return (float(low - lowest) or float(spread), float(highest - high) or float(spread))


def _group(
    values: FloatArray, rows: FloatArray, holders: IntArray, min_rows: int, least_weight: float
) -> tuple[FloatArray, FloatArray]:
    """Neighbouring values joined into means, each of `min_rows` rows and of `least_weight` or more.

    What is left at the upper end joins the last group; too few rows for one group give none.
    """
    if holders.sum() < min_rows:
        return values[:0], rows[:0]
    if values.size <= MAX_POINTS and (holders >= min_rows).all():
        return values, rows
    row_sum, weight_sum = np.cumsum(holders), np.cumsum(rows)
    starts = [0]
    while True:  # at most MAX_POINTS rounds: a group has a share of the weight
        before = starts[-1]
        row_goal = min_rows + (row_sum[before - 1] if before else 0)
        weight_goal = least_weight + (weight_sum[before - 1] if before else 0.0)
        end = max(np.searchsorted(row_sum, row_goal), np.searchsorted(weight_sum, weight_goal)) + 1
        if end >= values.size or row_sum[-1] - row_sum[end - 1] < min_rows:
            break
        starts.append(int(end))
    sums = np.add.reduceat(rows, starts)
    shares = rows / np.repeat(sums, np.diff([*starts, values.size]))
    means = np.add.reduceat(shares * values, starts)
    if min_rows <= 1:  # single rows may be told, so the range is kept
        means[0] = values[0]
        means[-1] = values[-1] if means.size > 1 else means[-1]
    return means, sums


def _quantiles(points: FloatArray, rows: FloatArray, n_bins: int) -> FloatArray:
    """Inner edges of bins with about equal rows, halfway between neighbouring points."""
    distinct, inverse = np.unique(points, return_inverse=True)
    if distinct.size < 2:
        return distinct
    share = np.cumsum(np.bincount(inverse, rows)) / rows.sum()
    cut = np.searchsorted(share, np.arange(1, n_bins) / n_bins - 1e-12)
    cut = np.unique(cut[cut < distinct.size - 1])
    return 0.5 * (distinct[cut] + distinct[cut + 1])


def _ends(domain: tuple[float, float], integer: bool) -> tuple[float, float]:
    """Lowest and highest value of a domain; on the integers, those inside it."""
    low, high = domain
    return (float(np.ceil(low)), float(np.floor(high))) if integer else (low, high)


def _unseen_grid(integer: bool, domain: tuple[float, float] | None, missing: bool) -> Grid:
    """The grid of a column without one value: a single bin, if its domain is known."""
    if domain is None or not np.isfinite(domain).all():
        raise SchemaError(
            "no grid can be made: not one value was observed, and no finite domain is declared"
        )
    edges = np.unique(_ends(domain, integer))
    atoms = edges if edges.size == 1 else edges[:0]
    return Grid(atoms, edges, tails=(0.0, 0.0), integer=integer, missing=missing)


def _apart(edges: FloatArray) -> FloatArray:
    """Edges without bins so narrow that their density is a rounding error.

    Narrow against the other bins, not against the range: one value far out (a sentinel like
    999999999999) must not swallow all the bins of the rest.
    """
    if edges.size <= 2:
        return edges
    least = np.maximum(1e-9 * np.median(np.diff(edges)), 8 * np.spacing(np.abs(edges)))  # (m,)
    keep = [edges[0]]
    for edge, gap in zip(edges[1:-1], least[1:-1], strict=True):
        if edge - keep[-1] > gap and edges[-1] - edge > gap:
            keep.append(edge)
    return np.array([*keep, edges[-1]])

"""Sketches: what a client tells of a numeric column so that one grid can be agreed.

A sketch holds the *heavy* values (repeated often enough to be atoms) with their counts, and
weighted points of the rest in order. Sketches add up across clients, and a grid made from one
client's sketch is the grid made from its data. With `min_rows` > 1 a sketch reveals nothing that
fewer than `min_rows` rows stand behind: a heavy value is named only if that many rows hold it,
and every point is the mean of at least that many neighbouring rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedcircuits.errors import SchemaError
from fedcircuits.schema.grid import FloatArray, Grid

FEW_VALUES = 12  # this many distinct values, each twice on average, are discrete at once ...
MANY_VALUES = 256  # ... and up to this many if they repeat
REPEATS = 5  # this often on average
HEAVY_SHARE = 0.0025  # share of the rows that makes a value an atom among continuous ones
MAX_BINS = 48
ROWS_PER_BIN = 20
MAX_POINTS = 4096


def looks_discrete(n_distinct: int, n_rows: float) -> bool:
    """Whether a numeric column is discrete: few distinct values, or a moderate number that repeat."""
    few = n_distinct <= FEW_VALUES and n_rows >= 2 * n_distinct
    return few or (n_distinct <= MANY_VALUES and n_rows >= REPEATS * n_distinct)


@dataclass(frozen=True)
class Sketch:
    """Mergeable summary of one numeric column.

    Attributes:
        heavy: (k,) sorted values listed one by one; all of them if the column is discrete.
        heavy_rows: (k,) rows behind each.
        points: (m,) sorted values (or group means) of the other rows.
        point_rows: (m,) rows behind each point.
    """

    heavy: FloatArray
    heavy_rows: FloatArray
    points: FloatArray
    point_rows: FloatArray

    @property
    def n_rows(self) -> float:
        """Rows with a value."""
        return float(self.heavy_rows.sum() + self.point_rows.sum())

    @staticmethod
    def of(x: FloatArray, weights: FloatArray | None = None, *, min_rows: int = 1) -> Sketch:
        """Sketch of the observed values x (n,)."""
        values, inverse = np.unique(x, return_inverse=True)
        rows = np.bincount(inverse, weights, minlength=values.size).astype(float)
        total = rows.sum()
        listed = rows >= max(min_rows, HEAVY_SHARE * total)
        if looks_discrete(values.size, total):
            listed = rows >= min_rows
        listed &= rows > 0
        rest = ~listed & (rows > 0)
        points, point_rows = _group(values[rest], rows[rest], max(min_rows, total / MAX_POINTS))
        return Sketch(values[listed], rows[listed], points, point_rows)

    @staticmethod
    def merge(sketches: list[Sketch]) -> Sketch:
        """One sketch for all clients: heavy values add up, points are pooled."""
        heavy, inverse = np.unique(np.concatenate([s.heavy for s in sketches]), return_inverse=True)
        heavy_rows = np.bincount(
            inverse, np.concatenate([s.heavy_rows for s in sketches]), minlength=heavy.size
        )
        points = np.concatenate([s.points for s in sketches])
        point_rows = np.concatenate([s.point_rows for s in sketches])
        order = np.argsort(points, kind="stable")
        return Sketch(heavy, heavy_rows, points[order], point_rows[order])

    def to_grid(
        self,
        *,
        integer: bool = False,
        domain: tuple[float, float] | None = None,
        n_bins: int | None = None,
        missing: bool = False,
    ) -> Grid:
        """The grid of LEARNERS: a state per value where values repeat, quantile bins elsewhere.

        Args:
            integer: whether the variable lives on the integers.
            domain: declared interval; closes the tails.
            n_bins: number of quantile bins, by default one per 20 rows up to 48.
            missing: whether the grid has a state for missing values.
        """
        if self.n_rows == 0:
            raise SchemaError("no grid can be made: not one value was observed")
        lowest = min([*self.heavy[:1], *self.points[:1]])
        highest = max([*self.heavy[-1:], *self.points[-1:]])
        atoms, atom_rows, points, point_rows = (
            self.heavy,
            self.heavy_rows,
            self.points,
            self.point_rows,
        )
        if points.size:  # not discrete: what is heavy at one client may be light in the union
            light = atom_rows < HEAVY_SHARE * self.n_rows
            points = np.concatenate([points, atoms[light]])
            order = np.argsort(points, kind="stable")
            points = points[order]
            point_rows = np.concatenate([point_rows, atom_rows[light]])[order]
            atoms = atoms[~light]
        edges = np.array([lowest, highest])
        if points.size:
            count = n_bins or int(np.clip(point_rows.sum() // ROWS_PER_BIN, 4, MAX_BINS))
            edges = np.concatenate([edges, _quantiles(points, point_rows, count)])
        tails = self._tail_scales(lowest, highest)
        if domain is not None:
            edges = np.concatenate([edges, [v for v in domain if np.isfinite(v)]])
            closed = (np.isfinite(domain[0]), np.isfinite(domain[1]))
            tails = (0.0 if closed[0] else tails[0], 0.0 if closed[1] else tails[1])
        if integer:
            edges = np.round(edges)
        edges = _apart(np.unique(edges))
        return Grid(atoms, edges, tails=tails, integer=integer, missing=missing)

    def _tail_scales(self, lowest: float, highest: float) -> tuple[float, float]:
        """How far beyond the data the tails reach: from the outermost tenth of the rows."""
        values = np.concatenate([self.heavy, self.points])
        rows = np.concatenate([self.heavy_rows, self.point_rows])
        order = np.argsort(values, kind="stable")
        share = np.cumsum(rows[order]) / rows.sum()
        low = values[order][np.searchsorted(share, 0.1)]
        high = values[order][min(np.searchsorted(share, 0.9), values.size - 1)]
        spread = (highest - lowest) / 10 or abs(highest) / 10 or 1.0
        return (float(low - lowest) or float(spread), float(highest - high) or float(spread))


def _group(values: FloatArray, rows: FloatArray, at_least: float) -> tuple[FloatArray, FloatArray]:
    """Neighbouring values joined into weighted means of at least that many rows."""
    if values.size == 0 or (rows >= at_least).all():
        return values, rows
    group = np.minimum(
        np.floor((np.cumsum(rows) - rows) / at_least), np.floor(rows.sum() / at_least) - 1
    )
    _, index = np.unique(np.maximum(group, 0), return_inverse=True)
    sums = np.bincount(index, rows)
    means = np.bincount(index, rows * values) / sums
    # Extremes of the whole are kept only where single rows may be told.
    if at_least <= 1 or rows[0] >= at_least:
        means[0] = values[0]
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


def _apart(edges: FloatArray) -> FloatArray:
    """Edges without bins so narrow that their density is a rounding error."""
    if edges.size <= 2:
        return edges
    least = 1e-9 * (edges[-1] - edges[0])
    keep = [edges[0]]
    for edge in edges[1:-1]:
        if edge - keep[-1] > least and edges[-1] - edge > least:
            keep.append(edge)
    return np.array([*keep, edges[-1]])

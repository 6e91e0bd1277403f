"""Making a grid from the values of a column: atoms where values repeat, bins and tails elsewhere.

Bins have about equal rows at first. Where the rows of a bin depart from the truncated exponential
of their mean, the bin is cut in two at the place of the largest departure, so that the distribution
function of the grid stays close to that of the rows everywhere. Outer bins are smaller, and some
are left open (`outer_bins.py`).
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from math import inf

import numpy as np

from fedcircuits.arrays import FloatArray, IntArray
from fedcircuits.errors import SchemaError
from fedcircuits.schema.grids import shapes
from fedcircuits.schema.grids.column import Column, Points
from fedcircuits.schema.grids.grid import Grid
from fedcircuits.schema.grids.outer_bins import LEAST_ROWS, ends_of
from fedcircuits.schema.grids.states import TAIL_SHAPE

MAX_BINS = 48
ROWS_PER_BIN = 20
REFINE_ROWS = 300  # with fewer rows, bins of equal rows are all that can be seen
# Levels at which the distribution function is asked for most: the nearest edge is put there.
ASKED_LEVELS = (0.05, 0.5, 0.95)
LONG = 3.0  # times the median bin: such a bin keeps its mean whatever the chance
# Shares of the rows beyond the outer edges and beyond the next ones.
OUTER_SHARES = (0.0025, 0.01)
# A bin is cut where it departs from its rows by this share of all rows, and by this many standard
# deviations of a share of its own rows.
DEPARTURE, CLEARLY = 0.002, 0.8
CUT_ROUNDS = 4
# Share of all squares about the mean that the rows of a bin may have about theirs, in a grid whose
# states are predicted.
SQUARES = 5e-4
# A column of atoms all but equal (so few floats lie between them) gets a bin around them of this
# share of their size.
FEW_FLOATS, PAD = 4096, 0.05


def make_grid(
    column: Column,
    *,
    integer: bool,
    domain: tuple[float, float] | None,
    n_bins: int | None,
    missing: bool,
    few_squares: bool = False,
) -> Grid:
    """The grid of a column (see `Sketch.to_grid` for the options).

    With `few_squares` bins of equal rows are cut on where values spread in them: in the tails.
    """
    points, atoms = column.points, column.atoms
    edges, tails, tail_shapes = np.array(column.ends), column.scales, (TAIL_SHAPE, TAIL_SHAPE)
    floor = column.floor if domain is None else -inf
    if points.values.size:
        count = n_bins or int(np.clip(points.rows.sum() // ROWS_PER_BIN, 4, MAX_BINS))
        refine = n_bins is None and points.rows.sum() >= REFINE_ROWS
        cuts = _cuts(column, count, integer, refine)
        if few_squares:
            cuts = _with_few_squares(points, cuts, count // 2)
        edges = np.concatenate([edges, _at_cuts(column, cuts, integer)])
        edges = _apart(np.unique(np.clip(edges, *column.ends)))
        if domain is None:
            # Beyond a mean of several rows there are rows: no bin ends there.
            # A few values beside many atoms (mostly zeros) carry the spread of the column.
            few = n_bins is None and column.n_rows >= REFINE_ROWS and atoms.size > 0
            sides = [side for side in (0, 1) if refine or few or not column.known[side]]
            ends = ends_of(column, edges, integer, sides)
            edges, tails, tail_shapes = ends.edges, ends.scales, ends.shapes
    elif domain is None and not integer:
        edges, tails = _padded(edges, tails)
    if integer:
        edges = np.round(edges) + 0.0  # without a negative zero
    if domain is not None:
        low, high = _ends(domain, integer)
        edges = np.concatenate([edges, [v for v in (low, high) if np.isfinite(v)]])
        tails = (0.0 if np.isfinite(low) else tails[0], 0.0 if np.isfinite(high) else tails[1])
    edges = _apart(np.unique(edges))
    if edges.size == 1 and (integer or tails == (0.0, 0.0)):
        atoms = edges  # one value, and tails that own none of it: it is all there is
    if floor > edges[0] or not tails[0] > 0 or (edges.size == 1 and atoms.size == 0):
        floor = -inf
    grid = Grid(atoms, edges, tails, integer, missing, None, tail_shapes, floor)
    return _tilted(grid, points)


def _at_cuts(column: Column, cuts: IntArray, integer: bool) -> FloatArray:
    """Edges between neighbouring points; a whole edge belongs to the bin above it.

    Halfway, but at a level that is asked for right above the point that has it.
    """
    values = column.points.values
    share = np.where(np.isin(cuts, _asked(column)), 0.1, 0.5)
    between = values[cuts] * (1 - share) + values[cuts + 1] * share
    return np.asarray(np.ceil(between) if integer else between)


def _asked(column: Column) -> IntArray:
    """Places of the points at which the distribution function of the column passes ASKED_LEVELS."""
    values, rows = column.points.values, column.points.rows
    before = np.concatenate([[0.0], np.cumsum(column.atom_rows)])  # rows of the lowest atoms
    upto = np.cumsum(rows) + before[np.searchsorted(column.atoms, values)]  # (m,)
    places = np.searchsorted(upto, np.array(ASKED_LEVELS) * column.n_rows - 1e-9)
    return np.asarray(places[(places > 0) & (places < values.size - 1)])


def _cuts(column: Column, n_bins: int, integer: bool, refine: bool) -> IntArray:
    """After which of the points (place i: between i and i + 1) bins end."""
    values, rows = column.points.values, column.points.rows
    if values.size < 2:
        return np.zeros(0, dtype=np.int64)
    upto = np.cumsum(rows)
    total = upto[-1]
    levels = np.arange(1, n_bins) / n_bins
    if refine:
        for level in upto[_asked(column)] / total:
            levels[np.abs(levels - level).argmin()] = level
        lower, upper = (_outer_shares(total, whole, n_bins) for whole in column.outer)
        # With whole groups, no fewer rows than asked for lie beyond.
        places = np.searchsorted(upto, total * (1 - upper) + 1e-9, side="right") - 1
        if column.outer[1]:
            upper = 1 - upto[places[places >= 0]] / total
        levels = np.concatenate([levels, lower, 1 - upper])
    cuts = np.searchsorted(upto / total, np.sort(levels) - 1e-12)
    cuts = np.unique(cuts[cuts < values.size - 1])
    for _ in range(CUT_ROUNDS if refine else 0):
        more = _departures(column, cuts, integer)
        if more.size == 0:
            break
        cuts = np.union1d(cuts, more)
    return cuts


def _outer_shares(total: float, whole: float, n_bins: int) -> FloatArray:
    """Shares of the rows beyond the outer edges of one side.

    Args:
        total: rows of the points.
        whole: rows of the largest outermost group, which no edge is to go through.
        n_bins: bins of equal rows.
    """
    least = max(LEAST_ROWS, whole) / total
    shares = np.maximum(OUTER_SHARES, least)
    return np.asarray(shares[shares < max(0.75 / n_bins, 1.5 * least)])


def _with_few_squares(points: Points, cuts: IntArray, most: int) -> IntArray:
    """The cuts and at most so many more, where the rows of a bin spread widely about their mean.

    Bins of equal rows are long in the tails, where what is predicted from them is coarse. A bin
    with more than SQUARES of all squares is cut where most of its own go.
    """
    # Means are taken out first: the squares of numbers far from zero would cancel.
    values = points.values - np.average(points.values, weights=points.rows)
    upto = np.cumsum(np.stack([points.rows, points.rows * values]), axis=1)
    rows, sums = np.pad(upto, ((0, 0), (1, 0)))  # (m + 1,) of the points before each
    least = SQUARES * float(points.rows @ values**2)
    ends = [0, *(cuts + 1).tolist(), values.size]
    bins = list(itertools.pairwise(ends))
    found: list[int] = []
    while bins and len(found) < most:
        squares = [_squares(points.rows[i:j], values[i:j]) for i, j in bins]
        at = int(np.argmax(squares))
        if squares[at] <= least:
            break
        i, j = bins.pop(at)
        left, left_sum = rows[i + 1 : j] - rows[i], sums[i + 1 : j] - sums[i]
        right, right_sum = rows[j] - rows[i + 1 : j], sums[j] - sums[i + 1 : j]
        gone = left_sum**2 / left + right_sum**2 / right
        gone[np.minimum(left, right) < LEAST_ROWS] = -np.inf
        if gone.size and np.isfinite(gone.max()):
            middle = i + 1 + int(gone.argmax())
            bins += [(i, middle), (middle, j)]
            found.append(middle - 1)
    return np.union1d(cuts, np.array(found, dtype=np.int64))


def _squares(rows: FloatArray, values: FloatArray) -> float:
    """Sum of the squared distances of rows from their mean."""
    return float(rows @ (values - np.average(values, weights=rows)) ** 2)


def _departures(column: Column, cuts: IntArray, integer: bool) -> IntArray:
    """Places where a bin departs most from its rows, for bins that depart too much."""
    values, rows = column.points.values, column.points.rows
    edges = np.concatenate([column.ends[:1], _at_cuts(column, cuts, integer), column.ends[1:]])
    low, high = edges[:-1], edges[1:] + (np.arange(1, edges.size) == edges.size - 1) * integer
    starts = np.concatenate([[0], cuts + 1])
    of_bin = np.repeat(np.arange(starts.size), np.diff([*starts, values.size]))  # (m,)
    in_bin = np.add.reduceat(rows, starts)
    wide = high - low > 0
    safe_high = np.where(wide, high, low + 1)
    place = shapes.places_in(values + 0.5 * integer, low[of_bin], safe_high[of_bin])
    mean = np.add.reduceat(rows * place, starts) / in_bin
    tilt = shapes.tilt_of_mean(np.clip(mean, 0.0, 1.0))
    # Distribution functions at the middle between a point and the next of its bin.
    inner = np.flatnonzero(of_bin[:-1] == of_bin[1:])
    at = _at_cuts(column, inner, integer)
    mine = of_bin[inner]
    v = np.clip(shapes.places_in(at, low[mine], safe_high[mine]), 0.0, 1.0)
    whole = shapes.log_integral(np.zeros_like(tilt), np.ones_like(tilt), tilt)
    model = np.exp(shapes.log_integral(np.zeros_like(v), v, tilt[mine]) - whole[mine])
    upto = np.cumsum(rows)
    before = upto[starts] - rows[starts]
    below = upto[inner] - before[mine]  # rows of the bin up to the point
    off = np.abs(below - model * in_bin[mine])
    off[(below < LEAST_ROWS) | (in_bin[mine] - below < LEAST_ROWS)] = 0.0
    least = np.maximum(DEPARTURE * column.n_rows, CLEARLY * np.sqrt(in_bin[mine]))
    found = []
    for bin_ in np.unique(mine[off > least]):
        of_this = np.flatnonzero(mine == bin_)
        found.append(int(inner[of_this[off[of_this].argmax()]]))
    return np.array(found, dtype=np.int64)


def _tilted(grid: Grid, points: Points) -> Grid:
    """The grid with bins tilted to the means of their rows.

    A mean that is off the middle by no more than chance is left in the middle; the clearer it is,
    the closer it is kept. Long bins, on which the mean of the column hangs, keep theirs.
    """
    edges = grid.edges
    if points.values.size == 0 or edges.size < 2:
        return grid
    inside = (points.values >= edges[0]) & (points.values <= edges[-1])
    bins = np.clip(np.searchsorted(edges, points.values, side="right") - 1, 0, edges.size - 2)
    rows = np.bincount(bins[inside], points.rows[inside], minlength=edges.size - 1)
    ends = edges[1:] + grid.integer * (np.arange(1, edges.size) == edges.size - 1)
    values = points.values[inside] + 0.5 * grid.integer
    place = shapes.places_in(values, edges[:-1][bins[inside]], ends[bins[inside]])
    total = np.bincount(bins[inside], points.rows[inside] * place, minlength=edges.size - 1)
    mean = np.divide(total, rows, out=np.full(rows.size, 0.5), where=rows > 0)
    filled = grid.filled_bins
    middle = np.full(rows.size, 0.5)
    middle[filled] = grid.pieces.mean_places()  # of even bins, not .5 where integers lack atoms
    clear = 12 * rows * (mean - middle) ** 2  # squared standard deviations of an even bin's mean
    kept = np.maximum(1 - 1 / np.maximum(clear, 1.0), 0.0)
    length = np.diff(edges)
    kept[length > LONG * np.median(length)] = 1.0
    tilts = np.zeros(rows.size)
    tilts[filled] = grid.pieces.tilts_for((middle + kept * (mean - middle))[filled])
    return replace(grid, tilts=tilts)


def _padded(
    edges: FloatArray, tails: tuple[float, float]
) -> tuple[FloatArray, tuple[float, float]]:
    """Edges around atoms all but equal (sums of shares, say), apart enough for a density.

    Between neighbouring floats there is no value at all, and hardly any between near ones.
    """
    low, high = float(edges[0]), float(edges[-1])
    size = max(abs(low), abs(high))
    if low == high or high - low > FEW_FLOATS * np.spacing(size):
        return edges, tails
    pad = PAD * size
    return np.array([low - pad, high + pad]), (max(tails[0], pad), max(tails[1], pad))


def _ends(domain: tuple[float, float], integer: bool) -> tuple[float, float]:
    """Lowest and highest value of a domain; on the integers, those inside it."""
    low, high = domain
    return (float(np.ceil(low)), float(np.floor(high))) if integer else (low, high)


def unseen_grid(integer: bool, domain: tuple[float, float] | None, missing: bool) -> Grid:
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

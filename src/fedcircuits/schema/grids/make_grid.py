"""Making a grid from the values of a column: atoms where values repeat, bins and tails elsewhere.

Bins have about equal rows at first. Where the rows of a bin depart from the truncated exponential
of their mean, the bin is cut in two at the place of the largest departure, so that the distribution
function of the grid stays close to that of the rows everywhere. Outer bins are smaller, and an
outer bin whose rows spread more widely than any exponential is left open: a Lomax tail with the
mean and the spread of those rows.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

import numpy as np

from fedcircuits.arrays import FloatArray, IntArray
from fedcircuits.errors import SchemaError
from fedcircuits.schema.grids import shapes
from fedcircuits.schema.grids.grid import Grid
from fedcircuits.schema.grids.states import TAIL_SHAPE

MAX_BINS = 48
ROWS_PER_BIN = 20
REFINE_ROWS = 300  # with fewer rows, bins of equal rows are all that can be seen
# Levels at which the distribution function is asked for most: the nearest edge is put there.
ASKED_LEVELS = (0.05, 0.5, 0.95)
LONG = 3.0  # times the median bin: such a bin keeps its mean whatever the chance
# Shares of the rows beyond the outer edges and beyond the next ones.
OUTER_SHARES = (0.0025, 0.01)
LEAST_ROWS = 5  # in a bin that is not one of equal rows
# A bin is cut where it departs from its rows by this share of all rows, and by this many standard
# deviations of a share of its own rows.
DEPARTURE, CLEARLY = 0.002, 0.8
CUT_ROUNDS = 4
# Share of all squares about the mean that the rows of a bin may have about theirs, in a grid whose
# states are predicted.
SQUARES = 5e-4
# A tail is open where the distances of its rows have a coefficient of variation above this (that of
# an exponential is 1); shapes stay between these, from just enough for a variance to nearly
# exponential.
OPEN_VARIATION = 1.05
SHAPES = (2.02, 20.0)
# A column of atoms all but equal gets a bin around them of this share of their size.
PAD = 0.05


@dataclass(frozen=True)
class Points:
    """The values of a column that are no atoms, in order, or means of groups of neighbours.

    Attributes:
        values: (m,) increasing.
        rows: (m,) rows behind each.
        spreads: (m,) standard deviation of the rows behind each.
    """

    values: FloatArray
    rows: FloatArray
    spreads: FloatArray


@dataclass(frozen=True)
class Column:
    """What is known of a column.

    Attributes:
        atoms: (k,) values with a point mass.
        atom_rows: (k,) rows behind each.
        points: the others.
        ends: lowest and highest value, or those of the groups' means.
        known: whether `ends` are the range of the rows, lower and upper.
        scales: scale of the tails beyond the range.
        n_rows: rows with a value.
        outer: least rows of an open tail, lower and upper: groups of rows stay whole there.
    """

    atoms: FloatArray
    atom_rows: FloatArray
    points: Points
    ends: tuple[float, float]
    known: tuple[bool, bool]
    scales: tuple[float, float]
    n_rows: float
    outer: tuple[float, float] = (0.0, 0.0)


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
            edges, tails, tail_shapes = _with_open_tails(column, edges, integer, sides)
    elif domain is None and not integer:
        edges, tails = _padded(edges, tails)
    if integer:
        edges = np.round(edges)
    if domain is not None:
        low, high = _ends(domain, integer)
        edges = np.concatenate([edges, [v for v in (low, high) if np.isfinite(v)]])
        tails = (0.0 if np.isfinite(low) else tails[0], 0.0 if np.isfinite(high) else tails[1])
    edges = _apart(np.unique(edges))
    if edges.size == 1 and (integer or tails == (0.0, 0.0)):
        atoms = edges  # one value, and tails that own none of it: it is all there is
    grid = Grid(atoms, edges, tails, integer, missing, None, tail_shapes)
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
        outer = [max(share * total, LEAST_ROWS) / total for share in OUTER_SHARES]
        outer = [share for share in outer if LEAST_ROWS / total <= share < 0.75 / n_bins]
        levels = np.concatenate([levels, outer, [1 - share for share in outer]])
    cuts = np.searchsorted(upto / total, np.sort(levels) - 1e-12)
    cuts = np.unique(cuts[cuts < values.size - 1])
    for _ in range(CUT_ROUNDS if refine else 0):
        more = _departures(column, cuts, integer)
        if more.size == 0:
            break
        cuts = np.union1d(cuts, more)
    return cuts


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


def _with_open_tails(
    column: Column, edges: FloatArray, integer: bool, sides: list[int]
) -> tuple[FloatArray, tuple[float, float], tuple[float, float]]:
    """The edges without an outer one where an open tail follows the outer rows better.

    Args:
        column: what is known of it.
        edges: of the bins.
        integer: whether the variable lives on the integers.
        sides: that may be open, 0 the lower and 1 the upper.
    """
    points, atoms = column.points, column.atoms
    scales, tail_shapes = list(column.scales), [TAIL_SHAPE, TAIL_SHAPE]
    outside = [False, False]
    for side in sides:
        if edges.size - outside[0] < 3:
            continue  # at least one bin stays
        while True:
            edge = edges[-2] if side else edges[1]
            if integer and side:
                edge -= 1  # the last bin owns its upper edge
            beyond = points.values > edge if side else points.values < edge
            rows = points.rows[beyond]
            if rows.sum() >= column.outer[side] - 1e-9 or edges.size - outside[0] <= 3:
                break
            edges = np.delete(edges, -2 if side else 1)
        if atoms.size and (atoms[-1] > edge if side else atoms[0] < edge):
            continue  # the edges enclose the atoms
        if rows.sum() < LEAST_ROWS:
            continue
        distance = np.abs(points.values[beyond] - edge) - 0.5 * integer
        mean = float((rows * distance).sum() / rows.sum())
        if not mean > 0:
            continue
        squares = (distance / mean) ** 2 + (points.spreads[beyond] / mean) ** 2
        variation = float((rows * squares).sum() / rows.sum()) - 1  # squared coefficient
        shape = float(np.clip(2 * variation / max(variation - 1, 1e-9), *SHAPES))
        if variation <= 1:
            shape = SHAPES[1]
        if column.known[side] and _fits_a_bin(
            abs(column.ends[side] - edge), mean, variation, shape
        ):
            # Beyond the range the density goes on falling as it does in the outer bin.
            scales[side] = mean * (TAIL_SHAPE - 1)
            continue
        tail_shapes[side], scales[side] = shape, mean * (shape - 1)
        outside[side] = True
    inner = slice(int(outside[0]), edges.size - int(outside[1]))
    edges = edges[inner].copy()
    if integer and outside[1]:
        edges[-1] -= 1
    return edges, (scales[0], scales[1]), (tail_shapes[0], tail_shapes[1])


def _fits_a_bin(length: float, mean: float, variation: float, shape: float) -> bool:
    """Whether a bin of this length follows distances better than an open tail of this shape does.

    Args:
        length: of the bin.
        mean: of the distances from its inner edge.
        variation: squared coefficient of variation of the distances.
        shape: of the tail.
    """
    if variation > OPEN_VARIATION**2:
        return False
    tilt = shapes.tilt_of_mean(np.array(min(mean / length, 1.0)))
    of_bin = float(shapes.place_variance(tilt)) / float(shapes.mean_place(tilt)) ** 2
    of_tail = shape / (shape - 2)
    off = abs(of_bin - variation)
    return off <= 0.2 * variation or off <= abs(of_tail - variation)


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
    if low == high or high - low > 1e-6 * size:
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

"""The ends of a grid: outer bins that stay, open tails in their place, and the floor.

An outer bin whose rows spread more widely than any exponential is left open: a Lomax tail with the
mean and the spread of those rows. No such tail spreads less than an exponential: where that would
count in the spread of the column, and the range of the rows is not known, the bin ends so far out
that it has their mean and their spread. A column with a floor has a bin down to it, or a tail that
ends there.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

import numpy as np

from fedcircuits.arrays import FloatArray
from fedcircuits.schema.grids import shapes
from fedcircuits.schema.grids.column import Column
from fedcircuits.schema.grids.states import TAIL_SHAPE
from fedcircuits.schema.grids.tails import power_means

# A tail is open where the distances of its rows have a coefficient of variation above this (that of
# an exponential is 1); shapes stay between these, from just enough for a variance to nearly
# exponential.
OPEN_VARIATION = 1.05
SHAPES = (2.02, 20.0)
# A tail that spreads its rows more than they do adds at most this share to the squares of a column.
MOST_ADDED = 0.05
LEAST_ROWS = 5  # in a bin that is not one of equal rows
NEAR = 0.25  # of the outer bin: a bin whose range is known goes on to a floor this near
# Mean place in a bin: below, a truncated exponential is no bin's any more; above, no tail's.
LEAST_PLACE, MOST_PLACE = 0.006, 0.45


@dataclass(frozen=True)
class Ends:
    """The outer part of a grid.

    Attributes:
        edges: (m,) of the bins.
        scales: of the tails, lower and upper.
        shapes: of the tails.
    """

    edges: FloatArray
    scales: tuple[float, float]
    shapes: tuple[float, float]


@dataclass(frozen=True)
class _Outer:
    """The rows beyond the inner edge of an outer bin.

    Attributes:
        edge: the inner edge.
        side: 0 for the lower, 1 for the upper bin.
        mean: of the distances from it.
        variation: squared coefficient of variation of the distances.
        rows: how many they are.
    """

    edge: float
    side: int
    mean: float
    variation: float
    rows: float

    @property
    def shape(self) -> float:
        """Of the Lomax tail with this spread, as far as there is one."""
        if self.variation <= 1:
            return SHAPES[1]
        return float(np.clip(2 * self.variation / max(self.variation - 1, 1e-9), *SHAPES))


def ends_of(column: Column, edges: FloatArray, integer: bool, sides: list[int]) -> Ends:
    """The edges without an outer one where an open tail follows the outer rows better.

    Args:
        column: what is known of it.
        edges: of the bins.
        integer: whether the variable lives on the integers.
        sides: that may be open, 0 the lower and 1 the upper.
    """
    floor = column.floor
    scales, tail_shapes = list(column.scales), [TAIL_SHAPE, TAIL_SHAPE]
    edges = edges.copy()
    outside = [False, False]
    for side in (0, 1):
        if side not in sides and not (side == 0 and floor > -inf):
            continue
        edges, outer = _outer_rows(column, edges, integer, side, edges.size - outside[0])
        if outer is None:
            continue
        ended = floor if side == 0 else -inf
        length = abs(column.ends[side] - outer.edge)
        near = not column.known[side] or outer.edge - ended <= (1 + NEAR) * length
        if ended > -inf and near and _fits_a_bin(outer.edge - ended, outer):
            edges[0], scales[0] = ended, outer.mean * (TAIL_SHAPE - 1)
            continue
        if side not in sides:
            continue
        if column.known[side] and _fits_a_bin(length, outer):
            # Beyond the range the density goes on falling as it does in the outer bin.
            scales[side] = outer.mean * (TAIL_SHAPE - 1)
            continue
        if not column.known[side] and _added(outer, column) > MOST_ADDED:
            length = _length_of(outer, length)
            end = outer.edge + (length if side else -length)
            edges[-1 if side else 0] = max(end, ended)
            # The less the rows spread, the nearer to the end lies what is beyond it.
            scales[side] = outer.mean * outer.variation * (TAIL_SHAPE - 1)
            continue
        tail_shapes[side], scales[side] = outer.shape, outer.mean * (outer.shape - 1)
        if ended > -inf:
            scales[0] = _scale_up_to(outer.edge - ended, outer)
        outside[side] = True
    inner = slice(int(outside[0]), edges.size - int(outside[1]))
    edges = edges[inner].copy()
    if integer:
        edges = np.round(edges)
        edges[-1] -= outside[1]
    return Ends(edges, (scales[0], scales[1]), (tail_shapes[0], tail_shapes[1]))


def _outer_rows(
    column: Column, edges: FloatArray, integer: bool, side: int, n_edges: int
) -> tuple[FloatArray, _Outer | None]:
    """The edges without those that go through an outermost group, and the rows beyond the next one.

    None where there are too few edges or rows, or where atoms lie there, which edges enclose. Where
    the range of the rows is not known, the edge moves out to the outermost atom instead.
    """
    points, atoms = column.points, column.atoms
    if n_edges < 3:
        return edges, None  # at least one bin stays
    while True:
        edge = float(edges[-2] if side else edges[1])
        if integer and side:
            edge -= 1  # the last bin owns its upper edge
        beyond = points.values > edge if side else points.values < edge
        rows = points.rows[beyond]
        if rows.sum() >= column.outer[side] - 1e-9 or n_edges <= 3:
            break
        edges, n_edges = np.delete(edges, -2 if side else 1), n_edges - 1
    if atoms.size and (atoms[-1] > edge if side else atoms[0] < edge):
        if column.known[side]:
            return edges, None
        edge = float(atoms[-1] if side else atoms[0])  # the bin ends at the outermost atom
        edges = edges.copy()
        edges[-2 if side else 1] = edge + integer * side
        beyond = points.values > edge if side else points.values < edge
        rows = points.rows[beyond]
    if rows.sum() < LEAST_ROWS:
        return edges, None
    distance = np.abs(points.values[beyond] - edge) - 0.5 * integer
    mean = float((rows * distance).sum() / rows.sum())
    if not mean > 0:
        return edges, None
    squares = (distance / mean) ** 2 + (points.spreads[beyond] / mean) ** 2
    variation = float((rows * squares).sum() / rows.sum()) - 1
    return edges, _Outer(edge, side, mean, variation, float(rows.sum()))


def _fits_a_bin(length: float, outer: _Outer) -> bool:
    """Whether a bin of this length follows the distances better than an open tail does."""
    place = outer.mean / length
    if place > MOST_PLACE:
        return True
    if outer.variation > OPEN_VARIATION**2 or place < LEAST_PLACE:
        return False
    tilt = shapes.tilt_of_mean(np.array(place))
    of_bin = float(shapes.place_variance(tilt)) / float(shapes.mean_place(tilt)) ** 2
    of_tail = outer.shape / (outer.shape - 2)
    off = abs(of_bin - outer.variation)
    return off <= 0.2 * outer.variation or off <= abs(of_tail - outer.variation)


def _added(outer: _Outer, column: Column) -> float:
    """What a Lomax tail adds to the squares of a column about its mean, as a share of these."""
    of_tail = outer.shape / (outer.shape - 2)
    size, _, spread = column.moments
    if outer.variation >= 1 or not spread > 0:
        return 0.0
    each = (of_tail - outer.variation) * (outer.mean / size / spread) ** 2
    return outer.rows / column.n_rows * each


def _length_of(outer: _Outer, reach: float) -> float:
    """The length of a bin with the mean and the spread of the distances.

    Args:
        outer: rows beyond the inner edge, of less spread than an exponential.
        reach: distance of the outermost point, beyond which there may be rows, but not far.
    """
    low, high = LEAST_PLACE, 1.0
    for _ in range(40):  # bisection: the variation falls with the mean place
        place = 0.5 * (low + high)
        tilt = shapes.tilt_of_mean(np.array(place))
        wide = float(shapes.place_variance(tilt)) > outer.variation * place**2
        low, high = (place, high) if wide else (low, place)
    return max(outer.mean / low, reach) * (1 + 1 / outer.rows)


def _scale_up_to(reach: float, outer: _Outer) -> float:
    """The scale of a Lomax tail that ends at a distance and keeps the mean of the distances."""
    low, high = np.log(outer.mean) - 5.0, np.log(reach) + 10.0
    for _ in range(60):  # bisection: the mean grows with the scale
        middle = 0.5 * (low + high)
        mean = power_means(reach, float(np.exp(middle)), outer.shape, 1, False)[1]
        low, high = (middle, high) if mean < outer.mean else (low, middle)
    return float(np.exp(low))

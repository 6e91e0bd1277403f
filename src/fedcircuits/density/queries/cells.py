"""Cells that hold all the values of a variable, and the search for a quantile."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from math import inf

import numpy as np

from fedcircuits.arrays import FloatArray
from fedcircuits.schema import Grid, Variable
from fedcircuits.schema.events import CodeSet, Interval, NumberSet, Region

N_CELLS = 64  # of equal probability, of a number without a grid
MOST_COUNTS = 1024  # whole numbers that get a cell each
FAR = 1e300  # no quantile is searched beyond
_POINTS = 63  # at which a distribution function is evaluated at once


def cells_of(variable: Variable, quantiles: Callable[[list[float]], list[float]]) -> list[Region]:
    """Disjoint sets that hold all the values of a variable.

    Codes one by one; the states of a grid; without a grid whole numbers one by one as far as they
    carry all but 2e-12 of the mass, and otherwise cells of equal probability.

    Args:
        variable: the variable.
        quantiles: of its distribution.
    """
    if variable.is_coded:
        codes = np.eye(variable.n_codes, dtype=bool)
        return [CodeSet(tuple(row.tolist())) for row in codes]
    if variable.grid is not None:
        return grid_cells(variable.grid)
    integer = variable.kind == "count"
    ends = quantiles([1e-12, 1 - 1e-12]) if integer else []
    if integer and ends[1] - ends[0] < MOST_COUNTS:
        cuts = np.arange(ends[0], ends[1] + 1)
    else:
        cuts = np.unique(quantiles(np.linspace(0, 1, N_CELLS + 1)[1:-1].tolist()))
    between = [Interval(a, b, False, True) for a, b in pairwise([-inf, *cuts.tolist(), inf])]
    last = between.pop()
    every = [*between, Interval(last.low, inf, False, False)]
    missing: list[Region] = [NumberSet((), True, integer)] if variable.missing_state else []
    return [*(NumberSet.of([cell], integer=integer) for cell in every), *missing]


def grid_cells(grid: Grid) -> list[Region]:
    """The states of a grid as sets of values, in the order of the states."""
    atoms = [Interval(float(a), float(a)) for a in grid.atoms]
    ends = [-inf, *grid.edges.tolist(), inf]
    bins = [Interval(low, high, low > -inf, False) for low, high in pairwise(ends)]
    if grid.edges.size > 1:  # the last bin owns its upper edge
        bins[-2] = Interval(bins[-2].low, bins[-2].high, True, True)
        bins[-1] = Interval(bins[-1].low, inf, False, False)
    without = NumberSet.of(atoms, integer=grid.integer).complement()
    points = [NumberSet.of([a], integer=grid.integer) for a in atoms]
    spans = [NumberSet.of([b], integer=grid.integer).meet(without) for b in bins]
    if grid.at_floor:  # what lies below belongs to the lowest state
        if grid.atoms.size and grid.atom_states[0] == 0:
            points[0] = NumberSet.of([bins[0], atoms[0]], integer=grid.integer)
        else:
            at = next(at for at, span in enumerate(spans) if at and not span.is_empty)
            held = [bins[0], *spans[at].intervals]
            spans[at] = NumberSet.of(held, integer=grid.integer)
    if grid.tails[0] == 0 or grid.at_floor:
        spans = spans[1:]
    if grid.tails[1] == 0:
        spans = spans[:-1]
    last = [NumberSet((), True, grid.integer)] if grid.missing else []
    return [cell for cell in (*points, *spans, *last) if not cell.is_empty]


def search_quantile(cdf: Callable[[FloatArray], FloatArray], p: float) -> float:
    """The smallest double x with cdf(x) >= p.

    Doubles are searched by their rank, many points at once, so that a handful of evaluations finds
    the last digit at any scale.
    """
    low, high = _rank(-FAR), _rank(FAR)
    if cdf(np.array([_double(high)]))[0] < p:
        return inf
    while high - low > 1:
        step = max((high - low) // (_POINTS + 1), 1)
        ranks = [low + step * (i + 1) for i in range(_POINTS) if low + step * (i + 1) < high]
        enough = np.flatnonzero(cdf(np.array([_double(r) for r in ranks])) >= p)
        if enough.size:
            first = int(enough[0])
            low, high = (ranks[first - 1] if first else low), ranks[first]
        else:
            low = ranks[-1]
    return _double(high)


def _rank(x: float) -> int:
    """The place of a double among all doubles."""
    bits = int(np.float64(x).view(np.int64))
    return bits if bits >= 0 else -(bits & 0x7FFFFFFFFFFFFFFF)


def _double(rank: int) -> float:
    value = float(np.int64(abs(rank)).view(np.float64))
    return value if rank >= 0 else -value

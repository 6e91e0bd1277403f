"""Quantiles of many rows at once, of a number that is distributed over the states of a grid."""

from __future__ import annotations

from math import inf

import numpy as np

from fedcircuits.arrays import FloatArray
from fedcircuits.schema.grids.grid import Grid


def quantiles_on(grid: Grid, masses: FloatArray, shares: FloatArray) -> FloatArray | None:
    """(n, k) the smallest values with at least a share of the mass below or at them.

    Bins are cut at the atoms inside them, which leaves pieces and points in one order along the
    axis. None where values lie apart, since a piece has steps of its own then.

    Args:
        grid: of the number.
        masses: (n, S) of the states; a state for "missing" is left out.
        shares: (k,) between 0 and 1.
    """
    if grid.is_spaced:
        return None
    ends = np.unique(np.concatenate([[-inf, inf], grid.edges, grid.atoms]))
    lower, upper = ends[:-1], ends[1:]  # open intervals between the ends
    inside = grid.mass_between(np.nextafter(lower, inf), upper)  # (p, S) shares of the states
    inside[:, grid.atom_states] = 0.0
    at_atom = np.zeros((ends.size, inside.shape[1]))
    at_atom[np.searchsorted(ends, grid.atoms), grid.atom_states] = 1.0
    # Points and pieces take turns: ends[0], the piece after it, ends[1], ...
    parts = np.zeros((2 * ends.size - 1, inside.shape[1]))
    parts[::2], parts[1::2] = at_atom, inside
    state = parts.argmax(axis=1)
    weight = masses @ parts.T  # (n, parts)
    upto = np.cumsum(weight, axis=1)
    answer = np.empty((len(masses), shares.size))
    every = np.arange(len(masses))
    for column, share in enumerate(shares):
        goal = share * upto[:, -1]
        part = np.minimum((upto < goal[:, None]).sum(axis=1), len(parts) - 1)
        point = part % 2 == 0
        answer[point, column] = ends[part[point] // 2]
        rows = every[~point]
        piece = part[rows] // 2
        mine = weight[rows, part[rows]]
        u = np.clip((goal[rows] - (upto[rows, part[rows]] - mine)) / mine, 0.0, 1.0)
        low, high = lower[piece], upper[piece]
        answer[rows, column] = grid.value_at(state[part[rows]], low, high, u)
    return answer

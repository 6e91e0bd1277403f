"""States of numbers that few rows of a client have: told as a neighbour, as categories are hidden.

The grid that the server sends says which values are one state. A fine one would make a histogram of
single rows of every model; of the client's own rows each state therefore has enough, or none.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fedcircuits.arrays import FloatArray, IntArray
from fedcircuits.density.tilt import n_states_of, state_values, states_of
from fedcircuits.schema import Table


def without_rare_states(table: Table, least: int) -> Table:
    """The table with values of rare states in a state near by that has rows enough.

    Args:
        table: on the agreed grids.
        least: rows of a state.
    """
    values = table.values
    for at, variable in enumerate(table.schema):
        if variable.is_coded or variable.grid is None:
            continue
        seen = np.flatnonzero(table.observed[:, at])
        states = states_of(variable, values[seen, at])
        counts = np.bincount(states, minlength=n_states_of(variable))
        if variable.missing_state:  # no place on the line
            counts[-1] = 0
        sums = np.bincount(states, np.where(counts[states] > 0, values[seen, at], 0.0), counts.size)
        told = _merged(counts, sums / np.maximum(counts, 1), least)
        moved = told[states] != states
        if not moved.any():
            continue
        values = values.copy() if values is table.values else values
        values[seen[moved], at] = state_values(variable)[told[states[moved]]]
    return table if values is table.values else replace(table, values=values)


def _merged(counts: IntArray, means: FloatArray, least: int) -> IntArray:
    """(S,) the state that each is told as: the largest of neighbours that have rows enough."""
    told = np.arange(counts.size)
    groups: list[list[int]] = []
    total = least
    filled = np.flatnonzero(counts)
    for state in filled[np.argsort(means[filled], kind="stable")]:
        if total >= least:
            groups.append([])
            total = 0
        groups[-1].append(int(state))
        total += int(counts[state])
    if total < least and len(groups) > 1:
        last = groups.pop()
        groups[-1] += last
    for group in groups:
        told[group] = max(group, key=lambda state: counts[state])
    return told

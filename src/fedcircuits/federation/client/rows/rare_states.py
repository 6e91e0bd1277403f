"""What few rows of a client have: rare states of numbers, columns that are nearly empty.

The grid that the server sends maps values to states. A fine one would make a histogram of
single rows of every model; of the client's own rows each state therefore has enough, or none. Rare
categories are hidden in the same way. A column with few values is hidden: its mean would be one.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fedcircuits.arrays import FloatArray, IntArray
from fedcircuits.density.tilt import n_states_of, state_values, states_of
from fedcircuits.schema import Table


def without_few_values(table: Table, least: int) -> Table:
    """Return the table without the cells of columns that fewer rows have a value of.

    Args:
        table: rows.
        least: rows that must have a value of a column.
    """
    values, observed = table.values, table.observed
    for at, variable in enumerate(table.schema):
        seen = observed[:, at].copy()
        if variable.missing_state:
            seen &= values[:, at] != variable.missing_code
        if not 0 < seen.sum() < least:
            continue
        if variable.missing_state:
            values = values.copy() if values is table.values else values
            values[seen, at] = variable.missing_code
        else:
            observed = observed.copy() if observed is table.observed else observed
            observed[seen, at] = False
    if values is table.values and observed is table.observed:
        return table
    return replace(table, values=values, observed=observed)


def without_rare_states(table: Table, least: int) -> Table:
    """Return the table with the values of rare states moved to a neighbouring state.

    Columns with fewer values than a state must have are hidden.

    Args:
        table: on the agreed grids.
        least: rows that a state must have.
    """
    table = without_few_values(table, least)
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
        target = _merged(counts, sums / np.maximum(counts, 1), least)
        # Of states that were merged every row gets one value: the mean would tell those not moved.
        filled = np.flatnonzero(counts)
        moved = np.bincount(target[filled], minlength=counts.size)[target[states]] > 1
        if not moved.any():
            continue
        values = values.copy() if values is table.values else values
        values[seen[moved], at] = state_values(variable)[target[states[moved]]]
    return table if values is table.values else replace(table, values=values)


def _merged(counts: IntArray, means: FloatArray, least: int) -> IntArray:
    """(S,) the state that each is moved to: the largest of neighbours with rows enough together."""
    target = np.arange(counts.size)
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
        target[group] = max(group, key=lambda state: counts[state])
    return target

"""What a head needs to know of rows and states: distinct rows, moments of a state."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fedcircuits.arrays import FloatArray, IntArray
from fedcircuits.density import powers
from fedcircuits.errors import StructureError
from fedcircuits.schema import Table, Variable


def n_states(variable: Variable) -> int:
    """Number of states of a variable with codes or a grid."""
    if variable.is_coded:
        return variable.n_codes
    if variable.grid is None:
        raise StructureError([f"variable {variable.name!r} has no grid"])
    return variable.grid.n_states


def distinct_rows(table: Table) -> tuple[Table, IntArray]:
    """The different rows, and (n,) which of them each row is."""
    n = len(table)
    if n < 2:
        return table, np.arange(n)
    values = np.where(table.observed, table.values, 0.0) + 0.0  # no negative zero
    keys = np.concatenate([values, table.observed], axis=1)
    as_bytes = np.ascontiguousarray(keys).view(np.dtype((np.void, keys.shape[1] * 8))).reshape(-1)
    _, first, back = np.unique(as_bytes, return_index=True, return_inverse=True)
    return table.rows(first), back.reshape(-1)


def state_powers(variable: Variable, order: int) -> FloatArray:
    """(card,) E[x**order | state], 0 for "observed to be missing"; zeros to a power for strings."""
    if variable.is_coded:
        return powers(variable, np.arange(variable.n_codes, dtype=float), order)
    assert variable.grid is not None
    return variable.grid.moments(order)


def state_about(variable: Variable, centre: float, order: int) -> FloatArray:
    """(card,) E[(x - centre)**order | state] for orders up to 2, 0 where there is no value."""
    there, mean = state_powers(variable, 0), state_powers(variable, 1)
    if order == 0:
        return there
    if order == 1:
        return np.where(there > 0, mean - centre, 0.0)
    spread = np.zeros(mean.size) if variable.grid is None else variable.grid.variances()
    with np.errstate(over="ignore"):
        return np.where(there > 0, (mean - centre) ** 2 + spread, 0.0)


def completed_rows(table: Table, values: FloatArray) -> Table:
    """The rows with all cells known."""
    return replace(table, values=values, observed=np.ones(values.shape, dtype=bool))

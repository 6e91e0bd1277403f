"""E[x_j**order | evidence of the row] of all variables at once: one pass up, one down."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fedcircuits.circuits.passes import chunked
from fedcircuits.circuits.queries.flows import leaf_flows
from fedcircuits.density import powers
from fedcircuits.schema import Table
from fedcircuits.schema.grid import FloatArray

if TYPE_CHECKING:
    from fedcircuits.circuits.circuit import Circuit


def moments(circuit: Circuit, table: Table, order: int) -> FloatArray:
    """(n, D) conditional raw moments; of an observed cell, its own power."""
    answer = np.empty((len(table), len(circuit.schema)))
    of_leaf = leaf_moments(circuit, order)
    for part, rows in chunked(circuit, table):
        flows = leaf_flows(circuit, rows)  # (n_leaves, n)
        expected = np.zeros((len(rows), len(circuit.schema)))
        total = np.zeros_like(expected)
        for group in circuit.groups:
            expected[:, group.column] += _mean_over(of_leaf[group.nodes], flows[group.nodes])
            total[:, group.column] += flows[group.nodes].sum(axis=0)
        # One, but for rounding: far from all data log p has no digits left for a weight.
        expected = np.divide(expected, total, out=expected, where=total > 0)
        for at, variable in enumerate(circuit.schema):
            seen = rows.observed[:, at]
            own = powers(variable, rows.values[seen, at], order)
            expected[seen, at] = own
        answer[part] = expected
    return answer


def _mean_over(of_leaf: FloatArray, flows: FloatArray) -> FloatArray:
    """(n,) moments (L,) weighted with flows (L, n); an infinite one counts only where it flows."""
    finite = np.isfinite(of_leaf)
    answer = np.asarray(np.where(finite, of_leaf, 0.0) @ flows)
    for leaf in np.flatnonzero(~finite):
        with np.errstate(invalid="ignore"):  # infinite to both sides: there is no such moment
            answer = np.where(flows[leaf] > 0, answer + of_leaf[leaf], answer)
    return answer


def leaf_moments(circuit: Circuit, order: int) -> FloatArray:
    """(n_leaves,) moment of every leaf."""
    return np.concatenate(
        [
            g.family.moment(g.params, g.grid, circuit.schema.variables[g.column], order)
            for g in circuit.groups
        ]
    )

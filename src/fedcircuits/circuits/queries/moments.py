"""E[x_j**order | evidence of the row] of all variables at once: one pass up, one down."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fedcircuits.circuits.passes import chunked
from fedcircuits.circuits.queries.flows import leaf_flows
from fedcircuits.density import numbers_of
from fedcircuits.schema import Table
from fedcircuits.schema.grid import FloatArray

if TYPE_CHECKING:
    from fedcircuits.circuits.circuit import Circuit


def moments(circuit: Circuit, table: Table, order: int) -> FloatArray:
    """(n, D) conditional raw moments; of an observed cell, its own power.

    Where "missing" is a state, the moment is that of the value given that there is one.
    """
    answer = np.empty((len(table), len(circuit.schema)))
    of_leaf, present = leaf_moments(circuit, order)
    for part, rows in chunked(circuit, table):
        flows = leaf_flows(circuit, rows)  # (n_leaves, n)
        total = np.zeros((len(rows), len(circuit.schema)))
        there = np.zeros_like(total)
        for group in circuit.groups:
            total[:, group.column] += _mean_over(of_leaf[group.nodes], flows[group.nodes])
            there[:, group.column] += present[group.nodes] @ flows[group.nodes]
        with np.errstate(invalid="ignore", divide="ignore"):
            expected = total / there
        for at, variable in enumerate(circuit.schema):
            seen = rows.observed[:, at]
            own = numbers_of(variable, np.where(seen, rows.values[:, at], 0.0)) ** order
            expected[:, at] = np.where(seen, own, expected[:, at])
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


def leaf_moments(circuit: Circuit, order: int) -> tuple[FloatArray, FloatArray]:
    """(n_leaves,) moment of every leaf, and the probability that there is a value at all."""
    of_leaf, present = [], []
    for group in circuit.groups:
        variable = circuit.schema.variables[group.column]
        of_leaf.append(group.family.moment(group.params, group.grid, variable, order))
        present.append(group.family.present(group.params, group.grid, variable))
    return np.concatenate(of_leaf), np.concatenate(present)

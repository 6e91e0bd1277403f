"""p(variable | other cells) for all its outcomes, or sets of values, at once: one pass each way."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fedcircuits.arrays import FloatArray
from fedcircuits.circuits.passes import leaves_within
from fedcircuits.circuits.queries.flows import leaf_flows
from fedcircuits.density import outcome_codes
from fedcircuits.schema import Table
from fedcircuits.schema.events import Region

if TYPE_CHECKING:
    from fedcircuits.circuits.circuit import Circuit


def posterior(circuit: Circuit, table: Table, column: int) -> FloatArray:
    """(n, k) probability of each outcome, renormalised over the outcomes."""
    codes = outcome_codes(circuit.schema.variables[column])  # (k,)
    table = table.hide(column)
    mass = _outcome_masses(circuit, column, codes)
    answer = np.empty((len(table), codes.size))
    for part, _, flows in leaf_flows(circuit, table, [column]):
        answer[part] = flows[column].T @ mass
    with np.errstate(invalid="ignore"):
        return np.asarray(answer / answer.sum(axis=1, keepdims=True))


def masses(circuit: Circuit, table: Table, column: int, regions: list[Region]) -> FloatArray:
    """(n, k) probability that one variable lies in each of k sets, given the other cells."""
    table = table.hide(column)
    groups = [g for g in circuit.groups if g.column == column]
    answer = np.empty((len(table), len(regions)))
    inside = [
        np.exp(np.stack([leaves_within(circuit, g, r).log_mass for r in regions], axis=1))
        for g in groups
    ]
    mass = np.concatenate(inside)  # (L, k)
    total = np.empty(len(table))
    for part, _, flows in leaf_flows(circuit, table, [column]):
        answer[part] = flows[column].T @ mass
        total[part] = flows[column].sum(axis=0)
    with np.errstate(invalid="ignore"):
        return np.asarray(answer / total[:, None])


def _outcome_masses(circuit: Circuit, column: int, codes: FloatArray) -> FloatArray:
    """(L, k) mass of each outcome at each leaf of a column, worked out once for a circuit."""
    kept = circuit.outcome_masses
    if column not in kept:
        groups = [g for g in circuit.groups if g.column == column]
        masses = [np.exp(g.family.log_prob(g.params, g.grid, codes)) for g in groups]
        kept[column] = np.concatenate(masses)
    return kept[column]

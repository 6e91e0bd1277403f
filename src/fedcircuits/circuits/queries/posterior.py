"""p(variable | other observed cells) for every outcome at once: one pass up, part of one down."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from fedcircuits.arrays import FloatArray
from fedcircuits.circuits.passes import chunked
from fedcircuits.circuits.queries.flows import leaf_flows
from fedcircuits.density import outcome_codes
from fedcircuits.schema import Table

if TYPE_CHECKING:
    from fedcircuits.circuits.circuit import Circuit


def posterior(circuit: Circuit, table: Table, column: int) -> FloatArray:
    """(n, k) probability of each outcome, renormalised over the outcomes."""
    codes = outcome_codes(circuit.schema.variables[column])  # (k,)
    observed = table.observed.copy()
    observed[:, column] = False
    table = replace(table, observed=observed)
    groups = [g for g in circuit.groups if g.column == column]
    masses = [np.exp(g.family.log_prob(g.params, g.grid, codes)) for g in groups]  # (L, k)
    answer = np.zeros((len(table), codes.size))
    for part, rows in chunked(circuit, table):
        flows = leaf_flows(circuit, rows, column)  # (n_leaves, n)
        for group, mass in zip(groups, masses, strict=True):
            answer[part] += flows[group.nodes].T @ mass
    with np.errstate(invalid="ignore"):
        return np.asarray(answer / answer.sum(axis=1, keepdims=True))

"""Most probable completions by max-product: exact in deterministic circuits, else a decoding."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fedcircuits.circuits.passes import chunked, leaf_log_prob, max_product, up
from fedcircuits.circuits.queries.walk import likeliest, walk
from fedcircuits.schema import Table
from fedcircuits.schema.grid import FloatArray

if TYPE_CHECKING:
    from fedcircuits.circuits.circuit import Circuit


def mpe(circuit: Circuit, table: Table) -> FloatArray:
    """(n, D) the rows with missing cells filled from the best induced tree."""
    answer = table.values.copy()
    modes = [g.family.mode(g.params, g.grid) for g in circuit.groups]
    for part, rows in chunked(circuit, table):
        values = np.empty((circuit.n_nodes, len(rows)))
        leaf_log_prob(circuit, rows, values)
        for group, (_, log_density) in zip(circuit.groups, modes, strict=True):
            missing = np.flatnonzero(~rows.observed[:, group.column])
            values[group.nodes.start : group.nodes.stop, missing] = log_density[:, None]
        up(circuit.plan, values, max_product)
        leaves, leaf_rows = walk(circuit.plan, values, likeliest)
        completed = rows.values.copy()
        for group, (at, _) in zip(circuit.groups, modes, strict=True):
            mine = (leaves >= group.first) & (leaves < group.first + group.size)
            mine &= ~rows.observed[leaf_rows, group.column]
            completed[leaf_rows[mine], group.column] = at[leaves[mine] - group.first]
        answer[part] = completed
    return answer

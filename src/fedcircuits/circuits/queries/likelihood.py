"""log p(observed cells) of every row: one pass up."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fedcircuits.arrays import FloatArray
from fedcircuits.circuits.compiled.run import compiled, row_blocks
from fedcircuits.circuits.passes import chunked, leaf_log_prob, sum_product, up
from fedcircuits.schema import Table

if TYPE_CHECKING:
    from fedcircuits.circuits.circuit import Circuit


def log_prob(circuit: Circuit, table: Table) -> FloatArray:
    """(n,) log-density of the observed cells; memory does not grow with the rows."""
    answer = np.empty(len(table))
    fast = compiled(circuit)
    if fast is not None:
        run, native = fast
        for part, rows in row_blocks(table):
            found = run(native, rows)
            answer[part] = found.log_prob
            if found.risky.size:
                again = part.start + found.risky
                answer[again] = _in_numpy(circuit, rows.rows(found.risky))
        return answer
    return _in_numpy(circuit, table)


def _in_numpy(circuit: Circuit, table: Table) -> FloatArray:
    """The same by the pass in log-space."""
    answer = np.empty(len(table))
    for part, rows in chunked(circuit, table):
        answer[part] = node_log_probs(circuit, rows)[-1]
    return answer


def node_log_probs(circuit: Circuit, rows: Table) -> FloatArray:
    """(n_nodes, n) log-density of the observed cells in every node's scope."""
    values = np.empty((circuit.n_nodes, len(rows)))
    leaf_log_prob(circuit, rows, values)
    up(circuit.plan, values, sum_product)
    return values

"""Flows: the posterior probability of every node, row by row."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fedcircuits.arrays import FloatArray
from fedcircuits.circuits.passes import down
from fedcircuits.circuits.queries.likelihood import node_log_probs
from fedcircuits.schema import Table

if TYPE_CHECKING:
    from fedcircuits.circuits.circuit import Circuit


def leaf_flows(circuit: Circuit, rows: Table, column: int | None = None) -> FloatArray:
    """(n_leaves, n) probability that a leaf is in the row's tree, given the row's evidence.

    Flows of the leaves over one variable add up to one; they are all zero in a row whose evidence
    has probability zero. With `column`, only the flows of that
    column's leaves are worked out.
    """
    values = node_log_probs(circuit, rows)
    flows = np.zeros_like(values)
    flows[-1] = values[-1] > -np.inf
    wanted = None if column is None else circuit.covers(column)
    down(circuit.plan, values, flows, wanted)
    return flows[: circuit.structure.n_leaves]

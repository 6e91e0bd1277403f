"""Exact samples, each row given its own evidence: values up, one random tree down."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fedcircuits.circuits.passes import chunked
from fedcircuits.circuits.queries.likelihood import node_log_probs
from fedcircuits.circuits.queries.walk import at_random, walk
from fedcircuits.schema import Table
from fedcircuits.schema.grid import FloatArray

if TYPE_CHECKING:
    from fedcircuits.circuits.circuit import Circuit


def sample(circuit: Circuit, table: Table, rng: np.random.Generator) -> FloatArray:
    """(n, D) the rows with missing cells drawn from the conditional given the observed ones."""
    answer = table.values.copy()
    for part, rows in chunked(circuit, table):
        answer[part] = _sample_chunk(circuit, rows, rng)
    return answer


def _sample_chunk(circuit: Circuit, rows: Table, rng: np.random.Generator) -> FloatArray:
    leaves, leaf_rows = walk(circuit.plan, node_log_probs(circuit, rows), at_random(rng))
    answer = rows.values.copy()
    for group in circuit.groups:
        mine = (leaves >= group.first) & (leaves < group.first + group.size)
        mine &= ~rows.observed[leaf_rows, group.column]
        if mine.any():
            drawn = group.family.sample(group.params, group.grid, leaves[mine] - group.first, rng)
            answer[leaf_rows[mine], group.column] = drawn
    return answer

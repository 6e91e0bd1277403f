"""Exact samples, each row given its own evidence: values up, one random tree down."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fedcircuits.circuits.passes import LOWEST, chunked
from fedcircuits.circuits.queries.likelihood import node_log_probs
from fedcircuits.circuits.queries.walk import walk
from fedcircuits.schema import Table
from fedcircuits.schema.grid import FloatArray, IntArray

if TYPE_CHECKING:
    from fedcircuits.circuits.circuit import Circuit


def sample(circuit: Circuit, table: Table, rng: np.random.Generator) -> FloatArray:
    """(n, D) the rows with missing cells drawn from the conditional given the observed ones."""
    answer = table.values.copy()
    for part, rows in chunked(circuit, table):
        answer[part] = _sample_chunk(circuit, rows, rng)
    return answer


def _sample_chunk(circuit: Circuit, rows: Table, rng: np.random.Generator) -> FloatArray:
    def choose(scores: FloatArray) -> IntArray:
        # Inversion on the children's posterior weights (p, r).
        weights = np.exp(scores - np.maximum(scores.max(axis=1, keepdims=True), LOWEST))
        cumulative = np.cumsum(weights, axis=1)
        u = rng.random(scores.shape[0]) * cumulative[:, -1]
        return np.asarray(np.minimum((cumulative <= u[:, None]).sum(axis=1), scores.shape[1] - 1))

    leaves, leaf_rows = walk(circuit, node_log_probs(circuit, rows), choose)
    answer = rows.values.copy()
    for group in circuit.groups:
        mine = (leaves >= group.first) & (leaves < group.first + group.size)
        mine &= ~rows.observed[leaf_rows, group.column]
        if mine.any():
            drawn = group.family.sample(group.params, group.grid, leaves[mine] - group.first, rng)
            answer[leaf_rows[mine], group.column] = drawn
    return answer

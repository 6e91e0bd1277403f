"""Exact samples, each row given its own evidence: values up, one random tree down."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from fedcircuits.arrays import FloatArray
from fedcircuits.circuits.compiled.run import compiled, row_blocks
from fedcircuits.circuits.passes import chunked, leaves_within
from fedcircuits.circuits.queries.likelihood import node_log_probs
from fedcircuits.circuits.queries.walk import at_random, walk
from fedcircuits.schema import Table

if TYPE_CHECKING:
    from fedcircuits.circuits.circuit import Circuit


def sample(circuit: Circuit, table: Table, rng: np.random.Generator) -> FloatArray:
    """(n, D) the rows with missing cells drawn from the conditional given the observed ones.

    Trees are drawn chunk by chunk, values of one family for all rows at once: the sample of a seed
    does not depend on the size of a chunk.
    """
    leaf_of = _leaves_at_random(circuit, table, rng)
    answer = table.values.copy()
    for group in circuit.groups:
        which = leaf_of[:, group.column].astype(np.int64) - group.first
        mine = (which >= 0) & (which < group.size) & ~table.observed[:, group.column]
        regions = table.regions_at(group.column)
        for _, held in regions:
            mine[held] = False
        if mine.any():
            drawn = group.family.sample(group.params, group.grid, which[mine], rng)
            answer[mine, group.column] = drawn
        for region, held in regions:
            held = held[(which[held] >= 0) & (which[held] < group.size)]
            if held.size:
                inside = leaves_within(circuit, group, region)
                answer[held, group.column] = inside.sample(which[held], rng)
    return answer


def _leaves_at_random(
    circuit: Circuit, table: Table, rng: np.random.Generator
) -> np.ndarray[Any, np.dtype[np.int32]]:
    """(n, D) each row's leaf of each column in a random tree; those of observed cells may be -1."""
    leaf_of = np.empty(table.values.shape, dtype=np.int32)
    fast = compiled(circuit)
    if fast is None:
        for part, rows in chunked(circuit, table):
            uniform = rng.random((len(rows), circuit.n_choices))
            leaf_of[part] = _walked(circuit, rows, uniform)
        return leaf_of
    run, native = fast
    for part, rows in row_blocks(table, circuit.n_choices + len(circuit.schema)):
        uniform = rng.random((len(rows), circuit.n_choices))
        found = run(native, rows, walk=True, uniform=uniform)
        assert found.leaf_of is not None
        leaf_of[part] = found.leaf_of
        for again in found.again():
            leaf_of[part.start + again] = _walked(circuit, rows.rows(again), uniform[again])
    return leaf_of


def _walked(
    circuit: Circuit, rows: Table, uniform: FloatArray
) -> np.ndarray[Any, np.dtype[np.int32]]:
    """(n, D) the same by the passes in log-space, from uniform numbers (n, choices)."""
    choose = at_random(circuit.choice_slots, uniform)
    leaves, leaf_rows = walk(circuit.plan, node_log_probs(circuit, rows), choose)
    leaf_of = np.empty(rows.values.shape, dtype=np.int32)
    leaf_of[leaf_rows, circuit.leaf_column[leaves]] = leaves
    return leaf_of

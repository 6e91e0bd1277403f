"""Exact samples, each row given its own evidence: values up, one random tree down."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fedcircuits.arrays import FloatArray
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
    leaf_of = np.empty(table.values.shape, dtype=np.int32)  # (n, D) each row's leaf of each column
    for part, rows in chunked(circuit, table):
        choose = at_random(circuit.choice_slots, len(rows), rng)
        leaves, leaf_rows = walk(circuit.plan, node_log_probs(circuit, rows), choose)
        leaf_of[part.start + leaf_rows, circuit.leaf_column[leaves]] = leaves
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

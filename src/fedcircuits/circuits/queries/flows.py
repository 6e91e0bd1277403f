"""Flows: the posterior probability of every leaf, row by row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from fedcircuits.arrays import FloatArray
from fedcircuits.circuits.compiled.run import compiled, row_blocks
from fedcircuits.circuits.passes import chunked, down
from fedcircuits.circuits.queries.likelihood import node_log_probs
from fedcircuits.schema import Table

if TYPE_CHECKING:
    from fedcircuits.circuits.circuit import Circuit

Flows = dict[int, FloatArray]  # by column, (L, n) of the leaves over it


def leaf_flows(
    circuit: Circuit, table: Table, columns: Sequence[int]
) -> Iterator[tuple[slice, Table, Flows]]:
    """Blocks of rows with the flows of the leaves over some columns.

    The flow of a leaf is the probability that it is in the row's tree, given the row's evidence.
    Flows of the leaves over one variable add up to one; they are all zero in a row whose evidence
    has probability zero.
    """
    fast = compiled(circuit)
    if fast is None:
        for part, rows in chunked(circuit, table):
            yield part, rows, _in_numpy(circuit, rows, columns)
        return
    run, native = fast
    widths = [circuit.n_leaves_over(at) for at in columns]
    cuts = np.cumsum(widths)[:-1]
    for part, rows in row_blocks(table, sum(widths)):
        found = run(native, rows, wanted=list(columns))
        assert found.flows is not None
        parts = np.split(found.flows.T, cuts) if cuts.size else [found.flows.T]
        flows = dict(zip(columns, parts, strict=True))
        for again in found.again():
            for at, flow in _in_numpy(circuit, rows.rows(again), columns).items():
                flows[at][:, again] = flow
        yield part, rows, flows


def _in_numpy(circuit: Circuit, rows: Table, columns: Sequence[int]) -> Flows:
    """The same by the passes in log-space."""
    values = node_log_probs(circuit, rows)
    flows = np.zeros_like(values)
    flows[-1] = values[-1] > -np.inf
    wanted = np.logical_or.reduce([circuit.covers(at) for at in columns])
    down(circuit.plan, values, flows, wanted)
    return {at: flows[circuit.leaves_over(at)] for at in columns}

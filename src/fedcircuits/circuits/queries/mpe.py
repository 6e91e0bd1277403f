"""Most probable completions: exact in deterministic circuits, else the better of two decodings."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fedcircuits.arrays import FloatArray
from fedcircuits.circuits.passes import chunked, leaf_log_prob, leaves_within, max_product, up
from fedcircuits.circuits.queries.likelihood import node_log_probs
from fedcircuits.circuits.queries.walk import likeliest, walk
from fedcircuits.density import Density
from fedcircuits.schema import Table

if TYPE_CHECKING:
    from fedcircuits.circuits.circuit import Circuit


def mpe(circuit: Circuit, table: Table) -> FloatArray:
    """(n, D) the rows with missing cells filled.

    Max-product finds the maximum of a deterministic circuit. Elsewhere its value is that of one
    induced tree, and many small trees may agree on something likelier: then a row takes the better
    of the two decodings, by its log-density.
    """
    best = max_product_decoding(circuit, table)
    if circuit.mpe_is_exact:
        return best
    return better_of(circuit, table, best, posterior_decoding(circuit, table))


def max_product_decoding(circuit: Circuit, table: Table) -> FloatArray:
    """(n, D) modes of the leaves of the likeliest single induced tree."""
    answer = table.values.copy()
    modes = _modes(circuit)
    for part, rows in chunked(circuit, table):
        values = np.empty((circuit.n_nodes, len(rows)))
        leaf_log_prob(circuit, rows, values)
        for group, (_, log_density) in zip(circuit.groups, modes, strict=True):
            missing = np.flatnonzero(~rows.observed[:, group.column])
            values[group.nodes.start : group.nodes.stop, missing] = log_density[:, None]
            for region, mine in rows.regions_at(group.column):
                best = leaves_within(circuit, group, region).mode()[1]
                values[group.nodes.start : group.nodes.stop, mine] = best[:, None]
        up(circuit.plan, values, max_product)
        answer[part] = _filled(circuit, rows, values, modes)
    return answer


def posterior_decoding(circuit: Circuit, table: Table) -> FloatArray:
    """(n, D) modes of the leaves reached through each sum's child of highest posterior."""
    answer = table.values.copy()
    modes = _modes(circuit)
    for part, rows in chunked(circuit, table):
        answer[part] = _filled(circuit, rows, node_log_probs(circuit, rows), modes)
    return answer


def better_of(density: Density, table: Table, one: FloatArray, two: FloatArray) -> FloatArray:
    """(n, D) of two completions (n, D), in each row the one of higher log-density."""
    differ = np.flatnonzero((one != two).any(axis=1))
    if differ.size == 0:
        return one
    rows = table.rows(differ)
    first, second = (
        density.log_prob_table(rows.completed(values[differ])) for values in (one, two)
    )
    answer = one.copy()
    answer[differ[second > first]] = two[differ[second > first]]
    return answer


Modes = list[tuple[FloatArray, FloatArray]]


def _modes(circuit: Circuit) -> Modes:
    """Of every group, (L,) modes and (L,) log-densities there."""
    return [g.family.mode(g.params, g.grid) for g in circuit.groups]


def _filled(circuit: Circuit, rows: Table, values: FloatArray, modes: Modes) -> FloatArray:
    """(n, D) rows with missing cells at the modes of the likeliest tree by values (n_nodes, n)."""
    mode = np.concatenate([at for at, _ in modes])  # (n_leaves,)
    leaves, leaf_rows = walk(circuit.plan, values, likeliest)
    missing = ~rows.observed[leaf_rows, circuit.leaf_column[leaves]]
    leaves, leaf_rows = leaves[missing], leaf_rows[missing]
    answer = rows.values.copy()
    answer[leaf_rows, circuit.leaf_column[leaves]] = mode[leaves]
    if rows.events is None:
        return answer
    leaf_of = np.zeros(answer.shape, dtype=np.int64)
    leaf_of[leaf_rows, circuit.leaf_column[leaves]] = leaves
    for group in circuit.groups:
        for region, mine in rows.regions_at(group.column):
            which = leaf_of[mine, group.column] - group.first
            held = (which >= 0) & (which < group.size)
            inside = leaves_within(circuit, group, region).mode()[0]
            answer[mine[held], group.column] = inside[which[held]]
    return answer

"""Most probable completions: exact in deterministic circuits, else the better of two decodings."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedcircuits.arrays import FloatArray
from fedcircuits.circuits.compiled.run import compiled, row_blocks
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
    return _decoded(circuit, table, is_max=True)


def posterior_decoding(circuit: Circuit, table: Table) -> FloatArray:
    """(n, D) modes of the leaves reached through each sum's child of highest posterior."""
    return _decoded(circuit, table, is_max=False)


def _decoded(circuit: Circuit, table: Table, is_max: bool) -> FloatArray:
    """(n, D) modes of the leaves of one tree a row, by maxima or by posteriors."""
    modes = circuit.modes
    in_numpy = _max_product_values if is_max else _sum_product_values
    leaf_of = np.empty(table.values.shape, dtype=np.int32)
    fast = compiled(circuit)
    if fast is None:
        for part, rows in chunked(circuit, table):
            leaf_of[part] = _likeliest_leaves(circuit, in_numpy(circuit, rows, modes))
        return _filled(circuit, table, leaf_of, modes)
    run, native = fast
    for part, rows in row_blocks(table):
        found = run(native, rows, is_max=is_max, walk=True)
        assert found.leaf_of is not None
        leaf_of[part] = found.leaf_of
        for again in found.again():
            values = in_numpy(circuit, rows.rows(again), modes)
            leaf_of[part.start + again] = _likeliest_leaves(circuit, values)
    return _filled(circuit, table, leaf_of, modes)


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


def _max_product_values(circuit: Circuit, rows: Table, modes: Modes) -> FloatArray:
    """(n_nodes, n) log-values of the best induced trees."""
    values = np.empty((circuit.n_nodes, len(rows)))
    leaf_log_prob(circuit, rows, values)
    for group, (_, log_density) in zip(circuit.groups, modes, strict=True):
        missing = np.flatnonzero(~rows.observed[:, group.column])
        values[group.nodes.start : group.nodes.stop, missing] = log_density[:, None]
        for region, mine in rows.regions_at(group.column):
            best = leaves_within(circuit, group, region).mode()[1]
            values[group.nodes.start : group.nodes.stop, mine] = best[:, None]
    up(circuit.plan, values, max_product)
    return values


def _sum_product_values(circuit: Circuit, rows: Table, modes: Modes) -> FloatArray:
    """(n_nodes, n) log-densities of the observed cells."""
    del modes
    return node_log_probs(circuit, rows)


def _likeliest_leaves(circuit: Circuit, values: FloatArray) -> NDArray[np.int32]:
    """(n, D) the leaf of every column in the likeliest tree by values (n_nodes, n)."""
    leaves, leaf_rows = walk(circuit.plan, values, likeliest)
    answer = np.empty((values.shape[1], len(circuit.schema)), dtype=np.int32)
    answer[leaf_rows, circuit.leaf_column[leaves]] = leaves
    return answer


def _filled(circuit: Circuit, table: Table, leaf_of: NDArray[np.int32], modes: Modes) -> FloatArray:
    """(n, D) rows with missing cells at the modes of their leaves (n, D)."""
    mode = np.concatenate([at for at, _ in modes])  # (n_leaves,)
    answer = np.where(table.observed, table.values, mode[leaf_of])
    if table.events is None:
        return answer
    for group in circuit.groups:
        for region, mine in table.regions_at(group.column):
            which = leaf_of[mine, group.column] - group.first
            held = (which >= 0) & (which < group.size)
            inside = leaves_within(circuit, group, region).mode()[0]
            answer[mine[held], group.column] = inside[which[held]]
    return answer

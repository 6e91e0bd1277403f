"""Whether max-product finds a true maximum: every sum's children must have disjoint supports."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fedcircuits.arrays import FloatArray

if TYPE_CHECKING:
    from fedcircuits.circuits.circuit import Circuit


def is_deterministic(circuit: Circuit) -> bool:
    """Whether each sum splits on some variable: its children's supports there are disjoint.

    The test is sufficient, not necessary: it looks at one variable at a time, and at the hull of
    supports that are intervals.
    """
    structure = circuit.structure
    open_sums = structure.is_sum & (structure.arity > 1)
    for column in range(len(circuit.schema)):
        if not open_sums.any():
            return True
        groups = [g for g in circuit.groups if g.column == column]
        states = {(g.family.support_is_states, g.grid) for g in groups}
        if len(states) > 1:
            continue  # supports of different sorts are not compared
        of_leaf = np.concatenate([g.family.support(g.params, g.grid) for g in groups])
        as_states = groups[0].family.support_is_states
        full = of_leaf.all(axis=1) if as_states else np.isinf(of_leaf).all(axis=1)
        if full.all():
            continue
        open_sums &= ~_splits(circuit, column, of_leaf, as_states, open_sums)
    return not open_sums.any()


def _splits(
    circuit: Circuit,
    column: int,
    of_leaf: FloatArray,
    as_states: bool,
    asked: np.ndarray[tuple[int], np.dtype[np.bool_]],
) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """(n_inner,) which of the asked sums have children with disjoint supports on the column."""
    structure = circuit.structure
    covers = circuit.covers(column)
    support = np.zeros((circuit.n_nodes, of_leaf.shape[1]))
    support[np.flatnonzero(covers[: structure.n_leaves])] = of_leaf
    split = np.zeros(structure.n_inner, dtype=bool)
    for node in range(structure.n_inner):
        here = structure.n_leaves + node
        if not covers[here]:
            continue
        edges = slice(structure.first_edge[node], structure.first_edge[node + 1])
        children, log_weight = structure.child[edges], structure.log_weight[edges]
        below = support[children[covers[children] & (log_weight > -np.inf)]]  # (r, s) or (r, 2)
        if as_states:
            support[here] = below.any(axis=0)
            apart = bool((below.sum(axis=0) <= 1).all())
        else:
            support[here] = below[:, 0].min(), below[:, 1].max()
            order = below[np.argsort(below[:, 0])]
            apart = bool((order[1:, 0] >= order[:-1, 1]).all())
        split[node] = asked[node] and apart
    return split

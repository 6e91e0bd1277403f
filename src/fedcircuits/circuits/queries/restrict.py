"""Marginals and conditionals as new circuits: evidence is folded into the weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fedcircuits.circuits.assemble import Assembler
from fedcircuits.circuits.queries.likelihood import node_log_probs
from fedcircuits.schema import Table

if TYPE_CHECKING:
    from fedcircuits.circuits.circuit import Circuit


def restrict(circuit: Circuit, keep: tuple[str, ...], evidence: Table) -> tuple[Assembler, int]:
    """Nodes and root of p(keep | evidence), everything else summed out.

    A sum's weights become w_i p_i(evidence) / p(evidence) of that node; leaves outside `keep`
    vanish, and with them every node that has nothing left below it.

    Args:
        circuit: the joint.
        keep: names to keep, none of them observed.
        evidence: one row, of positive probability.
    """
    schema = circuit.schema.select(keep)
    column = {circuit.schema.position(name): at for at, name in enumerate(keep)}
    structure = circuit.structure
    log_prob = node_log_probs(circuit, evidence)[:, 0]  # (n_nodes,)
    assembler = Assembler(schema)
    # The new number of every old node, -1 for one that became a constant.
    new = np.full(circuit.n_nodes, -1, dtype=np.int64)
    for group in circuit.groups:
        if group.column in column:
            new[group.nodes] = assembler.leaves(
                group.family, column[group.column], group.params, group.grid
            )
    for node in range(structure.n_inner):
        edges = slice(structure.first_edge[node], structure.first_edge[node + 1])
        children = structure.child[edges]
        here = structure.n_leaves + node
        if np.isneginf(log_prob[here]):
            continue
        kept = new[children] >= 0
        if structure.is_sum[node]:
            log_weight = structure.log_weight[edges] + log_prob[children]
            kept &= log_weight > -np.inf
            if kept.any():
                # Normalised among themselves: far from all data log p(node) has no digits left
                # for the logarithm of a weight.
                share = log_weight[kept] - log_weight[kept].max()
                share -= np.log(np.exp(share).sum())
                new[here] = assembler.sum(new[children][kept], share)
        elif kept.any():
            new[here] = assembler.product(new[children][kept])
    return assembler, int(new[-1])

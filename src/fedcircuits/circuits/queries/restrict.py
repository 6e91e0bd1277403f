"""Marginals and conditionals as new circuits: evidence is folded into the weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fedcircuits.arrays import BoolArray, FloatArray, IntArray
from fedcircuits.circuits.assemble import Assembler
from fedcircuits.circuits.queries.likelihood import node_log_probs
from fedcircuits.circuits.structure import Structure, ranges
from fedcircuits.circuits.structure_builder import StructureBuilder
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
    log_prob = node_log_probs(circuit, evidence)[:, 0]  # (n_nodes,)
    assembler = Assembler(schema)
    # The new number of every leaf, -1 for one that becomes a constant.
    new = np.full(circuit.structure.n_leaves, -1, dtype=np.int64)
    for group in circuit.groups:
        if group.column in column:
            new[group.nodes] = assembler.leaves(
                group.family, column[group.column], group.params, group.grid
            )
    root = fold_evidence(circuit.structure, log_prob, new, assembler)
    return assembler, root


def fold_evidence(
    structure: Structure, log_prob: FloatArray, leaves: IntArray, graph: StructureBuilder
) -> int:
    """Add to a graph the inner nodes of a structure with evidence folded in; returns the root.

    Args:
        structure: the inner nodes.
        log_prob: (n_nodes,) log-probability of the evidence below every node.
        leaves: (n_leaves,) number of every leaf in the graph, -1 for one that became a constant.
        graph: where nodes are added.
    """
    new = np.full(structure.n_nodes, -1, dtype=np.int64)
    new[: structure.n_leaves] = leaves
    possible = _possible(structure, log_prob)[structure.n_leaves :]
    for inner in structure.inner_by_level():
        mine = inner[possible[inner]]
        kinds = 2 * structure.arity[mine] + structure.is_sum[mine]
        for kind in np.unique(kinds):
            _fold(structure, log_prob, new, mine[kinds == kind], graph)
    return int(new[-1])


def _fold(
    structure: Structure,
    log_prob: FloatArray,
    new: IntArray,
    nodes: IntArray,
    graph: StructureBuilder,
) -> None:
    """Add inner nodes (k,) of one level, kind and arity to a graph; `new` gets their numbers."""
    edges = structure.first_edge[nodes][:, None] + np.arange(structure.arity[nodes[0]])  # (k, r)
    children = structure.child[edges]
    is_sum = bool(structure.is_sum[nodes[0]])
    kept = new[children] >= 0
    if is_sum:
        log_weight = structure.log_weight[edges] + log_prob[children]
        kept &= log_weight > -np.inf
    counts = kept.sum(axis=1)
    for count in np.unique(counts[counts > 0]):
        some = counts == count
        here, left = structure.n_leaves + nodes[some], kept[some]
        below = new[children[some]][left].reshape(-1, count)
        if count == 1:  # one child is the node itself
            new[here] = below[:, 0]
        elif is_sum:
            # Normalised among themselves: far from all data log p(node) has no digits left for
            # the logarithm of a weight.
            share = log_weight[some][left].reshape(-1, count)
            share -= share.max(axis=1, keepdims=True)
            share -= np.log(np.exp(share).sum(axis=1, keepdims=True))
            new[here] = graph.sums(below, share)
        else:
            new[here] = graph.products(below)


def _possible(structure: Structure, log_prob: FloatArray) -> BoolArray:
    """(n_nodes,) nodes that the root reaches through nodes under which the evidence can be.

    Of a circuit with a branch for each of many classes, a class leaves one.
    """
    alive = np.zeros(structure.n_nodes, dtype=bool)
    alive[-1] = log_prob[-1] > -np.inf
    for inner in reversed(structure.inner_by_level()):
        mine = inner[alive[structure.n_leaves + inner]]
        edges = ranges(structure.first_edge[mine], structure.arity[mine])
        children = structure.child[edges]
        can = (structure.log_weight[edges] > -np.inf) & (log_prob[children] > -np.inf)
        alive[children[can]] = True
    return alive


def embed(assembler: Assembler, circuit: Circuit, columns: list[int]) -> int:
    """Add a whole circuit to an assembler, its variables at the given columns; returns its root."""
    leaves = np.concatenate(
        [
            assembler.leaves(group.family, columns[group.column], group.params, group.grid)
            for group in circuit.groups
        ]
    )
    return fold_evidence(circuit.structure, np.zeros(circuit.n_nodes), leaves, assembler)

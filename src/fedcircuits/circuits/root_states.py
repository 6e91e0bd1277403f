"""A circuit seen through the states of its root: p(x) = sum_k r(k) p(x | k).

Where a latent class is agreed on by several clients, the root of each client's circuit has one
state for each class, and the circuits are joined state by state.
"""

from __future__ import annotations

import numpy as np
from scipy.special import logsumexp

from fedcircuits.arrays import FloatArray, IntArray
from fedcircuits.circuits.assemble import Assembler
from fedcircuits.circuits.circuit import Circuit
from fedcircuits.circuits.queries.restrict import embed
from fedcircuits.density import Density


def root_edges(model: Density) -> tuple[IntArray, FloatArray] | None:
    """Returns children (H,) and log-weights (H,) of a circuit's root; None where it is no sum."""
    if not isinstance(model, Circuit):
        return None
    structure = model.structure
    if structure.n_inner == 0 or not structure.is_sum[-1]:
        return None
    edges = slice(structure.first_edge[-2], structure.first_edge[-1])
    return structure.child[edges], structure.log_weight[edges]


def state_circuit(model: Circuit, n_states: int, k: int) -> Circuit:
    """Returns p(x | k) as a circuit.

    Args:
        model: whose root has `n_states` children; with one state it is p(x) itself.
        n_states: how many.
        k: the state.
    """
    assembler = Assembler(model.schema)
    return Circuit.assemble(assembler, state_nodes(assembler, model, n_states)[k])


def state_nodes(assembler: Assembler, model: Circuit, n_states: int) -> list[int]:
    """Adds a circuit to an assembler without its root; returns the node of each root state.

    Args:
        assembler: over a schema that has the circuit's variables.
        model: as in `state_circuit`.
        n_states: how many.
    """
    columns = [assembler.schema.position(name) for name in model.schema.names]
    if n_states == 1:
        return [embed(assembler, model, columns)]
    structure = model.structure
    new = np.full(structure.n_nodes, -1, dtype=np.int64)
    for group in model.groups:
        new[group.nodes] = assembler.leaves(
            group.family, columns[group.column], group.params, group.grid
        )
    for node in range(structure.n_inner - 1):
        edges = slice(structure.first_edge[node], structure.first_edge[node + 1])
        children = new[structure.child[edges]]
        here = structure.n_leaves + node
        if structure.is_sum[node]:
            new[here] = assembler.sum(children, structure.log_weight[edges])
        else:
            new[here] = assembler.product(children)
    edge = root_edges(model)
    assert edge is not None
    states, log_weights = new[edge[0]], edge[1]
    return [
        assembler.sum(states[[k]], log_weights[[k]] - logsumexp(log_weights[[k]]))
        for k in range(n_states)
    ]

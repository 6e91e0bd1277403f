"""A circuit times a function that is a product over columns, normalised again: a tilted circuit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from fedcircuits.arrays import FloatArray
from fedcircuits.circuits.assemble import Assembler
from fedcircuits.circuits.leaf_group import LeafGroup
from fedcircuits.circuits.passes import down, sum_product, up
from fedcircuits.circuits.queries.restrict import fold_evidence
from fedcircuits.errors import StructureError

if TYPE_CHECKING:
    from fedcircuits.circuits.circuit import Circuit


def tilt(circuit: Circuit, factors: Mapping[str, FloatArray]) -> tuple[Assembler, int, float]:
    """Nodes and root of p(x) exp(sum_j g_j(x_j)) / Z, and log Z.

    Every leaf is multiplied by exp(g) and normalised; what it gains or loses moves into the weights
    above, bottom-up, as the probability of evidence would.

    Args:
        circuit: p; its leaves over the columns of `factors` are tables of states.
        factors: by column (states,) g.
    """
    assembler = Assembler(circuit.schema)
    values = np.zeros((circuit.n_nodes, 1))
    new = np.full(circuit.structure.n_leaves, -1, dtype=np.int64)
    for group in circuit.groups:
        params = group.params
        name = circuit.schema.names[group.column]
        if name in factors:
            params, values[group.nodes, 0] = _lifted(group, name, factors[name])
        new[group.nodes] = assembler.leaves(group.family, group.column, params, group.grid)
    up(circuit.plan, values, sum_product)
    root = fold_evidence(circuit.structure, values[:, 0], new, assembler)
    return assembler, root, float(values[-1, 0])


def tilted_masses(
    circuit: Circuit, factors: Mapping[str, FloatArray], n_tilts: int
) -> tuple[FloatArray, dict[str, FloatArray]]:
    """For each of Y tilts (Y,) log Z, and by column (Y, states) masses of p(x) exp(g(x)) / Z.

    Args:
        circuit: p; its leaves over the columns of `factors` are tables of states.
        factors: by column (Y, states) g.
        n_tilts: Y.
    """
    values = np.zeros((circuit.n_nodes, n_tilts))
    lifts = {}
    for name, g in factors.items():
        top = g.max(axis=1)
        lifts[name] = (np.exp(g - top[:, None]), top)
    leaves = []
    for group in circuit.groups:
        name = circuit.schema.names[group.column]
        if name in factors:
            table = _table(group, name, factors[name].shape[1])  # (L, states)
            lift, top = lifts[name]
            mass = table @ lift.T  # (L, Y)
            values[group.nodes] = np.log(mass) + top
            leaves.append((group, name, table, mass))
    up(circuit.plan, values, sum_product)
    flows = np.zeros_like(values)
    flows[-1] = 1.0
    down(circuit.plan, values, flows)
    masses = {name: np.zeros(g.shape) for name, g in factors.items()}
    for group, name, table, mass in leaves:
        masses[name] += ((flows[group.nodes] / mass).T @ table) * lifts[name][0]
    return values[-1].copy(), masses


def _lifted(group: LeafGroup, name: str, g: FloatArray) -> tuple[dict[str, FloatArray], FloatArray]:
    """Parameters of the tilted leaves, and (L,) the log of what each was divided by."""
    parameter = group.family.parameters[0]
    table = _table(group, name, g.size)  # (L, states)
    top = g.max()
    lifted = table * np.exp(g - top)  # (L, states)
    mass = lifted.sum(axis=1)
    return {parameter: lifted / mass[:, None]}, np.log(mass) + top


def _table(group: LeafGroup, name: str, n_states: int) -> FloatArray:
    """(L, states) the probabilities of the leaves' states; another kind of leaf is an error."""
    table = group.params[group.family.parameters[0]]
    if len(group.family.parameters) > 1 or table.shape[1:] != (n_states,):
        raise StructureError(
            [f"a {group.family.name} leaf over {name!r} is no table of {n_states} states to tilt"]
        )
    return table

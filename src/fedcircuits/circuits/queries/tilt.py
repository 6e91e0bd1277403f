"""A circuit times a function that is a product over columns, normalised again: a tilted circuit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from fedcircuits.arrays import FloatArray
from fedcircuits.circuits.assemble import Assembler
from fedcircuits.circuits.leaf_group import LeafGroup
from fedcircuits.circuits.passes import sum_product, up
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


def has_tables(circuit: Circuit, widths: Mapping[str, int]) -> bool:
    """Whether all leaves over some columns are tables with so many states."""
    return all(
        len(group.family.parameters) == 1
        and group.params[group.family.parameters[0]].shape[1:] == (widths[name],)
        for group in circuit.groups
        for name in [circuit.schema.names[group.column]]
        if name in widths
    )


def _lifted(group: LeafGroup, name: str, g: FloatArray) -> tuple[dict[str, FloatArray], FloatArray]:
    """Parameters of the tilted leaves, and (L,) the log of what each was divided by."""
    parameter = group.family.parameters[0]
    table = group.params[parameter]  # (L, states)
    if len(group.family.parameters) > 1 or table.shape[1:] != g.shape:
        raise StructureError(
            [f"a {group.family.name} leaf over {name!r} is no table of {g.size} states to tilt"]
        )
    top = g.max()
    lifted = table * np.exp(g - top)  # (L, states)
    mass = lifted.sum(axis=1)
    return {parameter: lifted / mass[:, None]}, np.log(mass) + top

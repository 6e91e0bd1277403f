"""A latent tree per class as an ordinary circuit.

Every latent state is a product over its columns' leaves and its child latents' sums; the sums of
one latent share their children, which evaluation turns into matrix products.
"""

from __future__ import annotations

import numpy as np

from fedcircuits.arrays import FloatArray
from fedcircuits.circuits import FAMILIES, Assembler, Circuit
from fedcircuits.density.fit_report import FitReport
from fedcircuits.learners.hclt.tree.class_tree import ClassTree
from fedcircuits.learners.prepare import table_family
from fedcircuits.schema import Schema


def to_circuit(
    model: ClassTree, schema: Schema, label: str | None, fit_report: FitReport | None
) -> Circuit:
    """p(x, y) = sum_y p(y) 1[y] p(x | y) as a circuit over `schema`.

    The classes of a numeric label are the states of its grid.

    Args:
        model: its columns are those of the schema, in order, without the label.
        schema: with grids.
        label: the label's name; None for a single class without one.
        fit_report: kept with the circuit.
    """
    assembler = Assembler(schema)
    columns = [at for at, name in enumerate(schema.names) if name != label]
    classes = [_class_root(assembler, model, schema, columns, y) for y in range(model.n_classes)]
    if label is None:
        return Circuit.assemble(assembler, classes[0], fit_report)
    at = schema.position(label)
    family, grid = FAMILIES[table_family(schema.variables[at])], schema.variables[at].grid
    indicator = assembler.leaves(family, at, {family.parameters[0]: np.eye(len(classes))}, grid)
    factors = assembler.products(np.stack([indicator, classes], axis=1))
    return Circuit.assemble(assembler, assembler.sum(factors, model.log_prior), fit_report)


def _class_root(
    assembler: Assembler, model: ClassTree, schema: Schema, columns: list[int], y: int
) -> int:
    """Number of the node that is p(x | y)."""
    tree = model.tree_of(y)
    columns_of, children_of = tree.columns_of(), tree.children_of()
    states: dict[int, np.ndarray[tuple[int], np.dtype[np.int64]]] = {}
    for latent in map(int, tree.order[::-1]):
        factors = [
            assembler.leaves(
                FAMILIES[table_family(schema.variables[columns[j]])],
                columns[j],
                {_table_name(schema, columns[j]): _rows_of_mass_one(tree.emissions[j])},
                schema.variables[columns[j]].grid,
            )
            for j in columns_of[latent]
        ]
        for child in children_of[latent]:
            blocks = states[child].reshape(tree.n_blocks, tree.block_size)
            below = np.repeat(blocks, tree.block_size, axis=0)  # (H, W)
            factors.append(assembler.sums(below, _log(tree.transitions[child])))
        stacked = np.stack(factors, axis=1)  # (H, factors)
        states[latent] = stacked[:, 0] if len(factors) == 1 else assembler.products(stacked)
    return assembler.sum(states[int(tree.order[0])], _log(tree.root))


def _table_name(schema: Schema, column: int) -> str:
    return FAMILIES[table_family(schema.variables[column])].parameters[0]


def _rows_of_mass_one(table: FloatArray) -> FloatArray:
    """(H, card) rows that add up to one to the last digit."""
    return np.asarray(table / table.sum(axis=1, keepdims=True), dtype=np.float64)


def _log(weights: FloatArray) -> FloatArray:
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(weights / weights.sum(axis=-1, keepdims=True)))

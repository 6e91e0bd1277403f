"""Write a small EiNet out as a `Circuit`, node by node: for tests of equality and for events."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedcircuits.circuits import Circuit
from fedcircuits.circuits import build as b
from fedcircuits.circuits.nodes import Leaf, Node
from fedcircuits.errors import QueryError
from fedcircuits.learners.einet.density.columns import Column
from fedcircuits.learners.einet.leaves import (
    Binomial,
    Categorical,
    DiscretisedGaussian,
    Family,
    Gaussian,
)
from fedcircuits.learners.einet.network.network import Network, Parameters
from fedcircuits.schema import Grid, Schema, Variable

MAX_UNROLLED = 2_000_000  # weights of a network that is unrolled into a circuit


def _level_grid(n_values: int) -> Grid:
    """The integers 0 .. n - 1, each an atom."""
    levels = np.arange(n_values, dtype=float)
    return Grid(levels, levels[[0, -1]], (0.0, 0.0), integer=True)


def _leaf(
    variable: Variable,
    column: Column,
    family: Family,
    own: dict[str, NDArray[np.float64]],
    slot: int,
    state: int,
) -> Leaf:
    """The core's leaf for one distribution."""
    name = variable.name
    if isinstance(family, DiscretisedGaussian):
        deviation = float(np.sqrt(own["variance"][slot, state]))
        top = family.n_levels - 1
        return b.discretised_gaussian(name, float(own["mean"][slot, state]), deviation, top)
    if isinstance(family, Gaussian):
        scale = column.scale / family.scale
        mean = own["mean"][slot, state] * scale + column.shift
        return b.gaussian(name, float(mean), float(np.sqrt(own["variance"][slot, state]) * scale))
    if not isinstance(family, Categorical | Binomial):
        raise QueryError(f"leaves of family {family.name!r} cannot be unrolled")
    masses = own["masses"][slot, :, state]
    masses = masses / masses.sum()
    if column.kind == "code":
        return b.categorical(name, masses)
    grid = variable.grid if column.kind == "grid" else _level_grid(column.n_values)
    assert grid is not None
    return b.histogram(name, grid, masses)


def unrolled_circuit(
    network: Network,
    params: Parameters,
    schema: Schema,
    columns: Sequence[Column],
    label: str | None,
) -> Circuit:
    """Return the distribution of a network as a circuit, in double precision.

    Args:
        network: A small network.
        params: Its parameters.
        schema: Variables of the circuit.
        columns: Codings of all variables but the label.
        label: Name of the label, None without one.

    Raises:
        QueryError: If the circuit would have more than two million edges.
    """
    layout = network.layout
    if network.n_weights > MAX_UNROLLED:
        raise QueryError(
            f"an EiNet of {network.n_weights:,} weights is too large to unroll; "
            f"at most {MAX_UNROLLED:,}"
        )
    params, width = params.to("cpu"), network.width
    variables = [v for v in schema if v.name != label]
    nodes: list[list[Node]] = [[] for _ in range(layout.n_regions)]
    factors: list[list[list[Node]]] = [[[] for _ in range(width)] for _ in range(layout.n_leaves)]
    for block, tensors in zip(network.blocks, params.leaves, strict=True):
        own = {name: tensor.double().numpy() for name, tensor in tensors.items()}
        if isinstance(block.family, Categorical | Binomial):
            exact = {name: tensor.double() for name, tensor in tensors.items()}
            own["masses"] = block.family.masses(exact).numpy()
        for slot, (at, region) in enumerate(zip(block.variables, block.regions, strict=True)):
            variable, column = variables[at], columns[at]
            for state in range(width):
                leaf = _leaf(variable, column, block.family, own, slot, state)
                factors[region][state].append(leaf)
    for region in range(layout.n_leaves):
        nodes[region] = [_product(found) for found in factors[region]]

    def sums(children: NDArray[np.int64], weights: NDArray[np.float64]) -> list[Node]:
        """Sum nodes of one region from its partitions' children and weights (P, O, edges)."""
        products: list[Node] = []
        for row in children:
            parts = [nodes[child] for child in row if child < layout.n_regions]
            if network.layer == "cp":
                products += [_product([part[k] for part in parts]) for k in range(width)]
            else:
                left, right = parts
                products += [_product([u, v]) for u in left for v in right]
        flat = weights.transpose(1, 0, 2).reshape(weights.shape[1], -1)
        return [b.sum(products, list(row / row.sum())) for row in flat]

    weights = params.weights.double().flatten(2).numpy()
    for group in layout.groups:
        for number, region in enumerate(range(*group.regions)):
            first = group.partitions[0] + number * group.n_splits
            span = slice(first, first + group.n_splits)
            nodes[region] = sums(layout.children[span], weights[span])
    tops = sums(layout.root_children, params.root.double().flatten(2).numpy())
    prior = params.prior.double().numpy()
    if label is None:
        root = tops[0] if len(tops) == 1 else b.sum(tops, list(prior / prior.sum()))
    else:
        one_hot = np.eye(network.n_classes)
        classes = [_product([top, b.categorical(label, one_hot[c])]) for c, top in enumerate(tops)]
        root = b.sum(classes, list(prior / prior.sum()))
    return b.circuit(schema, root)


def _product(children: list[Node]) -> Node:
    return children[0] if len(children) == 1 else b.product(children)

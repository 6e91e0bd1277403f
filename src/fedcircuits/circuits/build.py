"""Writing a circuit down by hand: leaves, sums and products, checked once when built.

```python
from fedcircuits.circuits import build as b

root = b.sum([b.product([b.gaussian("x", 0, 1), b.categorical("c", [.2, .8])]),
              b.product([b.gaussian("x", 3, 2), b.categorical("c", [.9, .1])])], [.3, .7])
circuit = b.circuit(schema, root)
```

A node used twice is shared, not copied. `circuit` lists every violation of scope, smoothness,
decomposability and normalisation, not only the first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fedcircuits.circuits.assemble import Assembler
from fedcircuits.circuits.circuit import Circuit
from fedcircuits.circuits.leaves import FAMILIES, family_named
from fedcircuits.circuits.nodes import Leaf, Node, Product, Sum
from fedcircuits.errors import StructureError
from fedcircuits.schema import Grid, Schema, Variable
from fedcircuits.schema.grid import FloatArray


def gaussian(variable: str, mean: float, sd: float) -> Leaf:
    """Normal distribution."""
    return Leaf(variable, "gaussian", {"mean": mean, "sd": sd})


def truncated_gaussian(variable: str, mean: float, sd: float, low: float, high: float) -> Leaf:
    """Normal distribution on an interval."""
    params = {"mean": mean, "sd": sd, "low": low, "high": high}
    return Leaf(variable, "truncated_gaussian", params)


def uniform(variable: str, low: float, high: float) -> Leaf:
    """Uniform distribution on an interval."""
    return Leaf(variable, "uniform", {"low": low, "high": high})


def categorical(variable: str, probs: ArrayLike) -> Leaf:
    """Probabilities of the categories, in the order of the schema."""
    return Leaf(variable, "categorical", {"probs": np.asarray(probs, dtype=float)})


def bernoulli(variable: str, p: float) -> Leaf:
    """Probability p of the second of two categories."""
    return categorical(variable, [1 - p, p])


def poisson(variable: str, rate: float) -> Leaf:
    """Poisson distribution of a count."""
    return Leaf(variable, "poisson", {"rate": rate})


def discretised_gaussian(variable: str, mean: float, sd: float, top: int = 255) -> Leaf:
    """Masses of the levels 0..top under a normal distribution on the scale 0..1."""
    return Leaf(variable, "discretised_gaussian", {"mean": mean, "sd": sd, "top": float(top)})


def histogram(variable: str, grid: Grid, masses: ArrayLike) -> Leaf:
    """Masses of the states of a grid; a count table if the grid is over the integers."""
    family = "count_table" if grid.integer else "histogram"
    return Leaf(variable, family, {"masses": np.asarray(masses, dtype=float)}, grid)


def sum(children: Sequence[Node], weights: Sequence[float]) -> Sum:
    """A mixture."""
    return Sum(tuple(children), tuple(float(w) for w in weights))


def product(children: Sequence[Node]) -> Product:
    """Independent factors."""
    return Product(tuple(children))


def fit_leaf(
    variable: Variable,
    x: FloatArray,
    weights: FloatArray | None = None,
    family: str | None = None,
    **options: Any,
) -> Leaf:
    """A leaf fitted to encoded values; by default a table of the variable's categories or grid."""
    by_kind = {"continuous": "histogram", "count": "count_table"}
    return family_named(family or by_kind.get(variable.kind, "categorical")).fit(
        variable, x, weights, **options
    )


def circuit(schema: Schema, root: Node) -> Circuit:
    """The circuit below `root` over the variables of `schema`."""
    assembler = Assembler(schema)
    number: dict[int, int] = {}  # of every node object, by identity: shared nodes stay shared
    faults: list[str] = []
    for node in _children_first(root):
        if isinstance(node, Leaf):
            number[id(node)] = _add_leaf(assembler, node, faults)
            continue
        children = [number[id(child)] for child in node.children]
        if not children:
            faults.append(f"a {type(node).__name__.lower()} has no child")
            number[id(node)] = -1
        elif isinstance(node, Sum):
            number[id(node)] = _add_sum(assembler, node, children, faults)
        else:
            number[id(node)] = int(assembler.products([children])[0])
    if faults:
        raise StructureError(faults)
    return Circuit.assemble(assembler, number[id(root)])


def _children_first(root: Node) -> list[Node]:
    """Nodes in topological order, without recursion; a cycle cannot be written with tuples."""
    order: list[Node] = []
    finished: set[int] = set()
    stack: list[tuple[Node, bool]] = [(root, False)]
    while stack:
        node, expanded = stack.pop()
        if id(node) in finished:
            continue
        if expanded or isinstance(node, Leaf):
            finished.add(id(node))
            order.append(node)
            continue
        stack.append((node, True))
        stack.extend((child, False) for child in reversed(node.children))
    return order


def _add_leaf(assembler: Assembler, leaf: Leaf, faults: list[str]) -> int:
    if leaf.variable not in assembler.schema:
        names = ", ".join(map(repr, assembler.schema.names[:8]))
        faults.append(f"leaf over unknown variable {leaf.variable!r}; the schema has {names}")
        return -1
    if leaf.family not in FAMILIES:
        faults.append(f"no leaf family {leaf.family!r}; there are {', '.join(sorted(FAMILIES))}")
        return -1
    family = FAMILIES[leaf.family]
    lacking = [name for name in family.parameters if name not in leaf.params]
    if lacking:
        faults.append(f"{leaf.family} leaf over {leaf.variable!r} lacks {', '.join(lacking)}")
        return -1
    params = {name: np.asarray(leaf.params[name], dtype=float)[None] for name in family.parameters}
    column = assembler.schema.position(leaf.variable)
    return int(assembler.leaves(family, column, params, leaf.grid)[0])


def _add_sum(assembler: Assembler, node: Sum, children: list[int], faults: list[str]) -> int:
    weights = np.asarray(node.weights, dtype=float)
    if weights.shape != (len(children),):
        faults.append(f"a sum has {len(children)} children and {weights.size} weights")
        return -1
    if not np.isfinite(weights).all() or (weights < 0).any():
        faults.append(f"a sum's weights must be finite and not negative, found {node.weights}")
        return -1
    with np.errstate(divide="ignore"):
        return int(assembler.sums([children], [np.log(weights)])[0])


__all__ = [
    "bernoulli",
    "categorical",
    "circuit",
    "discretised_gaussian",
    "fit_leaf",
    "gaussian",
    "histogram",
    "poisson",
    "product",
    "sum",
    "truncated_gaussian",
    "uniform",
]

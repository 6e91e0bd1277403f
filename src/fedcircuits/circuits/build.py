"""Build a circuit by hand from leaves, sums and products, checked once when built.

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
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from fedcircuits.arrays import FloatArray
from fedcircuits.circuits.assemble import Assembler
from fedcircuits.circuits.circuit import Circuit
from fedcircuits.circuits.leaves import FAMILIES, Params, family_named
from fedcircuits.circuits.leaves.gaussian import Gaussian
from fedcircuits.circuits.nodes import Leaf, Node, Product, Sum
from fedcircuits.errors import StructureError
from fedcircuits.schema import Grid, Schema, Variable
from fedcircuits.schema.variable import KINDS


def gaussian(variable: str, mean: float, sd: float) -> Leaf:
    """Return a leaf with a normal distribution."""
    return Leaf(variable, "gaussian", {"mean": mean, "sd": sd})


def truncated_gaussian(variable: str, mean: float, sd: float, low: float, high: float) -> Leaf:
    """Return a leaf with a normal distribution on an interval."""
    params = {"mean": mean, "sd": sd, "low": low, "high": high}
    return Leaf(variable, "truncated_gaussian", params)


def uniform(variable: str, low: float, high: float) -> Leaf:
    """Return a leaf with a uniform distribution on an interval."""
    return Leaf(variable, "uniform", {"low": low, "high": high})


def categorical(variable: str, probs: ArrayLike) -> Leaf:
    """Return a leaf with probabilities of the categories, in the order of the schema."""
    return Leaf(variable, "categorical", {"probs": np.asarray(probs, dtype=float)})


def bernoulli(variable: str, p: float) -> Leaf:
    """Return a leaf with probability p of the second of two categories."""
    return categorical(variable, [1 - p, p])


def poisson(variable: str, rate: float) -> Leaf:
    """Return a leaf with a Poisson distribution of a count."""
    return Leaf(variable, "poisson", {"rate": rate})


def discretised_gaussian(variable: str, mean: float, sd: float, top: int = 255) -> Leaf:
    """Masses of the levels 0..top under a normal distribution on the scale 0..1."""
    return Leaf(variable, "discretised_gaussian", {"mean": mean, "sd": sd, "top": float(top)})


def histogram(variable: str, grid: Grid, masses: ArrayLike) -> Leaf:
    """Masses of the states of a grid; a count table if the grid is over the integers."""
    family = "count_table" if grid.integer else "histogram"
    return Leaf(variable, family, {"masses": np.asarray(masses, dtype=float)}, grid)


def states(variable: Variable, masses: ArrayLike) -> Leaf:
    """Return a leaf with masses of the states of a variable: of its categories, or of its grid."""
    if variable.grid is None:
        return categorical(variable.name, masses)
    return histogram(variable.name, variable.grid, masses)


def all_alike(variable: Variable) -> Leaf:
    """Return a leaf of a variable that no row has a value of: all of its states are as likely."""
    n_states = variable.n_codes if variable.grid is None else variable.grid.n_states
    return states(variable, np.full(n_states, 1.0 / n_states))


def sum(children: Sequence[Node], weights: Sequence[float]) -> Sum:
    """Return a sum node: a mixture of children over the same variables."""
    return Sum(tuple(children), tuple(float(w) for w in weights))


def product(children: Sequence[Node]) -> Product:
    """Return a product node: independent children over disjoint variables."""
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
    order = _children_first(root)
    faults = [
        f"a {type(node).__name__.lower()} has no child"
        for node in order
        if not isinstance(node, Leaf) and not node.children
    ]
    if faults:
        raise StructureError(faults)  # scopes mean nothing without leaves
    strangers = dict.fromkeys(
        node.variable for node in order if isinstance(node, Leaf) and node.variable not in schema
    )
    known = ", ".join(map(repr, schema.names[:8])) + (", ..." if len(schema) > 8 else "")
    faults += [f"leaf over unknown variable {n!r}; the schema has {known}" for n in strangers]
    # Whatever is at fault gets a stand-in, so that everything else is still checked.
    places = {name: len(schema) + at for at, name in enumerate(strangers)}
    stand_ins = (
        Variable(n if isinstance(n, str) and n else f"({n!r})", "continuous") for n in strangers
    )
    assembler = Assembler(Schema((*schema, *stand_ins)) if strangers else schema)
    number: dict[int, int] = {}  # of every node object, by identity: shared nodes stay shared
    for node in order:
        if isinstance(node, Leaf):
            if node.variable in places:
                number[id(node)] = _stand_in(assembler, places[node.variable], None)
            else:
                number[id(node)] = _add_leaf(assembler, node, faults)
            continue
        children = [number[id(child)] for child in node.children]
        if isinstance(node, Sum):
            number[id(node)] = _add_sum(assembler, node, children, faults)
        else:
            number[id(node)] = int(assembler.products([children])[0])
    if not faults:
        return Circuit.assemble(assembler, number[id(root)])
    try:
        Circuit.assemble(assembler, number[id(root)])
    except StructureError as error:
        faults += error.violations
    raise StructureError(faults)


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
    column = assembler.schema.position(leaf.variable)
    if leaf.family not in FAMILIES:
        faults.append(
            f"leaf over {leaf.variable!r}: no leaf family {leaf.family!r}; "
            f"there are {', '.join(sorted(FAMILIES))}"
        )
        return _stand_in(assembler, column, leaf.grid)
    family = FAMILIES[leaf.family]
    lacking = [name for name in family.parameters if name not in leaf.params]
    if lacking:
        faults.append(f"{leaf.family} leaf over {leaf.variable!r} lacks {', '.join(lacking)}")
        return _stand_in(assembler, column, leaf.grid)
    try:
        params = {
            name: np.asarray(leaf.params[name], dtype=float)[None] for name in family.parameters
        }
    except (TypeError, ValueError):
        faults.append(
            f"{leaf.family} leaf over {leaf.variable!r} has parameters that are no numbers"
        )
        return _stand_in(assembler, column, leaf.grid)
    return int(assembler.leaves(family, column, params, leaf.grid)[0])


class _StandIn(Gaussian):
    """Replaces a leaf whose fault is already listed, so that checking can go on."""

    name = "stand-in"
    kinds: ClassVar[Any] = KINDS

    def check(self, params: Params, variable: Variable, grid: Grid | None) -> list[str]:
        del params, variable, grid
        return []


def _stand_in(assembler: Assembler, column: int, grid: Grid | None) -> int:
    params = {"mean": np.zeros(1), "sd": np.ones(1)}
    return int(assembler.leaves(_StandIn(), column, params, grid)[0])


def _add_sum(assembler: Assembler, node: Sum, children: list[int], faults: list[str]) -> int:
    weights = np.asarray(node.weights, dtype=float)
    if weights.shape != (len(children),):
        faults.append(f"a sum has {len(children)} children and {weights.size} weights")
        weights = np.full(len(children), 1 / len(children))
    elif not np.isfinite(weights).all() or (weights < 0).any():
        faults.append(f"a sum's weights must be finite and not negative, found {node.weights}")
        weights = np.full(len(children), 1 / len(children))
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

"""Leaf, sum and product nodes as users write them; `build` makes a circuit of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fedcircuits.arrays import FloatArray
from fedcircuits.schema.grids.grid import Grid


@dataclass(frozen=True, eq=False)
class Leaf:
    """A univariate distribution over one variable.

    Attributes:
        variable: its name.
        family: name of a leaf family.
        params: its parameters, without the axis of leaves.
        grid: of a histogram or count table.
    """

    variable: str
    family: str
    params: Mapping[str, FloatArray | float] = field(default_factory=dict)
    grid: Grid | None = None


@dataclass(frozen=True, eq=False)
class Sum:
    """A mixture of children over the same variables (horizontal federation, section 3.1)."""

    children: Sequence[Node]
    weights: Sequence[float]


@dataclass(frozen=True, eq=False)
class Product:
    """Independent children over disjoint variables (vertical federation, section 3.1)."""

    children: Sequence[Node]


Node = Leaf | Sum | Product

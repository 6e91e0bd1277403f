"""`Draft`: a circuit while it is being learned, parents before children."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from fedcircuits.arrays import FloatArray, IntArray
from fedcircuits.circuits.assemble import Assembler
from fedcircuits.circuits.leaves import family_named
from fedcircuits.schema import Schema

_FAMILY = {"continuous": "histogram", "count": "count_table"}


@dataclass(eq=False)
class Draft:
    """Nodes numbered as they are opened; node 0 is the root and children have higher numbers.

    A node is opened without content and later becomes a leaf, a sum or a product.
    """

    schema: Schema
    n_nodes: int = 1
    _leaves: dict[int, tuple[list[int], list[FloatArray]]] = field(default_factory=dict)
    _inner: list[tuple[int, int, int, FloatArray | None]] = field(default_factory=list)

    def _open(self, k: int) -> range:
        self.n_nodes += k
        return range(self.n_nodes - k, self.n_nodes)

    def leaf(self, node: int, column: int, masses: FloatArray) -> None:
        """Make a node a leaf over a column with masses (s,) of its states."""
        numbers, tables = self._leaves.setdefault(column, ([], []))
        numbers.append(node)
        tables.append(masses)

    def product(self, node: int, k: int) -> range:
        """Make a node a product; returns the numbers of its k children."""
        children = self._open(k)
        self._inner.append((node, children.start, k, None))
        return children

    def sum(self, node: int, weights: FloatArray) -> range:
        """Make a node a sum with weights (k,); returns the numbers of its k children."""
        children = self._open(weights.size)
        self._inner.append((node, children.start, weights.size, np.log(weights)))
        return children

    @property
    def n_sums(self) -> int:
        """Number of sums so far."""
        return sum(log_weights is not None for *_, log_weights in self._inner)

    @property
    def n_products(self) -> int:
        """Number of products so far."""
        return len(self._inner) - self.n_sums

    @property
    def n_leaves(self) -> int:
        """Number of leaves so far."""
        return sum(len(numbers) for numbers, _ in self._leaves.values())

    @property
    def depth(self) -> int:
        """Longest path from the root to a leaf."""
        depth = np.zeros(self.n_nodes, dtype=np.int64)
        for node, first, k, _ in sorted(self._inner, key=lambda n: n[0]):
            depth[first : first + k] = depth[node] + 1
        return int(depth.max())

    def assemble(self) -> tuple[Assembler, int]:
        """The nodes in an assembler, children first, and the root's number there."""
        assembler = Assembler(self.schema)
        number: IntArray = np.full(self.n_nodes, -1, dtype=np.int64)
        for column, (nodes, tables) in sorted(self._leaves.items()):
            variable = self.schema.variables[column]
            family = family_named(_FAMILY.get(variable.kind, "categorical"))
            params = {family.parameters[0]: np.stack(tables)}
            number[nodes] = assembler.leaves(family, column, params, variable.grid)
        for node, first, k, log_weights in sorted(self._inner, key=lambda n: n[0], reverse=True):
            children = number[first : first + k]
            if log_weights is None:
                number[node] = assembler.product(children)
            else:
                number[node] = assembler.sum(children, log_weights)
        return assembler, int(number[0])

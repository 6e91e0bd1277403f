"""`Assembler`: build a circuit from many nodes at once, for learners and queries.

`build` is the friendly way for a person; this is the fast way for a program. Nodes are numbered
as they are added; `Circuit.assemble` drops what the root does not reach, puts leaves first, orders
nodes for evaluation and checks the result.
"""

from __future__ import annotations

import numpy as np

from fedcircuits.arrays import IntArray
from fedcircuits.circuits.leaf_group import LeafGroup
from fedcircuits.circuits.leaves import LeafFamily, Params
from fedcircuits.circuits.structure import Structure
from fedcircuits.circuits.structure_builder import StructureBuilder
from fedcircuits.schema import Grid, Schema


class Assembler(StructureBuilder):
    """Collects leaves, sums and products, in any order in which children come first."""

    def __init__(self, schema: Schema) -> None:
        super().__init__()
        self.schema = schema
        self._groups: list[tuple[LeafFamily, int, Params, Grid | None, IntArray]] = []

    def leaves(
        self, family: LeafFamily, column: int, params: Params, grid: Grid | None = None
    ) -> IntArray:
        """Add L leaves over a column; params have L as first axis. Returns their numbers (L,)."""
        size = int(np.asarray(params[family.parameters[0]]).shape[0])
        numbers = self.number(size)
        self._groups.append((family, column, params, grid, numbers))
        return numbers

    def parts(self, root: int) -> tuple[tuple[LeafGroup, ...], Structure]:
        """Return leaf groups and structure of the circuit below `root`."""
        alive = self.reached(root)
        groups, new, first = [], np.full(self._n, -1, dtype=np.int64), 0
        for family, column, params, grid, numbers in self._merged_groups():
            kept = alive[numbers]
            if not kept.any():
                continue
            arrays = {
                name: np.array(np.asarray(params[name], dtype=float)[kept], order="C")
                for name in family.parameters
            }
            groups.append(LeafGroup(family, column, first, arrays, grid))
            count = int(kept.sum())
            new[numbers[kept]] = np.arange(first, first + count)
            first += count
        return tuple(groups), self.structure(alive, new, first)

    def _merged_groups(self) -> list[tuple[LeafFamily, int, Params, Grid | None, IntArray]]:
        """Merge leaves of one family, column and grid into one group: fewer, larger operations."""
        merged: dict[tuple[int, str, object], list[int]] = {}
        for at, (family, column, params, grid, _) in enumerate(self._groups):
            shapes = tuple(np.asarray(params[name]).shape[1:] for name in family.parameters)
            merged.setdefault((column, family.name, (grid, shapes)), []).append(at)
        answer = []
        for members in merged.values():
            family, column, _, grid, _ = self._groups[members[0]]
            params = {
                name: np.concatenate(
                    [np.asarray(self._groups[m][2][name], dtype=float) for m in members]
                )
                for name in family.parameters
            }
            numbers = np.concatenate([self._groups[m][4] for m in members])
            answer.append((family, column, params, grid, numbers))
        return sorted(answer, key=lambda g: g[1])

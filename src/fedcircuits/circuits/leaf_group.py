"""`LeafGroup`: leaves of one family over one variable, evaluated together."""

from __future__ import annotations

from dataclasses import dataclass

from fedcircuits.circuits.leaves import LeafFamily, Params
from fedcircuits.schema import Grid


@dataclass(frozen=True, eq=False)
class LeafGroup:
    """L leaves of one family over one variable, with consecutive node numbers.

    Attributes:
        family: the family.
        column: position of the variable in the schema.
        first: number of the first leaf.
        params: arrays whose first axis is L.
        grid: shared by the leaves, for families on a grid.
    """

    family: LeafFamily
    column: int
    first: int
    params: Params
    grid: Grid | None

    @property
    def size(self) -> int:
        """Number of leaves L."""
        return int(self.params[self.family.parameters[0]].shape[0])

    @property
    def nodes(self) -> slice:
        """The leaves' node numbers."""
        return slice(self.first, self.first + self.size)

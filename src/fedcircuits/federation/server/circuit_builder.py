"""Gluing client models into one circuit: the pure half of every agreement rule."""

from __future__ import annotations

from collections.abc import Sequence

from fedcircuits.arrays import FloatArray
from fedcircuits.circuits.structure_builder import StructureBuilder
from fedcircuits.density import Density
from fedcircuits.federation.plan.weights import log_shares

SERVER = "server"  # owner of the parts and nodes that are at the server


class CircuitBuilder(StructureBuilder):
    """Collects parts, sums and products; remembers which client each part came from (psi).

    Attributes:
        parts: the models, numbered in order.
        owners: the client of each part; "server" for what lives there.
    """

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[Density] = []
        self.owners: list[str] = []
        self._number: dict[int, int] = {}

    def register(self, models: Sequence[tuple[Density, str]]) -> None:
        """Number all parts before any sum or product: parts are the graph's first numbers."""
        for model, owner in models:
            if id(model) not in self._number:
                self._number[id(model)] = int(self.number(1)[0])
                self.parts.append(model)
                self.owners.append(owner)

    def part(self, model: Density) -> int:
        """The number of a registered part."""
        return self._number[id(model)]

    def mixture(self, children: Sequence[int], counts: Sequence[float] | FloatArray) -> int:
        """A sum with weights in proportion to counts; children without rows are left out."""
        kept = [(c, n) for c, n in zip(children, counts, strict=True) if n > 0]
        if not kept:
            raise ValueError("a mixture needs a child with rows behind it")
        return self.sum([c for c, _ in kept], log_shares([n for _, n in kept]))

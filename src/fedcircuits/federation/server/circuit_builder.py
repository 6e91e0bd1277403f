"""Gluing client models into one circuit: the pure half of every agreement rule."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from fedcircuits.arrays import FloatArray
from fedcircuits.circuits.evaluation_plan import EvaluationPlan
from fedcircuits.circuits.passes import sum_product, up
from fedcircuits.circuits.queries.restrict import fold_evidence
from fedcircuits.circuits.structure import Structure
from fedcircuits.circuits.structure_builder import StructureBuilder
from fedcircuits.density import Density
from fedcircuits.federation.plan.weights import log_shares
from fedcircuits.federation.wire.names import ModelKey

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

    def without_clients(self, root: int, away: Collection[str]) -> tuple[CircuitBuilder, int]:
        """A circuit without some clients' parts, and its root.

        Their own variables are summed out; their share of mixtures goes to those that hold the
        same variables.
        """
        structure, kept = self.below(root, len(self.parts))
        parts, owners = [self.parts[at] for at in kept], [self.owners[at] for at in kept]
        return without_parts(structure, EvaluationPlan.of(structure), parts, owners, away)

    def mixture(self, children: Sequence[int], counts: Sequence[float] | FloatArray) -> int:
        """A sum with weights in proportion to counts; children without rows are left out."""
        kept = [(c, n) for c, n in zip(children, counts, strict=True) if n > 0]
        if not kept:
            raise ValueError("a mixture needs a child with rows behind it")
        return self.sum([c for c, _ in kept], log_shares([n for _, n in kept]))


def without_parts(
    structure: Structure,
    plan: EvaluationPlan,
    parts: Sequence[Density],
    owners: Sequence[str],
    away: Collection[str],
    models: Mapping[ModelKey, Density] | None = None,
) -> tuple[CircuitBuilder, int]:
    """The circuit over the parts of clients that are not away, and its root.

    Args:
        structure: over all parts.
        plan: of the structure.
        parts: the leaves.
        owners: the client of each.
        away: clients whose own variables are summed out, and whose share of mixtures goes to
            those that hold the same variables.
        models: of the clients, for parts at the server that several of them make together.
    """
    parts = _summed_out(parts, owners, models or {}, away)
    held = {
        name
        for part, owner in zip(parts, owners, strict=True)
        if owner not in away
        for name in part.schema.names
    }
    values = np.zeros((structure.n_nodes, 1))
    builder = CircuitBuilder()
    leaves = np.full(len(parts), -1, dtype=np.int64)
    for at, (part, owner) in enumerate(zip(parts, owners, strict=True)):
        if owner not in away:
            builder.register([(part, owner)])
            leaves[at] = builder.part(part)
        elif set(part.schema.names) & held:
            values[at] = -np.inf  # other clients hold such variables too, in parts of their own
    up(plan, values, sum_product)
    return builder, fold_evidence(structure, values[:, 0], leaves, builder)


def _summed_out(
    parts: Sequence[Density],
    owners: Sequence[str],
    models: Mapping[ModelKey, Density],
    away: Collection[str],
) -> tuple[Density, ...]:
    """The parts; those that several clients' models make together without what only `away` had.

    Args:
        parts: the leaves.
        owners: the client of each.
        models: of the clients.
        away: clients that leave.
    """
    held, lost = set[str](), set[str]()
    for key, model in models.items():
        (lost if key.client in away else held).update(model.schema.names)
    found = []
    for part, owner in zip(parts, owners, strict=True):
        kept = [name for name in part.schema.names if name in held or name not in lost]
        theirs = owner == SERVER and 0 < len(kept) < len(part.schema)
        found.append(part.marginal(kept) if theirs else part)
    return tuple(found)

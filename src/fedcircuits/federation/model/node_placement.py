"""The machine of every node of a federated circuit (psi of Definition 4)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedcircuits.circuits.structure import Structure
from fedcircuits.federation.server.circuit_builder import SERVER


@dataclass(frozen=True)
class Placed:
    """A node and its machine.

    Attributes:
        node: its number, leaves first.
        at: the client, or the server.
        sends_to: the machines of its parents where these are other machines.
    """

    node: int
    at: str
    sends_to: tuple[str, ...]


def placement(structure: Structure, owners: Sequence[str]) -> tuple[Placed, ...]:
    """Returns the placement of all nodes: leaves at their owners, the rest at the server.

    A result is sent where a node and its parent are on different machines (section 3.2).
    """
    at = [*owners, *[SERVER] * structure.n_inner]
    has_parent = np.zeros(structure.n_nodes, dtype=bool)
    has_parent[structure.child] = True
    return tuple(
        Placed(node, where, (SERVER,) if where != SERVER and has_parent[node] else ())
        for node, where in enumerate(at)
    )

"""psi of Definition 4: the machine of every node of a federated circuit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedcircuits.circuits.structure import Structure

SERVER = "server"


@dataclass(frozen=True)
class Placed:
    """A node and its machine.

    Attributes:
        node: its number, leaves first.
        at: the client, or the server.
        talks_to: machines it sends its result to: those of its parents that are elsewhere.
    """

    node: int
    at: str
    talks_to: tuple[str, ...]


def placement(structure: Structure, owners: Sequence[str]) -> tuple[Placed, ...]:
    """Leaves are at their owners, sums and products at the server (section 3.2).

    A result crosses the network where a node and its parent are on different machines.
    """
    at = [*owners, *[SERVER] * structure.n_inner]
    has_parent = np.zeros(structure.n_nodes, dtype=bool)
    has_parent[structure.child] = True
    return tuple(
        Placed(node, where, (SERVER,) if where != SERVER and has_parent[node] else ())
        for node, where in enumerate(at)
    )

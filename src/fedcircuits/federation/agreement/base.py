"""The contract of an agreement rule."""

from __future__ import annotations

from typing import Protocol

from fedcircuits.federation.server.circuit_builder import CircuitBuilder
from fedcircuits.federation.server.fitted_parts import FittedParts, TakeModels
from fedcircuits.federation.server.server import Server


class Rule(Protocol):
    """One way to agree."""

    @property
    def name(self) -> str:
        """As the user writes it."""
        ...

    @property
    def leaves_client(self) -> tuple[str, ...]:
        """What leaves a client under this rule, in words; schema and models apart."""
        ...

    def train(self, server: Server, take: TakeModels) -> FittedParts:
        """Send the messages of this rule."""
        ...

    def glue(self, fitted: FittedParts) -> tuple[CircuitBuilder, int]:
        """The builder and its root."""
        ...

"""The contract of an agreement rule, and what a rule may offer besides."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from fedcircuits.federation.server.circuit_builder import CircuitBuilder
from fedcircuits.federation.server.fitted_parts import FittedParts, TakeModels
from fedcircuits.federation.server.server import Server


class Rule(Protocol):
    """How clients agree on what belongs together, and how their models become one circuit."""

    @property
    def name(self) -> str:
        """As the user writes it."""
        ...

    @property
    def leaves_client(self) -> tuple[str, ...]:
        """What leaves a client under this rule, in words; schema and models apart."""
        ...

    def train(self, server: Server, take: TakeModels) -> FittedParts:
        """Send the messages of this rule and return what the clients fitted."""
        ...

    def glue(self, fitted: FittedParts) -> tuple[CircuitBuilder, int]:
        """Return the circuit of the fitted parts as builder and root; a pure function of them."""
        ...


@runtime_checkable
class GluesAgain(Protocol):
    """A rule whose circuit has the parts of several clients in one, also where columns are split.

    A client that leaves is then taken out by gluing the others' parts again.
    """

    @property
    def glues_again(self) -> bool:
        """Whether this is so with the rule's settings."""
        ...

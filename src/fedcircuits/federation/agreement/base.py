"""The contract of an agreement rule."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from fedcircuits.federation.glue import Network
from fedcircuits.federation.server import Server
from fedcircuits.federation.training import Ingredients


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

    def train(self, server: Server, take: Mapping[str, Any]) -> Ingredients:
        """Send the messages of this rule."""
        ...

    def glue(self, ingredients: Ingredients) -> tuple[Network, int]:
        """The network and its root."""
        ...

"""What the server needs of an engine: carry bytes to clients and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from fedcircuits.errors import ClientError


@runtime_checkable
class Transport(Protocol):
    """The engine contract. Engines know messages as bytes; they do no maths."""

    def members(self) -> list[str]:
        """Names of the clients, sorted."""
        ...

    def call(
        self, verb: str, payloads: Mapping[str, bytes], timeout: float | None = None
    ) -> dict[str, bytes | Exception]:
        """Send each client its payload; its reply, or what went wrong with it."""
        ...

    def close(self) -> None:
        """Let go of the clients."""
        ...


class ClientAwayError(ClientError):
    """A client gave no answer at all: it is gone, or too slow."""

"""What the server needs of an engine: carry bytes to clients and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from fedcircuits.errors import ClientError


@runtime_checkable
class Transport(Protocol):
    """An engine as the server uses it: it carries messages as bytes and computes nothing."""

    def members(self) -> list[str]:
        """Return the sorted names of the clients."""
        ...

    def call(
        self, verb: str, payloads: Mapping[str, bytes], timeout: float | None = None
    ) -> dict[str, bytes | Exception]:
        """Send each client its payload; return each reply, or the error instead of one."""
        ...

    def close(self) -> None:
        """End the clients or the connections to them."""
        ...


class ClientAwayError(ClientError):
    """A client gave no answer at all: it is gone, or too slow."""


REFUSED = "PolicyError: "  # how the text of a refusal begins


class RefusedError(ClientError):
    """A client's policy does not allow a request."""

"""What the server needs of an engine: carry bytes to clients and back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol, runtime_checkable

from fedcircuits.errors import ClientError, StorageError
from fedcircuits.federation.wire.message import Failed, Message

# Requests are sent together, but for those of many clients that are large: an engine may keep each
# of them several times while it waits.
WAVE_CLIENTS, WAVE_BYTES = 32, 2**26


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


def in_waves(requests: Mapping[str, Message]) -> Iterator[dict[str, bytes]]:
    """Return requests as bytes, in the order of the clients, as many as are sent together."""
    wave: dict[str, bytes] = {}
    for client in sorted(requests):
        wave[client] = requests[client].to_bytes()
        if len(wave) >= WAVE_CLIENTS and sum(map(len, wave.values())) >= WAVE_BYTES:
            yield wave
            wave = {}
    if wave:
        yield wave


class ClientAwayError(ClientError):
    """A client gave no answer at all: it is gone, or too slow."""


REFUSED = "PolicyError: "  # how the text of a refusal begins


class RefusedError(ClientError):
    """A client's policy does not allow a request."""


def why_away(client: str, error: Exception) -> ClientAwayError:
    """Return why nothing came back, with the client named once."""
    why = str(error).removeprefix(f"client {client!r}: ")
    named = isinstance(error, ClientError)
    return ClientAwayError(client, why if named else f"{type(error).__name__}: {why}")


def why_failed(client: str, answer: bytes, error: StorageError) -> ClientError:
    """Return the error that a reply reports, or that it is no reply."""
    try:
        text = Failed.from_bytes(answer).error
        return (RefusedError if text.startswith(REFUSED) else ClientError)(client, text)
    except StorageError:
        return ClientError(client, f"a reply that cannot be read: {error}")

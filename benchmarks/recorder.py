"""An engine that keeps every message another one carries: for audits of what leaves a client."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fedcircuits.federation.wire.transport import Transport


@dataclass(frozen=True)
class Recorded:
    """One message.

    Attributes:
        verb: what it was about.
        client: who sent or received it.
        to_client: its direction.
        data: as it travelled.
    """

    verb: str
    client: str
    to_client: bool
    data: bytes


class Recorder:
    """Carries messages as `inner` does, and keeps them in `messages`.

    Args:
        inner: the engine that does the work.
    """

    def __init__(self, inner: Transport) -> None:
        self.inner = inner
        self.messages: list[Recorded] = []

    def members(self) -> list[str]:
        """Those of the other engine."""
        return self.inner.members()

    def call(
        self, verb: str, payloads: Mapping[str, bytes], timeout: float | None = None
    ) -> dict[str, bytes | Exception]:
        """Keep what goes out and what comes back."""
        self.messages += [Recorded(verb, client, True, data) for client, data in payloads.items()]
        answers = self.inner.call(verb, payloads, timeout)
        self.messages += [
            Recorded(verb, client, False, answer)
            for client, answer in answers.items()
            if isinstance(answer, bytes)
        ]
        return answers

    def close(self) -> None:
        """Close the other engine."""
        self.inner.close()

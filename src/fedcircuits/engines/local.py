"""The embedded engine: clients in this process, called one after the other."""

from __future__ import annotations

from collections.abc import Mapping

from fedcircuits.federation.client.client import Client


class LocalEngine:
    """Clients as objects of this process.

    Args:
        clients: by name.
    """

    def __init__(self, clients: Mapping[str, Client]) -> None:
        self._clients = dict(clients)

    def members(self) -> list[str]:
        """Names, sorted."""
        return sorted(self._clients)

    def call(
        self, verb: str, payloads: Mapping[str, bytes], timeout: float | None = None
    ) -> dict[str, bytes | Exception]:
        """Hand each payload to its client; an exception is that client's, the others go on."""
        del timeout  # a call in this process cannot be left behind
        answers: dict[str, bytes | Exception] = {}
        for name in sorted(payloads):
            try:
                answers[name] = self._clients[name].handle(verb, payloads[name])
            except Exception as error:  # whatever a learner raises
                answers[name] = error
        return answers

    def close(self) -> None:
        """Nothing to let go of."""

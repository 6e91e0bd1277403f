"""The engine \"local\": clients in this process, called one after the other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from fedcircuits.federation.policy.audit import Handler


class LocalEngine:
    """Clients as objects of this process.

    Args:
        clients: by name.
    """

    OPTIONS: ClassVar[tuple[str, ...]] = ()

    def __init__(self, clients: Mapping[str, Handler]) -> None:
        self._clients = dict(clients)

    def members(self) -> list[str]:
        """Return the names of the clients, sorted."""
        return sorted(self._clients)

    def call(
        self, verb: str, payloads: Mapping[str, bytes], timeout: float | None = None
    ) -> dict[str, bytes | Exception]:
        """Return each client's reply, or the exception it raised; the other clients continue."""
        del timeout  # a call in this process cannot be interrupted
        answers: dict[str, bytes | Exception] = {}
        for name in sorted(payloads):
            try:
                answers[name] = self._clients[name].handle(verb, payloads[name])
            except Exception as error:  # whatever a learner raises
                answers[name] = error
        return answers

    def close(self) -> None:
        """Do nothing: the clients are objects of this process."""

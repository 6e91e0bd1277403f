"""Which method of a client answers which message, and replies that are kept for a repeat."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from fedcircuits.arrays import FloatArray
from fedcircuits.federation.wire.ids import fingerprint
from fedcircuits.federation.wire.message import Message
from fedcircuits.federation.wire.verbs import Verb

Q = TypeVar("Q", bound=Message)
R = TypeVar("R", bound=Message)


def seconds_since(start: float) -> FloatArray:
    """Return CPU seconds of this process since `time.process_time()` was `start`, as an array."""
    return np.array([time.process_time() - start])


HANDLERS: dict[str, Callable[[Any, Any], Message]] = {}


def handles(
    verb: Verb[Q, R],
) -> Callable[[Callable[[Any, Q], R]], Callable[[Any, Q], R]]:
    """Make a function of client and request the handler of a verb."""

    def register(method: Callable[[Any, Q], R]) -> Callable[[Any, Q], R]:
        HANDLERS[verb.name] = method
        return method

    return register


class KeptReplies:
    """The last reply to each costly request, for as long as nothing changed the client since.

    An engine that sends a request again gets the same bytes, and no model is fitted twice.
    """

    def __init__(self) -> None:
        self._changes: dict[str, str] = {}  # last request of every kind that changes the client
        self._replies: dict[str, tuple[str, bytes]] = {}

    def find(self, verb: Verb[Any, Any], request: Message, payload: bytes) -> bytes | None:
        """Return the reply to the same request in the same state, None where there is none."""
        key, reply = self._replies.get(_place(verb, request), ("", b""))
        return reply if reply and key == self._key(verb, request, payload) else None

    def add(self, verb: Verb[Any, Any], request: Message, payload: bytes, reply: bytes) -> None:
        """Keep a reply, and note a change of the client."""
        place = _place(verb, request)
        if verb.costly:
            self._replies[place] = (self._key(verb, request, payload), reply)
        if verb.changes_state and not verb.makes_models:
            self._changes[place] = fingerprint(payload)

    def _key(self, verb: Verb[Any, Any], request: Message, payload: bytes) -> str:
        place = _place(verb, request)
        others = sorted(item for item in self._changes.items() if item[0] != place)
        return fingerprint(payload, repr(others).encode())


def _place(verb: Verb[Any, Any], request: Message) -> str:
    return f"{verb.name} {request.series}"

"""Whether some bytes are the reply to a request."""

from __future__ import annotations

from typing import TypeVar

from fedcircuits.encoding import answers_of
from fedcircuits.errors import StorageError
from fedcircuits.federation.wire.message import Message, request_name
from fedcircuits.federation.wire.verbs import Verb

Q = TypeVar("Q", bound=Message)
R = TypeVar("R", bound=Message)


def read_reply(verb: Verb[Q, R], client: str, request: Q, payload: bytes, answer: bytes) -> R:
    """Return the reply in some bytes; a `StorageError` where they are not that client's reply.

    Args:
        verb: that was called.
        client: that was asked.
        request: as it was sent.
        payload: its bytes.
        answer: the bytes that came back.
    """
    reply = verb.reply.from_bytes(answer)
    fault = reply.fault(request)
    if fault is None and answers_of(answer) != request_name(client, verb.name, payload):
        fault = "it answers another request, or is of another client"
    if fault is not None:
        raise StorageError(fault)
    return reply

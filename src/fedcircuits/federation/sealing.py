"""Messages that cannot be played back: the client's nonce and a rising number go with each.

The client draws a nonce when it starts and tells it to whoever says hello; every message then
carries that nonce and a number higher than the last. A message recorded in another run has another
nonce, one recorded in this run a number that has been used; both are refused. The same message
once more (an engine that tries again) gets the reply it had. Forging is not prevented here: who may
speak to a client at all is the engine's to say (mutual TLS).
"""

from __future__ import annotations

import hashlib
import secrets
import struct
from collections.abc import Mapping

from fedcircuits.errors import StorageError
from fedcircuits.federation import messages as m
from fedcircuits.federation.policy import PolicyError
from fedcircuits.federation.transport import Transport

HELLO = "hello"
STALE = "stale nonce"  # how a refusal begins that a new hello mends
MAGIC = b"FCS1"
HEAD = struct.Struct("<4s16sQ")  # magic, nonce, number; then the payload


def seal(nonce: bytes, number: int, payload: bytes) -> bytes:
    """A payload with nonce and number before it."""
    return HEAD.pack(MAGIC, nonce, number) + payload


class Seal:
    """The client's side: what has been seen, and whether a message is new."""

    def __init__(self) -> None:
        self._nonce = secrets.token_bytes(16)
        self._number = 0
        self._last = b""  # digest of the last message ...
        self._reply = b""  # ... and what it was answered

    def hello(self) -> bytes:
        """Nonce and last number; saying hello twice changes nothing."""
        return HEAD.pack(MAGIC, self._nonce, self._number)

    def open(self, verb: str, data: bytes) -> tuple[bytes, bytes | None]:
        """The payload, and the reply it had where it is the last message again."""
        if len(data) < HEAD.size or not data.startswith(MAGIC):
            raise PolicyError("a message without nonce and number; expected one that is sealed")
        _, nonce, number = HEAD.unpack_from(data)
        if nonce != self._nonce:
            raise PolicyError(f"{STALE}: a message of another run; say hello first")
        digest = hashlib.sha256(verb.encode() + b"\x1f" + data).digest()
        if number == self._number and digest == self._last:
            return data[HEAD.size :], self._reply
        if number <= self._number:
            raise PolicyError(
                f"a replayed message: its number is {number}, the last {self._number}"
            )
        self._number, self._last, self._reply = number, digest, b""
        return data[HEAD.size :], None

    def replied(self, reply: bytes) -> None:
        """Keep the reply to the message that was opened last."""
        self._reply = reply


class Sealed:
    """An engine whose messages carry nonce and number; its members are guarded clients.

    Args:
        inner: the engine that does the work.
    """

    def __init__(self, inner: Transport) -> None:
        self.inner = inner
        self._seen: dict[str, tuple[bytes, int]] = {}  # nonce and last number by client

    def members(self) -> list[str]:
        """Those of the engine."""
        return self.inner.members()

    def call(
        self, verb: str, payloads: Mapping[str, bytes], timeout: float | None = None
    ) -> dict[str, bytes | Exception]:
        """As the engine; a client that was started anew is greeted anew, once."""
        answers = self._send(verb, payloads, timeout)
        stale = [name for name, answer in answers.items() if _is_stale(answer)]
        for name in stale:
            del self._seen[name]
        again = {name: payloads[name] for name in stale}
        answers |= self._send(verb, again, timeout) if again else {}
        return {name: answers[name] for name in sorted(answers)}

    def _send(
        self, verb: str, payloads: Mapping[str, bytes], timeout: float | None
    ) -> dict[str, bytes | Exception]:
        answers: dict[str, bytes | Exception] = {}
        strangers = dict.fromkeys((name for name in payloads if name not in self._seen), b"")
        greeted = self.inner.call(HELLO, strangers, timeout) if strangers else {}
        for name, reply in greeted.items():
            if isinstance(reply, bytes) and len(reply) == HEAD.size and reply.startswith(MAGIC):
                _, nonce, number = HEAD.unpack(reply)
                self._seen[name] = nonce, number
            else:
                answers[name] = reply
        sealed = {}
        for name in payloads:
            if name in self._seen:
                nonce, number = self._seen[name]
                self._seen[name] = nonce, number + 1
                sealed[name] = seal(nonce, number + 1, payloads[name])
        return {**answers, **(self.inner.call(verb, sealed, timeout) if sealed else {})}

    def close(self) -> None:
        """Close the engine."""
        self.inner.close()


def _is_stale(answer: bytes | Exception) -> bool:
    if isinstance(answer, Exception):
        return False
    try:
        return m.Failed.from_bytes(answer).error.startswith(f"PolicyError: {STALE}")
    except StorageError:
        return False

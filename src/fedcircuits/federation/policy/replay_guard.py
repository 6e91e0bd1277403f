"""Messages that cannot be played back: the client's nonce and a rising number go with each.

The client draws a nonce when it starts and sends it to whoever says hello; every message then
carries that nonce and a number higher than the last. A message recorded in another run has another
nonce, one recorded in this run a number that has been used; both are refused. The same message
once more (an engine that tries again) gets the reply it had. Forging is not prevented here: who may
speak to a client at all is the engine's to say (mutual TLS).
"""

from __future__ import annotations

import hashlib
import secrets
import threading
from collections.abc import Mapping

from fedcircuits.errors import StorageError
from fedcircuits.federation.policy.audit import SERVER, AuditLog, Handler
from fedcircuits.federation.wire import requests as m
from fedcircuits.federation.wire.envelope import unwrap, wrap
from fedcircuits.federation.wire.transport import Transport

HELLO = "hello"
STALE = "stale nonce"  # how a refusal begins that a new hello mends


def seal(nonce: str, number: int, payload: bytes = b"") -> bytes:
    """Return a payload in an envelope with nonce and number."""
    return wrap({"nonce": nonce, "number": number}, payload)


def opened(data: bytes) -> tuple[str, int, bytes]:
    """Return nonce, number and payload of a sealed message, or a `StorageError`."""
    try:
        header, bodies = unwrap(data)
    except StorageError:
        header, bodies = {}, []
    nonce, number = header.get("nonce"), header.get("number")
    if not isinstance(nonce, str) or type(number) is not int or len(bodies) != 1:
        raise StorageError("a message without nonce and number; expected one that is sealed")
    return nonce, number, bodies[0]


class Unsealed:
    """A client that answers every message once (the client's side of the replay guard).

    Args:
        client: or its guard, or whatever answers bytes with bytes.
        audit: where refusals are noted.
    """

    def __init__(self, client: Handler, audit: AuditLog | None = None) -> None:
        self.name = client.name
        self._client = client
        self._audit = audit or AuditLog(None, client.name)
        self._nonce = secrets.token_hex(16)
        self._number = 0
        self._last = b""  # digest of the last message ...
        self._reply = b""  # ... and what it was answered
        self._lock = threading.Lock()

    def handle(self, verb: str, payload: bytes) -> bytes:
        """Answer one message, or say why not."""
        with self._lock:
            if verb == HELLO:  # saying hello twice changes nothing
                return seal(self._nonce, self._number)
            digest = hashlib.sha256(verb.encode() + b"\x1f" + payload).digest()
            if self._reply and digest == self._last:
                return self._reply
            try:
                nonce, number, inner = opened(payload)
            except StorageError as error:
                return self._audit.refuse(verb, len(payload), SERVER, str(error))
            fault = self._fault(nonce, number)
            if fault is not None:
                return self._audit.refuse(verb, len(payload), SERVER, fault)
            self._number, self._last, self._reply = number, digest, b""
            self._reply = self._client.handle(verb, inner)
            return self._reply

    def _fault(self, nonce: str, number: int) -> str | None:
        """What is wrong with the seal of a message, if anything."""
        if nonce != self._nonce:
            return f"{STALE}: a message of another run; say hello first"
        if number <= self._number:
            return f"a replayed message: its number is {number}, the last {self._number}"
        return None


class Sealed:
    """An engine whose messages carry nonce and number; its members are `Unsealed` clients.

    Args:
        inner: the engine that does the work.
    """

    def __init__(self, inner: Transport) -> None:
        self.inner = inner
        self._seen: dict[str, tuple[str, int]] = {}  # nonce and last number by client

    def members(self) -> list[str]:
        """Return the names of the engine's clients."""
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
            if isinstance(reply, Exception):
                answers[name] = reply
                continue
            try:
                self._seen[name] = opened(reply)[:2]
            except StorageError:  # a refusal, or no reply to a hello at all
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
        return m.Failed.from_bytes(answer).error.find(f": {STALE}: ") > 0
    except StorageError:
        return False

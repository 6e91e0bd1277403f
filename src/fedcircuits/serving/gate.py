"""Checks before a request is parsed: its token, its size and its deadline."""

from __future__ import annotations

import json
import math
import secrets
import time
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass, field
from typing import Any

import anyio

from fedcircuits.serving.lateness import Lateness
from fedcircuits.serving.questions import Limits

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

BEGUN = "fedcircuits.begun"  # when a request's head had arrived, on the monotonic clock
# Where requests lose more than this share of their time before they are looked at, each is refused
# at once: that costs a tenth of an answer, and those that are under way keep their deadlines.
LOST, LEAST_LOST = 0.25, 0.5  # and more than these seconds
OPEN = ("/", "/health", "/openapi.json", "/explore")  # they say nothing about the model


class _RefusedError(Exception):
    """A request that is refused."""

    def __init__(self, status: int, error: str, retry_after: int = 0) -> None:
        self.status, self.error, self.retry_after = status, error, retry_after
        super().__init__(error)


@dataclass(frozen=True)
class Gate:
    """An ASGI application that checks requests before another gets them.

    Attributes:
        inner: the application behind.
        token: that every request but the open ones carries as `Authorization: Bearer TOKEN`.
        limits: body size and time.
        lateness: of the event loop.
    """

    inner: App
    token: str
    limits: Limits
    lateness: Lateness = field(default_factory=Lateness)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] != "http":
            await self.inner(scope, receive, send)
            return
        lost = self.lateness.of_a_request()
        scope[BEGUN] = time.monotonic() - lost
        try:
            headers = {key.lower(): value for key, value in scope["headers"]}
            if scope["path"] not in OPEN:
                self._check_token(headers.get(b"authorization", b""))
                if lost > max(LEAST_LOST, LOST * self.limits.seconds):
                    text = f"too many requests at once: they wait for {lost:.1f} s"
                    raise _RefusedError(503, text, math.ceil(lost))
                body = await self._body(headers.get(b"content-length"), receive)
            else:  # nobody in particular asks: no body is read
                if scope["method"] not in ("GET", "HEAD"):
                    raise _RefusedError(405, f"{scope['path']} is read with GET")
                body = b""
        except _RefusedError as refused:
            await _reply(send, refused)
            return
        sent = False

        async def replay() -> Message:
            nonlocal sent
            if sent:
                return await receive()
            sent = True
            return {"type": "http.request", "body": body, "more_body": False}

        await self.inner(scope, replay, send)

    def _check_token(self, header: bytes) -> None:
        scheme, _, found = header.partition(b" ")
        # The comparison takes as long for a token that is nearly right as for any other.
        right = secrets.compare_digest(found.strip(), self.token.encode())
        if scheme.lower() != b"bearer" or not right:
            raise _RefusedError(401, "expected the header 'Authorization: Bearer TOKEN'")

    async def _body(self, length: bytes | None, receive: Receive) -> bytes:
        """Return the body; one that is too large is not read to its end."""
        most = self.limits.body_bytes
        too_large = _RefusedError(413, f"a request has at most {most} bytes: send fewer rows")
        if length is not None and (not length.isdigit() or int(length[:20]) > most):
            raise too_large
        body = bytearray()
        try:
            with anyio.fail_after(self.limits.seconds):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise _RefusedError(400, "the request ended before its body did")
                    body += message.get("body", b"")
                    if len(body) > most:
                        raise too_large
                    if not message.get("more_body", False):
                        return bytes(body)
        except TimeoutError:
            raise _RefusedError(
                408, f"the body did not arrive within {self.limits.seconds} s"
            ) from None


async def _reply(send: Send, refused: _RefusedError) -> None:
    kind = "BusyError" if refused.status == 503 else "RequestError"
    body = json.dumps({"error": refused.error, "type": kind}).encode()
    headers = [(b"content-type", b"application/json"), (b"connection", b"close")]
    if refused.status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    if refused.retry_after:
        headers.append((b"retry-after", str(refused.retry_after).encode()))
    await send({"type": "http.response.start", "status": refused.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})

"""Checks before a request is parsed: its token, its size and its deadline."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from typing import Any

import anyio

from fedcircuits.serving.questions import Limits

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

BEGUN = "fedcircuits.begun"  # when a request's head had arrived, on the monotonic clock
OPEN = ("/", "/health", "/openapi.json", "/explore")  # they say nothing about the model


class _RefusedError(Exception):
    """A request that is refused."""

    def __init__(self, status: int, error: str) -> None:
        self.status, self.error = status, error
        super().__init__(error)


@dataclass(frozen=True)
class Gate:
    """An ASGI application that checks requests before another gets them.

    Attributes:
        inner: the application behind.
        token: that every request but the open ones carries as `Authorization: Bearer TOKEN`.
        limits: body size and time.
    """

    inner: App
    token: str
    limits: Limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] != "http":
            await self.inner(scope, receive, send)
            return
        scope[BEGUN] = time.monotonic()
        try:
            headers = {key.lower(): value for key, value in scope["headers"]}
            if scope["path"] not in OPEN:
                self._check_token(headers.get(b"authorization", b""))
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
    body = json.dumps({"error": refused.error, "type": "RequestError"}).encode()
    headers = [(b"content-type", b"application/json"), (b"connection", b"close")]
    if refused.status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": refused.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})

"""One request to the gate of the service, with an application behind it that notes it."""

from __future__ import annotations

import asyncio
from typing import Any

from fedcircuits.serving.gate import BEGUN, Gate
from fedcircuits.serving.lateness import Lateness
from fedcircuits.serving.questions import Limits


def through_gate(
    token: str, header: bytes, limits: Limits, lateness: Lateness
) -> tuple[list[Any], list[float]]:
    """Return the messages of the reply, and when the requests that were let in had begun."""
    let_in: list[float] = []
    sent: list[Any] = []

    async def inner(scope: Any, receive: Any, send: Any) -> None:
        del receive
        let_in.append(scope[BEGUN])
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"{}"})

    async def receive() -> Any:
        return {"type": "http.request", "body": b"{}", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(b"authorization", header)]
    scope = {"type": "http", "method": "POST", "path": "/log_prob", "headers": headers}
    asyncio.run(Gate(inner, token, limits, lateness)(scope, receive, send))
    return sent, let_in

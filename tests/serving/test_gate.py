"""Tokens: how they are compared, and what a stranger learns by comparing times."""

from __future__ import annotations

import asyncio
import secrets
from typing import Any

import pytest

from fedcircuits.serving.gate import Gate
from fedcircuits.serving.questions import Limits

TOKEN = "0123456789abcdef0123456789abcdef"


def status(header: bytes) -> int:
    """Of the reply to one request with a header `Authorization`."""
    sent: list[Any] = []

    async def inner(scope: Any, receive: Any, send: Any) -> None:
        del scope, receive
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def receive() -> Any:
        return {"type": "http.request", "body": b"{}", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": "POST",
        "path": "/log_prob",
        "headers": [(b"authorization", header)],
    }
    asyncio.run(Gate(inner, TOKEN, Limits())(scope, receive, send))
    return int(sent[0]["status"])


def test_every_token_is_compared_whole_in_a_time_that_says_nothing_of_its_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By `compare_digest` alone, once, whatever the scheme and however much of it is right."""
    compared: list[tuple[Any, Any]] = []
    compare = secrets.compare_digest

    def noted(one: Any, other: Any) -> bool:
        compared.append((one, other))
        return compare(one, other)

    monkeypatch.setattr(secrets, "compare_digest", noted)
    guesses = ["", "0", "x" * 32, TOKEN[:-1] + "x", "x" + TOKEN[1:], TOKEN + "0", TOKEN.upper()]
    for guess in guesses:
        for scheme in ("Bearer", "bearer", "Basic"):
            compared.clear()
            assert status(f"{scheme} {guess}".encode()) == 401
            assert compared == [(guess.encode(), TOKEN.encode())]
    assert status(f"Basic {TOKEN}".encode()) == 401
    assert status(b"\xff\xfe \x00" + TOKEN.encode()) == 401
    assert status(f"Bearer {TOKEN}".encode()) == 200

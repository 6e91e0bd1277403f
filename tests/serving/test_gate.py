"""Tokens: how they are compared, and what a stranger learns by comparing times."""

from __future__ import annotations

import secrets
from typing import Any

import pytest

from contracts.gated import through_gate
from fedcircuits.serving.lateness import Lateness
from fedcircuits.serving.questions import Limits

TOKEN = "0123456789abcdef0123456789abcdef"


def status(header: bytes) -> int:
    """Of the reply to one request with a header `Authorization`."""
    sent, _ = through_gate(TOKEN, header, Limits(), Lateness())
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

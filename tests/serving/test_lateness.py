"""A service whose event loop is late refuses at once, and counts what requests have waited."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

from contracts.gated import through_gate
from fedcircuits.serving.lateness import BEAT, Lateness
from fedcircuits.serving.questions import Limits

TOKEN = "a-token"


def test_a_loop_that_was_held_up_is_late_for_a_while() -> None:
    async def scenario() -> None:
        lateness = Lateness()
        lateness.of_a_request()
        time.sleep(BEAT + 0.4)  # the loop does nothing else meanwhile
        assert lateness.of_a_request() > 5 * 0.3
        await asyncio.sleep(0)
        assert lateness.of_a_request() > 5 * 0.3  # the timer was called, late

    asyncio.run(scenario())


class Late(Lateness):
    """A loop that is late by so much."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def of_a_request(self) -> float:
        return self.seconds


def asked(lost: float, token: str = TOKEN) -> tuple[int, dict[bytes, bytes], Any, list[float]]:
    """Status, headers and body of the reply to one request, and when the ones let in had begun."""
    header = f"Bearer {token}".encode()
    sent, let_in = through_gate(TOKEN, header, Limits(seconds=8.0), Late(lost))
    return sent[0]["status"], dict(sent[0]["headers"]), json.loads(sent[1]["body"]), let_in


def test_requests_that_lose_much_of_their_time_are_refused_before_they_are_read() -> None:
    status, headers, body, let_in = asked(2.5)
    assert (status, let_in) == (503, [])
    assert headers[b"retry-after"] == b"3"  # they come back when the queue may be gone
    assert body["type"] == "BusyError"
    assert asked(2.5, "a stranger's")[0] == 401


def test_time_that_was_lost_is_part_of_a_requests_time() -> None:
    now = time.monotonic()
    status, _, _, (begun,) = asked(1.5)
    assert status == 200
    assert now - 1.5 <= begun < time.monotonic() - 1.4

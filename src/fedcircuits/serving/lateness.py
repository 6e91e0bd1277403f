"""How late the service's event loop is: what a request has waited before anything looked at it."""

from __future__ import annotations

import asyncio

BEAT = 0.1  # seconds between looks
FADING = 0.9  # share of what was measured that is left at the next look
# Turns of the loop that a request takes before its head is looked at (accepted, connected, read,
# begun), and that its reply takes to get out: each as late as the loop is.
TURNS = 5


class Lateness:
    """Measures how much later than due a timer of the running event loop is called."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._late = self._due = 0.0

    def of_a_request(self) -> float:
        """Return the seconds that a request which is looked at now loses to other requests."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._loop, self._late = loop, 0.0
            self._wait(loop)
        return TURNS * max(self._late, loop.time() - self._due)

    def _wait(self, loop: asyncio.AbstractEventLoop) -> None:
        self._due = loop.time() + BEAT
        loop.call_later(BEAT, self._look, loop)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        self._late = max(loop.time() - self._due, FADING * self._late)
        self._wait(loop)

"""How a worker process leaves a question that nobody waits for, and goes on with the next."""

from __future__ import annotations

import signal
from types import FrameType

GIVE_UP = signal.SIGUSR1  # ends the question that the process is at, not the process


class GivenUpError(BaseException):
    """Nobody waits for the answer; no error of the library, so that nothing there catches it."""


class AtWork:
    """Whether a question is being answered, which `GIVE_UP` ends."""

    def __init__(self) -> None:
        self.now = False

    def give_up(self, number: int, frame: FrameType | None) -> None:
        """Handle the signal."""
        del number, frame
        if self.now:
            self.now = False
            raise GivenUpError

"""A client that fails where a test wants it to, wherever it runs.

The folder named by the environment variable `FAULTS` tells it what to do: a file `CLIENT.VERB` with
"sleep SECONDS" (it wakes where the file is removed), "corrupt", "truncate", "double", "other
CLIENT" (that one's reply to the same kind of request), "die before" or "die after", followed by ids
of processes that end with it; a client dies once. It makes `CLIENT.VERB.begun` when it comes to
such a request.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from fedcircuits.api import client_spec as member
from fedcircuits.federation.client.client import Client

FAULTS = "FAULTS"


def client_from_spec(payload: bytes) -> Faulty:
    """The client in a client spec."""
    return Faulty(member.client_from_spec(payload))


class Faulty:
    """Answers as its client does, except where told."""

    def __init__(self, client: Client) -> None:
        self.name = client.name
        self._client = client

    def handle(self, verb: str, payload: bytes) -> bytes:
        told = Path(os.environ[FAULTS]) / f"{self.name}.{verb}"
        what = told.read_text() if told.exists() else ""
        if what:
            told.with_name(f"{told.name}.begun").touch()
        if what.startswith("sleep"):
            until = time.monotonic() + float(what.split()[1])
            while told.exists() and time.monotonic() < until:
                time.sleep(0.02)
        if what.startswith("die before"):
            self._die(told, what)
        answer = self._client.handle(verb, payload)
        written = told.with_name(f"{told.name}.reply.part")
        written.write_bytes(answer)
        written.rename(written.with_suffix(""))  # whoever finds it finds all of it
        if what.startswith("die after"):
            self._die(told, what)
        return self._spoilt(what, verb, payload, answer, told.parent)

    def _spoilt(self, what: str, verb: str, payload: bytes, answer: bytes, folder: Path) -> bytes:
        if what == "corrupt":
            return answer[:-1] + bytes([answer[-1] ^ 1])
        if what == "truncate":
            return answer[: len(answer) // 2]
        if what == "double":
            return self._client.handle(verb, payload)
        if what.startswith("other"):
            other = folder / f"{what.split()[1]}.{verb}.reply"
            deadline = time.monotonic() + 180
            while not other.exists() and time.monotonic() < deadline:
                time.sleep(0.02)
            return other.read_bytes()
        return answer

    def _die(self, told: Path, what: str) -> None:
        """End this process and those that are named; not a second time when it is back."""
        told.unlink()
        for pid in (*map(int, what.split()[2:]), os.getpid()):  # the site before its job
            os.kill(pid, signal.SIGKILL)

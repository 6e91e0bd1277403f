"""A client that fails where a test wants it to, wherever it runs.

The folder named by the environment variable `FAULTS` tells it what to do: a file `CLIENT.VERB` with
"sleep SECONDS" or "corrupt". The client makes `CLIENT.VERB.begun` when it comes to such a request.
"""

from __future__ import annotations

import os
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
            time.sleep(float(what.split()[1]))
        answer = self._client.handle(verb, payload)
        return answer[:-1] + bytes([answer[-1] ^ 1]) if what == "corrupt" else answer

"""A running service on loopback, for tests of it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PATIENT = 100.0  # seconds that a busy machine may take for what takes one
TOKEN = "a-token-of-the-team-0123456789"
LIMITS = ("--max-body", 200_000, "--max-rows", 1000, "--max-samples", 500, "--max-seconds", PATIENT)


@contextmanager
def serving(
    model: Path, *options: object, token: str | None = TOKEN
) -> Iterator[tuple[dict[str, Any], subprocess.Popen[str]]]:
    """A running service and what it said when it was up."""
    command = [sys.executable, "-m", "fedcircuits", "serve", model, "--port", 0, "--json", *options]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    environment |= {} if token is None else {"FEDCIRCUITS_TOKEN": token}
    process = subprocess.Popen(
        list(map(str, command)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        yield (json.loads(line) if line else {}), process
    finally:
        process.kill()
        process.communicate(timeout=PATIENT)


def asked(url: str, question: str, body: bytes) -> socket.socket:
    """A connection whose question the service has begun to read; its body is still to be sent."""
    host, _, port = url.removeprefix("http://").rpartition(":")
    one = socket.create_connection((host, int(port)), timeout=120)
    head = (
        f"POST /{question} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {TOKEN}\r\n"
        "Content-Type: application/json\r\nExpect: 100-continue\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    one.sendall(head.encode())
    assert one.recv(1000).startswith(b"HTTP/1.1 100")
    return one

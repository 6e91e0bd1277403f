"""What a client notes of every message, allowed or refused."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from fedcircuits.federation.policy.policy import PolicyError
from fedcircuits.federation.wire import requests as m
from fedcircuits.federation.wire.transport import REFUSED

SERVER = "server"
_log = logging.getLogger(__name__)


LONGEST = 2000  # characters of a refusal, which may quote what was asked


class Handler(Protocol):
    """A client as an engine knows it."""

    @property
    def name(self) -> str:
        """Name of the client, the same everywhere."""
        ...

    def handle(self, verb: str, payload: bytes) -> bytes:
        """Answer one message."""
        ...


def add_line(path: Path, text: str) -> None:
    """Add a line to a file, whole or not at all; one that was cut short before stays apart.

    Args:
        path: of the file, made where it is not there.
        text: without a line break.
    """
    with path.open("ab+", buffering=0) as file:
        end = file.seek(0, os.SEEK_END)
        if end:
            file.seek(end - 1)
        data = (b"" if not end or file.read(1) == b"\n" else b"\n") + text.encode() + b"\n"
        try:
            written = file.write(data)
            if written != len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        except OSError:
            with contextlib.suppress(OSError):  # the reader leaves out lines cut short
                file.truncate(end)
            raise


@dataclass(frozen=True)
class AuditLog:
    """One line of JSON for each message: when, which, how large, allowed or not, what it reveals.

    Attributes:
        path: of the file, which is added to; None for none.
        client: whose log it is.
    """

    path: Path | None
    client: str

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Keep other processes of the client from adding lines: what is counted stays counted."""
        if self.path is None:
            yield
            return
        try:
            file = self.path.open("ab")
        except OSError as error:
            raise PolicyError(f"its audit file cannot be written: {error.strerror}") from None
        with file:
            fcntl.flock(file, fcntl.LOCK_EX)  # until the file is closed
            yield

    def write(
        self, verb: str, n_bytes: int, sender: str, refusal: str | None, **facts: Any
    ) -> None:
        """Add a line; a refusal also goes to Python's logging.

        Args:
            verb: the message.
            n_bytes: its length.
            sender: who asks.
            refusal: why it is not answered, None where it is.
            **facts: more of the line: run, level, bits, plan in words.
        """
        if refusal is not None:
            _log.warning("client %r refused %r from %r: %s", self.client, verb, sender, refusal)
        if self.path is None:
            return
        line = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "client": self.client,
            "sender": sender,
            "verb": verb,
            "bytes": n_bytes,
            "allowed": refusal is None,
            "reason": refusal,
            **facts,
        }
        try:
            add_line(self.path, json.dumps(line))
        except OSError as error:
            raise PolicyError(f"its audit file cannot be written: {error.strerror}") from None

    def refuse(self, verb: str, n_bytes: int, sender: str, why: str, **facts: Any) -> bytes:
        """Log a refusal and return it as a `Failed` message."""
        why = why if len(why) <= LONGEST else f"{why[:LONGEST]} ... ({len(why)} characters)"
        text = f"{REFUSED}client {self.client!r} refuses {verb[:40]!r}: {why}"
        try:
            self.write(verb[:40], n_bytes, sender, why, **facts)
        except PolicyError as error:
            text += f" ({error})"
        return m.Failed(text).to_bytes()

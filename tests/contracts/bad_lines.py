"""A line between server and clients on which one message comes to grief, in one of many ways.

Messages are numbered in the order in which clients get them. `Line` carries them to clients of this
process through `Replay` and `Keeper`, as Ray and NVFlare do, with replies kept in a folder: so a
run that ended with an error can go on.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from fedcircuits.api.client_spec import client_from_spec
from fedcircuits.engines.replay import Answers, Keeper, Replay
from fedcircuits.errors import ClientError

Reply = bytes | Exception
FAULTS = (
    "request dropped",
    "reply dropped",
    "doubled",
    "delayed",
    "request truncated",
    "reply truncated",
    "request flipped",
    "reply flipped",
    "reply of another client",
    "killed before",
    "killed after",
)


class Handler(Protocol):
    """What stands at a client's end of the line."""

    def answer(self, verb: str, data: bytes) -> bytes:
        """Answer one message."""
        ...


@dataclass(frozen=True)
class Fault:
    """What happens to one message.

    Attributes:
        kind: one of FAULTS.
        at: number of the message.
        seed: chooses where a message is cut or which of its bits flips.
    """

    kind: str
    at: int
    seed: int = 0

    def cut(self, data: bytes) -> bytes:
        """Some bytes without their end."""
        return data[: random.Random(self.seed).randrange(len(data))]

    def flipped(self, data: bytes) -> bytes:
        """Some bytes with one bit changed."""
        at = random.Random(self.seed).randrange(8 * len(data))
        changed = bytearray(data)
        changed[at // 8] ^= 1 << at % 8
        return bytes(changed)


class BadLine:
    """Carries messages; that of the fault comes to grief.

    Args:
        ends: what answers, by client.
        fault: None for a line that works.
    """

    def __init__(self, ends: Mapping[str, Handler], fault: Fault | None = None) -> None:
        self._ends, self._fault = dict(ends), fault
        self._late: dict[str, bytes] = {}
        self._dead: set[str] = set()
        self._last: dict[str, bytes] = {}  # the last reply of each client
        self.sent: list[tuple[str, str]] = []  # client and verb of each message

    def members(self) -> list[str]:
        """Names of the clients."""
        return sorted(self._ends)

    def call(
        self, verb: str, payloads: Mapping[str, bytes], timeout: float | None = None
    ) -> dict[str, Reply]:
        """Carry one message to each client."""
        del timeout
        return {name: self._carry(name, verb, payloads[name]) for name in sorted(payloads)}

    def close(self) -> None:
        """Nothing is held."""

    def _carry(self, name: str, verb: str, data: bytes) -> Reply:
        fault = self._fault if self._fault and self._fault.at == len(self.sent) else None
        self.sent.append((name, verb))
        if name in self._dead:
            return ClientError(name, "its process has ended")
        reply = self._answer(name, verb, data) if fault is None else self._bad(name, verb, data)
        if isinstance(reply, bytes) and name in self._late:
            reply = self._late.pop(name)
        return reply

    def _answer(self, name: str, verb: str, data: bytes) -> Reply:
        try:
            self._last[name] = self._ends[name].answer(verb, data)
        except Exception as error:  # as an engine hands it on
            return error
        return self._last[name]

    def _bad(self, name: str, verb: str, data: bytes) -> Reply:
        assert self._fault is not None
        kind, silent = self._fault.kind, ClientError(name, f"no answer to {verb!r}")
        if kind == "killed before":
            self._dead.add(name)
        if kind in ("request dropped", "killed before"):
            return silent
        if kind == "request truncated":
            data = self._fault.cut(data)
        if kind == "request flipped":
            data = self._fault.flipped(data)
        reply = self._answer(name, verb, data)
        if isinstance(reply, Exception):
            return reply
        if kind == "killed after":
            self._dead.add(name)
        if kind in ("reply dropped", "killed after"):
            return silent
        if kind == "doubled":
            return self._answer(name, verb, data)
        if kind == "delayed":  # it comes in place of the next one
            self._late[name] = reply
            return silent
        if kind == "reply truncated":
            return self._fault.cut(reply)
        if kind == "reply flipped":
            return self._fault.flipped(reply)
        if kind == "reply of another client":
            others = [c for c in self._ends if c != name]
            return self._last.get(others[0]) or self._answer(others[0], verb, data)
        return reply


class _Plain:
    """A client alone."""

    def __init__(self, spec: bytes) -> None:
        self._client = client_from_spec(spec)

    def answer(self, verb: str, data: bytes) -> bytes:
        return self._client.handle(verb, data)


class _Kept:
    """A client in a `Keeper`, which can be brought back."""

    def __init__(self, name: str, spec: bytes) -> None:
        self._keeper = Keeper(lambda: client_from_spec(spec), name)

    def answer(self, verb: str, data: bytes) -> bytes:
        del verb
        return self._keeper.answer(data)


def plain_line(specs: Mapping[str, bytes], fault: Fault | None = None) -> BadLine:
    """Clients of this process, as the engine "local" has them."""
    return BadLine({name: _Plain(spec) for name, spec in specs.items()}, fault)


class ResumedLine:
    """Clients that can be brought back, and replies in a folder.

    Args:
        specs: of the clients.
        folder: where replies are kept; a second line with the same folder goes on.
        fault: None for a line that works.
    """

    def __init__(self, specs: Mapping[str, bytes], folder: Path, fault: Fault | None) -> None:
        self.line = BadLine({name: _Kept(name, spec) for name, spec in specs.items()}, fault)
        self.replay = Replay(Answers(folder))

    def members(self) -> list[str]:
        """Names of the clients."""
        return self.line.members()

    def call(
        self, verb: str, payloads: Mapping[str, bytes], timeout: float | None = None
    ) -> dict[str, Reply]:
        """Carry one message to each client, and repeat requests to one that is behind."""
        return self.replay.call(
            lambda parcels, left: self.line.call(verb, parcels, left), verb, payloads, timeout
        )

    def close(self) -> None:
        """Nothing is held."""

"""A connection between a program and a running job: parcels out, replies back as they come.

The program listens on a socket of the file system, in a folder that only its owner can enter; the
job's controller, a process of the same machine and user, connects to it. A new request, or the end
of the program, ends the waiting for an earlier one.
"""

from __future__ import annotations

import contextlib
import select
import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fedcircuits.engines.frames import Unframer, frame
from fedcircuits.errors import ClientError, FederationError
from fedcircuits.federation.wire.envelope import unwrap, wrap

OK, ERROR, SEND = "ok", "error", "send"
CHUNK = 2**20
RELAY = "fedcircuits.engines.nvflare.channel:relay"
GOODBYE = 5.0  # seconds that the controller has to end its job
LATE = 10.0  # seconds that the controller may be late with saying that a site is late


class _BrokenError(Exception):
    """The controller is no longer at the other end."""


class Link:
    """The program's end of the connection.

    Args:
        path: of the socket.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._number = 0
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(str(path))
        self._listening.listen(1)
        self._other: socket.socket | None = None
        self._unframer = Unframer()

    def wait(self, timeout: float, still_worth_it: Callable[[], None]) -> None:
        """Wait for the controller to connect."""
        self.hang_up()
        deadline = time.monotonic() + timeout
        while not select.select([self._listening], [], [], 0.2)[0]:
            still_worth_it()
            if time.monotonic() > deadline:
                raise FederationError(f"NVFlare did not start the job within {timeout:.0f} s")
        self._other, _ = self._listening.accept()
        self._unframer = Unframer()

    @property
    def is_up(self) -> bool:
        """Whether the controller is at the other end."""
        return self._other is not None

    def send(
        self,
        parcels: Mapping[str, bytes],
        timeout: float | None,
        gone: Callable[[str], str | None],
    ) -> dict[str, bytes | Exception]:
        """Each client's reply, or what went wrong.

        Args:
            parcels: by client.
            timeout: seconds for all of them.
            gone: why a client can give no answer any more, or None.
        """
        self._number += 1
        answers: dict[str, bytes | Exception] = {}
        body = wrap({"clients": list(parcels), "timeout": timeout}, *parcels.values())
        deadline = None if timeout is None else time.monotonic() + timeout + LATE
        try:
            self._write(frame(self._number, SEND, body))
            while len(answers) < len(parcels):
                if deadline is not None and time.monotonic() > deadline:
                    raise _BrokenError
                for name in parcels.keys() - answers.keys():
                    why = gone(name)
                    if why is not None:
                        answers[name] = ClientError(name, why)
                answers = {**self._read(parcels), **answers}
        except _BrokenError:
            self.hang_up()
            for name in parcels.keys() - answers.keys():
                answers[name] = ClientError(name, "the job that reaches its site has ended")
        return {name: answers[name] for name in sorted(answers)}

    def _write(self, data: bytes) -> None:
        try:
            if self._other is None:
                raise _BrokenError
            self._other.sendall(data)
        except OSError:
            raise _BrokenError from None

    def _read(self, parcels: Mapping[str, bytes]) -> dict[str, bytes | Exception]:
        """Return replies to the last request that arrive within a moment."""
        if self._other is None:
            raise _BrokenError
        if not select.select([self._other], [], [], 0.2)[0]:
            return {}
        try:
            data = self._other.recv(CHUNK)
        except OSError:
            data = b""
        if not data:
            raise _BrokenError
        found: dict[str, bytes | Exception] = {}
        for number, status, payload in self._unframer.feed(data):
            header, bodies = unwrap(payload)
            name = str(header["client"])
            if number == self._number and name in parcels:
                answer = bodies[0]
                found[name] = answer if status == OK else ClientError(name, answer.decode())
        return found

    def hang_up(self) -> None:
        """Disconnect the controller, which ends its job, at the sites first."""
        if self._other is None:
            return
        with contextlib.suppress(OSError):
            self._other.shutdown(socket.SHUT_WR)
            self._other.settimeout(GOODBYE)
            while self._other.recv(CHUNK):
                pass
        self._other.close()
        self._other = None

    def close(self) -> None:
        """Disconnect and stop listening."""
        self.hang_up()
        self._listening.close()
        self.path.unlink(missing_ok=True)


def relay(carrier: Any, arguments: Mapping[str, Any]) -> None:
    """Carry the program's parcels to the clients until it disconnects, in the controller."""
    with socket.socket(socket.AF_UNIX) as other:
        other.connect(str(arguments["socket"]))
        unframer = Unframer()
        while not carrier.stopped:
            if not select.select([other], [], [], 0.5)[0]:
                continue
            data = other.recv(CHUNK)
            if not data:
                break
            for number, _, body in unframer.feed(data):
                _carry(carrier, other, number, body)
        carrier.end()


def _carry(carrier: Any, other: socket.socket, number: int, body: bytes) -> None:
    header, bodies = unwrap(body)
    names: Any = header["clients"]
    timeout: Any = header["timeout"]

    def received(name: str, answer: bytes | Exception) -> None:
        status = ERROR if isinstance(answer, Exception) else OK
        if isinstance(answer, Exception):
            answer = str(answer).removeprefix(f"client {name!r}: ").encode()
        other.sendall(frame(number, status, wrap({"client": name}, answer)))

    def interrupted() -> bool:
        return bool(select.select([other], [], [], 0)[0])

    parcels = dict(zip(names, bodies, strict=True))
    carrier.send(parcels, timeout, received=received, give_up=interrupted)

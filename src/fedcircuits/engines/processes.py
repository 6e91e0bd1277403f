"""The engine "processes": one persistent process of this machine for each client.

Processes are started afresh (no fork, no pickle, no import of the caller's script or from its
folder) and exchange frames of bytes with the server over their standard pipes. All clients work at
once. A call with a timeout returns in time; the late reply of a slow client is discarded.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import subprocess
import sys
import time
import weakref
from collections.abc import Mapping
from typing import ClassVar

from fedcircuits.engines.closing import Closing
from fedcircuits.engines.frames import Unframer, frame
from fedcircuits.engines.worker import OK
from fedcircuits.errors import ClientError, FederationError

START = "from fedcircuits.engines.worker import main; main()"
CHUNK = 2**16
PATIENCE = 3.0  # seconds that a process has to end by itself
# Libraries that start threads read these when they are loaded.
ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


class _Member:
    """One process and what is on its way to and from it."""

    def __init__(self, name: str, make: str) -> None:
        self.name = name
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-c", START, make],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **dict.fromkeys(ONE_THREAD, "1")},
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.sink, self.source = self.process.stdin.fileno(), self.process.stdout.fileno()
        os.set_blocking(self.sink, False)
        os.set_blocking(self.source, False)
        self.out: list[memoryview] = []
        self.unframer = Unframer()

    def died(self) -> ClientError:
        """Return the error of a client whose process has ended."""
        try:
            code = self.process.wait(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            code = None
        return ClientError(self.name, f"its process has ended (exit code {code})")


class ProcessEngine(Closing):
    """One process for each client.

    Args:
        specs: the encoded spec of each client, by name.
        make: "module:function" that makes a client of such a spec, in the new process.
        start_timeout: seconds for a process to start and read its table.
    """

    OPTIONS: ClassVar[tuple[str, ...]] = ("start_timeout",)

    def __init__(
        self, specs: Mapping[str, bytes], make: str, start_timeout: float | None = 300.0
    ) -> None:
        self._number = 0
        self._members: dict[str, _Member] = {}
        # Also runs when the engine is forgotten or Python ends.
        self._finalizer = weakref.finalize(self, _end, self._members)
        try:
            for name in sorted(specs):
                self._members[name] = _Member(name, make)
            started = self.call("start", specs, start_timeout)
            for error in started.values():
                if isinstance(error, Exception):
                    raise error
        except BaseException:
            self.close()
            raise

    def members(self) -> list[str]:
        """Return the names of the clients, sorted, also of those whose process has ended."""
        return sorted(self._members)

    def process_id(self, client: str) -> int:
        """Return the id of a client's process."""
        return self._members[client].process.pid

    def call(
        self, verb: str, payloads: Mapping[str, bytes], timeout: float | None = None
    ) -> dict[str, bytes | Exception]:
        """Send all payloads at once and return each client's reply, or what went wrong."""
        if not self._finalizer.alive:
            raise FederationError("the engine is closed: its clients are gone")
        self._number += 1
        answers: dict[str, bytes | Exception] = {}
        waiting: dict[str, _Member] = {}
        for name in sorted(payloads):
            if name not in self._members:
                answers[name] = ClientError(name, "is not a client of this engine")
                continue
            member = self._members[name]
            member.out.append(memoryview(frame(self._number, verb, payloads[name])))
            waiting[name] = member
        self._exchange(waiting, answers, timeout)
        for name in waiting:
            answers[name] = ClientError(name, f"no answer to {verb!r} within {timeout} s")
        return {name: answers[name] for name in sorted(answers)}

    def _exchange(
        self,
        waiting: dict[str, _Member],
        answers: dict[str, bytes | Exception],
        timeout: float | None,
    ) -> None:
        """Move bytes both ways until all have answered or time is up."""
        deadline = None if timeout is None else time.monotonic() + timeout
        with selectors.DefaultSelector() as selector:
            for member in waiting.values():
                selector.register(member.source, selectors.EVENT_READ, member)
                selector.register(member.sink, selectors.EVENT_WRITE, member)
            while waiting:
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    return
                for key, _ in selector.select(left):
                    member = key.data
                    if member.name not in waiting:
                        continue
                    try:
                        done = (
                            self._read(member, answers)
                            if key.fd == member.source
                            else self._write(member, selector)
                        )
                    except OSError:
                        answers[member.name] = member.died()
                        done = True
                    if done:
                        del waiting[member.name]
                        for fd in (member.source, member.sink):
                            if fd in selector.get_map():
                                selector.unregister(fd)

    def _write(self, member: _Member, selector: selectors.BaseSelector) -> bool:
        """Write what the pipe takes; return False, since only a reply ends an exchange."""
        if not member.out:
            selector.unregister(member.sink)
            return False
        sent = os.write(member.sink, member.out[0][:CHUNK])
        member.out[0] = member.out[0][sent:]
        if not member.out[0]:
            member.out.pop(0)
        return False

    def _read(self, member: _Member, answers: dict[str, bytes | Exception]) -> bool:
        """Read what the pipe has; return whether this call's reply is complete."""
        data = os.read(member.source, CHUNK)
        if not data:
            answers[member.name] = member.died()
            return True
        for number, status, payload in member.unframer.feed(data):
            if number == self._number:  # an older one is the late answer to a call given up
                answers[member.name] = (
                    payload if status == OK else ClientError(member.name, payload.decode())
                )
                return True
        return False

    def close(self) -> None:
        """End all processes; a second call does nothing."""
        self._finalizer()


def _end(members: dict[str, _Member]) -> None:
    """Close the pipes, which ends the processes; those that hang are killed."""
    for member in members.values():
        for pipe in (member.process.stdin, member.process.stdout):
            assert pipe is not None
            with contextlib.suppress(OSError):  # the process has ended with bytes on their way
                pipe.close()
    deadline = time.monotonic() + PATIENCE
    for member in members.values():
        try:
            member.process.wait(timeout=max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            member.process.kill()
            member.process.wait()

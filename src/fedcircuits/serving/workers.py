"""The service's worker processes: started when needed, ended when a deadline passes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import anyio

from fedcircuits.engines.frames import frame, read_frame
from fedcircuits.errors import FedcircuitsError
from fedcircuits.serving.giving_up import GIVE_UP
from fedcircuits.serving.questions import Limits

Reply = dict[str, Any]
BUSY: Reply = {"status": 503, "type": "BusyError"}
# A question that has waited longer than this share of its time is not begun: it would most likely
# be given up half done, and end a process for nothing.
WAITING = 0.5
WORKER = "fedcircuits.serving.worker"  # module that a process runs
ENDING = 1.0  # seconds that killed processes have to be gone
# A question that has run for longer gives way where others have waited and such ones hold more than
# half of the processes: ordinary questions take milliseconds.
SLOW, CROWDED = 1.0, 0.25
GIVING_UP = 0.5  # seconds that a process has to leave a question before it is ended
REPLYING = 0.05  # share of a question's time that is left for its reply to get out
# Workers give way to the process that keeps their deadlines: on full cores it would otherwise come
# to its clock a second late.
NICENESS = 5


class _Process:
    """One worker process; it can be asked once it has the model (`start`)."""

    def __init__(self) -> None:
        self._is_killed = False
        command = [sys.executable, "-P", "-m", WORKER]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        with contextlib.suppress(OSError):  # it may be gone already
            os.setpriority(os.PRIO_PROCESS, self._process.pid, _niceness())

    def start(self, model: bytes, name: str, limits: Limits) -> None:
        """Hands over the model; an error where it cannot be read."""
        settings = json.dumps(asdict(limits)).encode()
        started = self.ask(name, len(settings).to_bytes(4, "little") + settings + model)
        if started["status"] != 200:
            self.kill()
            raise FedcircuitsError(str(started.get("error", "a worker process did not start")))

    def ask(self, method: str, payload: bytes) -> Reply:
        """Sends one question and returns the reply; blocks until it comes or the process ends."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(frame(0, method, payload))
            self._process.stdin.flush()
            found = read_frame(self._process.stdout)
        except (OSError, ValueError):  # ValueError: its pipes were closed when it was killed
            found = None
        if found is None:
            text = "the process that worked on the answer ended: ask again, or for less at a time"
            return {**BUSY, "error": text}
        reply: Reply = json.loads(found[2])
        return reply

    @property
    def is_alive(self) -> bool:
        """Whether the process is still there."""
        return self._process.poll() is None

    @property
    def can_be_asked(self) -> bool:
        """Whether it is there and was not killed: one that was takes a moment to be gone."""
        return self.is_alive and not self._is_killed

    def give_up(self) -> None:
        """Asks the process to leave its question; the reply then says so."""
        self._process.send_signal(GIVE_UP)

    def kill(self) -> None:
        """Ends the process at once, whatever it is doing; it may take a moment to be gone."""
        self._is_killed = True
        self._process.kill()

    def wait(self, seconds: float) -> None:
        """Waits until it is gone."""
        try:
            self._process.wait(max(0.0, seconds))
        except subprocess.TimeoutExpired:
            return


def _niceness() -> int:
    """That of a worker: of this process and `NICENESS` more, as far as there is more."""
    return min(19, os.getpriority(os.PRIO_PROCESS, 0) + NICENESS)


@dataclass(eq=False)
class _Job:
    """A question that a worker is answering.

    Attributes:
        process: that works on it; None while there is none.
        is_given_up: whether nobody waits for the answer any more.
        begun: when a process took it on, on the monotonic clock.
    """

    process: _Process | None = None
    is_given_up: bool = False
    begun: float = 0.0


class Workers:
    """At most `limits.workers` processes, each with one question at a time.

    A question that takes too long is given up, if need be with its process, so that abandoned work
    never piles up. Where many wait, long questions give way to short ones.

    Args:
        model: the bytes of a model file.
        name: of the model, for errors.
        limits: of a request.
    """

    def __init__(self, model: bytes, name: str, limits: Limits) -> None:
        self._model, self._name, self._limits = model, name, limits
        self._slots = anyio.CapacityLimiter(limits.workers)
        # Threads whose question was given up end soon: more of them than slots, for a moment.
        self._threads = anyio.CapacityLimiter(4 * limits.workers + 8)
        self._changed = threading.Condition()
        self._all: list[_Process] = []
        self._idle: list[_Process] = []
        self._closed = False
        self._running: list[_Job] = []
        self._idle.append(self._start())  # a model that cannot be read is an error now

    def _start(self) -> _Process:
        """Returns a new process with the model; it is known to `close` from its first moment."""
        with self._changed:
            process = _Process()
            self._all.append(process)
        process.start(self._model, self._name, self._limits)
        return process

    async def ask(
        self, method: str, arguments: Mapping[str, Any], begun: float | None = None
    ) -> Reply:
        """Returns a reply with its HTTP status; 503 where there is none in time.

        Args:
            method: of `Questions`.
            arguments: of the method.
            begun: when the request began, on the monotonic clock; its deadline counts from there.
        """
        try:
            payload = json.dumps(arguments, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            text = "a name or value that is no Unicode text (a lone surrogate)"
            return {"status": 422, "error": text, "type": "RequestError"}
        seconds, job = self._limits.seconds, _Job()
        begun = time.monotonic() if begun is None else begun
        try:
            with anyio.fail_after(max(0.0, begun + WAITING * seconds - time.monotonic())):
                await self._slot(job)
        except TimeoutError:
            text = f"too many questions at once: not begun within {WAITING * seconds:g} s"
            return {**BUSY, "error": text}
        end = begun + (1 - REPLYING) * seconds
        try:
            with anyio.fail_after(max(0.0, end - time.monotonic())):
                return await anyio.to_thread.run_sync(
                    self._work, method, payload, job,
                    abandon_on_cancel=True, limiter=self._threads,
                )  # fmt: skip
        except TimeoutError:
            return {**BUSY, "error": f"no answer within {seconds} s: ask for less at a time"}
        finally:
            self._slots.release_on_behalf_of(job)
            self._give_up(job)

    async def _slot(self, job: _Job) -> None:
        """Wait for a place; where it takes long, questions that take long give way."""
        while True:
            with anyio.move_on_after(CROWDED) as waiting:
                await self._slots.acquire_on_behalf_of(job)
            if not waiting.cancelled_caught:
                return
            self._make_room()

    def _make_room(self) -> None:
        """Have the longest question give way, if slow ones hold more than half of the processes."""
        with self._changed:
            before = time.monotonic() - SLOW
            slow = [job for job in self._running if job.begun < before and not job.is_given_up]
            longest = min(slow, key=lambda job: job.begun, default=None)
        if longest is not None and len(slow) > max(1, self._limits.workers // 2):
            self._give_up(longest)

    def _give_up(self, job: _Job) -> None:
        """A question is not answered any more: its process leaves it, or ends."""
        with self._changed:
            process, job.is_given_up = job.process, True
            if process is not None:
                process.give_up()
                asyncio.get_running_loop().call_later(GIVING_UP, self._end, job, process)
            self._changed.notify_all()

    def _end(self, job: _Job, process: _Process) -> None:
        """End a process that is still at a question which was given up."""
        with self._changed:
            if job.process is process:
                process.kill()

    def _work(self, method: str, payload: bytes, job: _Job) -> Reply:
        """In a thread: take a process, ask it, and put it back unless it was killed."""
        process = self._taken(job)
        if process is None:
            return {**BUSY, "error": "the question was given up, or the service stops"}
        with self._changed:
            if job.is_given_up:  # before it was begun
                self._idle.append(process)
                self._changed.notify_all()
                return {**BUSY, "error": "the question was given up"}
            job.process, job.begun = process, time.monotonic()
            self._running.append(job)
        reply = process.ask(method, payload)
        with self._changed:
            job.process = None
            self._running.remove(job)
        self._put_back(process)
        return reply

    def _taken(self, job: _Job) -> _Process | None:
        """A process that is free or new; None once the question is given up or the service ends."""
        with self._changed:
            while True:
                if job.is_given_up or self._closed:
                    return None
                self._all = [process for process in self._all if process.is_alive]
                self._idle = [process for process in self._idle if process.can_be_asked]
                if self._idle:
                    return self._idle.pop()
                if len(self._all) < self._limits.workers:
                    break
                self._changed.wait(0.2)  # a killed process tells nobody when it is gone
        try:
            process = self._start()
        except FedcircuitsError:  # killed while it was started
            return None
        with self._changed:
            if not (job.is_given_up or self._closed):
                return process
        self._put_back(process)  # for the next question
        return None

    def _put_back(self, process: _Process) -> None:
        with self._changed:
            if self._closed:
                process.kill()
            elif process.can_be_asked:
                self._idle.append(process)
            self._changed.notify_all()

    def close(self) -> None:
        """Ends every process; questions under way are answered with 503."""
        with self._changed:
            self._closed = True
            ending = list(self._all)
            for process in ending:
                process.kill()
            self._changed.notify_all()
        end = time.monotonic() + ENDING
        for process in ending:
            process.wait(end - time.monotonic())

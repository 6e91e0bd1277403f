"""The service's worker processes: started when needed, ended when a deadline passes."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import anyio

from fedcircuits.engines.frames import frame, read_frame
from fedcircuits.errors import FedcircuitsError
from fedcircuits.serving.questions import Limits

Reply = dict[str, Any]
BUSY: Reply = {"status": 503, "type": "BusyError"}


class _Process:
    """One worker process with the model loaded."""

    def __init__(self, model: bytes, name: str, limits: Limits) -> None:
        command = [sys.executable, "-P", "-m", "fedcircuits.serving.worker"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
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
        except OSError:
            found = None
        if found is None:
            text = "the process that worked on the answer ended: ask again, or for less at a time"
            return {**BUSY, "error": text}
        reply: Reply = json.loads(found[2])
        return reply

    @property
    def is_alive(self) -> bool:
        """Whether the process can be asked again."""
        return self._process.poll() is None

    def kill(self) -> None:
        """Ends the process at once, whatever it is doing."""
        self._process.kill()
        self._process.wait()


class Workers:
    """At most `limits.workers` questions at once, each in a process of its own.

    A question that takes too long ends with its process, so that abandoned work never piles up;
    the next question starts another.

    Args:
        model: the bytes of a model file.
        name: of the model, for errors.
        limits: of a request.
    """

    def __init__(self, model: bytes, name: str, limits: Limits) -> None:
        self._model, self._name, self._limits = model, name, limits
        self._slots = anyio.CapacityLimiter(limits.workers)
        self._threads = anyio.CapacityLimiter(2 * limits.workers + 8)
        self._lock = threading.Lock()
        self._idle = [self._start()]  # a model that cannot be read is an error now
        self._all = list(self._idle)
        self._closed = False

    def _start(self) -> _Process:
        return _Process(self._model, self._name, self._limits)

    async def ask(self, method: str, arguments: Mapping[str, Any]) -> Reply:
        """Returns a reply with its HTTP status; 503 where there is none in time."""
        try:
            payload = json.dumps(arguments, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            text = "a name or value that is no Unicode text (a lone surrogate)"
            return {"status": 422, "error": text, "type": "RequestError"}
        taken: list[_Process] = []
        try:
            with anyio.fail_after(self._limits.seconds):
                async with self._slots:
                    return await anyio.to_thread.run_sync(
                        self._work, method, payload, taken,
                        abandon_on_cancel=True, limiter=self._threads,
                    )  # fmt: skip
        except TimeoutError:
            text = f"no answer within {self._limits.seconds} s: ask for less at a time"
            return {**BUSY, "error": text}
        finally:
            for process in taken:  # still at work: given up, or the client went away
                process.kill()

    def _work(self, method: str, payload: bytes, taken: list[_Process]) -> Reply:
        """In a thread: ask a process and put it back; one that was killed is not put back."""
        with self._lock:
            process = self._idle.pop() if self._idle else None
        if process is None or not process.is_alive:
            process = self._start()
            with self._lock:
                self._all = [p for p in self._all if p.is_alive] + [process]
        taken.append(process)
        reply = process.ask(method, payload)
        with self._lock:
            if process.is_alive and not self._closed:
                taken.clear()
                self._idle.append(process)
        return reply

    def close(self) -> None:
        """Ends every process."""
        with self._lock:
            self._closed = True
            for process in self._all:
                process.kill()

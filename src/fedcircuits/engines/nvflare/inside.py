"""The transport of a server that runs inside NVFlare's controller."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedcircuits.engines.replay import Answers, Replay


class InController:
    """A transport over the tasks of a job, with replies kept on disk and progress written down.

    Args:
        carrier: of the job (see `flare.Carrier`).
        answers: folder of replies, those of an earlier run that was cut short included.
        progress: file that gets a line of JSON for every call.
        longest: seconds for a call where the server code says nothing: every task has a timeout.
    """

    def __init__(self, carrier: Any, answers: Path, progress: Path, longest: float) -> None:
        self._carrier, self._progress, self._longest = carrier, progress, longest
        self.replay = Replay(Answers(answers))

    def members(self) -> list[str]:
        """Return the names of the clients, sorted."""
        found: list[str] = self._carrier.members()
        return found

    def call(
        self, verb: str, payloads: Mapping[str, bytes], timeout: float | None = None
    ) -> dict[str, bytes | Exception]:
        """Return each client's reply, or what went wrong."""
        start, before = time.monotonic(), self.replay.asked.get(verb, 0)
        self._note("begins", verb=verb, clients=sorted(payloads))
        limit = self._longest if timeout is None else timeout
        answers = self.replay.call(self._send, verb, payloads, limit)
        failed = {name: str(a) for name, a in answers.items() if isinstance(a, Exception)}
        self._note(
            "done",
            verb=verb,
            clients=sorted(payloads),
            seconds=round(time.monotonic() - start, 3),
            kept=len(payloads) - (self.replay.asked.get(verb, 0) - before),
            failed=failed,
        )
        return answers

    def _send(
        self, parcels: Mapping[str, bytes], timeout: float | None
    ) -> Mapping[str, bytes | Exception]:
        found: dict[str, bytes | Exception] = self._carrier.send(
            parcels, timeout, received=self.replay.received
        )
        return found

    def _note(self, what: str, **facts: Any) -> None:
        line = {"time": time.time(), "what": what, **facts}
        with self._progress.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def over(self, **facts: Any) -> None:
        """End the sites' part and write that the results are in the job's folder."""
        self._carrier.end()
        self._note("over", folder=str(self._carrier.folder), **facts)

    def close(self) -> None:
        """Do nothing: the job ends with its program."""

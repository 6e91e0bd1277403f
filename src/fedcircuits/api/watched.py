"""An engine that reports its messages as progress, in words that a user knows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fedcircuits.api.progress import Progress
from fedcircuits.engines import LocalEngine
from fedcircuits.federation.wire.requests import VERBS
from fedcircuits.federation.wire.transport import Transport

# Phase of a message to where its stage begins and ends, and what happens in it. How many messages a
# rule will send is not known beforehand, so each brings the bar nearer to the end of its stage.
STAGES: dict[str, tuple[float, float, str]] = {
    "schema": (0.0, 0.1, "reading the columns of"),
    "alignment": (0.1, 0.2, "matching the rows of"),
    "agreement": (0.2, 0.3, "finding groups of rows with"),
    "training": (0.3, 0.9, "training"),
    "validation": (0.5, 0.97, "scoring held-out rows of"),
    "query": (0.5, 0.97, "asking"),
}
STEP = 0.4  # part of what is left of a stage that one message takes


class Stages:
    """How far a federation is, from the messages sent so far."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._done = 0.0
        self._next = 0.0
        self._asked = ("", "starting clients")  # message under way, and what it is for

    def begin(self, verb: str, clients: Sequence[str]) -> None:
        """Report that a message is sent to some clients.

        Args:
            verb: its name.
            clients: their names.
        """
        phase = VERBS[verb].phase if verb in VERBS else "query"
        start, end, words = STAGES[phase]
        self._done = max(self._done, start)
        self._next = self._done + max(end - self._done, 0.0) * STEP
        self._asked = verb, f"{words} {some(clients)}"
        self._progress(self._done, self._asked[1])

    def part(self, part: float, words: str) -> None:
        """Report that a part of the clients has answered the message under way."""
        self._progress(self._done + (self._next - self._done) * min(max(part, 0.0), 1.0), words)

    def answered(self, part: float, words: str) -> None:
        """Report what an engine says of the message under way, without the message's name."""
        verb, doing = self._asked
        named = bool(verb) and words.startswith(f"{verb}: ")
        self.part(part, f"{doing}: {words.removeprefix(f'{verb}: ')}" if named else words)

    def end(self) -> None:
        """Report that all clients have answered."""
        self._done = self._next


class Watched:
    """An engine whose messages are reported as progress.

    Args:
        engine: the engine; one in this process is called client by client.
        stages: where messages are reported.
    """

    def __init__(self, engine: Transport, stages: Stages) -> None:
        self._engine, self._stages = engine, stages
        self.is_quiet = False  # queries after the training are not reported

    def members(self) -> list[str]:
        """Return the names of the clients, sorted."""
        return self._engine.members()

    def call(
        self, verb: str, payloads: Mapping[str, bytes], timeout: float | None = None
    ) -> dict[str, bytes | Exception]:
        """Send each client its payload, and report before and after."""
        if self.is_quiet:
            return self._engine.call(verb, payloads, timeout)
        names = sorted(payloads)
        if not isinstance(self._engine, LocalEngine):
            self._stages.begin(verb, names)
            answers = self._engine.call(verb, payloads, timeout)
        else:
            answers = {}
            for at, name in enumerate(names):
                if at == 0:
                    self._stages.begin(verb, [name])
                else:
                    self._stages.part(at / len(names), f"{STAGES[VERBS[verb].phase][2]} {name}")
                answers |= self._engine.call(verb, {name: payloads[name]}, timeout)
        self._stages.end()
        return answers

    def close(self) -> None:
        """End the clients or the connections to them."""
        self._engine.close()


def some(names: Sequence[str]) -> str:
    """Return the first names, and how many more there are."""
    listed = list(names)
    return ", ".join(listed[:3]) + (f" and {len(listed) - 3} more" if len(listed) > 3 else "")

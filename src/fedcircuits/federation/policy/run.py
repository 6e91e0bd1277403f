"""One run that a client has consented to: what its plan still admits, and what it has cost.

Counts, bits and epsilon are kept in the audit file, a line a message, so that they outlive the
client: `Past` reads them back, and a run whose plan is proposed again, byte for byte, goes on where
it was. What other processes of the client add to the file is read, too.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedcircuits.federation.policy.policy import PolicyError
from fedcircuits.federation.wire import requests as m
from fedcircuits.federation.wire.ids import fingerprint
from fedcircuits.federation.wire.steps import Step
from fedcircuits.federation.wire.verbs import Verb


@dataclass
class Spent:
    """What a run has cost so far.

    Attributes:
        requests: names of the requests that were answered (`Run.name_of`).
        replies: names of the replies: a repeated one reveals nothing new.
        used: how many of each kind, by verb and number of the plan's step.
        bits: clear bits a row that the server learned.
        epsilon: of differential privacy.
        masked_with: clients over which sums were masked that alone would be row evidence.
    """

    requests: set[str] = field(default_factory=set)
    replies: set[str] = field(default_factory=set)
    used: dict[tuple[str, int], int] = field(default_factory=dict)
    bits: float = 0.0
    epsilon: float = 0.0
    masked_with: set[tuple[str, ...]] = field(default_factory=set)

    def add(
        self, request: str, reply: str, verb: str, at: int, bits: float, epsilon: float
    ) -> None:
        """Count a request that was answered for the first time."""
        self.requests.add(request)
        self.replies.add(reply)
        self.used[verb, at] = self.used.get((verb, at), 0) + 1
        self.bits += bits
        self.epsilon += epsilon


@dataclass(frozen=True)
class Proposed:
    """A plan as the audit file has it.

    Attributes:
        run: name of its run.
        time: when it was proposed.
        words: its text, rules that were struck marked.
        refusal: why it was refused as a whole, None where it was accepted.
    """

    run: str
    time: str
    words: list[str]
    refusal: str | None


class Past:
    """What the runs of a client have cost, as its audit file has it.

    Attributes:
        runs: by name.

    Args:
        audit: the file, None for none.
        client: whose lines are read.
    """

    def __init__(self, audit: Path | None, client: str) -> None:
        self.runs: dict[str, Spent] = {}
        self._audit, self._client, self._at = audit, client, 0
        self.read()

    def read(self) -> None:
        """Read the lines that were added since the last time, whoever wrote them."""
        lines, self._at = _lines(self._audit, self._client, self._at)
        for line in lines:
            if not line.get("run"):
                continue
            spent = self.runs.setdefault(str(line["run"]), Spent())
            if line.get("masked_with"):
                spent.masked_with.add(tuple(line["masked_with"]))
            if line.get("request") and line["request"] not in spent.requests:
                of = ("request", "reply", "verb", "step", "bits", "epsilon")
                spent.add(*(line[name] for name in of))


def earlier_runs(audit: Path | None, client: str) -> dict[str, Spent]:
    """Return what every run in an audit file has cost, by name of the run."""
    return Past(audit, client).runs


def proposed(audit: Path, client: str) -> list[Proposed]:
    """Return the plans in an audit file, the last proposal of each, oldest first."""
    found: dict[str, Proposed] = {}
    for line in _lines(audit, client)[0]:
        if line["verb"] == m.PROPOSE.name and "plan" in line:
            name = str(line.get("run") or line.get("proposed"))
            found.pop(name, None)
            found[name] = Proposed(name, str(line["time"]), line["plan"], line["reason"])
    return list(found.values())


def _lines(audit: Path | None, client: str, start: int = 0) -> tuple[list[dict[str, Any]], int]:
    """The lines of one client from a byte on, without those cut short, and where they end."""
    if audit is None or not audit.exists():
        return [], 0
    try:
        with audit.open("rb") as file:
            file.seek(start)
            data = file.read()
        texts = data.decode().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise PolicyError(f"its audit file cannot be read: {error}") from None
    found = []
    for text in texts:
        try:
            line = json.loads(text)
            if line["client"] == client:
                found.append(line)
        except (ValueError, KeyError, TypeError):
            continue
    return found, start + len(data)


class Run:
    """The plan of a run, and what of it is left.

    Attributes:
        name: of the run: a fingerprint of its plan and of how the client described its table.
        plan: as the server proposed it.
        spent: what it has cost.
        held: the client's columns, the label apart.

    Args:
        name: as above.
        plan: that was accepted.
        struck: candidates that were not.
        spent: before, where the client was started anew.
        state: last request of every kind that changed the client since it was made; the guard's,
            since the client's state outlives a run.
    """

    def __init__(
        self,
        name: str,
        plan: m.Plan,
        struck: Iterable[str],
        spent: Spent | None,
        state: dict[str, str],
    ) -> None:
        self.name = name
        self.plan = plan
        self.spent = spent or Spent()
        self.held = [name for name in plan.columns if name not in (plan.label, plan.id)]
        self._state = state
        gone = set(struck)
        self._steps: dict[str, list[Step]] = {}
        parts = (*plan.optional, *plan.candidates)
        kept = [each.steps for each in parts if each.name not in gone]
        for each in (*plan.common, *(s for steps in kept for s in steps)):
            self._steps.setdefault(each.verb, []).append(each)

    def name_of(self, verb: str, request: m.Message, payload: bytes) -> str:
        """Return the name of a request in the client's present state: a repeat has the same."""
        place = f"{verb} {request.series}"
        others = sorted(item for item in self._state.items() if item[0] != place)
        return fingerprint(verb.encode(), payload, repr(others).encode())[:24]

    def step_of(self, verb: str, request: m.Message, name: str) -> int:
        """Return the number of the plan's step that admits a request, or refuse it.

        Args:
            verb: its kind.
            request: the message.
            name: of the request; -1 is returned where it was answered before.
        """
        if name in self.spent.requests:
            return -1
        steps = self._steps.get(verb, [])
        if not steps:
            raise PolicyError("it is not in the plan that was accepted")
        most = m.VERBS[verb].most
        if sum(used for (other, _), used in self.spent.used.items() if other == verb) >= most:
            raise PolicyError(f"it was asked {most} time(s) in other words, the most in a run")
        faults = []
        for at, step in enumerate(steps):
            fault = step.fault(request, self.held)
            if fault is None and self.spent.used.get((verb, at), 0) >= step.most * self.plan.tries:
                fault = f"it was asked {step.most * self.plan.tries} time(s), the most in the plan"
            if fault is None:
                return at
            faults.append(fault)
        raise PolicyError(f"it goes beyond the plan that was accepted: {faults[0]}")

    def note(self, verb: Verb[Any, Any], request: m.Message, payload: bytes) -> None:
        """Note that a request changed the client."""
        if verb.changes_state and not verb.makes_models:
            self._state[f"{verb.name} {request.series}"] = fingerprint(payload)

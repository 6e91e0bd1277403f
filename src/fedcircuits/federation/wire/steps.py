"""What a rule will send, declared before it is sent: the parts of a plan.

A rule lists its messages as steps. What it reveals, to whom and at which level (`reveals_of`), its
most bits a row (`bits_of`) and what a silo's policy guard admits all follow from the steps and the
declarations of their verbs (`verbs.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from fedcircuits.federation.wire.message import Message
from fedcircuits.federation.wire.verbs import VERBS, Level, Recipient, Verb

Setting = Literal["horizontal", "vertical", "hybrid"]
LabelAt = Literal["nobody", "everybody", "some"]
SPLIT = {"horizontal": "rows split", "vertical": "columns split", "hybrid": "both split"}
LABEL_AT = {"nobody": "no label", "everybody": "all have the label", "some": "some have the label"}
MANY = 10_000  # most messages of a kind whose number follows from the data (models, queries)


@dataclass(frozen=True)
class Facts:
    """What is known of a run when its plan is made.

    Attributes:
        setting: how the table is split.
        label: who holds the label.
        n_spaces: subspaces that several clients share.
        n_clients: of the run.
    """

    setting: Setting
    label: LabelAt
    n_spaces: int = 1
    n_clients: int = 3


def in_words(some: Sequence[Facts], of: Sequence[Facts]) -> str:
    """Return which cases are meant out of those that apply; nothing for all of them."""
    words = []
    settings = list(dict.fromkeys(facts.setting for facts in some))
    labels = list(dict.fromkeys(facts.label for facts in some))
    if {facts.setting for facts in of} != set(settings):
        words.append(" or ".join(SPLIT[setting] for setting in settings))
    if {facts.label for facts in of if facts.setting in settings} != set(labels):
        words.append(" or ".join(LABEL_AT[label] for label in labels))
    return ", ".join(words)


EVERY_CASE = tuple(
    Facts(setting, label) for setting in get_args(Setting) for label in get_args(LabelAt)
)


@dataclass(frozen=True)
class Step:
    """One kind of message to a client.

    Attributes:
        verb: its name.
        most: different messages of this kind in one training; a repeat of one does not count.
        limits: of the request's fields, by name: a number is the most, a flag that is false and a
            text must be the same; `SET`: the field may not be empty; `ALL`: every column of the
            client is named, so that what is sent is about no single one.
    """

    verb: str
    most: int = 1
    limits: dict[str, Any] = field(default_factory=dict)

    def fault(self, request: Message, held: Iterable[str]) -> str | None:
        """Return what a request asks beyond the limits, None where it asks no more.

        Args:
            request: of the step's verb.
            held: the client's columns in this run, the label apart.
        """
        for name, limit in self.limits.items():
            value = getattr(request, name)
            if limit == SET:
                kept = bool(value)
            elif limit == ALL:
                kept = set(held) <= set(value)
            elif isinstance(limit, bool):
                kept = limit or value is False
            elif isinstance(limit, (int, float)):
                kept = value <= limit
            else:
                kept = value == limit
            if not kept:
                return f"{name} = {value!r}, and the plan says {limit!r}"
        return None


SET, ALL = "set", "all columns"  # limits with a meaning of their own


def step(verb: Verb[Any, Any], most: int = 1, **limits: Any) -> Step:
    """Return a step of a verb; limits that are None are left out."""
    return Step(verb.name, most, {name: each for name, each in limits.items() if each is not None})


def level_of(steps: Iterable[Step], to: Recipient) -> Level:
    """Return the most that some steps reveal to a recipient."""
    found = [VERBS[each.verb].level(to, each.limits) for each in _known(steps)]
    return max(found, key=lambda level: level.rank, default=Level.NOTHING)


def bits_of(steps: Iterable[Step]) -> float:
    """Return the most clear bits a row that the server learns."""
    return sum(VERBS[s.verb].bits(s.limits, None) * s.most for s in _known(steps))


def words_of(steps: Iterable[Step]) -> tuple[str, ...]:
    """Return what is revealed about single rows and groups, a line a verb and recipient."""
    lines: dict[str, None] = {}
    for each in _known(steps):
        verb = VERBS[each.verb]
        for entry in verb.reveals:
            level = verb.level(entry.to, each.limits)
            if level is Level.NOTHING:
                continue
            bits = verb.bits(each.limits, None) if entry.to == "server" else 0.0
            amount = f", {bits * each.most:.1f} bits a row" if bits else ""
            lines[f"to {WHO[entry.to]}, {level.value}{amount}: {entry.what}"] = None
    return tuple(lines)


def _known(steps: Iterable[Step]) -> list[Step]:
    """Without messages that there are not, which a plan from elsewhere may name."""
    return [each for each in steps if each.verb in VERBS]


WHO: Mapping[Recipient, str] = {
    "server": "the server",
    "other clients": "other clients",
    "model": "whoever gets the model",
}

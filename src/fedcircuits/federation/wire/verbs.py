"""One declaration a message: what it is called, what it does to a client, what it reveals.

`VERBS` has them all, by name; each is declared beside its request and reply in `requests/`. Client
dispatch, policy guard, plans (`steps.py`), levels and bits of the ledger, replay after restarts and
the table of messages in docs/policy.md follow from these declarations and from nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Generic, Literal, TypeVar

import numpy as np

from fedcircuits.encoding import answers_of
from fedcircuits.errors import StorageError
from fedcircuits.federation.wire.message import Message, request_name

Q = TypeVar("Q", bound=Message)
R = TypeVar("R", bound=Message)
Phase = Literal["schema", "alignment", "agreement", "training", "validation", "query"]
Recipient = Literal["server", "other clients", "model"]


class Level(StrEnum):
    """What a message reveals about single rows, least first."""

    NOTHING = "nothing"
    AGGREGATES = "aggregates"  # sums over groups of rows, and models
    MASKED_SUMS = "masked sums"  # whose terms only their client knows
    BOUNDED_CODES = "bounded codes"  # at most some bits a row
    ROW_EVIDENCE = "row evidence"  # whoever holds the models can reconstruct rows

    @property
    def rank(self) -> int:
        """Position in the order above: the higher, the more is revealed."""
        return list(Level).index(self)


@dataclass(frozen=True)
class Reveals:
    """What one recipient learns.

    Attributes:
        to: the recipient.
        level: about single rows.
        what: in words.
    """

    to: Recipient
    level: Level
    what: str


# How refusals name what a policy's `label` allows.
LABEL_ALLOWED = {
    "used": "the label is used here and not sent (label = 'used')",
    "no": "no column here serves as a label (label = 'no')",
}


def reveals_label_of_rows(allowed: str) -> str:
    """Return how a refusal names a request whose reply reveals the label of single rows."""
    return f"the label of single rows; {LABEL_ALLOWED[allowed]}: federate with label_use='used'"


class Terms:
    """What declarations need to know of a client's policy, and how it refuses.

    The meanings of the attributes are in `policy/policy.py`.
    """

    label: str
    min_rows: int
    placement: str
    queries: tuple[str, ...]
    rows_by_id: bool

    def label_unused(self, label: str | None) -> str | None:
        """Return why a label may not be used, None where it may or there is none."""
        if self.label == "no" and label is not None:
            return f"the label; {LABEL_ALLOWED['no']}"
        return None

    def too_few(self, what: str, n_rows: int) -> str | None:
        """Return why a reply about so few rows is refused; `what` has {} for their number."""
        if n_rows < self.min_rows:
            return f"{what.format(n_rows)}; the smallest group is {self.min_rows}"
        return None

    def stays(self, keep: bool, what: str = "models to take away; they") -> str | None:
        """Return why models may not leave, None where they may or are kept."""
        if self.placement == "remote" and not keep:
            return f"{what} stay here: federate with placement='remote'"
        return None

    def trees_refused(self, min_rows: int) -> str | None:
        """Return why boosted trees with so few rows behind a leaf, or any trees, may not leave."""
        few = self.too_few("trees with {} row(s) behind a leaf", min_rows)
        return few or self.stays(False, "trees to take away; models")


@dataclass(frozen=True)
class Asked:
    """What a request asks for, as a policy sees it.

    Attributes:
        columns: that it names as the client's.
        fault: why the policy does not allow it, and what would be allowed; None where it does.
    """

    columns: tuple[str, ...] = ()
    fault: str | None = None


Fields = Mapping[str, Any]  # of a request by name: what is asked, or the most that a plan allows


def no_bits(asked: Fields, reply: Message | None) -> float:
    """A reply without a code for single rows."""
    del asked, reply
    return 0.0


def asks_nothing(request: Message, terms: Terms, label: str | None) -> Asked:
    """A request that names no column and that every policy allows."""
    del request, terms, label
    return Asked()


@dataclass(frozen=True)
class Verb(Generic[Q, R]):
    """One message and its reply.

    Attributes:
        name: as it travels, and as a policy's `requests` names it.
        request: its type.
        reply: type of the reply.
        phase: under which the ledger counts both.
        reveals: what recipients learn from the reply, at most one entry for each.
        costly: whether it takes long or draws numbers, so that a client keeps its last reply.
        changes_state: whether later replies depend on it.
        makes_models: whether it fits models (which only verbs that read models look at).
        reads_models: whether it needs the models fitted so far.
        keeps_reply: whether a server that is started again may use the reply it has on disk.
        asks: request, policy and label (None where the client does not own it) to what is wanted.
        groups: row counts in the reply by what is counted; none may be below `min_rows`.
        shows: what the server learns, where that depends on the request's fields; by default as
            `reveals` says, which is the most.
        bits: clear bits a row that the reply reveals to the server; without a reply the most that
            it can be, where that follows from the request's fields.
        epsilon: of differential privacy that the reply spends, from the request's fields.
        reveals_label: whether the reply of a client that owns the label reveals it of single rows.
        most: different requests that a client with a policy answers in a run, whatever the plan.
    """

    name: str
    request: type[Q]
    reply: type[R]
    phase: Phase
    reveals: tuple[Reveals, ...]
    costly: bool = False
    changes_state: bool = False
    makes_models: bool = False
    reads_models: bool = False
    keeps_reply: bool = True
    asks: Callable[[Q, Terms, str | None], Asked] = asks_nothing
    groups: Mapping[str, Callable[[R], Iterable[float]]] = field(default_factory=dict)
    shows: Callable[[Fields], Level] | None = None
    bits: Callable[[Fields, R | None], float] = no_bits
    epsilon: Callable[[Fields], float] = lambda _: 0.0
    reveals_label: Callable[[Fields], bool] = lambda _: False
    most: int = 10_000

    def level(self, to: Recipient, asked: Fields | None = None) -> Level:
        """What a recipient learns about single rows; by the request's fields where it depends."""
        if to == "server" and self.shows is not None and asked is not None:
            return self.shows(asked)
        return next((each.level for each in self.reveals if each.to == to), Level.NOTHING)

    def read_reply(self, client: str, request: Q, payload: bytes, answer: bytes) -> R:
        """Return the reply in some bytes; a `StorageError` where they are not that client's reply.

        Args:
            client: that was asked.
            request: as it was sent.
            payload: its bytes.
            answer: the bytes that came back.
        """
        reply = self.reply.from_bytes(answer)
        fault = reply.fault(request)
        if fault is None and answers_of(answer) != request_name(client, self.name, payload):
            fault = "it answers another request, or is of another client"
        if fault is not None:
            raise StorageError(fault)
        for what, counts in self.groups.items():
            if not are_counts(list(counts(reply))):
                raise StorageError(f"{what}: numbers that are no counts")
        return reply


def are_counts(numbers: Any) -> bool:
    """Return whether numbers count something: one axis, finite, none negative."""
    found = np.asarray(numbers)
    if found.size == 0:
        return found.ndim == 1
    if found.ndim != 1 or found.dtype.kind not in "iuf":
        return False
    return bool(np.isfinite(found).all() and (found >= 0).all())


VERBS: dict[str, Verb[Any, Any]] = {}


def declare(verb: Verb[Q, R]) -> Verb[Q, R]:
    """Add a verb to `VERBS`; a name is declared once."""
    if verb.name in VERBS:
        raise ValueError(f"the verb {verb.name!r} is declared twice")
    VERBS[verb.name] = verb
    return verb


def markdown_table() -> str:
    """Return the table of messages in docs/policy.md."""
    lines = [
        "| message | phase | the server learns (level) | others learn | smallest group | state |",
        "|---|---|---|---|---|---|",
    ]
    for verb in VERBS.values():
        to = {entry.to: f"{entry.what} ({entry.level.value})" for entry in verb.reveals}
        others = "; ".join(f"{who}: {words}" for who, words in to.items() if who != "server")
        state = [
            words
            for words, holds in (
                ("changes the client", verb.changes_state),
                ("fits models", verb.makes_models),
                ("reads models", verb.reads_models),
            )
            if holds
        ]
        cells = [
            f"`{verb.name}`",
            verb.phase,
            to.get("server", "nothing"),
            others,
            ", ".join(verb.groups),
            ", ".join(state),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"

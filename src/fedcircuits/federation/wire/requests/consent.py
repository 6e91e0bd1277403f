"""The plan of a run, and a client's consent to it: nothing is asked that the plan does not list.

What each reply reveals, and to whom, is in the declarations (`Verb`) at the end of this file.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from fedcircuits.federation.wire.message import Message
from fedcircuits.federation.wire.steps import Step, bits_of, level_of, words_of
from fedcircuits.federation.wire.verbs import Level, Reveals, Verb, declare

ONE_OWNER = "one owner"
LABEL_SENT = "label_use='sent'"  # the part of a plan that sends the label to other clients
BITS = 12.0  # clear bits a row that the server may learn in a run, unless a policy says otherwise


@dataclass(frozen=True)
class PlannedRule:
    """A candidate of a plan: an agreement rule with its messages.

    Attributes:
        name: of the rule as it was made, unique in a plan.
        steps: its messages.
    """

    name: str
    steps: tuple[Step, ...]


@dataclass(frozen=True)
class Plan(Message):
    """Server: what it wants to do in this run, for a client to consent to or to refuse.

    The same plan once more is the same run: replies follow from plan, table and policy.

    Attributes:
        clients: that take part; keys of others are refused.
        learner: of the clients.
        columns: the client's, as it described them.
        id: column that aligns rows.
        label: column to be predicted.
        seed: of the run.
        placement: whether models are "gathered" or stay, "remote".
        questions: kinds of queries to models that stay.
        trust: "one owner" where all tables belong to one organisation, else empty.
        tries: how often a rule may be begun: in a trial, and after a client was lost.
        common: messages of every rule: handshake, alignment, queries.
        optional: what is done besides where all allow it, such as sending the label.
        candidates: the rules, of which the run takes one.
    """

    clients: list[str]
    learner: str
    columns: list[str]
    id: str | None
    label: str | None
    seed: int
    placement: str
    questions: list[str]
    trust: str
    tries: int
    common: tuple[Step, ...]
    optional: tuple[PlannedRule, ...]
    candidates: tuple[PlannedRule, ...]

    def words(self, struck: Mapping[str, str] | None = None) -> list[str]:
        """Return the plan in words, candidates that were struck with the reason."""
        none = "none"
        found = [
            f"clients: {', '.join(self.clients)}; learner: {self.learner}",
            f"columns: {', '.join(self.columns)}",
            f"id: {self.id or none}; label: {self.label or none}; seed: {self.seed}",
            f"models: {self.placement}; questions to models that stay: "
            f"{', '.join(self.questions) if self.placement == 'remote' else none}",
            f"every rule may be begun {self.tries} time(s)",
            *(f"in every case, {line}" for line in words_of(self.common)),
        ]
        parts = [("where all allow it,", each) for each in self.optional]
        for kind, each in (*parts, *(("rule", each) for each in self.candidates)):
            why = (struck or {}).get(each.name)
            bits = bits_of((*self.common, *each.steps))
            outcome = f"; STRUCK: {why}" if why else ""
            found.append(
                f"{kind} {each.name}: at most {bits:.1f} bits a row to the server{outcome}"
            )
            messages = ", ".join(f"{s.verb} (at most {s.most})" for s in each.steps)
            found.append(f"  messages: {messages or none}")
            found += [f"  {line}" for line in words_of(each.steps)]
        return found


@dataclass(frozen=True)
class Consent(Message):
    """Client: the plan is accepted, without the candidates that are struck (name to reason)."""

    struck: dict[str, str] = field(default_factory=dict)


def too_much(steps: Iterable[Step], *, row_evidence: bool, bits: float) -> str | None:
    """Return why steps reveal more to the server than is allowed, None where they do not.

    Args:
        steps: of a candidate, those of every rule among them.
        row_evidence: whether the server may learn enough to reconstruct rows.
        bits: most clear bits a row.
    """
    steps = tuple(steps)
    if not row_evidence and level_of(steps, "server") is Level.ROW_EVIDENCE:
        return "it sends the server row evidence, from which rows can be reconstructed"
    found = bits_of(steps)
    if found > bits:
        return f"it reveals {found:.1f} bits a row to the server; at most {bits:g} are allowed"
    return None


def without_policy(plan: Plan) -> Consent:
    """Return the consent of a client without a policy: one owner allows everything."""
    if plan.trust == ONE_OWNER:
        return Consent()
    struck = {}
    for each in plan.candidates:
        why = too_much((*plan.common, *each.steps), row_evidence=False, bits=BITS)
        if why is not None:
            struck[each.name] = f"{why}; trust={ONE_OWNER!r} allows it where all tables are yours"
    return Consent(struck)


PROPOSE = declare(
    Verb(
        "propose",
        Plan,
        Consent,
        "schema",
        (Reveals("server", Level.NOTHING, "which rules the client's policy allows, and why not"),),
        changes_state=True,
    )
)

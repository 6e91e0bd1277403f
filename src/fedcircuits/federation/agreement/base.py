"""The contract of an agreement rule, and what a rule may offer besides."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import Field, fields, is_dataclass
from typing import Any, Protocol, runtime_checkable

from fedcircuits.federation.server.circuit_builder import CircuitBuilder
from fedcircuits.federation.server.fitted_parts import FittedParts, TakeModels
from fedcircuits.federation.server.server import Server
from fedcircuits.federation.wire.steps import (
    EVERY_CASE,
    Facts,
    Setting,
    Step,
    in_words,
    words_of,
)


class Rule(Protocol):
    """How clients agree on what belongs together, and how their models become one circuit."""

    @property
    def name(self) -> str:
        """As the user writes it."""
        ...

    @property
    def reveals(self) -> tuple[str, ...]:
        """Who learns what under this rule and at which level, besides the handshake, in words."""
        ...

    def steps(self, facts: Facts) -> tuple[Step, ...]:
        """Return the messages that `train` sends to a client, none where the rule does not apply.

        A plan lists them; a silo's policy guard admits no others.
        """
        ...

    def train(self, server: Server, take: TakeModels) -> FittedParts:
        """Send the messages of this rule and return what the clients fitted."""
        ...

    def glue(self, fitted: FittedParts) -> tuple[CircuitBuilder, int]:
        """Return the circuit of the fitted parts as builder and root; a pure function of them."""
        ...


@runtime_checkable
class MayKeepLabel(Protocol):
    """A rule that can keep the label out of what its messages reveal of single rows."""

    @property
    def label_private(self) -> bool:
        """Whether its settings do so."""
        ...


@runtime_checkable
class MayTilt(Protocol):
    """A rule that can fit one tilt for the label by all clients together."""

    @property
    def tilt(self) -> bool:
        """Whether its settings ask for one."""
        ...


@runtime_checkable
class MayPoolTrees(MayTilt, Protocol):
    """A rule that can pool boosted trees into the tilt's posterior of the label."""

    @property
    def head(self) -> bool:
        """Whether its settings ask for them."""
        ...


def keeps_label(rule: Rule) -> bool:
    """Return whether a rule keeps the label out of what its messages reveal of single rows."""
    return isinstance(rule, MayKeepLabel) and rule.label_private


def described(rule: Rule) -> str:
    """Return a rule's name with the options that are not the default, as a plan names it."""
    own: tuple[Field[Any], ...] = fields(rule) if is_dataclass(rule) else ()
    chosen = [
        f"{entry.name}={getattr(rule, entry.name)!r}"
        for entry in own
        if getattr(rule, entry.name) != entry.default
    ]
    return f"{rule.name}({', '.join(chosen)})" if chosen else rule.name


def joined(reasons: Mapping[str, str]) -> str:
    """Return clients' reasons in one sentence, the same reason of several once."""
    by_reason: dict[str, list[str]] = {}
    for client, why in sorted(reasons.items()):
        by_reason.setdefault(why, []).append(repr(client))
    return "; ".join(f"client {', '.join(who)}: {why}" for why, who in by_reason.items())


def revealed(rule: Rule, setting: Setting, labelled: bool) -> tuple[str, ...]:
    """Return who learns what under a rule where data is split in one way, in words."""
    return rule.reveals_in(setting, labelled) if isinstance(rule, Declared) else rule.reveals


class Declared:
    """A rule whose words about what it reveals follow from its steps."""

    def steps(self, facts: Facts) -> tuple[Step, ...]:
        """Return the messages of this rule; every rule has its own."""
        raise NotImplementedError

    @property
    def reveals(self) -> tuple[str, ...]:
        """Who learns what at which level; where not in every case that applies, in which."""
        return self._reveals(EVERY_CASE)

    def reveals_in(self, setting: Setting, labelled: bool) -> tuple[str, ...]:
        """Who learns what at which level where data is split in one way."""
        return self._reveals(
            facts
            for facts in EVERY_CASE
            if facts.setting == setting and (facts.label != "nobody") == labelled
        )

    def _reveals(self, of: Iterable[Facts]) -> tuple[str, ...]:
        cases: dict[str, list[Facts]] = {}
        applies = [facts for facts in of if self.steps(facts)]
        for facts in applies:
            for line in words_of(self.steps(facts)):
                cases.setdefault(line, []).append(facts)
        return tuple(
            f"{where}: {line}" if (where := in_words(found, applies)) else line
            for line, found in cases.items()
        )


@runtime_checkable
class GluesAgain(Protocol):
    """A rule whose circuit has the parts of several clients in one, also where columns are split.

    A client that leaves is then taken out by gluing the others' parts again.
    """

    @property
    def glues_again(self) -> bool:
        """Whether this is so with the rule's settings."""
        ...

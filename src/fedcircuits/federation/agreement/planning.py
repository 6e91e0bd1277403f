"""The plan of a run that clients consent to: every message that its rules may send.

What is fitted and glued, the plan of Algorithm 1, is in `plan/plan.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fedcircuits.errors import FederationError
from fedcircuits.federation.agreement._shared.keys import KEYS
from fedcircuits.federation.agreement.anchors import Anchors
from fedcircuits.federation.agreement.auto import TRIAL, possible, with_private
from fedcircuits.federation.agreement.base import Rule, described, joined, keeps_label
from fedcircuits.federation.agreement.by_name import RULES
from fedcircuits.federation.server.server import Planner, Server
from fedcircuits.federation.wire import requests as m
from fedcircuits.federation.wire.steps import MANY, Facts, step


def planner(
    agreement: str | Rule,
    options: Mapping[str, Any],
    *,
    learner: str = "",
    id: str | None = None,
    label_sent: bool = False,
    placement: str = "gathered",
    trust: str | None = None,
    questions: tuple[str, ...] = (),
    operation: str = "mixture",
) -> Planner:
    """Return what makes the plan of a run once the server knows the clients' columns.

    Args:
        agreement: a rule, the name of one, or "auto".
        options: of the named rule.
        learner: of the clients, in words.
        id: column that aligns rows.
        label_sent: whether the label goes to clients that lack it, where their policies allow it.
        placement: where models are.
        trust: "one owner", or None.
        questions: kinds of queries to models that stay.
        operation: "mixture", or that of an ensemble of classifiers.
    """

    def make(server: Server) -> m.Plan:
        rules, tries = _rules(server, agreement, options), len(server.clients)
        facts = unsent = server.facts
        optional: tuple[m.PlannedRule, ...] = ()
        if label_sent and id is not None and facts.label == "some":
            sent = (step(m.SEND_LABEL, len(server.clients)), step(m.TAKE_LABEL))
            facts, optional = (
                replace(facts, label="everybody"),
                (m.PlannedRule(m.LABEL_SENT, sent),),
            )
        if agreement == "auto":
            tries += 1  # a trial before the training
        common = [step(m.DESCRIBE), step(m.PROPOSE), step(m.AGREE)]
        if id is not None and server.setting != "horizontal":
            common += [*KEYS, step(m.GROUP_SECRET), step(m.DIGESTS), step(m.ALIGN)]
        if placement == "remote":
            common.append(step(m.QUERY, MANY))
        return m.Plan(
            clients=list(server.clients),
            learner=learner,
            columns=[],
            id=id,
            label=server.label,
            seed=server.seed,
            placement=placement,
            questions=list(questions) if placement == "remote" else [],
            trust=trust or "",
            tries=tries,
            common=tuple(common),
            optional=optional,
            candidates=_planned(facts, unsent, rules, agreement == "auto")
            if operation == "mixture"
            else (m.PlannedRule(operation, (step(m.FIT_CLASSIFIER),)),),
        )

    return make


def check_allowed(server: Server, rule: Rule) -> None:
    """Raise an error where clients do not allow a rule, with their reasons."""
    reasons = server.struck.get(described(rule), {})
    if reasons:
        raise FederationError(f"the rule {rule.name!r} is not allowed: {joined(reasons)}")


def _planned(
    facts: Facts, unsent: Facts, rules: list[Rule], compared: bool
) -> tuple[m.PlannedRule, ...]:
    """Every rule with its steps.

    Args:
        facts: of the run, where the label is sent if it is to be.
        unsent: where it is not: rules that keep it private are what remains then.
        rules: that may be taken.
        compared: whether they are tried first.
    """
    trial = TRIAL if compared and len(rules) > 1 and facts.setting != "horizontal" else ()
    return tuple(
        m.PlannedRule(
            described(rule),
            (*rule.steps(unsent if keeps_label(rule) else facts), *trial),
        )
        for rule in rules
    )


def _rules(server: Server, agreement: str | Rule, options: Mapping[str, Any]) -> list[Rule]:
    if not isinstance(agreement, str):
        return with_private([agreement])
    if agreement == "auto":
        return possible(server, options)
    made: list[Rule] = [RULES[agreement](**options)]
    if agreement == "latent" and Anchors.applies(server):
        made.append(Anchors(**{k: v for k, v in options.items() if k in ("n_clusters",)}))
    return with_private(made)

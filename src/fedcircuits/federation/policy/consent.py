"""Which parts of a plan a policy allows, and whether a schema follows from a description."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from fedcircuits.errors import MALFORMED, FedcircuitsError
from fedcircuits.federation.policy.policy import Policy, PolicyError
from fedcircuits.federation.wire import requests as m
from fedcircuits.federation.wire.steps import Step, level_of
from fedcircuits.federation.wire.verbs import VERBS, Level
from fedcircuits.schema import Schema

NO_ROW_EVIDENCE = (
    "row evidence, from which the server can reconstruct rows (row_evidence in its policy is not "
    "'server'): choose a rule that does without"
)


def consent(plan: m.Plan, policy: Policy, columns: Sequence[str]) -> dict[str, str]:
    """Return the candidates of a plan that a policy strikes, each with the reason.

    Args:
        plan: as it was proposed.
        policy: of the owner of the data.
        columns: that the client offers and describes.

    Raises:
        PolicyError: the plan is refused as a whole.
    """
    if sorted(plan.columns) != sorted(columns):
        raise PolicyError("the plan is not about the columns that were described, all of them")
    _check_names(plan, policy, columns)
    unknown = [s.verb for s in _steps(plan) if s.verb not in VERBS]
    if unknown:
        raise PolicyError(f"the plan has a message {unknown[0]!r}, which there is not")
    if plan.tries < 1 or any(s.most < 0 for s in _steps(plan)):  # fewer than none cost less
        raise PolicyError("the plan has a negative number of messages")
    if policy.placement == "remote" and plan.placement != "remote":
        raise PolicyError(
            "models would be taken away; they stay here: federate with placement='remote' "
            "(placement in its policy)"
        )
    why = _refused(plan.common, plan, policy)
    if why is not None:
        raise PolicyError(f"what every rule needs is not allowed: {why}")
    struck = {}
    for each in (*plan.optional, *plan.candidates):
        why = _refused((*plan.common, *each.steps), plan, policy)
        if why is not None:
            struck[each.name] = why
    if plan.candidates and all(each.name in struck for each in plan.candidates):
        listed = "; ".join(f"{each.name}: {struck[each.name]}" for each in plan.candidates)
        raise PolicyError(f"its policy allows none of the rules of the plan: {listed}")
    return struck


def _steps(plan: m.Plan) -> list[Step]:
    parts = (*plan.optional, *plan.candidates)
    return [*plan.common, *(s for each in parts for s in each.steps)]


def _check_names(plan: m.Plan, policy: Policy, columns: Sequence[str]) -> None:
    """Id and label are the policy's where it names them."""
    if policy.id is not None and plan.id not in (None, policy.id):
        raise PolicyError(f"the plan aligns rows by {plan.id!r}; the id here is {policy.id!r}")
    if policy.label == "no" and plan.label in columns:
        raise PolicyError(f"{plan.label!r} as the label; no column here serves as one")
    own = policy.label_column
    if own is not None and own in columns and plan.label != own:
        raise PolicyError(
            f"the plan has the label {plan.label!r}; the label here is {own!r} (label_column in "
            "its policy), and another one would make it a column like any other"
        )


def _refused(steps: Sequence[Step], plan: m.Plan, policy: Policy) -> str | None:
    """Why a policy does not allow steps, None where it does."""
    if policy.requests is not None:
        always = ("describe", "propose")
        absent = [s.verb for s in steps if s.verb not in (*policy.requests, *always)]
        if absent:
            return f"it asks for {absent[0]!r}, which is not answered (requests in its policy)"
    if plan.label in plan.columns and policy.label != "sent":
        for each in steps:
            if VERBS[each.verb].reveals_label(each.limits):
                return f"it asks for {m.reveals_label_of_rows(policy.label)}"
    to_clients = level_of(steps, "other clients")
    if to_clients is Level.ROW_EVIDENCE and policy.row_evidence == "nobody":
        return "it sends other clients row evidence (row_evidence in its policy is 'nobody')"
    may_see = policy.row_evidence == "server"
    why = m.too_much(steps, row_evidence=may_see, bits=policy.bits)
    return None if why is None else f"{why} (row_evidence and bits in its policy)"


def schema_fault(described: Schema, agreed: list[Any]) -> str | None:
    """Return how an agreed schema does not follow from a description, None where it does.

    It follows if merging the description into it changes nothing: kinds are those of the client or
    wider, its categories are all there, and no domain is closed that it left open.
    """
    try:
        schema = Schema.from_json(agreed)
        if sorted(schema.names) != sorted(described.names):
            return "the agreed columns are not those that were described"
        for name in schema.names:
            theirs = replace(schema[name], grid=None, missing_state=False, declared=False)
            mine = replace(described[name], grid=None, missing_state=False, declared=False)
            merged = Schema.merge({"": Schema((theirs,)), "mine": Schema((mine,))})[name]
            if replace(merged, ordered=theirs.ordered, unit=theirs.unit) != theirs:
                return f"the column {name!r} is not agreed on as it was described"
    except (FedcircuitsError, *MALFORMED) as error:
        return f"a schema that cannot be read ({type(error).__name__})"
    return None

"""What every request asks for and every reply tells, as a policy sees it.

One entry for each request a client answers; a request without an entry is refused wherever there is
a policy, so that nothing new leaves a client before somebody has said what it tells.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedcircuits.federation.policy.policy import Policy
from fedcircuits.federation.wire import messages as m

Groups = Iterator[tuple[str, Iterable[float]]]


@dataclass(frozen=True)
class Asked:
    """What a request wants.

    Attributes:
        columns: that it names as this client's.
        fault: why a policy does not allow it, and what would be allowed; None where it does.
    """

    columns: tuple[str, ...] = ()
    fault: str | None = None


@dataclass(frozen=True)
class Entry:
    """One kind of request.

    Attributes:
        reply: its type.
        asks: request, policy and the label (None where it is not this client's) to what is wanted.
        groups: reply to named row counts of groups, none of which may be small.
    """

    reply: type[m.Message]
    asks: Callable[[Any, Policy, str | None], Asked] = lambda *_: Asked()
    groups: Callable[[Any], Groups] = lambda _: iter(())


def smallest(counts: Iterable[float]) -> float:
    """The smallest group that has rows at all; an empty one says nothing of anybody."""
    found = np.asarray(list(counts), dtype=float)
    found = found[found > 0]
    return float(found.min()) if found.size else np.inf


def _describe(request: m.Describe, policy: Policy, _: str | None) -> Asked:
    if request.min_rows < policy.min_rows:
        return Asked(
            fault=f"sketches of groups of {request.min_rows} row(s); the smallest group is "
            f"{policy.min_rows}: ask with min_rows={policy.min_rows} or more"
        )
    return Asked()


def _agree(request: m.Agree, policy: Policy, _: str | None) -> Asked:
    names = tuple(variable["name"] for variable in request.schema)
    if policy.label == "no" and request.label in names:
        return Asked(names, f"{request.label!r} as the label; no column here serves as one")
    return Asked(names)


def _label(_: m.Message, policy: Policy, __: str | None) -> Asked:
    if policy.label != "told":
        return Asked(
            fault=f"the label of single rows; {_ALLOWED[policy.label]}: choose a rule that does "
            "without, such as agreement='latent' with label_private=True"
        )
    return Asked()


def _label_used(request: m.Judge | m.Calibrate, policy: Policy, _: str | None) -> Asked:
    if policy.label == "no":
        return Asked(fault=f"the label; {_ALLOWED['no']}")
    n = len(request.log_joint if isinstance(request, m.Judge) else request.log_probs)
    if 0 < n < policy.min_rows:
        return Asked(fault=f"the label of {n} row(s); the smallest group is {policy.min_rows}")
    return Asked()


def _cluster(request: m.Cluster, policy: Policy, label: str | None) -> Asked:
    by_class = request.within_label and label is not None
    if by_class and request.tell_rows and policy.label != "told":
        # Clusters within the classes: the index of a row gives its class away.
        return Asked(
            tuple(request.columns),
            "clusters of single rows within the label's classes, which tell its label; "
            f"{_ALLOWED[policy.label]}, so ask with label_private=True",
        )
    return Asked(tuple(request.columns))


def _columns(request: m.AskStart | m.AskCentres, policy: Policy, _: str | None) -> Asked:
    if isinstance(request, m.AskStart) and request.min_rows < policy.min_rows:
        return Asked(
            tuple(request.columns),
            f"centres of {request.min_rows} row(s); the smallest group is {policy.min_rows}",
        )
    return Asked(tuple(request.columns))


def _fit(request: m.Fit, policy: Policy, _: str | None) -> Asked:
    names = tuple(name for job in request.jobs for name in job["columns"])
    return Asked(names, _leaves(request.keep, policy))


def _fit_classifier(request: m.FitClassifier, policy: Policy, _: str | None) -> Asked:
    fault = f"the label; {_ALLOWED['no']}" if policy.label == "no" else None
    return Asked(tuple(request.columns), fault or _leaves(request.keep, policy))


def _leaves(keep: bool, policy: Policy) -> str | None:
    if policy.placement == "remote" and not keep:
        return "models to take away; they stay here: federate with placement='remote'"
    return None


def _round(request: m.Round, policy: Policy, _: str | None) -> Asked:
    fault = _leaves(not request.send, policy)
    if policy.rounds == "masked" and not request.masked_with:
        fault = (
            "sums over its rows as they are; rounds is 'masked' in its policy: federate with "
            "agreement='joint', masked=True and an id_secret"
        )
    if not policy.rounds:
        fault = (
            "sums over its rows, cell by cell and however few rows a cell has; rounds is false in "
            "its policy: choose a rule that does without, such as agreement='product'"
        )
    return Asked(tuple(request.columns), fault)


def _branch(request: m.Branch, policy: Policy, label: str | None) -> Asked:
    names = tuple(name for job in request.jobs for name in job["columns"])
    if request.tell_label and label in names and policy.label != "told":
        return Asked(
            names,
            "the likelihood of single rows with their label, which tells it; "
            f"{_ALLOWED[policy.label]}, so ask with label_private=True",
        )
    return Asked(names, _leaves(request.keep or not request.last, policy))


def _query(request: m.Query, policy: Policy, label: str | None) -> Asked:
    asked = request.asked()
    of_questions = [name for question in asked for name in question.columns]
    names = (*request.columns, *request.keep, *request.given, *of_questions)
    columns = tuple(dict.fromkeys(names))
    for what in {question.what: None for question in asked}:
        if what not in policy.queries:
            answered = ", ".join(map(repr, policy.queries)) or "none"
            return Asked(columns, f"the query {what!r}; answered are {answered}")
    if len(request.digests) and not policy.rows_by_id:
        return Asked(columns, "rows looked up by id (rows_by_id is false): send their cells")
    if len(request.digests) and policy.label != "told" and label not in (None, *request.hidden):
        # The density of a row with its own label, beside that of the others, tells the label.
        return Asked(columns, f"rows looked up by id with their label; {_ALLOWED[policy.label]}")
    return Asked(columns)


_ALLOWED = {
    "used": "the label is used here and not told (label = 'used')",
    "no": "no column here serves as a label (label = 'no')",
}


def _ready(reply: m.Ready) -> Groups:
    yield "rows", [reply.n_rows]
    yield "rows of a class", reply.label_counts


def _clustered(reply: m.Clustered) -> Groups:
    yield "rows of a cluster", reply.rows


def _centre_sums(reply: m.CentreSums) -> Groups:
    yield "rows around a centre", reply.rows
    # Which rows are counted elsewhere is the server's choice: their number is a group as well.
    yield "rows around a centre that are counted here", reply.once
    yield "rows around a centre that are counted elsewhere", reply.rows - reply.once


def _fitted(reply: m.Fitted) -> Groups:
    yield "rows behind a model", reply.rows.values()


def _branch_done(reply: m.BranchDone) -> Groups:
    yield "rows behind a model", reply.rows.values()
    yield "rows of a class", reply.class_rows


ENTRIES: dict[str, Entry] = {
    "describe": Entry(m.Description, _describe, lambda reply: iter([("rows", [reply.n_rows])])),
    "agree": Entry(m.Ready, _agree, _ready),
    "digests": Entry(m.Digests),
    "align": Entry(m.Ready),
    "name_rows": Entry(m.Ready),
    "tell_label": Entry(m.Label, _label),
    "take_label": Entry(m.Ready, groups=_ready),
    "cluster": Entry(m.Clustered, _cluster, _clustered),
    "assign": Entry(m.Ready, groups=_ready),
    "start": Entry(m.Start, _columns, lambda reply: iter([("rows of a cluster", reply.rows)])),
    "centres": Entry(m.CentreSums, _columns, _centre_sums),
    "table_of": Entry(
        m.JointTable, groups=lambda reply: iter([("rows of a cell", reply.counts.ravel())])
    ),
    "fit": Entry(m.Fitted, _fit, _fitted),
    "round": Entry(
        m.RoundDone, _round, lambda reply: iter([("rows behind a model", [reply.rows])])
    ),
    "ask": Entry(m.Answer),
    "branch": Entry(m.BranchDone, _branch, _branch_done),
    "use_rows": Entry(m.Ready),
    "judge": Entry(
        m.Judged, _label_used, lambda reply: iter([("rows with a label", [reply.n_rows])])
    ),
    "calibrate": Entry(m.Calibrated, _label_used),
    "query": Entry(m.Answers, _query),
    "fit_classifier": Entry(
        m.ClassifierFitted, _fit_classifier, lambda reply: iter([("rows of a class", reply.rows)])
    ),
}

"""`auto`: the rule that predicts best on validation rows the fits have not seen.

With a label the candidates are `product` and `latent` (the label by one tilt of all clients, or by
latent classes within its strata); without one `latent` is taken, or
`independent` where rows are split. The trial is small: a few thousand
aligned rows, models that stay at the clients, the log-loss computed by the label's owner. Of those
that predict as well as the best, the one with the best density is trained on all rows. Where
nothing can be compared (rows split, hardly a row aligned) the setting decides. A rule that the
policy of a client refuses is passed over; where all candidates are, rules that ask less are taken
(`fallbacks`). The `Why` that comes with the rule has every candidate with its scores, what it
reveals, and the reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np

from fedcircuits.arrays import IntArray
from fedcircuits.density.tilt import Tilt, n_states_of
from fedcircuits.errors import FederationError, unknown_name
from fedcircuits.federation.agreement._shared.aligned import (
    aligned_rows,
    aligned_share,
    common_rows,
    drawn,
)
from fedcircuits.federation.agreement._shared.heads_across import gain_of_head, name_left_out
from fedcircuits.federation.agreement._shared.validation import (
    EVIDENCE,
    TRIES,
    judge,
    only_rows,
)
from fedcircuits.federation.agreement.anchors import Anchors
from fedcircuits.federation.agreement.base import (
    MayPoolTrees,
    MayTilt,
    Rule,
    described,
    joined,
    keeps_label,
)
from fedcircuits.federation.agreement.independent import Independent
from fedcircuits.federation.agreement.latent import Latent, automatic_clusters
from fedcircuits.federation.agreement.product import ProductOfClasses
from fedcircuits.federation.server.fitted_parts import TakeModels
from fedcircuits.federation.server.gauge import CLOSE_FOR_A_TRIAL
from fedcircuits.federation.server.server import Server
from fedcircuits.federation.server.why import TAKEN, Candidate, Why
from fedcircuits.federation.wire import requests as m
from fedcircuits.federation.wire.steps import step
from fedcircuits.federation.wire.transport import RefusedError

LABEL_PRIVATE = "label_private"  # of a rule; users write `label_use`
# Below this share of aligned rows latent classes carry no information.
LEAST_ALIGNED = 0.03
TRIAL_ROWS, VALIDATION_ROWS, LEAST_VALIDATION_ROWS = 4000, 1500, 60
# Where all candidates have one tilt, they differ in the density alone, by far more than its error.
DENSITY_ROWS = 256
# Candidates whose log-loss is within this many nats a row of the best, over the root of the rows,
# predict as well as it: .005 nats where 1,500 rows are compared, and more where chance does more.
MARGIN = 0.2
TELLABLE = 5e-5  # nats a row; a smaller loss is 0.0000 in print
# What a trial takes besides the steps of its candidates.
TRIAL = (step(m.USE_ROWS, 2), *EVIDENCE, step(m.JUDGE, 4 * TRIES))


def choose(
    server: Server,
    take: TakeModels,
    options: Mapping[str, Any] | None = None,
    refused: dict[Rule, str] | None = None,
) -> tuple[Rule, Why]:
    """The rule for a run, and why: every candidate with its scores on held-out rows.

    Args:
        server: schemas agreed, rows aligned.
        take: as for `Rule.train`; models of the trial stay at the clients.
        options: for the candidates that know them; one that nobody knows is an error.
        refused: rules that policies do not allow, with the reason; those found here are added.
    """
    given, refused = dict(options or {}), {} if refused is None else refused
    for rule in possible(server, given):
        reasons = server.struck.get(described(rule))
        if reasons and rule not in refused:
            refused[rule] = joined(reasons)
    aligned = aligned_share(server) >= LEAST_ALIGNED
    every = candidates(server, aligned=aligned, shared=server.label_is_shared)
    _check_options(every, given)
    every = [with_label_use(rule, server) for rule in _with_options(every, given)]
    every = list(dict.fromkeys(_as_allowed(rule, server, refused) for rule in every))
    rules = [rule for rule in every if rule not in refused]
    common, some = common_rows(server), aligned_rows(server)
    common = common if 2 * common.size >= some.size else some
    n_validation = min(VALIDATION_ROWS, common.size // 5)
    if not rules:
        return _fallback(server, given, refused)
    if len(rules) == 1 or n_validation < LEAST_VALIDATION_ROWS:
        reason = "the only candidate that applies and is allowed"
        if len(rules) > 1:
            reason = (
                f"the first choice without a comparison: {common.size} rows are aligned, and a "
                f"comparison needs {5 * LEAST_VALIDATION_ROWS}"
            )
        return rules[0], _why(server, rules[0], rules, refused, reason)
    n_classes = 1 if server.label is None else n_states_of(server.schema[server.label])
    tried = within_budget(rules, some.size, n_classes)
    if any(_takes_head(rule, server) for rule in tried):
        name_left_out(server)
    if _share_a_tilt(server, tried):
        n_validation = min(DENSITY_ROWS, n_validation)
    order = drawn(server, "auto", common)
    judged = np.sort(order[:n_validation])
    train = np.sort(order[n_validation : n_validation + TRIAL_ROWS])
    scores: dict[Rule, m.Judged] = {}
    tilts: dict[str, Tilt] = {}
    # The one that is taken most often comes last: what it sends of rows need not be sent again.
    has_tilt = isinstance(tried[0], ProductOfClasses)
    in_turn = sorted(tried, key=lambda rule: has_tilt and isinstance(rule, Latent) and rule.tilt)
    with only_rows(server, train, train.size / common.size):
        for rule in in_turn:
            if isinstance(rule, Latent) and not rule.tilt and not tilts:
                continue  # the same as with a tilt, which no learner here has
            try:
                found = rule.train(server, replace(take, keep=True))
                tilts = found.tilts or tilts
                found = replace(found, close=CLOSE_FOR_A_TRIAL)
                scores[rule] = judge(server, *rule.glue(found), judged)
            except RefusedError as error:
                refused[rule] = str(error)
        compared = [rule for rule in rules if rule in scores]
        if tilts and compared and not take.keep:
            scores = _with_heads_tried(server, compared, scores, tilts, judged)
    rules = [rule for rule in rules if rule in scores or rule not in tried]
    if not scores:
        return _fallback(server, given, refused)
    best, reason = _best(list(scores), scores, "log-loss" if server.label_holders else "-log p(x)")
    return best, _why(server, best, rules, refused, reason, scores)


def _share_a_tilt(server: Server, rules: Sequence[Rule]) -> bool:
    """Whether the label comes in by the same tables under all rules."""
    able = server.label_is_shared and all(server.tilts[c] for c in server.clients)
    return able and all(isinstance(rule, MayTilt) and rule.tilt for rule in rules)


def _with_heads_tried(
    server: Server,
    rules: list[Rule],
    scores: dict[Rule, m.Judged],
    tilts: Mapping[str, Tilt],
    judged: IntArray,
) -> dict[Rule, m.Judged]:
    """The scores, those of rules that take a head with what it gains.

    The head is tried only where a rule that has none would be taken.
    """
    headed = [rule for rule in rules if _takes_head(rule, server)]
    if not headed or _best(rules, scores, "")[0] in headed:
        return scores
    try:
        gain = gain_of_head(server, tilts, judged)
    except RefusedError:
        return scores
    better = {
        rule: replace(
            scores[rule],
            log_loss=scores[rule].log_loss - gain,
            log_prob=scores[rule].log_prob + gain,
        )
        for rule in headed
    }
    return {**scores, **better}


def _takes_head(rule: Rule, server: Server) -> bool:
    """Whether trees are pooled into a rule's posterior of the label."""
    able = server.label_is_everywhere or not keeps_label(rule)
    return isinstance(rule, MayPoolTrees) and rule.tilt and rule.head and able


def within_budget(rules: Sequence[Rule], n_rows: int, n_classes: int) -> list[Rule]:
    """Return the first rules whose trials together reveal no more bits a row than `BITS`.

    A clustering that another rule asks for too is sent once; one that does not fit is not tried.

    Args:
        rules: candidates, the first choice first.
        n_rows: aligned rows.
        n_classes: states of the label.
    """
    spent: dict[tuple[int, bool], float] = {}
    kept: list[Rule] = []
    for rule in rules:
        asked = dict(spent)
        if isinstance(rule, Latent):
            n_clusters = rule.n_clusters or automatic_clusters(n_rows)
            within = not rule.tilt and not rule.label_private
            # Every class, and rows of an unknown one, have a cluster at least.
            most = max(n_clusters, n_classes + 1) if within else n_clusters
            asked[n_clusters, within] = float(np.log2(most))
        if m.DIGESTS.bits({}, None) + sum(asked.values()) <= m.BITS:
            spent, kept = asked, [*kept, rule]
    return kept or list(rules[:1])


def _best(rules: list[Rule], scores: Mapping[Rule, m.Judged], measure: str) -> tuple[Rule, str]:
    """The rule with the best density among those that predict as well as the best, and why."""
    most = max(scores[rule].n_rows for rule in rules)  # others hold some of the rows impossible
    rules = [rule for rule in rules if scores[rule].n_rows == most]
    least = min(rules, key=lambda rule: scores[rule].log_loss)
    margin = MARGIN / np.sqrt(max(most, 1))
    level = scores[least].log_loss + margin
    good = [rule for rule in rules if scores[rule].log_loss <= level]
    best = max(good, key=lambda rule: scores[rule].log_prob)
    if best is least:
        return best, f"lowest {measure} on held-out rows"
    lost = scores[best].log_loss - scores[least].log_loss
    gain = scores[best].log_prob - scores[least].log_prob
    if lost < TELLABLE:
        beaten = f"{title(least)!r} has the same {measure} to four places"
    else:
        only = f"by {lost:.4f} nats only, less than {margin:.4f}"
        beaten = f"{title(least)!r} has a lower {measure} {only}"
    return best, f"{beaten}, and the density of {title(best)!r} is better by {gain:.4f}"


def title(rule: Rule) -> str:
    """The name of a rule, with the setting that tells two candidates of one name apart."""
    return f"{rule.name}, tilt=False" if isinstance(rule, MayTilt) and not rule.tilt else rule.name


def _why(
    server: Server,
    taken: Rule,
    rules: list[Rule],
    refused: Mapping[Rule, str],
    reason: str,
    scores: Mapping[Rule, m.Judged] | None = None,
) -> Why:
    """The record of a choice: candidates that were allowed, then those that policies refuse."""

    most = max((each.n_rows for each in (scores or {}).values()), default=0)

    def of(rule: Rule) -> Candidate:
        found = None if scores is None else scores.get(rule)
        outcome = TAKEN if rule is taken else "not compared" if found is None else "not taken"
        if found is not None and found.n_rows < most:
            outcome = f"not taken: {most - found.n_rows} row(s) are impossible under it"
        log_loss = None if found is None or not server.label_holders else found.log_loss
        nats = None if found is None else found.log_prob
        return Candidate(title(rule), rule.reveals, outcome, log_loss, nats)

    n_rows = 0 if scores is None else scores[taken].n_rows
    return Why(title(taken), reason, tuple(map(of, rules)), n_rows).with_refused(
        refused_ones(refused)
    )


def refused_ones(refused: Mapping[Rule, str]) -> list[Candidate]:
    """Rules that clients' policies do not allow, as candidates that were left out, once a title."""
    found: dict[str, Candidate] = {}
    for rule, why in refused.items():
        found.setdefault(title(rule), Candidate(title(rule), rule.reveals, f"refused: {why}"))
    return list(found.values())


def possible(server: Server, options: Mapping[str, Any]) -> list[Rule]:
    """The rules that may be taken before rows are aligned and the label is sent, for a plan."""
    every = [
        rule
        for aligned in (True, False)
        for shared in {server.label_is_shared, bool(server.label_holders)}
        for rule in candidates(server, aligned=aligned, shared=shared)
    ]
    every += fallbacks(aligned=server.setting != "horizontal")
    return with_private(_with_options(every, options))


def with_private(rules: Iterable[Rule]) -> list[Rule]:
    """Rules, each also as it is where the label of single rows may not leave its owner."""
    return list(dict.fromkeys(each for rule in rules for each in (rule, _private(rule))))


def _private(rule: Rule) -> Rule:
    if LABEL_PRIVATE not in _names(rule):
        return rule
    return replace(rule, **{LABEL_PRIVATE: True})  # type: ignore[type-var]


def candidates(server: Server, *, aligned: bool, shared: bool) -> list[Rule]:
    """The rules that apply, the first being the one to take without a trial.

    Args:
        server: schemas agreed.
        aligned: whether enough rows are aligned for latent classes to be worth a trial.
        shared: whether every client has the label.
    """
    if server.setting == "horizontal" or len(server.clients) == 1:
        return [ProductOfClasses() if shared else Independent(glueing="naive")]
    has_anchors = Anchors.applies(server) and Anchors.keeps_label(server)
    anchors: list[Rule] = [Anchors()] if has_anchors else []
    if not aligned:
        if server.label_is_everywhere:
            return [ProductOfClasses()]
        return [*anchors, Independent(glueing="naive")][:1]
    latent: list[Rule] = [Latent(), *anchors]
    if not server.label_holders:
        return latent
    if not shared:
        return latent
    return [ProductOfClasses(), Latent(), Latent(tilt=False), *anchors]


def fallbacks(*, aligned: bool) -> list[Rule]:
    """Rules for a run whose candidates are all refused: they ask nothing about a row's label.

    Each is followed by one of fewer clusters, for policies that refuse small groups.
    """
    few = Latent(label_private=True, n_clusters=4)
    latent: list[Rule] = [Latent(label_private=True), few] if aligned else []
    return [*latent, Independent(glueing="naive"), Independent(glueing="naive", n_clusters=1)]


def _fallback(
    server: Server, options: Mapping[str, Any], refused: Mapping[Rule, str]
) -> tuple[Rule, Why]:
    """The first fallback that is not refused, or one error with all refusals."""
    for rule in _with_options(fallbacks(aligned=aligned_rows(server).size > 0), options):
        if rule not in refused:
            reason = "policies of clients refuse the rules that come before it"
            return rule, _why(server, rule, [rule], refused, reason)
    listed = "".join(f"\n  - {rule.name}: {why}" for rule, why in refused.items())
    raise FederationError(f"the policies of the clients allow no rule that auto knows:{listed}")


def _names(rule: Rule) -> set[str]:
    return {entry.name for entry in fields(rule)} if is_dataclass(rule) else set()


def _check_options(rules: list[Rule], options: Mapping[str, Any]) -> None:
    known = set().union(*map(_names, rules)) - {LABEL_PRIVATE}
    unknown = sorted(set(options) - known)
    if unknown:
        raise FederationError(unknown_name("option", unknown[0], sorted(known)))


def _with_options(rules: list[Rule], options: Mapping[str, Any]) -> list[Rule]:
    """Every rule with the options it knows."""
    made = (
        replace(rule, **{k: v for k, v in options.items() if k in _names(rule)})  # type: ignore[type-var]
        for rule in rules
    )
    return list(dict.fromkeys(made))


def _as_allowed(rule: Rule, server: Server, refused: Mapping[Rule, str]) -> Rule:
    """The rule, or without the label in its clusters where policies refuse it otherwise.

    Where all clients hold the label the tilt is fitted all the same.
    """
    private = _private(rule)
    better = rule in refused and private not in refused and server.label_is_everywhere
    return private if better else rule


def with_label_use(rule: Rule, server: Server) -> Rule:
    """The rule as it is where the label of single rows may not leave its owner."""
    return rule if server.label_use == "sent" else _private(rule)

"""`auto`: the rule that predicts best on validation rows the fits have not seen.

With a label the candidates are `product` and `latent`; without one `latent` is taken. The
trial is small: a few thousand aligned rows, models that stay at the clients, the log-loss computed
by the label's owner. The winner is then trained on all rows. Where nothing can be compared (rows
split, hardly a row aligned) the setting decides.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

import numpy as np

from fedcircuits.errors import FederationError, unknown_name
from fedcircuits.federation.agreement._shared.aligned import aligned_share, common_rows
from fedcircuits.federation.agreement._shared.validation import (
    judge,
    log_joint_by_number,
    only_rows,
)
from fedcircuits.federation.agreement.anchors import Anchors
from fedcircuits.federation.agreement.base import Rule
from fedcircuits.federation.agreement.independent import Independent
from fedcircuits.federation.agreement.latent import Latent
from fedcircuits.federation.agreement.product import ProductOfClasses, calibrated
from fedcircuits.federation.server.fitted_parts import TakeModels
from fedcircuits.federation.server.server import Server
from fedcircuits.federation.wire.seeds import named_rng

# Below this share of aligned rows latent classes say nothing.
LEAST_ALIGNED = 0.03
TRIAL_ROWS, VALIDATION_ROWS, LEAST_VALIDATION_ROWS = 4000, 1500, 60
# The first candidate stays unless another is better by this much, in nats per row.
MARGIN = 0.005


def choose(
    server: Server, take: TakeModels, options: Mapping[str, Any] | None = None
) -> tuple[Rule, dict[str, float]]:
    """The rule for a run, and the validation score of every candidate (empty where none was run).

    Args:
        server: schemas agreed, rows aligned.
        take: as for `Rule.train`; models of the trial stay at the clients.
        options: for the candidates that know them; one that nobody knows is an error.
    """
    rules = _with_options(candidates(server, dict(options or {})), dict(options or {}))
    common = common_rows(server)
    n_validation = min(VALIDATION_ROWS, common.size // 5)
    if len(rules) == 1 or n_validation < LEAST_VALIDATION_ROWS:
        return rules[0], {}
    order = named_rng(server.seed, "auto").permutation(common)
    judged = np.sort(order[:n_validation])
    train = order[n_validation : n_validation + TRIAL_ROWS]
    scores: dict[str, float] = {}
    with only_rows(server, train, train.size / common.size):
        for rule in rules:
            scores[rule.name] = _score(server, rule, replace(take, keep=True), judged)
    best = min(rules, key=lambda rule: scores[rule.name])
    if scores[best.name] > scores[rules[0].name] - MARGIN:
        best = rules[0]
    return best, scores


def candidates(server: Server, options: Mapping[str, Any]) -> list[Rule]:
    """The rules that apply, the first being the one to take without a trial."""
    horizontal, private = server.setting == "horizontal", bool(options.get("label_private"))
    if horizontal or len(server.clients) == 1:
        return [ProductOfClasses() if server.label_is_shared else Independent(glueing="naive")]
    anchors: list[Rule] = [Anchors()] if Anchors.applies(server) else []
    if aligned_share(server) < LEAST_ALIGNED:
        if server.label_is_shared:
            return [ProductOfClasses()]
        return [*anchors, Independent(glueing="naive")][:1]
    latent: list[Rule] = [Latent(), *anchors]
    if not server.label_holders:
        return latent
    if private and not server.label_is_shared:
        return [replace(Latent(), label_private=True), *anchors]
    return [ProductOfClasses(), *latent]


def _with_options(rules: list[Rule], options: Mapping[str, Any]) -> list[Rule]:
    """Every candidate with the options it knows."""
    known: set[str] = {"label_private"}
    answer = []
    for rule in rules:
        names = {entry.name for entry in fields(rule)}  # type: ignore[arg-type]
        known |= names
        mine = {name: value for name, value in options.items() if name in names}
        answer.append(replace(rule, **mine))  # type: ignore[type-var]
    unknown = sorted(set(options) - known)
    if unknown:
        raise FederationError(unknown_name("option", unknown[0], sorted(known)))
    return answer


def _score(server: Server, rule: Rule, take: TakeModels, rows: Any) -> float:
    """Log-loss of the label, or -log p(x), of validation rows."""
    if isinstance(rule, ProductOfClasses):
        plain = replace(rule, calibration_rows=0)
        found = plain.train(server, take)
        gained = calibrated(server, found, rows).calibration
        log_joint = log_joint_by_number(server, found, *plain.glue(found), rows)
        return judge(server, log_joint, rows) - (0.0 if gained is None else gained.gain)
    found = rule.train(server, take)
    return judge(server, log_joint_by_number(server, found, *rule.glue(found), rows), rows)

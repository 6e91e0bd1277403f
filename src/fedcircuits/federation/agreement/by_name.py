"""Agreement rules by name, and the rule that a name means for a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import Field, fields
from typing import Any, get_type_hints

from fedcircuits.errors import FederationError, unknown_name
from fedcircuits.federation.agreement._shared.aligned import aligned_rows
from fedcircuits.federation.agreement.anchors import Anchors
from fedcircuits.federation.agreement.auto import LABEL_PRIVATE, choose, with_label_use
from fedcircuits.federation.agreement.base import Rule
from fedcircuits.federation.agreement.em import Em
from fedcircuits.federation.agreement.independent import Independent
from fedcircuits.federation.agreement.joint import Joint
from fedcircuits.federation.agreement.latent import Latent
from fedcircuits.federation.agreement.product import ProductOfClasses
from fedcircuits.federation.server.fitted_parts import TakeModels
from fedcircuits.federation.server.server import Server
from fedcircuits.federation.server.why import Why

RULES: dict[str, type[Any]] = {
    "independent": Independent,
    "product": ProductOfClasses,
    "latent": Latent,
    "anchors": Anchors,
    "em": Em,
    "joint": Joint,
}


def options_of(name: str) -> list[str]:
    """Return the options of a named rule, or of all rules for "auto"; an error for other names."""
    if name != "auto" and name not in RULES:
        raise FederationError(unknown_name("agreement rule", name, ["auto", *RULES]))
    rules = RULES.values() if name == "auto" else [RULES[name]]
    return sorted({f.name for rule in rules for f in fields(rule)} - {LABEL_PRIVATE})


def declared_options(name: str) -> dict[str, tuple[Field[Any], Any]]:
    """Return field and type of the options of a named rule, or of all rules for "auto"."""
    rules = RULES.values() if name == "auto" else [RULES[name]]
    return {f.name: (f, get_type_hints(rule)[f.name]) for rule in rules for f in fields(rule)}


def make_rule(
    name: str,
    server: Server,
    take: TakeModels,
    options: Mapping[str, Any],
    refused: dict[Rule, str] | None = None,
) -> tuple[Rule, Why]:
    """The rule, and why it is this one: with `auto`, its rivals and their scores.

    Args:
        name: one of RULES, or "auto". "latent" without a row that two clients
            hold means anchors.
        server: schemas agreed, rows aligned.
        take: as for `Rule.train`.
        options: of the rule.
        refused: rules that policies of clients do not allow, with the reason; "auto" passes over
            them and adds those it finds.
    """
    options_of(name)
    if name == "auto":
        return choose(server, take, options, refused)
    reason = "named by the caller"
    if name == "latent" and Anchors.applies(server) and not aligned_rows(server).size:
        name, reason = "anchors", "'latent' was named, and no row is held by two clients"
    try:
        made: Rule = with_label_use(RULES[name](**options), server)
    except TypeError:
        known = options_of(name)
        unknown = next(option for option in options if option not in known)
        raise FederationError(
            unknown_name("option", unknown, known, f"the rule {name!r}")
        ) from None
    return made, Why.asked_for(made.name, made.reveals, reason)

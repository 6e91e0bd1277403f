"""A rule from the name a user wrote."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedcircuits.errors import FederationError
from fedcircuits.federation.agreement._shared.aligned import common_rows
from fedcircuits.federation.agreement.anchors import Anchors
from fedcircuits.federation.agreement.auto import choose
from fedcircuits.federation.agreement.base import Rule
from fedcircuits.federation.agreement.em import Em
from fedcircuits.federation.agreement.independent import Independent
from fedcircuits.federation.agreement.joint import Joint
from fedcircuits.federation.agreement.latent import Latent
from fedcircuits.federation.agreement.product import ProductOfClasses
from fedcircuits.federation.server.server import Server

RULES: dict[str, type[Any]] = {
    "independent": Independent,
    "product": ProductOfClasses,
    "latent": Latent,
    "anchors": Anchors,
    "em": Em,
    "joint": Joint,
}


def check_name(name: str) -> None:
    """An error for a name that no rule has, before anybody is asked anything."""
    if name != "auto" and name not in RULES:
        raise FederationError(f"no agreement rule {name!r}; there are auto, {', '.join(RULES)}")


def make_rule(
    name: str, server: Server, take: Mapping[str, Any], options: Mapping[str, Any]
) -> tuple[Rule, dict[str, float]]:
    """The rule, and what its rivals scored on validation rows (empty unless `auto` ran a trial).

    Args:
        name: one of RULES, or "auto". "latent" without a row that all clients hold
            means anchors.
        server: schemas agreed, rows aligned.
        take: as for `Rule.train`.
        options: of the rule.
    """
    check_name(name)
    if name == "auto":
        return choose(server, take, options)
    if name == "latent" and Anchors.applies(server) and not common_rows(server).size:
        name = "anchors"
    try:
        made: Rule = RULES[name](**options)
    except TypeError:
        known = ", ".join(RULES[name].__dataclass_fields__)
        raise FederationError(
            f"the rule {name!r} has no such option as in {sorted(options)}; it has {known}"
        ) from None
    return made, {}

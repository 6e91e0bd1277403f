"""`fc.federate`: one call for rows split, columns split, or both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from fedcircuits import api
from fedcircuits.density import Density, Learner
from fedcircuits.engines import LocalEngine
from fedcircuits.errors import FederationError
from fedcircuits.federation.agreement import (
    Anchors,
    Counts,
    Independent,
    Latent,
    ProductOfClasses,
    Rule,
)
from fedcircuits.federation.circuit import FederatedCircuit
from fedcircuits.federation.client import Client, MakeLearner
from fedcircuits.federation.remote import RemoteDensity
from fedcircuits.federation.server import Server
from fedcircuits.schema import Data, Kind, read

RULES: dict[str, type[Any]] = {
    "independent": Independent,
    "product": ProductOfClasses,
    "counts": Counts,
    "latent": Latent,
}
Placement = Literal["gathered", "remote"]


def federate(
    clients: Mapping[str, Data],
    id: str | None = None,
    label: str | None = None,
    *,
    share_label: bool = False,
    learner: str | Learner | Mapping[str, str | Learner] = api.DEFAULT_LEARNER,
    agreement: str | Rule = "auto",
    placement: Placement = "gathered",
    kinds: Mapping[str, Kind] | None = None,
    missing_values: Sequence[object] = (),
    seed: int = 0,
    min_rows: int = 5,
    **options: Any,
) -> FederatedCircuit:
    """Learn one density from tables that stay where they are.

    Args:
        clients: name to rows (DataFrame, CSV or Parquet).
        id: column that aligns rows of different clients; never a variable.
        label: column to be predicted well; held by all clients or by some.
        share_label: send the owner's label to the other clients, over the ids.
        learner: for all clients, or one by client name.
        agreement: rule, or "auto".
        placement: "gathered" brings the client models here, "remote" leaves them where they are.
        kinds: kinds of columns, where a guess would be wrong.
        missing_values: spellings of a missing value besides those pandas knows.
        seed: the same seed gives the same model.
        min_rows: a sketch of a column says nothing that fewer rows stand behind.
        **options: of the named rule.
    """
    if not clients:
        raise FederationError("federate needs at least one client")
    declared = dict(kinds or {})
    if label is not None:
        declared.setdefault(label, "categorical")
    members = {
        name: Client(
            name,
            read(data),
            _learner_of(learner, name),
            id=id,
            kinds=declared,
            missing_values=tuple(missing_values),
        )
        for name, data in clients.items()
    }
    server = Server(LocalEngine(members), label=label, seed=seed, min_rows=min_rows)
    if server.setting != "horizontal":
        if id is None:
            if server.setting == "vertical":
                raise FederationError(
                    "the clients share no column, so rows must be matched by an id: pass id="
                )
        else:
            server.align()
            if share_label and label is not None and not server.label_is_shared:
                server.share_label()
    rule = _rule(agreement, server, options)
    take = {
        "keep": placement == "remote",
        "decode": api.from_bytes,
        "remote": lambda client, key, schema, size: _remote(server, client, key, schema, size),
    }
    ingredients = rule.train(server, take)
    return FederatedCircuit.glue(rule, ingredients, server.setting, server.ledger, server.dropped)


def _remote(server: Server, client: str, key: str, schema: Any, size: int) -> Density:
    return RemoteDensity(server, client, key, schema, size)


def _learner_of(learner: str | Learner | Mapping[str, str | Learner], client: str) -> MakeLearner:
    """The learner of one client, made anew for each job with or without the label."""
    if isinstance(learner, Mapping):
        if client not in learner:
            raise FederationError(f"no learner is named for client {client!r}")
        learner = learner[client]
    chosen: Any = learner

    def make(label: str | None) -> Learner:
        if isinstance(chosen, str):
            return api.make_learner(chosen, {}, {"label": label})
        if hasattr(chosen, "label"):
            return replace(chosen, label=label)  # type: ignore[no-any-return]
        made: Learner = chosen
        return made

    return make


def _rule(agreement: str | Rule, server: Server, options: Mapping[str, Any]) -> Rule:
    if not isinstance(agreement, str):
        return agreement
    name = agreement
    if name == "auto":
        horizontal = server.setting == "horizontal"
        name = "latent"
        if server.label_is_shared:
            name = "product"
        elif horizontal:
            name = "independent"
    if name == "latent" and server.setting == "hybrid":
        return Anchors(**options)
    if name not in RULES:
        raise FederationError(f"no agreement rule {name!r}; there are auto, {', '.join(RULES)}")
    made: Rule = RULES[name](**options)
    return made

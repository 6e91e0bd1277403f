"""Clients behind a policy guard, and requests to them, for tests of policies."""

from __future__ import annotations

import dataclasses
from typing import Any

import pandas as pd

from contracts.engine import table
from contracts.federations import ID, LABEL, split
from contracts.messages import example
from contracts.plans import everything
from fedcircuits.api.client_spec import ClientSpec
from fedcircuits.engines import LocalEngine
from fedcircuits.federation.policy.guard import Guarded
from fedcircuits.federation.policy.policy import Policy
from fedcircuits.federation.server.server import Server
from fedcircuits.federation.server.settings import ServerSettings
from fedcircuits.federation.wire import requests as m
from recorder import Recorder

OPEN = Policy(
    label="sent",
    min_rows=1,
    rows_by_id=True,
    row_evidence="server",
    bits=64.0,
    rare_categories="offered",
    errors="sent",
)
KINDS: dict[str, Any] = {LABEL: "categorical"}


def client(
    name: str, frame: pd.DataFrame, policy: Policy, learner: str = "factorised", **more: Any
) -> Guarded:
    """A client as a silo makes it: the policy first, then the client, then the guard."""
    policy = dataclasses.replace(policy, id=ID)
    made = ClientSpec(name, frame, learner, label=LABEL, policy=policy).guarded(more.get("audit"))
    assert isinstance(made, Guarded)
    return made


def guarded(
    setting: str, policy: Policy, learner: str = "factorised", **more: Any
) -> dict[str, Guarded]:
    rows = split(setting, table(n=160))
    return {name: client(name, frame, policy, learner, **more) for name, frame in rows.items()}


def engine(members: dict[str, Any]) -> Recorder:
    return Recorder(LocalEngine(members))


def error_of(reply: bytes) -> str:
    return m.Failed.from_bytes(reply).error


def ready(policy: Policy, learner: str = "factorised", **more: Any) -> Guarded:
    """A client that has agreed on a schema with a server."""
    member = client("a", table(n=160), policy, learner, **more)
    Server.start(engine({"a": member}), ServerSettings(label=LABEL), everything)
    return member


def filled(verb: str, given: dict[str, Any]) -> bytes:
    """A request with plain values in the fields that are not given."""
    made: m.Message = example(m.VERBS[verb].request, **given)
    return made.to_bytes()

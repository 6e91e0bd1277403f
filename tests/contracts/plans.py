"""Plans for tests that send messages of their own: every message, each as a rule of its own."""

from __future__ import annotations

from typing import Any

from fedcircuits.federation.server.server import Server
from fedcircuits.federation.wire import requests as m
from fedcircuits.federation.wire.steps import MANY, SET, Step

HANDSHAKE = ("describe", "propose", "agree", "align")
# Of what a policy may strike in part.
LIMITS: dict[str, list[dict[str, Any]]] = {
    "cluster": [{}, {"within_label": False}, {"send_rows": False}],
    "round": [{}, {"masked_with": SET}],
    "branch": [{}, {"label_in_evidence": False}],
}


def everything(server: Server) -> m.Plan:
    """A plan in which a policy can strike message by message."""
    common = tuple(Step(verb, MANY) for verb in HANDSHAKE)
    candidates = tuple(
        m.PlannedRule(f"{verb} {limits}", (Step(verb, MANY, limits),))
        for verb in m.VERBS
        if verb not in HANDSHAKE
        for limits in LIMITS.get(verb, [{}])
    )
    return m.Plan(
        clients=list(server.clients),
        learner="",
        columns=[],
        id=None,
        label=server.label,
        seed=server.seed,
        placement="remote",
        questions=[],
        trust="",
        tries=1,
        common=common,
        optional=(),
        candidates=candidates,
    )

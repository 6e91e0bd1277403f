"""Heads of the label over clients: boosted trees of each, pooled with the tilt on left-out rows."""

from __future__ import annotations

import warnings
from dataclasses import replace

from fedcircuits.errors import ClientError, FedcircuitsWarning
from fedcircuits.federation.agreement._shared.heads_across import (
    STEPS,
    columns_of,
    heads_across,
    n_classes_of,
)
from fedcircuits.federation.server.fitted_parts import (
    FittedParts,
    LostClientError,
    TakeModels,
    call_or_drop,
    drop_or_raise,
)
from fedcircuits.federation.server.heads import ClientHead
from fedcircuits.federation.server.server import Server
from fedcircuits.federation.server.tilts import combined
from fedcircuits.federation.wire import requests as m
from fedcircuits.federation.wire.steps import Facts, Step, step
from fedcircuits.federation.wire.transport import RefusedError


def head_steps(facts: Facts) -> tuple[Step, ...]:
    """Messages of a head: trees, and where columns differ codes and one pool."""
    if facts.setting == "horizontal":
        return (step(m.FIT_HEAD),)
    return STEPS


def with_heads(server: Server, fitted: FittedParts, take: TakeModels, head: bool) -> FittedParts:
    """The fitted parts with trees of every client, where models are gathered and a tilt is there.

    A client whose policy lets no trees leave is no error: then there is no head. One that is lost
    here leaves with its models where others hold its columns; else its models stay, and there is no
    head.
    """
    if not head or take.keep or not fitted.tilts or combined(fitted) is None:
        return fitted
    heads = None
    while heads is None:
        try:
            heads = _rows(server) if server.setting == "horizontal" else heads_across(server)
        except RefusedError:
            return fitted
        except ClientError as error:
            if server.setting == "horizontal":
                raise
            try:
                drop_or_raise(server, error.client, error)
            except LostClientError:
                warnings.warn(
                    f"{error}: the model has no trees for the label, which take all clients; what "
                    "was fitted before stays",
                    FedcircuitsWarning,
                    stacklevel=2,
                )
                return fitted
    for client in set(fitted.tilts) - set(server.clients):
        fitted = fitted.without(client)
    return replace(fitted, heads={c: made for c, made in heads.items() if c in fitted.tilts})


def _asked(server: Server, client: str) -> m.FitHead:
    return m.FitHead(columns_of(server, client), n_classes_of(server), server.min_rows)


def _rows(server: Server) -> dict[str, ClientHead]:
    """Every client's trees, and its own pool."""
    found = call_or_drop(server, m.FIT_HEAD, {c: _asked(server, c) for c in server.clients})
    return {
        client: ClientHead.of(_asked(server, client).columns, reply.trees, reply.pool, 0)
        for client, reply in found.items()
        if reply.pool is not None
    }

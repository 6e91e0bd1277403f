"""Heads of the label over clients: boosted trees of each, pooled with the tilt on left-out rows."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from fedcircuits.density.tilt import Tilt
from fedcircuits.errors import ClientError, warn
from fedcircuits.federation.agreement._shared.heads_across import (
    STEPS,
    columns_of,
    heads_across,
    n_classes_of,
    tilts_without,
)
from fedcircuits.federation.agreement._shared.tilts import fit_tilts
from fedcircuits.federation.client.label.tilting import tables_of
from fedcircuits.federation.server.cross_scores import MOST_SCORED, those_after
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
        return (step(m.FIT_HEAD), step(m.SCORE_HEADS))
    return STEPS


def tilts_and_then_head(server: Server, take: TakeModels, head: bool) -> dict[str, Tilt] | None:
    """Every client's tilt, as `fit_tilts`, where trees may be pooled with it afterwards.

    Args:
        server: the run.
        take: how models are taken.
        head: whether a head is wanted.
    """
    if head and not take.keep and server.setting != "horizontal":
        with suppress(RefusedError):  # then there is no head
            tilts_without(server)
    return fit_tilts(server)


def with_heads(
    server: Server,
    fitted: FittedParts,
    take: TakeModels,
    head: bool,
    others: FittedParts | None = None,
) -> FittedParts:
    """The fitted parts with trees of every client, where models are gathered and a tilt is there.

    A client whose policy lets no trees leave is no error: then there is no head. One that is lost
    here leaves with its models where others hold its columns; else its models stay, and there is no
    head. Nor is there one for a label that is a number.

    Args:
        server: the run.
        fitted: parts so far.
        take: how models are taken.
        head: whether a head is wanted.
        others: parts of clients that have been fitted before, where one joins them.
    """
    if server.label is None or not server.schema[server.label].is_coded:  # trees are of classes
        return fitted
    known = fitted if others is None else replace(fitted, tilts={**others.tilts, **fitted.tilts})
    if not head or take.keep or not fitted.tilts or combined(known) is None:
        return fitted
    heads, scores = None, {}
    while heads is None:
        try:
            if server.setting == "horizontal":
                heads = _rows(server)
                scores = _scored(server, fitted.tilts, heads, others)
            else:
                heads = heads_across(server)
        except RefusedError:
            return fitted
        except ClientError as error:
            if server.setting == "horizontal":
                raise
            try:
                drop_or_raise(server, error.client, error)
            except LostClientError:
                warn(
                    f"{error}: the model has no trees for the label, which take all clients; what "
                    "was fitted before stays"
                )
                return fitted
    for client in set(fitted.tilts) - set(server.clients):
        fitted = fitted.without(client)
    return replace(
        fitted,
        heads={c: made for c, made in heads.items() if c in fitted.tilts},
        head_scores={c: sent for c, sent in scores.items() if c in fitted.tilts},
    )


def _asked(server: Server, client: str) -> m.FitHead:
    return m.FitHead(columns_of(server, client), n_classes_of(server), server.min_rows)


def _rows(server: Server) -> dict[str, ClientHead]:
    """Trees of every client that has rows enough of each class."""
    asked = {c: _asked(server, c) for c in server.clients}
    found = call_or_drop(server, m.FIT_HEAD, asked)
    return {
        client: ClientHead.of(asked[client].columns, reply.trees, None, asked[client].n_classes)
        for client, reply in found.items()
        if reply.trees
    }


def _scored(
    server: Server,
    tilts: dict[str, Tilt],
    heads: dict[str, ClientHead],
    others: FittedParts | None,
) -> dict[str, m.HeadScores]:
    """What every client's rows score under the others' models; with many others under some."""
    models = {c: (tilts[c], head) for c, head in heads.items() if c in tilts}
    if others is not None:
        models |= {c: (others.tilts[c], head) for c, head in others.heads.items()}
    sent = {
        c: m.HeadModel(c, tables_of(tilt), head.trees.arrays())
        for c, (tilt, head) in models.items()
    }
    asked = {}
    for client in (c for c in server.clients if c in tilts and (tilts[c].counts > 0).sum() > 1):
        after = those_after(client, sent)
        halves = client in heads
        if after or halves:
            asked[client] = m.ScoreHeads(
                columns_of(server, client),
                tilts[client].counts,
                halves,
                tuple(sent[c] for c in sorted(after[:MOST_SCORED])),
                server.min_rows,
            )
    return call_or_drop(server, m.SCORE_HEADS, asked) if asked else {}

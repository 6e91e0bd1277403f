"""A client that joins a trained federation over rows: it alone trains what the others have."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fedcircuits.density.tilt import n_states_of
from fedcircuits.errors import ClientError, FederationError
from fedcircuits.federation.agreement._shared.heads import with_heads
from fedcircuits.federation.agreement._shared.tilts import fit_tilts
from fedcircuits.federation.agreement.product import with_tilts
from fedcircuits.federation.server.fitted_parts import FittedParts, TakeModels, fit
from fedcircuits.federation.server.server import Server
from fedcircuits.federation.wire.names import NONE, Job, JobKind


def fit_like(others: FittedParts, name: str, server: Server, take: TakeModels) -> FittedParts:
    """Have the newcomer fit what the others have fitted, each job on all columns.

    Args:
        others: fitted parts of the federation that it joins.
        name: of the newcomer.
        server: of a run with the newcomer alone, on the schema of the others.
        take: how its models are taken.
    """
    features = tuple(n for n in server.schema.names if n != server.label or not others.tilts)
    jobs = {
        key.job: Job(
            key.job,
            features,
            per_label=by_class,
            mixed=by_class,
            n_classes=n_states_of(server.schema[server.label or ""]) if by_class else 0,
        )
        for key in others.models
        for by_class in [key.cls != NONE]
    }
    if any(job.kind is not JobKind.SUBSPACE for job in jobs):
        raise FederationError("a client that was trained alone is clustered: train again")
    tables = {}
    if "label" in others.tables:
        tables["label"] = np.asarray(server.label_counts[name])
    found = FittedParts(server.schema, server.label, tables=tables)
    found = fit(server, [(name, job) for job in jobs.values()], take, found)
    if not others.tilts:
        return found
    tilts = fit_tilts(server, mixed=True)
    if tilts is None:
        raise ClientError(name, "its learner fits no tilt of the label, as the others' do")
    own = with_tilts(found, tilts)
    return with_heads(server, own, take, bool(others.heads), others)


def together(a: FittedParts, b: FittedParts) -> FittedParts:
    """Return the fitted parts of two disjoint sets of clients whose rows add up."""
    tables = {k: np.asarray(t + b.tables[k]) for k, t in a.tables.items() if k in b.tables}
    return replace(
        a,
        models={**a.models, **b.models},
        rows={**a.rows, **b.rows},
        tables=tables,
        seconds={**a.seconds, **b.seconds},
        reports={**a.reports, **b.reports},
        tilts={**a.tilts, **b.tilts},
        heads={**a.heads, **b.heads},
        head_scores={**a.head_scores, **b.head_scores},
    )

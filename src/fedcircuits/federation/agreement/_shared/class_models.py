"""Jobs for p_c(x_S | l): one model for each class of a grouping, in every subspace and holder."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from fedcircuits.arrays import FloatArray
from fedcircuits.federation.agreement._shared.aligned import spaces_with_label
from fedcircuits.federation.server.fitted_parts import FittedParts, TakeModels, fit
from fedcircuits.federation.server.server import Server
from fedcircuits.federation.wire.names import (
    CLUSTERS,
    NONE,
    Grouping,
    Job,
    JobId,
    JobKind,
    ModelKey,
)


def class_jobs(
    server: Server,
    group: Grouping,
    classes_of: Callable[[str], Sequence[int]],
    n_classes: Mapping[str, int],
    *,
    label_private: bool,
    tilted: bool = False,
) -> list[tuple[str, Job]]:
    """One job for each subspace and holder, where the learner may serve all classes at once.

    Args:
        server: the run.
        group: the grouping that holds the classes.
        classes_of: classes of a client that have rows.
        n_classes: how many classes there are, by client.
        label_private: whether classes mix labels. If not, the label adds nothing to the class
            and is a factor of its own; else its owner fits class by class, the label among them.
        tilted: whether the label comes in by a tilt and is in no job.
    """
    jobs = []
    spaces = spaces_with_label(server)
    if tilted or server.label is None:
        jobs = [
            (client, Job(_job(s), features, classes=group, n_classes=n_classes[client]))
            for s, (columns, holders) in enumerate(spaces)
            for features in [tuple(name for name in columns if name != server.label)]
            for client in holders
            if features
        ]
        return jobs + _whole_jobs(server, jobs)
    for s, (columns, holders) in enumerate(spaces):
        features = tuple(name for name in columns if name != server.label)
        for client in holders:
            whole = Job(_job(s), columns, classes=group, n_classes=n_classes[client])
            if len(features) == len(columns) or not features:
                jobs.append((client, whole))
                continue
            if label_private:
                each = classes_of(client)
                jobs += [(client, Job(_job(s, c), columns, group, c)) for c in each]
                continue
            jobs.append((client, replace(whole, columns=features)))
            own = (server.label or "",)
            jobs.append((client, replace(whole, id=_job(len(spaces) + s), columns=own)))
    return jobs


def _whole_jobs(server: Server, jobs: list[tuple[str, Job]]) -> list[tuple[str, Job]]:
    """One more job for each client with shared and private columns: all of them in one model."""
    holders: dict[JobId, set[str]] = {}
    for client, job in jobs:
        holders.setdefault(job.id, set()).add(client)
    found = []
    for client in server.clients:
        mine = [job for name, job in jobs if name == client]
        if len(mine) > 1 and any(len(holders[job.id]) > 1 for job in mine):
            columns = {name for job in mine for name in job.columns}
            ordered = tuple(name for name in server.schema.names if name in columns)
            found.append((client, replace(mine[0], id=JobId(JobKind.WHOLE), columns=ordered)))
    return found


def _job(space: int, part: int = NONE) -> JobId:
    return JobId(JobKind.CLASSES, space, part)


def fit_clusters(
    server: Server,
    take: TakeModels,
    sizes: Mapping[str, int],
    tables: dict[str, FloatArray],
    *,
    label_private: bool,
) -> FittedParts:
    """Models of every subspace, holder and cluster of the holder."""
    jobs = class_jobs(
        server, CLUSTERS, lambda c: range(sizes[c]), sizes, label_private=label_private
    )
    # Which client each column of the tuples belongs to outlives a client that drops out.
    order = {f"column {client}": np.array([float(i)]) for i, client in enumerate(server.clients)}
    return fit(server, jobs, take, FittedParts(server.schema, server.label, tables=tables | order))


def cell_of(key: ModelKey) -> tuple[int, int]:
    """Class and subspace of a model that a job of `class_jobs` gave."""
    return (key.cls if key.job.part == NONE else key.job.part), key.job.space


def by_cell(fitted: FittedParts) -> dict[tuple[int, int], list[ModelKey]]:
    """Keys of the models p_c(x_S | l) of all holders, by class and subspace."""
    held: dict[tuple[int, int], list[ModelKey]] = {}
    for key in sorted(fitted.models):
        if key.job.kind is not JobKind.WHOLE:
            held.setdefault(cell_of(key), []).append(key)
    return held


def wholes(fitted: FittedParts, cls: int) -> list[ModelKey]:
    """Keys of the models of all columns of a client, shared and private, for a class."""
    return [k for k in sorted(fitted.models) if k.job.kind is JobKind.WHOLE and k.cls == cls]

"""Jobs for p_c(x_S | l): one model for each class of a grouping, in every subspace and holder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from fedcircuits.arrays import FloatArray
from fedcircuits.federation.agreement._shared.aligned import spaces_with_label
from fedcircuits.federation.server.fitted_parts import FittedParts, Job, fit
from fedcircuits.federation.server.server import Server

Key = tuple[str, str, int]


def class_jobs(
    server: Server,
    group: str,
    classes_of: Callable[[str], list[int]],
    *,
    label_private: bool,
) -> list[Job]:
    """One job for each subspace and holder, where the learner may serve all classes at once.

    Args:
        server: the run.
        group: the grouping that holds the classes.
        classes_of: classes of a client.
        label_private: whether classes mix labels. If not, the label says nothing beyond the class
            and is a factor of its own; else its owner fits class by class, the label among them.
    """
    jobs = []
    spaces = spaces_with_label(server)
    for s, (columns, holders) in enumerate(spaces):
        features = tuple(name for name in columns if name != server.label)
        for client in holders:
            name = f"L{s}"
            if len(features) == len(columns) or not features:
                jobs.append(Job(client, name, columns, classes=group))
                continue
            if label_private:
                each = classes_of(client)
                jobs += [Job(client, f"{name}.{c}", columns, group, c) for c in each]
                continue
            jobs.append(Job(client, name, features, classes=group))
            own = f"L{len(spaces) + s}"
            jobs.append(Job(client, own, (server.label or "",), classes=group))
    return jobs


def fit_clusters(
    server: Server,
    take: Mapping[str, Any],
    sizes: Mapping[str, int],
    tables: dict[str, FloatArray],
    *,
    label_private: bool,
) -> FittedParts:
    """Models of every subspace, holder and cluster of the holder."""
    jobs = class_jobs(server, "K", lambda c: list(range(sizes[c])), label_private=label_private)
    # Which client each column of the tuples belongs to outlives a client that drops out.
    order = {f"column {client}": np.array([float(i)]) for i, client in enumerate(server.clients)}
    return fit(server, jobs, take, FittedParts(server.schema, server.label, tables=tables | order))


def cell_of(key: Key) -> tuple[int, int]:
    """Class and subspace of a model that a job of `class_jobs` gave."""
    base, _, alone = key[1].partition(".")
    return int(alone) if alone else key[2], int(base[1:])


def by_cell(fitted: FittedParts) -> dict[tuple[int, int], list[Key]]:
    """Keys of the models p_c(x_S | l) of all holders, by class and subspace."""
    held: dict[tuple[int, int], list[Key]] = {}
    for key in sorted(fitted.models):
        held.setdefault(cell_of(key), []).append(key)
    return held

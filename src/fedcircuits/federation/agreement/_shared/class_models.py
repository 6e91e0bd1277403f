"""Jobs for p_c(x_S | l): one model for each class of a grouping, in every subspace and holder."""

from __future__ import annotations

from collections.abc import Callable

from fedcircuits.federation.agreement._shared.aligned import spaces_with_label
from fedcircuits.federation.server.fitted_parts import Ingredients, Job
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


def cell_of(key: Key) -> tuple[int, int]:
    """Class and subspace of a model that a job of `class_jobs` gave."""
    base, _, alone = key[1].partition(".")
    return int(alone) if alone else key[2], int(base[1:])


def by_cell(ingredients: Ingredients) -> dict[tuple[int, int], list[Key]]:
    """Keys of the models p_c(x_S | l) of all holders, by class and subspace."""
    held: dict[tuple[int, int], list[Key]] = {}
    for key in sorted(ingredients.models):
        held.setdefault(cell_of(key), []).append(key)
    return held

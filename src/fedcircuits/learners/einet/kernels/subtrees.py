"""Where a tree becomes so narrow that whole subtrees take one launch instead of one a level."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedcircuits.learners.einet.kernels.launch_plan import Level
from fedcircuits.learners.einet.network.layout import Layout

# Multiprocessors of the devices this is tuned for: fewer programs than that leave some idle.
PROGRAMS = 132
# What a launch costs, in the time that one program takes for one region (measured on an H200).
LAUNCH = 2.0


@dataclass(frozen=True, eq=False)
class Subtrees:
    """The upper part of a tree.

    Attributes:
        below: Levels under it, each one launch.
        order: Regions subtree by subtree, from the lowest up, (regions of the part,).
        starts: Offsets of the subtrees in `order`, (subtrees + 1,).
    """

    below: int
    order: NDArray[np.int64]
    starts: NDArray[np.int64]


def is_tree(layout: Layout) -> bool:
    """Whether every inner region has one partition and is used once."""
    inner = layout.n_regions - layout.n_leaves
    used = np.bincount(
        np.concatenate([layout.children.ravel(), layout.root_children.ravel()]),
        minlength=layout.n_regions + 1,
    )[layout.n_leaves : layout.n_regions]
    return layout.n_partitions == inner > 0 and bool((used == 1).all())


def upper_part(layout: Layout, levels: Sequence[Level], n_tiles: int) -> Subtrees:
    """The upper part of a tree whose walk takes the least time, perhaps empty.

    Args:
        layout: Of a tree.
        levels: Its levels, from the lowest.
        n_tiles: Programs that share the rows of a batch.
    """
    top = np.full(layout.n_regions, -1)  # the subtree of each region
    parent = np.full(layout.n_regions + 1, -1)
    parent[layout.children] = layout.owner[:, None]  # the padding's entry is never read
    members: list[list[int]] = []
    best, chosen = LAUNCH * len(levels), Subtrees(len(levels), np.zeros(0, int), np.zeros(1, int))
    for number in reversed(range(len(levels))):
        for region in range(*levels[number].regions):
            above = parent[region]
            if above < 0:
                members.append([])
            top[region] = len(members) - 1 if above < 0 else top[above]
            members[top[region]].append(region)
        waves = -(-len(members) * n_tiles // PROGRAMS)
        cost = LAUNCH * (number + 1) + waves * max(map(len, members))
        if cost < best:
            best = cost
            order = [region for part in members for region in reversed(part)]
            sizes = [len(part) for part in members]
            chosen = Subtrees(number, np.array(order), np.concatenate([[0], np.cumsum(sizes)]))
    return chosen

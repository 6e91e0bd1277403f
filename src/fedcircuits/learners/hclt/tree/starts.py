"""Where EM starts: parameters of a latent tree from rows, before the first step.

Two starts, of which the search keeps the one that ends better on validation rows. *Local*: every
latent groups rows by its own columns and those next to it in the tree, so that its states are fine
where columns depend on each other strongly. *Prototypes*: every state of all latents leans to one
row, which keeps what columns far apart in the tree have in common.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import numpy as np
import numpy.typing as npt

from fedcircuits.arrays import BoolArray, FloatArray, IntArray, IntegerArray
from fedcircuits.learners.hclt.tree.latent_tree import LatentTree
from fedcircuits.learners.hclt.tree.shape import TreeShape
from fedcircuits.native import kernels

# Prototypes: weight of the row's value in its emission, and of staying with the row.
_PROTOTYPE, _STAY = 0.5, 0.9
# Local: rows that are grouped at most, and cells of theirs; rounds of k-means; weight of what does
# not depend on the group; categories, commonest first, that tell groups apart.
_ROWS, _CELLS, _LEAST_ROWS_A_STATE = 20_000, 2**20, 16
_ROUNDS, _EVEN, _CATEGORIES = 3, 0.2, 20


class Start(Enum):
    """Ways to start."""

    LOCAL = "local"
    PROTOTYPES = "prototypes"


@dataclass(frozen=True)
class Beginning:
    """What starts are made from.

    Attributes:
        shape: the structure.
        marginals: D column distributions.
        ordered: (D,) whether neighbouring states are neighbouring values.
        codes: (n, D) rows.
    """

    shape: TreeShape
    marginals: list[FloatArray]
    ordered: BoolArray
    codes: IntegerArray

    def tree(self, start: Start, n_states: int, rng: np.random.Generator) -> LatentTree:
        """Parameters to start from."""
        if start is Start.LOCAL:
            return local_tree(self, n_states, rng)
        shape = self.shape
        return initial_tree(
            shape.parent, shape.order, shape.latent_of, self.marginals, n_states, self.codes, rng
        )


def initial_tree(
    parent: npt.NDArray[np.int64],
    order: npt.NDArray[np.int64],
    latent_of: npt.NDArray[np.int64],
    marginals: list[FloatArray],
    n_states: int,
    codes: IntegerArray,
    rng: np.random.Generator,
) -> LatentTree:
    """Start from prototypes: state h of every latent leans towards the h-th of H random rows.

    The latents of one prototype row are coupled (transitions favour staying with the same h), so
    the start is a soft mixture around H rows that EM then loosens edge by edge.

    Args:
        parent: (L,) latent tree.
        order: (L,) topological order.
        latent_of: (D,) latent of every column.
        marginals: D column distributions.
        n_states: H.
        codes: (n, D) rows to draw the prototypes from.
        rng: Source of the draw.
    """
    H, L = n_states, len(parent)
    chosen = rng.choice(len(codes), size=H, replace=len(codes) < H)
    emissions = []
    for column, marginal in enumerate(marginals):
        table = np.tile(marginal, (H, 1)) * rng.uniform(0.8, 1.2, size=(H, len(marginal)))
        table /= table.sum(axis=1, keepdims=True)
        values = codes[chosen, column]
        seen = values >= 0
        table[seen] *= 1.0 - _PROTOTYPE
        table[np.flatnonzero(seen), values[seen]] += _PROTOTYPE
        emissions.append(table)
    noise = rng.uniform(0.8, 1.2, size=(L, H, H))
    noise /= noise.sum(axis=2, keepdims=True)
    transitions = (1.0 - _STAY) * noise + _STAY * np.eye(H)
    return LatentTree(
        parent=parent,
        order=order,
        latent_of=latent_of,
        root=np.full(H, 1.0 / H),
        transitions=transitions,
        emissions=tuple(emissions),
    )


def local_tree(begin: Beginning, n_states: int, rng: np.random.Generator) -> LatentTree:
    """Start from groups: state h of a latent is the h-th group of rows that are alike around it.

    Groups are found by k-means for each latent on its own, over its columns and those of its parent
    and children; tables are shares of the rows in groups, mixed with even ones.
    """
    shape, H = begin.shape, n_states
    D, L = len(begin.marginals), shape.n_latents
    most = max(min(_ROWS, _CELLS // D), _LEAST_ROWS_A_STATE * H)
    rows = rng.permutation(len(begin.codes))[:most]
    codes = begin.codes[rows]
    features = [
        _features(codes[:, j], marginal, bool(begin.ordered[j]))
        for j, marginal in enumerate(begin.marginals)
    ]
    group = np.empty((L, len(codes)), dtype=np.int64)
    for latent in range(L):
        around = [latent, *shape.children_of[latent]]
        if shape.parent[latent] >= 0:
            around.append(int(shape.parent[latent]))
        near = [features[j] for other in around for j in shape.columns_of[other]]
        group[latent] = _grouped(np.concatenate(near, axis=1), H, rng) if near else 0
    transitions = np.zeros((L, H, H))
    for latent, above in enumerate(shape.parent.tolist()):
        pairs = np.zeros(H * H, dtype=np.int64)
        if above >= 0:
            pairs = np.bincount(group[above] * H + group[latent], minlength=H * H)
        even = rng.uniform(0.8, 1.2, size=(H, H))
        transitions[latent] = _mixed(pairs.reshape(H, H), even / even.sum(axis=1, keepdims=True))
    emissions = []
    for j, marginal in enumerate(begin.marginals):
        seen, card = codes[:, j] >= 0, marginal.size
        cells = group[shape.latent_of[j]][seen] * card + codes[seen, j]
        counts = np.bincount(cells, minlength=H * card).reshape(H, card)
        emissions.append(_mixed(counts, np.tile(marginal, (H, 1))))
    of_root = np.bincount(group[shape.root], minlength=H)
    return LatentTree(
        parent=shape.parent,
        order=shape.order,
        latent_of=shape.latent_of,
        root=_mixed(of_root[None, :], np.full((1, H), 1.0 / H))[0],
        transitions=transitions,
        emissions=tuple(emissions),
    )


def _mixed(counts: IntArray, even: FloatArray) -> FloatArray:
    """Rows of counts (m, k) as shares, mixed with rows (m, k) that sum to one."""
    total = counts.sum(axis=1, keepdims=True)
    weight = np.where(total > 0, _EVEN, 1.0)
    return np.asarray((1 - weight) * counts / np.maximum(total, 1) + weight * even)


def _features(codes: IntegerArray, marginal: FloatArray, ordered: bool) -> FloatArray:
    """(n, k) a column (n,) as numbers of about unit variance; zero where it is missing."""
    seen = codes >= 0
    if ordered:
        rank = np.cumsum(marginal) - marginal / 2  # of each state, between 0 and 1
        return np.where(seen, (rank[np.maximum(codes, 0)] - 0.5) * np.sqrt(12.0), 0.0)[:, None]
    commonest = np.argsort(-marginal, kind="stable")[:_CATEGORIES]
    found = (codes[:, None] == commonest) - marginal[commonest]
    return np.where(seen[:, None], found, 0.0)


def _grouped(points: FloatArray, n_groups: int, rng: np.random.Generator) -> IntArray:
    """(n,) the group of each point (n, d), by a few rounds of k-means from random points."""
    n = len(points)
    centres = points[rng.choice(n, size=n_groups, replace=n < n_groups)]
    native = kernels()
    if native is not None:
        group = np.empty(n, dtype=np.int64)
        room = np.empty(centres.size + n_groups), np.empty(centres.shape), np.empty(n_groups)
        points = np.ascontiguousarray(points)
        native.call("group_points", n, *centres.shape, _ROUNDS, points, centres, *room, group)
        return group
    for _ in range(_ROUNDS):
        away = (centres**2).sum(axis=1) - 2 * points @ centres.T  # (n, H)
        group = away.argmin(axis=1)
        count = np.bincount(group, minlength=n_groups)
        sums = np.stack([np.bincount(group, column, n_groups) for column in points.T], axis=1)
        centres = np.where(count[:, None] > 0, sums / np.maximum(count, 1)[:, None], centres)
    return np.asarray(group, dtype=np.int64)

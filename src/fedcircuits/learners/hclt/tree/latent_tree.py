"""Latent trees over coded columns: parameters and expected counts.

One structure serves both table learners. In a hidden Chow-Liu tree every column hangs on a latent
of its own and the latents form a tree; in a mixture of factorised components all columns hang on
a single latent. The passes are in :mod:`.tree_pass`.

States may lie in blocks that no transition leaves: the tree is then a mixture of trees with the
same structure, one a block, and no pass has to know.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from fedcircuits.arrays import FloatArray
from fedcircuits.learners.hclt.tree.shape import TreeShape, shape_of


@dataclass(frozen=True)
class LatentTree:
    """Parameters of a latent tree with L latents of H states and D coded columns.

    Attributes:
        parent: (L,) parent of every latent, -1 at the root.
        order: (L,) topological order, parents first.
        latent_of: (D,) the latent every column hangs on.
        root: (H,) distribution of the root latent.
        transitions: (L, H, W) rows p(child state | parent state) over the W states of the parent
            state's block, W = H where there is one block; the root's entry is unused.
        emissions: D tables (H, card_j) with rows summing to one.
    """

    parent: npt.NDArray[np.int64]
    order: npt.NDArray[np.int64]
    latent_of: npt.NDArray[np.int64]
    root: FloatArray
    transitions: FloatArray
    emissions: tuple[FloatArray, ...]

    @property
    def n_states(self) -> int:
        """Number of states H of every latent."""
        return len(self.root)

    @property
    def block_size(self) -> int:
        """Number of states W of a block."""
        return int(self.transitions.shape[2])

    @property
    def n_blocks(self) -> int:
        """Number of trees B that the tree is a mixture of."""
        return self.n_states // self.block_size

    @property
    def n_columns(self) -> int:
        """Number of coded columns D."""
        return len(self.emissions)

    @cached_property
    def cards(self) -> tuple[int, ...]:
        """Number of states of every column."""
        return tuple(table.shape[1] for table in self.emissions)

    @property
    def n_parameters(self) -> int:
        """How many numbers the tables of the tree hold."""
        inner = (len(self.parent) - 1) * self.n_states * self.block_size
        return self.n_states + inner + sum(table.size for table in self.emissions)

    @cached_property
    def shape(self) -> TreeShape:
        """The structure; trees that differ in parameters alone share it."""
        return shape_of(self.parent, self.order, self.latent_of)

    def columns_of(self) -> list[list[int]]:
        """Columns on every latent, L lists."""
        return self.shape.columns_of

    def children_of(self) -> list[list[int]]:
        """Children of every latent, L lists."""
        return self.shape.children_of


def averaged(trees: Sequence[LatentTree]) -> LatentTree:
    """The mixture, in equal parts, of trees with the same structure and number of states."""
    first = trees[0]
    if len(trees) == 1:
        return first
    return replace(
        first,
        root=np.concatenate([tree.root for tree in trees]) / len(trees),
        transitions=np.concatenate([tree.transitions for tree in trees], axis=1),
        emissions=tuple(
            np.concatenate(tables) for tables in zip(*(t.emissions for t in trees), strict=True)
        ),
    )


@dataclass
class Counts:
    """Expected counts of one or more passes; the sufficient statistics of EM.

    Attributes:
        root: (H,) expected root states.
        pairs: (L, H, W) expected (parent state, child state); the root's entry stays zero.
        emissions: D arrays (H, card_j).
        log_likelihood: Weighted sum of the row log-likelihoods.
        weight: Total row weight.
    """

    root: FloatArray
    pairs: FloatArray
    emissions: list[FloatArray]
    log_likelihood: float
    weight: float

    @staticmethod
    def zeros(tree: LatentTree) -> Counts:
        """Empty counts of the shapes of `tree`."""
        return Counts(
            root=np.zeros_like(tree.root),
            pairs=np.zeros_like(tree.transitions),
            emissions=[np.zeros_like(table) for table in tree.emissions],
            log_likelihood=0.0,
            weight=0.0,
        )

    def add(self, other: Counts) -> None:
        """Add others' counts, in place."""
        self.root += other.root
        self.pairs += other.pairs
        for mine, theirs in zip(self.emissions, other.emissions, strict=True):
            mine += theirs
        self.log_likelihood += other.log_likelihood
        self.weight += other.weight

    def blend(self, other: Counts, share: float, scale: float) -> None:
        """Replace the counts by (1 - share) * self + share * scale * other."""
        keep, take = 1.0 - share, share * scale
        self.root = keep * self.root + take * other.root
        self.pairs *= keep
        self.pairs += take * other.pairs
        for mine, theirs in zip(self.emissions, other.emissions, strict=True):
            mine *= keep
            mine += take * theirs

"""One latent tree for each class, as plain normalised tables (`ClassTree`)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedcircuits.arrays import FloatArray, IntegerArray
from fedcircuits.learners.hclt.tree.latent_tree import LatentTree, TreePass


@dataclass(frozen=True)
class ClassTree:
    """A latent tree per class, plainly normalised.

    Attributes:
        parent: (L,) parent of every latent, -1 at the root.
        order: (L,) topological order, parents first.
        latent_of: (D,) the latent every column hangs on.
        log_prior: (Y,) log p(y).
        root: (Y, H) p(root state | y).
        transitions: (Y, L, H, H) p(child state | parent state, y); the root's entry is unused.
        emissions: D tables (Y, H, card_j).
    """

    parent: npt.NDArray[np.int64]
    order: npt.NDArray[np.int64]
    latent_of: npt.NDArray[np.int64]
    log_prior: FloatArray
    root: FloatArray
    transitions: FloatArray
    emissions: tuple[FloatArray, ...]

    @property
    def n_classes(self) -> int:
        """Number of classes Y."""
        return len(self.log_prior)

    def tree_of(self, label: int) -> LatentTree:
        """p(x | y) as a latent tree."""
        return LatentTree(
            parent=self.parent,
            order=self.order,
            latent_of=self.latent_of,
            root=self.root[label],
            transitions=self.transitions[label],
            emissions=tuple(table[label] for table in self.emissions),
        )

    def log_joint(self, codes: IntegerArray, dtype: npt.DTypeLike = np.float64) -> FloatArray:
        """(n, Y) log p(x, y) of coded rows (n, D); missing cells are marginalised exactly."""
        columns = [
            TreePass(self.tree_of(label), dtype).log_likelihood(codes)
            for label in range(self.n_classes)
        ]
        return np.stack(columns, axis=1) + self.log_prior[None, :]


def class_tree_of(tree: LatentTree) -> ClassTree:
    """An unlabelled tree as a class tree with the single class 0."""
    return ClassTree(
        parent=tree.parent,
        order=tree.order,
        latent_of=tree.latent_of,
        log_prior=np.zeros(1),
        root=tree.root[None],
        transitions=tree.transitions[None],
        emissions=tuple(table[None] for table in tree.emissions),
    )

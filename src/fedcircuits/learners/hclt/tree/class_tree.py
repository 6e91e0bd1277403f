"""One latent tree for each class, as plain normalised tables (`ClassTree`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fedcircuits.arrays import FloatArray, IntArray, IntegerArray
from fedcircuits.errors import StorageError
from fedcircuits.learners.hclt.tree.latent_tree import LatentTree
from fedcircuits.learners.hclt.tree.tree_pass import TreePass

ABSENT_ROWS = 0.1  # pseudo-rows of a class that the training rows do not have


@dataclass(frozen=True)
class ClassTree:
    """A latent tree per class, plainly normalised.

    Attributes:
        parent: (L,) parent of every latent, -1 at the root.
        order: (L,) topological order, parents first.
        latent_of: (D,) the latent every column hangs on.
        log_prior: (Y,) log p(y).
        root: (Y, H) p(root state | y).
        transitions: (Y, L, H, W) p(child state | parent state, y), the child's states being those
            of the parent state's block (see `LatentTree`); the root's entry is unused.
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

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Arrays by name, for a file."""
        named = {name: getattr(self, name) for name in self.__dataclass_fields__}
        tables = named.pop("emissions")
        return named | {f"emissions.{j}": table for j, table in enumerate(tables)}

    @staticmethod
    def from_arrays(
        arrays: Mapping[str, npt.NDArray[Any]], cards: Sequence[int], n_classes: int
    ) -> ClassTree:
        """Inverse of `arrays`; anything that is not as it should be is a `StorageError`."""
        parent, order, latent_of = (
            np.asarray(arrays[name], dtype=np.int64) for name in ("parent", "order", "latent_of")
        )
        tables = tuple(np.asarray(arrays[f"emissions.{j}"], float) for j in range(len(cards)))
        log_prior, root, transitions = (
            np.asarray(arrays[name], dtype=float) for name in ("log_prior", "root", "transitions")
        )
        L, (Y, H), W = parent.size, root.shape, transitions.shape[-1]
        place = np.empty(L, dtype=np.int64)
        place[order] = np.arange(L)
        shapes = [(Y,), (Y, L, H, W), (len(cards),), *((Y, H, card) for card in cards)]
        found = [log_prior.shape, transitions.shape, latent_of.shape, *(t.shape for t in tables)]
        is_tree = (
            np.array_equal(np.sort(order), np.arange(L))
            and parent[order[0]] == -1
            and bool((parent[order[1:]] >= 0).all())
            and bool((place[parent[order[1:]]] < np.arange(1, L)).all())
            and latent_of.min() >= 0
            and latent_of.max() < L
            and np.isin(np.arange(L), [*latent_of, *parent]).all()  # each has something below it
        )
        if n_classes != Y or W == 0 or H % W or shapes != found or not is_tree:
            raise StorageError("the latent tree in the file has not the shape of its schema")
        inner = transitions[:, parent >= 0]
        for masses in (np.exp(log_prior), root, inner, *tables):
            if not ((masses >= 0).all() and np.allclose(masses.sum(axis=-1), 1.0, atol=1e-6)):
                raise StorageError("a table of the latent tree in the file has not mass one")
        return ClassTree(parent, order, latent_of, log_prior, root, transitions, tables)


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


def with_absent_classes(
    model: ClassTree, shared: LatentTree, present: IntArray, n_codes: int, n_rows: float
) -> ClassTree:
    """Return the model over all codes of the label; a class without rows looks like all rows.

    Args:
        model: over the classes that have rows.
        shared: tree of all rows together.
        present: (Y,) codes of the classes that have rows.
        n_codes: codes of the label.
        n_rows: learned from.
    """
    if present.size == n_codes:
        return model
    source = np.full(n_codes, -1)
    source[present] = np.arange(present.size)
    log_prior = np.full(n_codes, np.log(ABSENT_ROWS))
    log_prior[present] = model.log_prior + np.log(n_rows)

    def all_codes(of_class: FloatArray, of_all: FloatArray) -> FloatArray:
        return np.stack([of_class[s] if s >= 0 else of_all for s in source])

    tables = zip(model.emissions, shared.emissions, strict=True)
    return ClassTree(
        parent=model.parent,
        order=model.order,
        latent_of=model.latent_of,
        log_prior=log_prior - np.logaddexp.reduce(log_prior),
        root=all_codes(model.root, shared.root),
        transitions=all_codes(model.transitions, shared.transitions),
        emissions=tuple(all_codes(a, b) for a, b in tables),
    )

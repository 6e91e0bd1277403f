"""The structure of a latent tree as arrays, worked out once for all trees that share it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from fedcircuits.arrays import IntArray
from fedcircuits.native import Pointer, pointer


@dataclass(frozen=True, eq=False)
class TreeShape:
    """Which columns and children every latent has.

    Attributes:
        parent: (L,) parent of every latent, -1 at the root.
        order: (L,) topological order, parents first.
        latent_of: (D,) the latent every column hangs on.
        columns_of: columns on every latent, L lists.
        children_of: children of every latent, L lists.
    """

    parent: IntArray
    order: IntArray
    latent_of: IntArray
    columns_of: list[list[int]]
    children_of: list[list[int]]

    @property
    def n_latents(self) -> int:
        """Number of latents L."""
        return len(self.parent)

    @property
    def root(self) -> int:
        """Number of the latent without a parent."""
        return int(self.order[0])

    @cached_property
    def flat(self) -> tuple[IntArray, IntArray, IntArray, IntArray]:
        """First entry of every latent and entries, of the columns and of the children."""
        return (*_flat(self.columns_of), *_flat(self.children_of))

    @cached_property
    def pointers(self) -> list[Pointer]:
        """Order, parents, columns and children, for C."""
        return [pointer(array) for array in (self.order, self.parent, *self.flat)]


def _flat(lists: list[list[int]]) -> tuple[IntArray, IntArray]:
    first = np.concatenate([[0], np.cumsum([len(part) for part in lists])]).astype(np.int64)
    return first, np.array([one for part in lists for one in part], dtype=np.int64)


def shape_of(parent: IntArray, order: IntArray, latent_of: IntArray) -> TreeShape:
    """Return the shape of a tree; equal structures share one."""
    parts = (np.asarray(part, dtype=np.int64).tobytes() for part in (parent, order, latent_of))
    return _shape(*parts)


@lru_cache(maxsize=64)
def _shape(parent_bytes: bytes, order_bytes: bytes, latent_bytes: bytes) -> TreeShape:
    parent, order, latent_of = (
        np.frombuffer(part, dtype=np.int64) for part in (parent_bytes, order_bytes, latent_bytes)
    )
    columns_of: list[list[int]] = [[] for _ in parent]
    for column, latent in enumerate(latent_of):
        columns_of[latent].append(column)
    children_of: list[list[int]] = [[] for _ in parent]
    for latent, above in enumerate(parent):
        if above >= 0:
            children_of[above].append(latent)
    return TreeShape(parent, order, latent_of, columns_of, children_of)

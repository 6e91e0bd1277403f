"""Stepwise EM as a compiled loop; its twin is in `tree_em.py`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from fedcircuits.arrays import FloatArray, IntArray
from fedcircuits.learners.hclt.tree.along_axis import LEAST_BINS, POWER, WIDTH, WIDTHS, kernel_of
from fedcircuits.learners.hclt.tree.cell_tables import starts_with_missing
from fedcircuits.learners.hclt.tree.latent_tree import LatentTree
from fedcircuits.learners.hclt.tree.patterns import Patterns
from fedcircuits.native import Kernels, Pointer, addresses, pointer

Block = tuple[Patterns, FloatArray]


class CompiledEm:
    """A tree that EM moves batch by batch, with its running counts."""

    def __init__(
        self,
        tree: LatentTree,
        batches: list[Block],
        pseudo: tuple[float, float],
        bins: tuple[IntArray, ...],
        priors: list[FloatArray],
        dtype: npt.DTypeLike,
    ) -> None:
        """Start at a tree with no counts.

        Args:
            tree: the start.
            batches: compressed rows with weights.
            pseudo: pseudo-rows of transitions and root.
            bins: states of every column that are neighbouring bins; empty to spread none.
            priors: D arrays (card_j,) of pseudo-counts of the emissions.
            dtype: float type of passes over a batch.
        """
        self._tree, self._dtype = tree, np.dtype(dtype)
        L, H, W, D = len(tree.parent), tree.n_states, tree.block_size, tree.n_columns
        starts, cards = starts_with_missing(tree.cards)
        first = np.concatenate([[0], np.cumsum(tree.cards)]).astype(np.int64)
        C, R = int(first[-1]), int(first[-1]) + D
        T = max(patterns.n_patterns for patterns, _ in batches)
        self._root, self._transitions = tree.root.copy(), tree.transitions.copy()
        self._emissions = np.ascontiguousarray(np.concatenate(tree.emissions, axis=1).T)  # (C, H)
        spread = [np.ascontiguousarray(own, dtype=np.int64) for own in bins]
        spread = [own if own.size >= LEAST_BINS else own[:0] for own in spread]
        spread = spread or [np.zeros(0, dtype=np.int64)] * D
        kernels = [kernel_of(own.size, w) if own.size else None for own in spread for w in WIDTHS]
        widest = max(own.size for own in spread)
        cast = [(L, H, W), (R, H), (T, H), (T, H), (T, H), (R, H)]
        self._kept: list[npt.NDArray[Any]] = [
            *(at.array for at in tree.shape.pointers),
            first,
            cards,
            starts,
            self._root,
            self._transitions,
            self._emissions,
            np.zeros(H),
            np.zeros((L, H, W)),
            np.zeros((C, H)),
            np.concatenate(priors),
            np.array([own.size for own in spread], dtype=np.int64),
            addresses(spread),
            addresses(kernels),
            np.array(WIDTHS),
            *(np.empty(shape, dtype=self._dtype) for shape in cast),
            np.zeros((L, H, W), dtype=self._dtype),  # the root's entry stays zero
            np.empty(T),
            np.empty(T),
            np.empty(3 * H + 2 * widest),
        ]
        self._spread, self._kernels = spread, kernels
        self._numbers = np.array([*pseudo, WIDTH, POWER, 0.0, 0.0])
        self._sizes = np.array([L, H, W, D, C, 0], dtype=np.int64)
        self._at = addresses(self._kept)
        self._arguments = [pointer(array) for array in (self._sizes, self._at)]
        self._batches = [self._laid_out(*batch) for batch in batches]

    def _laid_out(
        self, patterns: Patterns, weights: FloatArray
    ) -> tuple[Pointer, int, float, list[npt.NDArray[Any]]]:
        """Addresses of a batch, its rows and weight, and the arrays behind the addresses."""
        kept: list[npt.NDArray[Any]] = [
            patterns.size_array,
            patterns.offset,
            *patterns.addresses,
            patterns.row_index,
            np.ascontiguousarray(weights),
        ]
        return pointer(addresses(kept)), len(weights), float(weights.sum()), kept

    def step(self, native: Kernels, number: int, share: float, total: float) -> None:
        """Move the running counts by a share towards a batch's, scaled to weight `total`."""
        at, n, weight, _ = self._batches[number]
        self._sizes[5] = n
        self._numbers[4:] = 1.0 - share, share * (total / max(weight, 1e-300))
        native.call_with_gemm("em_batch", self._dtype, *self._arguments, at, self._numbers)

    def tree(self) -> LatentTree:
        """The tree after the steps so far."""
        tables = np.split(self._emissions, np.cumsum(self._tree.cards)[:-1])
        return replace(
            self._tree,
            root=self._root.copy(),
            transitions=self._transitions.copy(),
            emissions=tuple(np.ascontiguousarray(table.T) for table in tables),
        )

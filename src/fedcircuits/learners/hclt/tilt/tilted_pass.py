"""Passes of one class of a tilted tree over coded rows that may have missing cells.

The tilt multiplies the emission tables, so an observed cell contributes B[h, v] e^{g(v)} and a
missing one the whole sum over v: exact marginals of p(x, y), not of the untilted circuit. Complete
rows do not need this (their tilt is a plain sum), rows with holes and class transitions do.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fedcircuits.arrays import FloatArray
from fedcircuits.learners.hclt.tilt.tilt import TiltedTree
from fedcircuits.learners.hclt.tree.latent_tree import AnyFloat, TreePass, Upward, add_by_index
from fedcircuits.learners.hclt.tree.patterns import Patterns


class TiltedPass:
    """Upward pass and signed flows of one class."""

    def __init__(
        self, model: TiltedTree, label: int, dtype: npt.DTypeLike, root_weights: FloatArray
    ) -> None:
        """Prepare the tilted tables of class `label`; `root_weights` is the class's (H,)."""
        self.tree_pass = TreePass(model.tree_of(label), dtype)
        self.tree = self.tree_pass.tree
        self._root = root_weights.astype(dtype)
        self._log_shift = float(model.c[label])
        self._tables: list[AnyFloat] = []
        starts = model.starts
        for j, table in enumerate(self.tree.emissions):
            g = model.g[label, starts[j] : starts[j + 1]]
            self._log_shift += float(g.max())
            lifted = (table * np.exp(g - g.max())).T  # (card, H)
            whole = lifted.sum(axis=0, keepdims=True)
            self._tables.append(np.concatenate([lifted, whole]).astype(dtype))

    def upward(self, patterns: Patterns) -> tuple[FloatArray, AnyFloat, Upward]:
        """log(p(x, y) Z) of every root pattern (U,), the scaled root sum (U,), and the pass."""
        up = self.tree_pass.upward(
            patterns,
            lambda column: self._tables[column].take(patterns.codes[column], axis=0, mode="wrap"),
        )
        total = np.maximum(up.root @ self._root, 1e-30)
        return np.log(total) + up.log_scale + self._log_shift, total, up

    def add_flows(
        self,
        patterns: Patterns,
        up: Upward,
        total: AnyFloat,
        pull: FloatArray,
        emissions: list[FloatArray],
        pairs: FloatArray | None,
    ) -> FloatArray:
        """Add flows weighted by `pull` and return that of the root's states (H,).

        Args:
            patterns: The compressed rows.
            up: Their upward pass.
            total: (U,) scaled root sums.
            pull: (U,) signed weight of every root pattern, d objective / d logit.
            emissions: D accumulators (H, card_j): flow of (state, value), missing cells included.
            pairs: (L, H, H) accumulator of pair flows, where wanted.
        """
        root_state = up.root * self._root
        root_state *= (pull / total).astype(root_state.dtype)[:, None]
        root_flow: FloatArray = np.asarray(root_state.sum(axis=0), dtype=np.float64)
        for latent, state in self.tree_pass.downward(patterns, up, root_state):
            if pairs is not None and self.tree.parent[latent] >= 0:
                flow = self.tree_pass.pair_flow(up, latent)
                pairs[latent] += flow * self.tree.transitions[latent]
            for column in self.tree_pass.columns_of[latent]:
                table = self._tables[column]
                card = len(table) - 1
                cells = patterns.codes[column]
                by_cell = add_by_index(np.where(cells < 0, card, cells), state, card + 1)
                emissions[column] += by_cell[:card].T
                if (cells < 0).any():
                    # A missing cell's flow spreads over the values like the tilted table.
                    emissions[column] += ((by_cell[card] / table[card]) * table[:card]).T
        return root_flow


def sums_by_index(index: npt.NDArray[np.int32], values: FloatArray, size: int) -> FloatArray:
    """(size,) sums of the values with the same index."""
    return np.asarray(np.bincount(index, values, minlength=size), dtype=np.float64)

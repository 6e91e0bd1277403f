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
from fedcircuits.learners.hclt.tree.cell_tables import AnyFloat, Tables, starts_with_missing
from fedcircuits.learners.hclt.tree.patterns import Patterns
from fedcircuits.learners.hclt.tree.tree_pass import TreePass, Upward


class TiltedPass:
    """Upward pass and signed flows of one class."""

    def __init__(
        self, model: TiltedTree, label: int, dtype: npt.DTypeLike, root_weights: FloatArray
    ) -> None:
        """Prepare the tilted tables of class `label`; `root_weights` is the class's (H,)."""
        self.tree_pass = TreePass(model.tree_of(label), dtype)
        self.tree = self.tree_pass.tree
        self._root = root_weights.astype(dtype)
        starts, cards = starts_with_missing(self.tree.cards)
        g, first = model.g[label], model.starts[:-1]
        tops = np.maximum.reduceat(g, first)  # (D,)
        self._log_shift = float(model.c[label] + tops.sum())
        lift = np.exp(g - np.repeat(tops, cards))  # (W,)
        # Rows of the tables that hold values; the others are those of missing cells.
        self.value_rows = np.arange(len(g)) + np.repeat(np.arange(len(cards)), cards)
        values = Tables.of(self.tree, self.tree_pass.dtype).values
        values[self.value_rows] *= lift.astype(self.tree_pass.dtype)[:, None]
        values[starts + cards] = 0
        values[starts + cards] = np.add.reduceat(values, starts, axis=0)
        self._tables = Tables(values, starts, cards)

    def upward(self, patterns: Patterns) -> tuple[FloatArray, AnyFloat, Upward]:
        """log(p(x, y) Z) of every root pattern (U,), the scaled root sum (U,), and the pass."""
        up = self.tree_pass.upward(patterns, self._tables)
        total = np.maximum(up.root @ self._root, 1e-30)
        return np.log(total) + up.log_scale + self._log_shift, total, up

    def flows(
        self,
        patterns: Patterns,
        up: Upward,
        total: AnyFloat,
        pull: FloatArray,
        *,
        with_pairs: bool,
    ) -> tuple[FloatArray, AnyFloat, AnyFloat | None]:
        """Flows weighted by `pull`: of the root's states (H,), of cells (W, H) and of edges.

        A missing cell's flow is spread over the column's values.

        Args:
            patterns: The compressed rows.
            up: Their upward pass; its messages are overwritten.
            total: (U,) scaled root sums.
            pull: (U,) signed weight of every root pattern, d objective / d logit.
            with_pairs: Whether flows of edges (L, H, H) are wanted.
        """
        root_state = up.root * self._root
        root_state *= (pull / total).astype(root_state.dtype)[:, None]
        root_flow: FloatArray = np.asarray(root_state.sum(axis=0), dtype=np.float64)
        found = self.tree_pass.flows(patterns, up, root_state, self._tables, with_pairs=with_pairs)
        assert found.cells is not None
        cells, tables = found.cells[self.value_rows], self._tables
        missing = found.cells[tables.starts + tables.cards]  # (D, H)
        if missing.any():
            spread = missing / tables.values[tables.starts + tables.cards]
            spread = np.repeat(spread, tables.cards, axis=0)  # (W, H)
            cells += spread * tables.values[self.value_rows]
        return root_flow, cells, found.pairs


def sums_by_index(index: npt.NDArray[np.int32], values: FloatArray, size: int) -> FloatArray:
    """(size,) sums of the values with the same index."""
    return np.asarray(np.bincount(index, values, minlength=size), dtype=np.float64)

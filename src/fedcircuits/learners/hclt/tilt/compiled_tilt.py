"""The objective of the tilt as a compiled loop; its twin is in `tilt_fit.py`.

What the loop reads and writes is laid out once; an evaluation copies the vector in and is one call.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from fedcircuits.arrays import FloatArray
from fedcircuits.learners.hclt.tilt.compiled_trees import CompiledTrees
from fedcircuits.learners.hclt.tilt.priors import COARSE_RIDGE, TiltLayout, TiltPrior
from fedcircuits.learners.hclt.tilt.rows import Rows
from fedcircuits.learners.hclt.tree.latent_tree import LatentTree
from fedcircuits.native import Kernels, addresses, n_threads, pointer

# Rows of a block, whose sums are kept apart so that threads do not change them, and the most
# numbers of all blocks together.
_BLOCK_ROWS, _BLOCK_NUMBERS = 8192, 2**22
_MOST_CHUNK, _CHUNK_NUMBERS = 128, 4096


class CompiledObjective:
    """Objective and gradient of the tilt over rows without missing cells."""

    def __init__(
        self,
        trees: tuple[LatentTree, ...],
        roots: FloatArray,
        rows: Rows,
        layout: TiltLayout,
        prior: TiltPrior,
        scale: FloatArray,
        root_ridge: float,
    ) -> None:
        """Lay out everything but the vector.

        Args:
            trees: one, or one a class.
            roots: (Y, H) root distribution of every class.
            rows: labelled rows; those with missing cells are left out.
            layout: of the tables.
            prior: strengths of the penalties.
            scale: what coordinates of the vector are multiplied by.
            root_ridge: on the root logits.
        """
        self._trees = CompiledTrees(trees, len(roots))
        Y, H = roots.shape
        C, n, n_coarse = layout.n_fine, len(rows.labels), layout.n_coarse
        chunk = int(np.clip(_CHUNK_NUMBERS // Y, 1, _MOST_CHUNK))
        width = 2 + Y + C * Y + Y * H + (2 * chunk + 1) * Y + H
        block = max(_BLOCK_ROWS, -(-n * width // _BLOCK_NUMBERS))
        self._dtype, cells = rows.evidence.dtype, rows.plain_cells
        same = np.append(0.0, layout.coarse_column[1:] == layout.coarse_column[:-1])
        weights = rows.weights if rows.holes is None else rows.weights * rows.complete
        self._vector, self._gradient = np.empty_like(scale), np.empty_like(scale)
        self._value = np.empty(1)
        self._kept: list[npt.NDArray[Any]] = [
            self._vector,
            scale,
            self._gradient,
            self._value,
            np.ascontiguousarray(roots),
            layout.coarse_index,
            np.ascontiguousarray(prior.fine[layout.column_of]),
            np.ascontiguousarray(prior.coarse[layout.coarse_column]),
            same[:n_coarse],
            cells.layout,
            cells.codes,
            np.ascontiguousarray(rows.evidence),
            np.ascontiguousarray(rows.log_scale),
            np.ascontiguousarray(rows.labels, dtype=np.int64),
            np.ascontiguousarray(weights),
            np.empty(max(-(-n // block), 1) * (width + len(cells.cards))),
            *(np.empty(C * Y) for _ in range(3)),
            *(np.empty(Y * H) for _ in range(2)),
            np.empty(Y * H, dtype=self._dtype),
            np.empty(Y),
        ]
        sizes = (n, rows.class_stride, block, 1, n_coarse, chunk)
        self._sizes = np.concatenate([self._trees.sizes, sizes]).astype(np.int64)
        numbers = np.array([rows.n_effective, root_ridge, COARSE_RIDGE])
        at = np.concatenate([self._trees.at, addresses(self._kept)])
        self._arguments = [pointer(array) for array in (self._sizes, numbers, at)]
        self._several = -(-n // block) > 1

    def __call__(self, native: Kernels, vector: FloatArray) -> tuple[float, FloatArray]:
        """Objective and gradient at a vector."""
        self._vector[:] = vector
        if self._several:
            self._sizes[10] = n_threads()
        native.call_with_double_gemm("tilt_objective", self._dtype, *self._arguments)
        return float(self._value[0]), self._gradient.copy()

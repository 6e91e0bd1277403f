"""The trees of a tilted tree as compiled loops take them, and their normaliser."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from fedcircuits.arrays import FloatArray
from fedcircuits.learners.hclt.tree.latent_tree import LatentTree
from fedcircuits.native import Kernels, addresses


class CompiledTrees:
    """The trees of all classes of a tilted tree, as `normaliser.inc` takes them.

    Attributes:
        emissions: (C, H) of the cells of all columns; may be changed in place.
        forward: transitions (L, H, W), one array or one a class; may be changed in place.
    """

    def __init__(self, trees: tuple[LatentTree, ...], n_classes: int) -> None:
        """Lay out trees of the same structure and emissions: one, or one a class."""
        tree, shared = trees[0], len(trees) == 1
        Y, D, L, H = n_classes, tree.n_columns, len(tree.parent), tree.n_states
        group = Y if shared else 1
        self.emissions = np.ascontiguousarray(np.concatenate(tree.emissions, axis=1).T)
        self.forward = [np.ascontiguousarray(t.transitions, dtype=np.float64) for t in trees]
        first = np.concatenate([[0], np.cumsum(tree.cards)]).astype(np.int64)
        every = np.arange(group, dtype=np.int32)
        self._kept: list[npt.NDArray[Any]] = [
            first,
            np.ascontiguousarray(tree.latent_of, dtype=np.int64),
            *(at.array for at in tree.shape.pointers),
            np.full(D, group, dtype=np.int64),
            np.arange(D, dtype=np.int64) * group,
            np.full(L, group, dtype=np.int64),
            np.arange(L, dtype=np.int64) * group,
            addresses([every] * D),
            addresses([None] * L),
            self.emissions,
            addresses(self.forward),
            np.empty(Y * len(self.emissions)),
            np.empty(D * Y * H),
            *(np.empty(L * Y * H) for _ in range(3)),
            np.empty(L * Y),
            np.empty(H),
        ]
        self._every = every
        sizes = (Y, D, len(self.emissions), L, H, tree.block_size, int(shared))
        self.sizes = np.array(sizes, dtype=np.int64)
        self.at = addresses(self._kept)

    def normaliser(
        self,
        native: Kernels,
        c: FloatArray,
        g: FloatArray,
        root: FloatArray,
    ) -> tuple[float, FloatArray, FloatArray, FloatArray]:
        """log Z, log e^c_y Z_y (Y,), flows of cells (Y, C) and of the root's states (Y, H).

        Args:
            native: the compiled loops.
            c: (Y,) constants.
            g: (Y, C) tilts.
            root: (Y, H) weights of the root's states.
        """
        log_z, log_class = np.empty(1), np.empty_like(c)
        cells, root_flow = np.empty_like(g), np.empty_like(root)
        native.call_with_gemm(
            "tilt_normaliser",
            np.dtype(np.float64),
            *(self.sizes, self.at, np.ascontiguousarray(c), np.ascontiguousarray(g)),
            *(np.ascontiguousarray(root), log_z, log_class, cells, root_flow),
        )
        return float(log_z[0]), log_class, cells, root_flow

"""Steps of Adam on class-dependent transitions as compiled loops; twin: `class_transitions.py`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fedcircuits.learners.hclt.tilt.compiled_trees import CompiledTrees
from fedcircuits.learners.hclt.tilt.tilt import TiltedTree
from fedcircuits.learners.hclt.tree.cell_tables import starts_with_missing
from fedcircuits.native import Kernels, Pointer, addresses, n_threads, pointer

if TYPE_CHECKING:
    from fedcircuits.learners.hclt.tilt.class_transitions import Batch, SoftmaxTables


class CompiledSteps:
    """A tilted tree with a tree for every class that Adam moves batch by batch."""

    def __init__(
        self,
        model: TiltedTree,
        tables: SoftmaxTables,
        batches: list[Batch],
        dtype: npt.DTypeLike,
        floor: float,
    ) -> None:
        """Start at a model.

        Args:
            model: with a tree a class.
            tables: logits of transitions (Y, L, H, W) and of the emissions of every column.
            batches: all that steps will see.
            dtype: float type of passes over a batch.
            floor: added to every exponential of a softmax.
        """
        self._model, self._tables, self._floor = model, tables, floor
        self._dtype: np.dtype[Any] = np.dtype(dtype)
        tree = model.trees[0]
        transitions, *emissions = tables.chances
        start = [
            replace(tree, transitions=transitions[y], emissions=tuple(emissions))
            for y in range(model.n_classes)
        ]
        self._trees = CompiledTrees(tuple(start), model.n_classes)
        Y, _, C, L, H, W, _ = map(int, self._trees.sizes)
        starts, cards = starts_with_missing(tree.cards)
        B, T = C + tree.n_columns, max(batch.patterns.n_patterns for batch in batches)
        n = max(len(batch.weights) for batch in batches)
        self._free = [model.c.copy(), model.g.copy(), model.root_logits.copy()]
        roots = np.stack([model.tree_of(y).root for y in range(Y)])
        gradients = [np.zeros_like(table) for table in tables.logits]
        shapes = [(Y, L, H, W), (Y, B, H), (Y, T, H), (Y, T, H), (Y, T, H), (Y, B, H)]
        doubles = [(Y, T), (Y, T), (Y, T), (Y, T), (Y, H), Y, Y, (Y, C), (Y, H), (C, H), (Y, H)]
        self._kept: list[npt.NDArray[Any]] = [
            *self._free,
            *(np.zeros_like(values) for values in (*self._free, *self._free)),
            roots,
            tables.sizes,
            addresses(gradients),
            *tables.at,
            cards,
            starts,
            *(np.empty(shape, dtype=self._dtype) for shape in shapes),
            np.zeros((Y, L, H, W), dtype=self._dtype),  # the root's entry stays zero
            *(np.empty(shape) for shape in doubles),
            np.empty((Y, n)),
            np.empty(1),
        ]
        self._gradients = gradients
        self._sizes = np.concatenate([self._trees.sizes, (T, B, 1, 0)]).astype(np.int64)
        self._at = np.concatenate([self._trees.at, addresses(self._kept)])
        self._batches = [self._laid_out(batch) for batch in batches]

    def _laid_out(self, batch: Batch) -> tuple[Pointer, int, float, list[npt.NDArray[Any]]]:
        """Addresses of a batch, its rows and weight, and the arrays behind the addresses."""
        patterns = batch.patterns
        kept: list[npt.NDArray[Any]] = [
            patterns.size_array,
            patterns.offset,
            *patterns.addresses,
            patterns.row_index,
            batch.target.argmax(axis=1).astype(np.int64),
            np.ascontiguousarray(batch.weights),
        ]
        return pointer(addresses(kept)), len(batch.weights), float(batch.weights.sum()), kept

    def step(
        self,
        native: Kernels,
        number: int,
        rate: float,
        tilt_rate: float,
        scales: tuple[float, float],
    ) -> None:
        """One step on a batch."""
        at, n, weight, _ = self._batches[number]
        self._sizes[9:] = n_threads(), n
        numbers = np.array([weight, rate, tilt_rate, *scales, self._floor])
        native.call_with_both_gemms(
            "transition_batch", self._dtype, self._sizes, self._at, at, numbers
        )

    def model(self) -> TiltedTree:
        """The tilted tree after the steps so far."""
        c, g, root_logits = (values.copy() for values in self._free)
        transitions, *emissions = (values.copy() for values in self._tables.chances)
        trees = tuple(
            replace(tree, transitions=mine, emissions=tuple(emissions))
            for tree, mine in zip(self._model.trees, transitions, strict=True)
        )
        return TiltedTree(trees=trees, c=c, g=g, root_logits=root_logits)

"""Labelled rows prepared for evaluations of a tilt: their cells, and their evidence at the root."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from fedcircuits.arrays import FloatArray, IntegerArray
from fedcircuits.learners.hclt.tilt.cells import Cells, MeanCells
from fedcircuits.learners.hclt.tilt.tilt import TiltedTree
from fedcircuits.learners.hclt.tree.latent_tree import LatentTree
from fedcircuits.learners.hclt.tree.patterns import Patterns, block_patterns, row_blocks
from fedcircuits.learners.hclt.tree.tree_pass import TreePass
from fedcircuits.native import kernels
from fedcircuits.native.in_order import in_order
from fedcircuits.native.memory import return_freed


@dataclass(frozen=True)
class Rows:
    """Labelled coded rows prepared for tilt evaluations under fixed trees.

    Attributes:
        cells: the cells of every row, or means of classes that are never evaluated.
        labels: (n,) classes.
        weights: (n,) row weights summing to one.
        n_effective: Number of rows behind the weights.
        evidence: (1 or Y, n, H) scaled root evidence under the shared tree or each class's.
        log_scale: (1 or Y, n) its log scale.
        complete: (n,) one for rows without missing cells, zero for the others.
        hole_rows: Numbers of the rows with missing cells.
        hole_codes: Their codes.
        holes: Their patterns; none where all rows are complete.
    """

    cells: Cells | MeanCells
    labels: IntegerArray
    weights: FloatArray
    n_effective: float
    evidence: npt.NDArray[np.floating]
    log_scale: FloatArray
    complete: FloatArray
    hole_rows: npt.NDArray[np.int64]
    hole_codes: IntegerArray
    holes: Patterns | None

    @property
    def are_compiled(self) -> bool:
        """Whether the compiled loops take these rows, by the type of their evidence."""
        return self.evidence.dtype in (np.float32, np.float64)

    @property
    def plain_cells(self) -> Cells:
        """The cells of rows that are evaluated."""
        assert isinstance(self.cells, Cells)
        return self.cells

    @property
    def class_stride(self) -> int:
        """Numbers between the evidence of one class and of the next, 0 where classes share it."""
        _, n, H = self.evidence.shape
        return n * H if len(self.evidence) > 1 else 0


def take_rows(rows: Rows, chosen: npt.NDArray[np.int64], tree: LatentTree) -> Rows:
    """Some of the rows; `tree` gives the structure."""
    weights = rows.weights[chosen]
    share = float(weights.sum())
    hole_number = np.full(len(rows.labels), -1)
    hole_number[rows.hole_rows] = np.arange(len(rows.hole_rows))
    hole_rows = np.flatnonzero(hole_number[chosen] >= 0)
    hole_codes = rows.hole_codes[hole_number[chosen][hole_rows]]
    return Rows(
        cells=replace(rows.plain_cells, codes=rows.plain_cells.codes[chosen]),
        labels=rows.labels[chosen],
        weights=weights / share,
        n_effective=rows.n_effective * share,
        evidence=rows.evidence[:, chosen],
        log_scale=rows.log_scale[:, chosen],
        complete=rows.complete[chosen],
        hole_rows=hole_rows,
        hole_codes=hole_codes,
        holes=block_patterns(tree, hole_codes) if len(hole_rows) else None,
    )


def prepare_rows(
    model: TiltedTree,
    codes: IntegerArray,
    labels: IntegerArray,
    weights: FloatArray,
    dtype: npt.DTypeLike = np.float32,
) -> Rows:
    """Upward passes of the model's trees over coded rows.

    Complete rows need no other pass while the trees stay fixed. Rows with missing cells go through
    passes over tilted tables in every evaluation (see :mod:`.tilted_pass`).

    Args:
        model: Gives the trees; its tilt is not used.
        codes: (n, D) states, -1 where missing.
        labels: (n,) classes.
        weights: (n,) row weights.
        dtype: Float type of the stored evidence, the largest array of a fit.
    """
    return_freed(codes.size)
    evidence = np.empty((len(model.trees), len(codes), model.trees[0].n_states), dtype=dtype)
    log_scale = np.empty(evidence.shape[:2])
    _fill(model, codes, evidence, log_scale)
    hole_rows = np.flatnonzero((codes < 0).any(axis=1))
    return Rows(
        cells=Cells.of(codes, model.trees[0].cards),
        labels=labels,
        weights=weights / weights.sum(),
        n_effective=float(weights.sum()),
        evidence=evidence,
        log_scale=log_scale,
        complete=np.asarray((codes >= 0).all(axis=1), dtype=np.float64),
        hole_rows=hole_rows,
        hole_codes=codes[hole_rows],
        holes=block_patterns(model.trees[0], codes[hole_rows]) if len(hole_rows) else None,
    )


def _fill(
    model: TiltedTree,
    codes: IntegerArray,
    evidence: npt.NDArray[np.floating],
    log_scale: FloatArray,
) -> None:
    """Write root evidence (1 or Y, n, H) and its log scale (1 or Y, n) of coded rows."""
    tree = model.trees[0]
    passes = [TreePass(mine, evidence.dtype) for mine in model.trees]

    def fill(part: slice) -> None:
        patterns = block_patterns(tree, codes[part])
        for tree_pass, mine, scale in zip(passes, evidence, log_scale, strict=True):
            tree_pass.add_root_evidence(patterns, mine[part], scale[part])

    for _ in in_order(fill, list(row_blocks(len(codes), tree))):
        pass


def plain_logits(
    model: TiltedTree, rows: Rows, weights: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """(Y, n) sums of the tilts of the cells, and (Y, n) evidence mixed by root weights (Y, H)."""
    Y, n = model.n_classes, len(rows.labels)
    native = kernels()
    if native is None or not rows.are_compiled or rows.evidence.dtype != np.float32:
        logits = np.ascontiguousarray((rows.plain_cells.indicator @ model.g.T).T)
        mixed = np.empty((Y, n))
        for y in range(Y):
            evidence = rows.evidence[y if len(rows.evidence) > 1 else 0]
            mixed[y] = evidence @ weights[y].astype(evidence.dtype)
        return logits, mixed
    logits, mixed, cells = np.empty((Y, n)), np.empty((Y, n)), rows.plain_cells
    native.call(
        "tilt_logits",
        *(n, *weights.shape, cells.codes, cells.layout, np.empty(len(cells.cards), np.int32)),
        *(np.ascontiguousarray(model.g.T), rows.evidence, rows.class_stride),
        *(weights.astype(np.float32), logits, mixed),
    )
    return logits, mixed


def plain_flows(
    rows: Rows, residual: FloatArray, mixed: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Gradient of the plain logits by their residuals (Y, n): of cells (Y, W), of roots (Y, H)."""
    Y, H = len(residual), rows.evidence.shape[2]
    pull = residual / mixed
    cells = rows.cells.totals(residual.T).T
    root = np.empty((Y, H))
    for y in range(Y):
        evidence = rows.evidence[y if len(rows.evidence) > 1 else 0]
        root[y] = pull[y].astype(evidence.dtype) @ evidence
    return cells, root

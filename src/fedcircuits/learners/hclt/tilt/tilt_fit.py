"""Fitting the tilt by preconditioned L-BFGS on cross-entropy + NLL / D + penalties / N.

For a fixed tree the rows enter only through their codes and the root's evidence, so one evaluation
is a sparse product, a softmax and a normaliser pass over Y rows: milliseconds for tens of thousands
of rows. The problem is convex in (c, g).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
from scipy import optimize

from fedcircuits.arrays import FloatArray, IntegerArray
from fedcircuits.learners.hclt.tilt.compiled_tilt import CompiledObjective
from fedcircuits.learners.hclt.tilt.priors import (
    TiltLayout,
    TiltPrior,
    coarse_penalty,
    fine_penalty,
)
from fedcircuits.learners.hclt.tilt.rows import Rows, plain_flows, plain_logits
from fedcircuits.learners.hclt.tilt.tilt import TiltedTree, normaliser
from fedcircuits.learners.hclt.tilt.tilted_pass import TiltedPass, sums_by_index
from fedcircuits.learners.hclt.tree.patterns import Patterns
from fedcircuits.learners.hclt.tree.tree_pass import TreePass, Upward
from fedcircuits.learners.prepare import mean_ranks
from fedcircuits.native import kernels

# Ridge on the root logits, in rows: keeps states that few rows use near zero.
_ROOT_RIDGE = 5.0


@dataclass(frozen=True)
class Scores:
    """How well a tilted tree fits rows.

    Attributes:
        cross_entropy: Mean -log p(y | x).
        nll: Mean -log p(x, y).
        objective: cross_entropy + nll / D.
        row_objective: (n,) the objective of every row.
        row_cross_entropy: (n,) -log p(y | x) of every row.
        auc: Area under the ROC curve of the second of two classes; none with more.
    """

    cross_entropy: float
    nll: float
    objective: float
    row_objective: FloatArray
    row_cross_entropy: FloatArray
    auc: float | None

    def summary(self) -> dict[str, float | None]:
        """The means, for a report."""
        return {"cross_entropy": self.cross_entropy, "nll": self.nll, "auc": self.auc}


@dataclass(frozen=True)
class HolePass:
    """What the gradient needs from one class's pass over rows with missing cells."""

    tilted: TiltedPass
    total: npt.NDArray[np.floating]
    up: Upward


def class_logits(model: TiltedTree, rows: Rows) -> tuple[FloatArray, FloatArray, list[HolePass]]:
    """Unnormalised log p(x, y) without log Z.

    Returns:
        (n, Y) logits, a view of class after class; (Y, n) the evidence-weighted sums over root
        states, which the gradient of the root logits needs; and the passes over rows with missing
        cells, if any.
    """
    weights = model.root_weights()
    logits, mixed = plain_logits(model, rows, weights)
    np.maximum(mixed, 1e-300, out=mixed)
    logits += np.log(mixed)
    logits += rows.log_scale
    logits += model.c[:, None]
    hole_passes: list[HolePass] = []
    if rows.holes is not None:
        logs, hole_passes = _hole_logits(model, rows.holes, rows.evidence.dtype)
        logits[:, rows.hole_rows] = logs[:, rows.holes.row_index]
    return logits.T, mixed, hole_passes


def _hole_logits(
    model: TiltedTree, holes: Patterns, dtype: npt.DTypeLike
) -> tuple[FloatArray, list[HolePass]]:
    """(Y, U) logits of the patterns of rows with missing cells, and their passes."""
    weights, logits, passes = model.root_weights(), [], []
    for y in range(model.n_classes):
        tilted = TiltedPass(model, y, dtype, weights[y])
        logs, root_sum, up = tilted.upward(holes)
        logits.append(logs)
        passes.append(HolePass(tilted, root_sum, up))
    return np.stack(logits), passes


def _add_hole_flows(
    holes: Patterns,
    passes: list[HolePass],
    residual: FloatArray,
    d_g: FloatArray,
    d_root: FloatArray,
) -> None:
    """Add the gradient by residuals (Y, holes) to that of cells (Y, W) and roots (Y, H)."""
    for y, hole in enumerate(passes):
        pull = sums_by_index(holes.row_index, residual[y], len(hole.total))
        root_flow, cells, _ = hole.tilted.flows(holes, hole.up, hole.total, pull, with_pairs=False)
        d_root[y] += root_flow
        d_g[y] += cells.sum(axis=1)


def log_total(logits: FloatArray) -> FloatArray:
    """(n,) log of the sum of exponentials of logits (n, Y); as `logaddexp.reduce`, many at once."""
    top = logits.max(axis=1)
    top = np.where(np.isfinite(top), top, 0.0)
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(np.exp(logits - top[:, None]).sum(axis=1)) + top)


def score(model: TiltedTree, rows: Rows) -> Scores:
    """Cross-entropy and NLL of rows."""
    flows = normaliser(model, [TreePass(tree) for tree in model.trees])
    logits, _, _ = class_logits(model, rows)
    chosen = logits[np.arange(len(logits)), rows.labels]
    row_entropy = log_total(logits) - chosen
    row_objective = row_entropy + (flows.log_z - chosen) / model.trees[0].n_columns
    return Scores(
        cross_entropy=float(rows.weights @ row_entropy),
        nll=flows.log_z - float(rows.weights @ chosen),
        objective=float(rows.weights @ row_objective),
        row_objective=row_objective,
        row_cross_entropy=row_entropy,
        auc=_auc(logits, rows.labels),
    )


def _auc(logits: FloatArray, labels: IntegerArray) -> float | None:
    """Unweighted area under the ROC curve from ranks; none where it is not defined."""
    positive = labels == 1
    n_positive = int(positive.sum())
    n_negative = len(labels) - n_positive
    if logits.shape[1] != 2 or n_positive == 0 or n_negative == 0:
        return None
    ranks = mean_ranks(logits[:, 1] - logits[:, 0])
    surplus = float(ranks[positive].sum()) - n_positive * (n_positive + 1) / 2
    return surplus / (n_positive * n_negative)


class TiltProblem:
    """The objective of the tilt over a flat, preconditioned vector."""

    def __init__(self, model: TiltedTree, rows: Rows, layout: TiltLayout, prior: TiltPrior) -> None:
        """Set up for fixed trees (those of `model`), rows and prior."""
        self.model = model
        self.rows = rows
        self.layout = layout
        self.prior = prior
        self._passes = [TreePass(tree) for tree in model.trees]
        Y, H = model.n_classes, model.trees[0].n_states
        self._sizes = [Y, Y * layout.n_fine, Y * layout.n_coarse, Y * H]
        self._target = np.zeros((len(rows.labels), Y))
        self._target[np.arange(len(rows.labels)), rows.labels] = 1.0
        self._scale = self._preconditioner()

    @cached_property
    def _compiled(self) -> CompiledObjective:
        """What compiled loops take, laid out."""
        model = self.model
        roots = np.stack([model.tree_of(y).root for y in range(model.n_classes)])
        return CompiledObjective(
            *(model.trees, roots, self.rows, self.layout, self.prior, self._scale, _ROOT_RIDGE)
        )

    def _preconditioner(self) -> FloatArray:
        """1 / sqrt(curvature): count * p(1 - p) + ridge for every coordinate."""
        rows, Y = self.rows, self.model.n_classes
        share = rows.weights @ self._target  # (Y,)
        variance = rows.n_effective * share * (1 - share) + 1e-6
        cells = rows.cells.totals(rows.weights)
        coarse = self.layout.coarse_of.T @ cells
        fine_ridge = self.prior.fine[self.layout.column_of]
        coarse_ridge = 2 * self.prior.coarse[self.layout.coarse_column]
        root = np.full(self.model.trees[0].n_states, 1.0 / self.model.trees[0].n_states)
        parts = [
            variance,
            (np.outer(variance, cells) + fine_ridge).ravel(),
            (np.outer(variance, coarse) + coarse_ridge).ravel(),
            np.outer(variance, root).ravel() + _ROOT_RIDGE,
        ]
        assert [len(part) for part in parts] == self._sizes, Y
        return np.asarray(np.sqrt(rows.n_effective / np.concatenate(parts)))

    def unpack(self, vector: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
        """c (Y,), fine (Y, W), coarse (Y, C) and root logits (Y, H) of a vector."""
        Y = self.model.n_classes
        c, fine, coarse, root = np.split(vector * self._scale, np.cumsum(self._sizes)[:-1])
        return c, fine.reshape(Y, -1), coarse.reshape(Y, self.layout.n_coarse), root.reshape(Y, -1)

    def pack(
        self, c: FloatArray, fine: FloatArray, coarse: FloatArray, root: FloatArray
    ) -> FloatArray:
        """Inverse of :meth:`unpack`."""
        flat = np.concatenate([c, fine.ravel(), coarse.ravel(), root.ravel()])
        return np.asarray(flat / self._scale)

    def model_at(self, vector: FloatArray) -> TiltedTree:
        """The tilted tree of a vector."""
        c, fine, coarse, root = self.unpack(vector)
        return self.model.with_tilt(c, fine + (self.layout.coarse_of @ coarse.T).T, root)

    def __call__(self, vector: FloatArray) -> tuple[float, FloatArray]:
        """Return objective and gradient at a packed vector."""
        native = kernels()
        if native is None or not self.rows.are_compiled:
            return self._evaluate(vector)
        value, gradient = self._compiled(native, vector)
        if self.rows.holes is None:
            return value, gradient
        more, slope = self._of_holes(self.model_at(vector), self.rows.holes)
        return value + more, gradient + slope

    def _of_holes(self, model: TiltedTree, holes: Patterns) -> tuple[float, FloatArray]:
        """What rows with missing cells add to objective and gradient."""
        rows, D = self.rows, self.model.trees[0].n_columns
        weights, labels = rows.weights[rows.hole_rows], rows.labels[rows.hole_rows]
        logits, passes = _hole_logits(model, holes, rows.evidence.dtype)
        logits = logits[:, holes.row_index]  # (Y, holes)
        total = log_total(logits.T)
        every = np.arange(len(labels))
        chosen = logits[labels, every]
        value = float(weights @ (total - chosen)) - float(weights @ chosen) / D
        residual = np.exp(logits - total)
        residual[labels, every] -= 1.0 + 1.0 / D
        residual *= weights
        d_g, d_root = np.zeros_like(model.g), np.zeros_like(model.root_logits)
        _add_hole_flows(holes, passes, residual, d_g, d_root)
        d_coarse = (self.layout.coarse_of.T @ d_g.T).T
        parts = [residual.sum(axis=1), d_g.ravel(), d_coarse.ravel(), d_root.ravel()]
        return value, np.concatenate(parts) * self._scale

    def _evaluate(self, vector: FloatArray) -> tuple[float, FloatArray]:
        """The NumPy twin of `tilt_objective`, rows with missing cells included."""
        _, fine, coarse, root = self.unpack(vector)
        model = self.model_at(vector)
        rows, D = self.rows, self.model.trees[0].n_columns
        flows = normaliser(model, self._passes)
        logits, mixed, hole_passes = class_logits(model, rows)
        logits = logits.T  # (Y, n), contiguous
        total = log_total(logits.T)
        chosen = logits[rows.labels, np.arange(len(rows.labels))]
        value = float(rows.weights @ (total - chosen))
        value += (flows.log_z - float(rows.weights @ chosen)) / D
        # d objective / d logits, the normaliser apart: (Y, n).
        residual = np.exp(logits - total)
        residual[rows.labels, np.arange(len(rows.labels))] -= 1.0 + 1.0 / D
        residual *= rows.weights
        d_c = residual.sum(axis=1) + np.exp(flows.log_class - flows.log_z) / D
        plain = residual if rows.holes is None else residual * rows.complete
        d_g, d_root = plain_flows(rows, plain, mixed)
        d_g = d_g + flows.cells / D
        d_root = model.root_weights() * d_root + flows.root / D
        if rows.holes is not None:
            _add_hole_flows(rows.holes, hole_passes, residual[:, rows.hole_rows], d_g, d_root)
        d_coarse = (self.layout.coarse_of.T @ d_g.T).T
        n = rows.n_effective
        cost, slope = fine_penalty(fine, self.prior, self.layout)
        value += cost / n
        d_g += slope / n
        cost, slope = coarse_penalty(coarse, self.prior, self.layout)
        value += cost / n
        d_coarse += slope / n
        value += 0.5 * _ROOT_RIDGE * float(np.square(root).sum()) / n
        d_root += _ROOT_RIDGE * root / n
        gradient = np.concatenate([d_c, d_g.ravel(), d_coarse.ravel(), d_root.ravel()])
        return value, gradient * self._scale


def curvature(model: TiltedTree, rows: Rows) -> FloatArray:
    """(Y, W) sum over the rows in a state of p(y | x)(1 - p(y | x)), in rows."""
    logits, _, _ = class_logits(model, rows)
    p = np.exp(logits - log_total(logits)[:, None])
    spread = p * (1 - p) * (rows.weights * rows.n_effective)[:, None]
    return rows.cells.totals(spread).T


def start_vector(problem: TiltProblem, tau: float) -> FloatArray:
    """Start at g = tau log(p(x_j | y) / p(x_j)) from the rows, everything else at zero."""
    rows, model = problem.rows, problem.model
    Y = model.n_classes
    target = np.zeros((len(rows.labels), Y))
    target[np.arange(len(rows.labels)), rows.labels] = rows.weights
    joint = rows.cells.totals(target).T * rows.n_effective
    share = target.sum(axis=0)
    overall = joint.sum(axis=0)
    # Two pseudo-rows that follow the class shares: a state never seen keeps a tilt of zero.
    ratio = (joint + 2.0 * share[:, None]) / ((overall + 2.0) * np.maximum(share, 1e-12)[:, None])
    g = tau * np.log(np.maximum(ratio, 1e-12))
    c = np.log(np.maximum(share, 1e-12))
    coarse = np.zeros((Y, problem.layout.n_coarse))
    return problem.pack(c, g, coarse, np.zeros_like(model.root_logits))


def fit_tilt(
    problem: TiltProblem, start: FloatArray, n_steps: int = 60, memory: int = 12
) -> tuple[FloatArray, dict[str, float]]:
    """Run L-BFGS and return the vector and a small report."""
    result = optimize.minimize(
        problem,
        start,
        jac=True,
        method="L-BFGS-B",
        options={"maxiter": n_steps, "maxcor": memory, "ftol": 1e-9, "gtol": 1e-7},
    )
    report = {
        "objective": float(result.fun),
        "steps": float(result.nit),
        "evaluations": float(result.nfev),
    }
    return np.asarray(result.x), report

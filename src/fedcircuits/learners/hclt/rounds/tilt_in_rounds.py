"""The tilt in rounds of sums: its objective is a sum over rows and terms of the parameters alone.

Everyone runs the same L-BFGS on the same sums, so the parameters need not travel.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from fedcircuits.arrays import BoolArray, FloatArray
from fedcircuits.learners.hclt.options import FitOptions
from fedcircuits.learners.hclt.sample import Sample
from fedcircuits.learners.hclt.tilt.cells import MeanCells
from fedcircuits.learners.hclt.tilt.priors import (
    TiltLayout,
    TiltPrior,
    constant_prior,
    tilt_layout,
    updated_prior,
)
from fedcircuits.learners.hclt.tilt.rows import Rows, prepare_rows
from fedcircuits.learners.hclt.tilt.tilt import TiltedTree, untilted
from fedcircuits.learners.hclt.tilt.tilt_fit import TiltProblem, curvature, start_vector
from fedcircuits.learners.hclt.tree.latent_tree import LatentTree

Sums = dict[str, npt.NDArray[np.float64]]
Pairs = deque[tuple[FloatArray, FloatArray]]  # moves, and what they changed in the gradient
Search = Generator[FloatArray, tuple[float, FloatArray], FloatArray]

START_TAU = 0.25
MEMORY, LEAST_FALL, FLAT = 12, 1e-9, 1e-7
SUFFICIENT, MOST_HALVINGS = 1e-4, 20


@dataclass(frozen=True)
class ClassCounts:
    """Rows of each class in each state, summed over the clients.

    Attributes:
        cells: (Y, W) rows of each class in each state.
        rows: (Y,) rows of each class.
    """

    cells: FloatArray
    rows: FloatArray


def fit_tilt_in_rounds(
    tree: LatentTree,
    sample: Sample,
    classes: ClassCounts,
    ordered: BoolArray,
    marginals: list[FloatArray],
    options: FitOptions,
) -> Generator[Sums, Sums, TiltedTree]:
    """Fit the tilt on everyone's rows; the strengths of its prior follow from the fit itself.

    Args:
        tree: shared by all classes.
        sample: own rows.
        classes: of all rows.
        ordered: (D,) ordered columns.
        marginals: D arrays (card_j,) shares of the states.
        options: numbers of steps and rounds.
    """
    assert sample.labels is not None
    base = untilted(tree, len(classes.rows))
    layout = tilt_layout(tree.cards, ordered, marginals)
    total = float(classes.rows.sum())
    rows = prepare_rows(base, sample.codes, sample.labels, sample.weights, np.float64)
    rows = replace(rows, weights=sample.weights / total, n_effective=total)
    prior = constant_prior(tree.n_columns)
    problem = _SharedProblem(base, rows, classes, layout, prior)
    vector = start_vector(problem.frame, START_TAU)
    vector = yield from problem.minimise(vector, options.n_tilt_steps)
    for _round in range(options.n_prior_updates):
        tables, model = problem.frame.unpack(vector), problem.frame.model_at(vector)
        summed = yield {"curvature": curvature(model, rows)}
        fresh = updated_prior(tables[1], tables[2], summed["curvature"], prior, layout)
        # Without rows to check on, the update of the fine tables alone is the careful choice.
        prior = TiltPrior(fresh.fine, prior.coarse)
        problem = _SharedProblem(base, rows, classes, layout, prior)
        vector = problem.frame.pack(*tables)
        vector = yield from problem.minimise(vector, options.n_tilt_steps // 2)
    return problem.frame.model_at(vector)


class _SharedProblem:
    """The tilt's objective over all rows, of which only some are here.

    `frame` says what a vector means: its preconditioner is the one of all rows, known from one row
    a class that stands for the class's mean.
    """

    def __init__(
        self,
        base: TiltedTree,
        rows: Rows,
        classes: ClassCounts,
        layout: TiltLayout,
        prior: TiltPrior,
    ) -> None:
        share = classes.rows / classes.rows.sum()
        means = classes.cells / np.maximum(classes.rows, 1e-300)[:, None]
        Y, H = base.n_classes, base.trees[0].n_states
        standing = _without_holes(
            replace(
                rows,
                cells=MeanCells(means),
                labels=np.arange(Y),
                weights=share,
                evidence=np.ones((1, Y, H)),
                log_scale=np.zeros((1, Y)),
                complete=np.ones(Y),
            )
        )
        none = _without_holes(
            replace(
                rows,
                cells=replace(rows.plain_cells, codes=rows.plain_cells.codes[:0]),
                labels=rows.labels[:0],
                weights=rows.weights[:0],
                evidence=rows.evidence[:, :0],
                log_scale=rows.log_scale[:, :0],
                complete=rows.complete[:0],
            )
        )
        self.frame = TiltProblem(base, standing, layout, prior)
        self._here = TiltProblem(base, rows, layout, prior)
        self._alone = TiltProblem(base, none, layout, prior)  # the terms without rows

    def minimise(self, start: FloatArray, n_steps: int) -> Generator[Sums, Sums, FloatArray]:
        """Minimise the objective by L-BFGS, one round of sums an evaluation."""
        ones = self.frame.unpack(np.ones_like(start))
        scale = np.concatenate([part.ravel() for part in ones])  # of the vector's coordinates
        search = lbfgs(start, n_steps)
        vector = next(search)
        while True:
            value, gradient = self._plain(self._here, vector)
            constant, slope = self._plain(self._alone, vector)
            terms = {"value": np.array([value - constant]), "gradient": gradient - slope}
            total = yield terms
            try:
                vector = search.send(
                    (float(total["value"][0]) + constant, (total["gradient"] + slope) * scale)
                )
            except StopIteration as stopped:
                return np.asarray(stopped.value)

    def _plain(self, problem: TiltProblem, vector: FloatArray) -> tuple[float, FloatArray]:
        """Objective and its gradient in plain coordinates, whatever the problem's own scale."""
        value, gradient = problem(problem.pack(*self.frame.unpack(vector)))
        nothing = np.zeros(0)
        return value, problem.pack(gradient, nothing, nothing, nothing)


def _without_holes(rows: Rows) -> Rows:
    return replace(
        rows, hole_rows=np.zeros(0, dtype=np.int64), hole_codes=rows.hole_codes[:0], holes=None
    )


def lbfgs(start: FloatArray, n_steps: int, memory: int = MEMORY) -> Search:
    """L-BFGS as a generator: yields points, is sent value and gradient, returns the best point.

    Args:
        start: the first point.
        n_steps: most steps; a step may ask for several points.
        memory: pairs kept.
    """
    x = start
    value, gradient = yield x
    pairs: Pairs = deque(maxlen=memory)
    for _step in range(n_steps):
        if np.abs(gradient).max() < FLAT:
            break
        direction = -_inverse_hessian(gradient, pairs)
        slope = float(direction @ gradient)
        if slope >= 0:  # no way down from here: forget the past
            pairs.clear()
            direction, slope = -gradient, -float(gradient @ gradient)
        step = 1.0 if pairs else min(1.0, 1.0 / float(np.abs(gradient).sum()))
        for _halving in range(MOST_HALVINGS):
            new = x + step * direction
            new_value, new_gradient = yield new
            if np.isfinite(new_value) and new_value <= value + SUFFICIENT * step * slope:
                break
            step *= 0.5
        else:
            return x
        moved, changed = new - x, new_gradient - gradient
        if float(moved @ changed) > 1e-12 * float(changed @ changed):
            pairs.append((moved, changed))
        fall = value - new_value
        x, value, gradient = new, new_value, new_gradient
        if fall <= LEAST_FALL * max(abs(value), 1.0):
            break
    return x


def _inverse_hessian(gradient: FloatArray, pairs: Pairs) -> FloatArray:
    """The two-loop recursion: the estimated inverse Hessian times a gradient."""
    q, coefficients = gradient.copy(), []
    for moved, changed in reversed(pairs):
        a = float(moved @ q) / float(moved @ changed)
        coefficients.append(a)
        q -= a * changed
    if pairs:
        moved, changed = pairs[-1]
        q *= float(moved @ changed) / float(changed @ changed)
    for (moved, changed), a in zip(pairs, reversed(coefficients), strict=True):
        b = float(changed @ q) / float(moved @ changed)
        q += (a - b) * moved
    return q

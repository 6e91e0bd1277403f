"""Settings of a fit of the table learners (`FitOptions`)."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Literal

from fedcircuits.arrays import FloatArray, IntArray
from fedcircuits.errors import LearningError
from fedcircuits.learners.hclt.tree.tree_em import Smoothing

Aim = Literal["label", "density"]

# What the states share that a client of a federation has no row in: others mostly have some there,
# and what every client adds is added up, far out in a tail too.
AGREED_PSEUDO_ROWS = 0.03


@dataclass(frozen=True)
class FitOptions:
    """Overrides of what is otherwise chosen automatically (None: automatic, see `sizes.py`).

    Attributes:
        n_states: H of a tree or K of a mixture.
        n_trees: Trees of the same structure that are averaged; None tries whether that pays.
        n_iterations: Most full-batch EM steps.
        smoothing: Pseudo-counts of EM.
        bins: D arrays of states that are neighbouring bins (see `Smoothing`); empty for none.
        pseudo_rows: That the states of a column have together where no row is in them.
        max_em_rows: Rows EM looks at before the last steps.
        validation_share: Share of the rows held out for the stop of EM, and two and a half times
            as many for choices about the label (from 500 on); all return for the last steps.
        class_transitions: Whether transitions may depend on the class; None tries it and keeps it
            where validation improves.
        head: Whether boosted trees are pooled into p(y | x); None tries it and keeps it where
            held-out rows gain for certain (see `head/fit_head.py`).
        n_codes: (D,) number of categories of every column, 0 for numbers; a head needs it.
        label_cuts: (k - 1,) ends between the intervals of a numeric label, whose states the classes
            are; None for a label with classes of its own.
        min_rows: Least rows behind a leaf of a tree.
        aim: "label" fits classes to be distinguished (the tilt), "density" to be described each
            (`class_em.py`).
        n_tilt_steps: L-BFGS steps of the first fit of the tilt.
        n_prior_updates: Updates of the prior of fine tables, then as many of both.
        prior_scale: What the strengths of the tilt's prior are multiplied by in a last update.
        n_jobs: Threads at work at the same time; the result does not depend on it.
    """

    n_states: int | None = None
    n_trees: int | None = None
    n_iterations: int | None = None
    smoothing: Smoothing | None = None
    bins: tuple[IntArray, ...] = ()
    pseudo_rows: float = 1.0
    max_em_rows: int | None = None
    validation_share: float = 0.1
    class_transitions: bool | None = None
    head: bool | None = False
    n_codes: IntArray | None = None
    label_cuts: FloatArray | None = None
    min_rows: int | None = None
    aim: Aim = "label"
    n_tilt_steps: int = 40
    n_prior_updates: int = 2
    prior_scale: float = 1.0
    n_jobs: int = 1


def check_shares(learner: str, validation_share: float, prior_scale: float) -> None:
    """Raise an error that names each of the two settings that is out of its range."""
    faults = []
    if not 0 <= validation_share < 1:
        faults.append(f"validation_share is a share from 0 to below 1, found {validation_share!r}")
    if not 0 < prior_scale < inf:
        faults.append(f"prior_scale is a number above 0, found {prior_scale!r}")
    if faults:
        raise LearningError(f"{learner}: " + "; ".join(faults))

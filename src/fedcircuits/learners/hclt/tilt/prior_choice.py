"""Choose the prior of the tilt on held-out rows; folds of rows where these are few."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from fedcircuits.arrays import FloatArray
from fedcircuits.learners.hclt.options import FitOptions
from fedcircuits.learners.hclt.sample import Sample
from fedcircuits.learners.hclt.tilt.priors import (
    TiltLayout,
    TiltPrior,
    constant_prior,
    updated_prior,
)
from fedcircuits.learners.hclt.tilt.rows import Rows, prepare_rows, take_rows
from fedcircuits.learners.hclt.tilt.tilt import TiltedTree
from fedcircuits.learners.hclt.tilt.tilt_fit import (
    TiltProblem,
    curvature,
    fit_tilt,
    score,
    start_vector,
)

Tables = tuple[FloatArray, FloatArray, FloatArray, FloatArray]

_START_TAU = 0.25
_N_FOLDS = 4
_NO_ROWS = np.zeros(0, dtype=np.int64)


@dataclass
class Fold:
    """Rows to fit, rows to check, and the tables of the latest fit.

    `checked_rows` says which of all rows are checked, where folds share them out.
    """

    rows: Rows
    checked: Rows | None
    tables: Tables | None = None
    checked_rows: npt.NDArray[np.int64] = field(default_factory=lambda: _NO_ROWS)


def make_folds(
    base: TiltedTree, train: Sample, held: Sample, rng: np.random.Generator
) -> list[Fold]:
    """The main fit first. Where validation rows decide little, folds of all rows take over."""
    assert train.labels is not None
    rows = prepare_rows(base, train.codes, train.labels, train.weights)
    if held.labels is None or len(held.codes) == 0:
        return [Fold(rows, None)]
    checked = prepare_rows(base, held.codes, held.labels, held.weights)
    if not held.decides_little:
        return [Fold(rows, checked)]
    joined = prepare_rows(
        base,
        np.concatenate([train.codes, held.codes]),
        np.concatenate([train.labels, held.labels]),
        np.concatenate([train.weights, held.weights]),
    )
    # Dealt out class by class, so that every fold has its share of each.
    order = rng.permutation(len(joined.labels))
    order = order[np.argsort(joined.labels[order], kind="stable")]
    folds = [Fold(joined, None)]
    for number in range(_N_FOLDS):
        mine = np.sort(order[number::_N_FOLDS])
        rest = np.setdiff1d(order, mine)
        checked = take_rows(joined, mine, base.trees[0])
        folds.append(Fold(take_rows(joined, rest, base.trees[0]), checked, checked_rows=mine))
    return folds


def choose_prior(
    base: TiltedTree,
    fold: Fold,
    layout: TiltLayout,
    options: FitOptions,
    notify: Callable[[float, str], None],
) -> tuple[TiltPrior, Tables, list[dict[str, float | str]]]:
    """Fit the tilt and update its prior, several times.

    First the strengths of the fine tables move, then those of the coarse ones too. The last prior
    is kept unless an earlier one is better on held-out rows by more than one paired standard error:
    with few rows the update can switch columns off that matter. Where a weaker prior is asked for,
    it is tried once more at the end and stays by the same rule.

    Returns:
        The prior, the fitted tables (c, fine, coarse, root logits) and a report per update.
    """
    tried: list[tuple[TiltPrior, Tables, FloatArray]] = []
    report: list[dict[str, float | str]] = []
    n_fits = 1 + 2 * options.n_prior_updates + (options.prior_scale != 1.0)
    for number, (kind, prior, model) in enumerate(updates(base, fold, layout, options)):
        notify(0.6 + 0.2 * number / n_fits, f"tilt, prior {number + 1}")
        assert fold.tables is not None
        losses = np.zeros(0)
        if fold.checked is not None:
            found = score(model, fold.checked)
            losses = found.row_objective
            entry: dict[str, float | str] = {"kind": kind, "cross_entropy": found.cross_entropy}
            report.append({**entry, "nll": found.nll})
        tried.append((prior, fold.tables, losses))
    last = tried[-1][2]
    # With nothing to check on, the update of the fine tables alone is the careful choice.
    kept = len(tried) - 1 if len(last) else options.n_prior_updates
    if len(last):
        best = int(np.argmin([losses.mean() for _, _, losses in tried]))
        gain = last - tried[best][2]
        if gain.mean() > gain.std() / np.sqrt(len(gain)):
            kept = best
        report[kept]["kept"] = "yes"
    return tried[kept][0], tried[kept][1], report


def updates(
    base: TiltedTree, fold: Fold, layout: TiltLayout, options: FitOptions
) -> Iterator[tuple[str, TiltPrior, TiltedTree]]:
    """Fit a fold's tilt under the first prior, and under one estimated from each fit in turn.

    Yields:
        What was updated, the prior, and the model; the fold holds its tables.
    """
    kinds = ["start"] + ["fine"] * options.n_prior_updates + ["both"] * options.n_prior_updates
    prior = constant_prior(base.trees[0].n_columns)
    for number, kind in enumerate(kinds):
        model = fit_fold(base, fold, layout, prior, options.n_tilt_steps)
        yield kind, prior, model
        if number + 1 < len(kinds):
            assert fold.tables is not None
            fine, coarse = fold.tables[1:3]
            fresh = updated_prior(fine, coarse, curvature(model, fold.rows), prior, layout)
            moved = fresh.coarse if kinds[number + 1] == "both" else prior.coarse
            prior = TiltPrior(fresh.fine, moved)
    if options.prior_scale != 1.0:
        prior = prior.scaled(options.prior_scale)
        yield "scaled", prior, fit_fold(base, fold, layout, prior, options.n_tilt_steps)


def fit_fold(
    base: TiltedTree, fold: Fold, layout: TiltLayout, prior: TiltPrior, n_steps: int
) -> TiltedTree:
    """Fit one fold's tilt under a prior, from its latest tables; later ones move little."""
    problem = TiltProblem(base, fold.rows, layout, prior)
    if fold.tables is None:
        vector, _ = fit_tilt(problem, start_vector(problem, _START_TAU), n_steps)
    else:
        vector, _ = fit_tilt(problem, problem.pack(*fold.tables), n_steps // 2)
    fold.tables = problem.unpack(vector)
    return problem.model_at(vector)

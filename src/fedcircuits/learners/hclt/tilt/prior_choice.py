"""Choose prior and sharpness of the tilt on held-out rows, by folds where they are few."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from fedcircuits.arrays import FloatArray
from fedcircuits.density.tilt import log_softmax
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
    class_logits,
    curvature,
    fit_tilt,
    score,
    start_vector,
)

Tables = tuple[FloatArray, FloatArray, FloatArray, FloatArray]

_START_TAU = 0.25
_N_FOLDS = 4
# Factors of the tilt tried where rows are few.
_SHARPNESS = (0.8, 1.0, 1.25, 1.6, 2.0, 2.5)
_NO_ROWS = np.zeros(0, dtype=np.int64)


@dataclass
class Fold:
    """One fit beside the updates of the prior: rows to fit, rows to check, its latest tables.

    `prior` is the one these were fitted with; `checked_rows` says which of all rows are checked,
    where folds share them out.
    """

    rows: Rows
    checked: Rows | None
    tables: Tables | None = None
    prior: TiltPrior | None = None
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
    folds: list[Fold],
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
    prior = constant_prior(base.trees[0].n_columns)
    few = len(folds) > 1
    kinds = ["start"] + ["fine"] * options.n_prior_updates + ["both"] * options.n_prior_updates
    if options.prior_scale != 1.0:
        kinds.append("scaled")
    tried: list[tuple[TiltPrior, Tables, FloatArray]] = []
    report: list[dict[str, float | str]] = []
    for number, kind in enumerate(kinds):
        notify(0.6 + 0.2 * number / len(kinds), f"tilt, prior {number + 1}")
        losses, entropy, nll, weight = [], 0.0, 0.0, 0.0
        is_last = number + 1 == len(kinds)
        # Cross-validation is dear: the folds see the first prior and the last.
        asked = folds[:1] if few and number > 0 and not is_last else folds
        for fold in asked:
            model = fit_fold(base, fold, layout, prior, options.n_tilt_steps)
            if fold is folds[0]:
                main = model
            if fold.checked is not None:
                found = score(model, fold.checked)
                losses.append(found.row_objective)
                size = fold.checked.n_effective
                entropy, nll = entropy + size * found.cross_entropy, nll + size * found.nll
                weight += size
        tables = folds[0].tables
        assert tables is not None
        if losses or not few:
            tried.append((prior, tables, np.concatenate(losses) if losses else np.zeros(0)))
        if weight > 0:
            report.append({"kind": kind, "cross_entropy": entropy / weight, "nll": nll / weight})
        if kinds[number + 1 : number + 2] == ["scaled"]:
            prior = prior.scaled(options.prior_scale)
        elif number + 1 < len(kinds):
            fresh = updated_prior(
                tables[1], tables[2], curvature(main, folds[0].rows), prior, layout
            )
            moved = fresh.coarse if kinds[number + 1] == "both" else prior.coarse
            prior = TiltPrior(fresh.fine, moved)
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


def fit_fold(
    base: TiltedTree, fold: Fold, layout: TiltLayout, prior: TiltPrior, n_steps: int
) -> TiltedTree:
    """Fit one fold's tilt under a prior, from its latest tables; later ones move little."""
    problem = TiltProblem(base, fold.rows, layout, prior)
    if fold.tables is None:
        vector, _ = fit_tilt(problem, start_vector(problem, _START_TAU), n_steps)
    else:
        vector, _ = fit_tilt(problem, problem.pack(*fold.tables), n_steps // 2)
    fold.tables, fold.prior = problem.unpack(vector), prior
    return problem.model_at(vector)


def fold_model(
    base: TiltedTree, fold: Fold, layout: TiltLayout, prior: TiltPrior, n_steps: int
) -> TiltedTree:
    """The fold's tilt under a prior, fitted again only if its latest tables are of another one."""
    if fold.prior is not prior or fold.tables is None:
        return fit_fold(base, fold, layout, prior, n_steps)
    c, fine, coarse, root = fold.tables
    return base.with_tilt(c, fine + (layout.coarse_of @ coarse.T).T, root)


def choose_sharpness(models: list[TiltedTree], folds: list[Fold]) -> tuple[float, dict[str, float]]:
    """The factor of the whole tilt that is best on rows the fits have not seen.

    With few rows the prior makes a tilt that orders rows well and is too timid: multiplied, it is
    still a tilt, and calibrated. A factor other than one must gain more than a standard error.

    Returns:
        The factor, and a report: it and its gain in the objective.
    """
    losses = {}
    for factor in _SHARPNESS:
        found = []
        for model, fold in zip(models, folds, strict=True):
            assert fold.checked is not None
            found.append(score(model.sharpened(factor), fold.checked).row_objective)
        losses[factor] = np.concatenate(found)
    best = min(losses, key=lambda factor: float(losses[factor].mean()))
    gain = losses[1.0] - losses[best]
    if gain.mean() <= gain.std() / np.sqrt(gain.size):
        best = 1.0
        gain = np.zeros(1)
    return best, {"factor": best, "gain": float(gain.mean())}


def out_of_fold(
    models: list[TiltedTree], folds: list[Fold]
) -> tuple[FloatArray, npt.NDArray[np.int64]]:
    """(n, Y) log p(y | x) of every row by the fold that has not seen it, and (n,) that fold."""
    n = sum(fold.checked_rows.size for fold in folds)
    answer, fold_of = np.empty((n, models[0].n_classes)), np.empty(n, dtype=np.int64)
    for number, (model, fold) in enumerate(zip(models, folds, strict=True)):
        assert fold.checked is not None
        answer[fold.checked_rows] = log_softmax(class_logits(model, fold.checked)[0])
        fold_of[fold.checked_rows] = number
    return answer, fold_of

"""Fit p(label | rest): tilt and prior in turn, choices on validation rows, last steps on all."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedcircuits.arrays import FloatArray
from fedcircuits.learners.hclt.head.choose_head import (
    HeadPlan,
    HeadTrial,
    choose_head,
    forced_plan,
    mean_auc,
)
from fedcircuits.learners.hclt.options import FitOptions
from fedcircuits.learners.hclt.sample import FEW_VALIDATION_ROWS, Sample
from fedcircuits.learners.hclt.tilt.class_transitions import (
    AdamOptions,
    adam_epochs,
    make_batches,
    with_class_trees,
)
from fedcircuits.learners.hclt.tilt.priors import (
    TiltLayout,
    TiltPrior,
    constant_prior,
    tilt_layout,
    updated_prior,
)
from fedcircuits.learners.hclt.tilt.tilt import TiltedTree, untilted
from fedcircuits.learners.hclt.tilt.tilt_fit import (
    Rows,
    Scores,
    TiltProblem,
    class_logits,
    curvature,
    fit_tilt,
    prepare_rows,
    score,
    start_vector,
    take_rows,
)
from fedcircuits.learners.hclt.tree.latent_tree import LatentTree
from fedcircuits.learners.hclt.tree.tree_em import column_marginals

Tables = tuple[FloatArray, FloatArray, FloatArray, FloatArray]

# Rows that trials of the prior look at; the last fit sees all.
_MAX_TRIAL_ROWS = 150_000
_START_TAU = 0.25
_N_FOLDS = 4
_CLASS_SWEEPS = 4
# What class transitions must take off the objective to be worth their parameters, nats a row.
_LEAST_GAIN = 5e-4
# Rows heads are tried on; the one that is kept sees all.
_MAX_HEAD_ROWS = 60_000
_NO_ROWS = np.zeros(0, dtype=np.int64)


def fit_label(
    trial_tree: LatentTree,
    final_tree: LatentTree,
    train: Sample,
    held: Sample,
    n_unseen: int,
    everything: Sample,
    ordered: npt.NDArray[np.bool_],
    n_classes: int,
    options: FitOptions,
    rng: np.random.Generator,
    tell: Callable[[float, str], None],
) -> tuple[TiltedTree, HeadPlan | None, dict[str, object]]:
    """Fit the tilt; the plan of a head where one is kept.

    Args:
        trial_tree: The tree trained without the validation rows; priors are chosen on it.
        final_tree: The tree after the last EM steps, which the result uses.
        train: Training rows.
        held: Validation rows, possibly none.
        n_unseen: How many of them, the first ones, `trial_tree` has not seen.
        everything: All rows.
        ordered: (D,) ordered columns.
        n_classes: Number of classes.
        options: Numbers of steps and of updates of the prior.
        rng: Source of the subsample of rows.
        tell: Progress.
    """
    if len(train.codes) > _MAX_TRIAL_ROWS:
        train = train.take(rng.choice(len(train.codes), size=_MAX_TRIAL_ROWS, replace=False))
    cards = trial_tree.cards
    layout = tilt_layout(cards, ordered, column_marginals(train.codes, cards, train.weights))
    base = untilted(trial_tree, n_classes)
    folds = make_folds(base, train, held, rng)
    prior, tables, updates = choose_prior(base, folds, layout, options, tell)
    report: dict[str, object] = {"prior_updates": updates}

    n_sweeps = 0
    plan = forced_plan() if options.head else None
    has_transitions = len(trial_tree.parent) > 1 and options.class_transitions is not False
    if folds[-1].checked is not None and (has_transitions or options.head is not False):
        # Cross-validated folds end with a fit that has seen the held rows: start without them.
        main = folds[0] if len(folds) == 1 else make_folds(base, train, held.take(_NO_ROWS), rng)[0]
        best = plain = _fit_fold(base, main, layout, prior, options.n_tilt_steps)
        assert main.tables is not None
        if has_transitions:
            tell(0.8, "class transitions")
            best, n_sweeps, tried = try_class_transitions(
                plain, train, held, layout, prior, main.tables, _CLASS_SWEEPS, n_unseen, rng
            )
            if options.class_transitions:
                n_sweeps = max(n_sweeps, 1)
            report["class_transitions"] = {"kept_sweeps": n_sweeps, "sweeps": tried}
        if options.head is not False:
            tell(0.85, "a head of trees")
            trial = _try_head(plain, best, train, held, ordered, options.head is True, rng)
            plan, report["head"] = trial.plan, trial

    assert everything.labels is not None
    tell(0.9, "last steps on all rows")
    base = untilted(final_tree, n_classes)
    rows = prepare_rows(base, everything.codes, everything.labels, everything.weights)
    problem = TiltProblem(base, rows, layout, prior)
    vector, report["tilt"] = fit_tilt(problem, problem.pack(*tables), options.n_tilt_steps)
    model = problem.model_at(vector)
    if n_sweeps > 0:
        fitted = problem.unpack(vector)
        *_, model = class_sweeps(model, everything, layout, prior, fitted, n_sweeps, rng)
    return model, plan, report


def _try_head(
    plain: TiltedTree,
    model: TiltedTree,
    train: Sample,
    held: Sample,
    ordered: npt.NDArray[np.bool_],
    forced: bool,
    rng: np.random.Generator,
) -> HeadTrial:
    """Heads beside a model that has not seen the held rows; `plain` is that model additive."""
    assert held.labels is not None
    plain_auc = mean_auc(_posterior(plain, held), held.labels)
    if len(train.codes) > _MAX_HEAD_ROWS:
        train = train.take(rng.choice(len(train.codes), size=_MAX_HEAD_ROWS, replace=False))
    proba = (_posterior(model, train), _posterior(model, held))
    cards = model.trees[0].cards
    return choose_head(proba, plain_auc, train, held, cards, ordered, forced, rng)


def _posterior(model: TiltedTree, sample: Sample) -> FloatArray:
    """(n, Y) p(y | x) of coded rows."""
    assert sample.labels is not None
    rows = prepare_rows(model, sample.codes, sample.labels, sample.weights)
    logits = class_logits(model, rows)[0]
    return np.asarray(np.exp(logits - np.logaddexp.reduce(logits, axis=1)[:, None]))


@dataclass
class _Fold:
    """One fit beside the updates of the prior: rows to fit, rows to check, its latest tables."""

    rows: Rows
    checked: Rows | None
    tables: Tables | None = None


def make_folds(
    base: TiltedTree, train: Sample, held: Sample, rng: np.random.Generator
) -> list[_Fold]:
    """The main fit first. With few validation rows, cross-validation over all rows takes over."""
    assert train.labels is not None
    rows = prepare_rows(base, train.codes, train.labels, train.weights)
    if held.labels is None or len(held.codes) == 0:
        return [_Fold(rows, None)]
    checked = prepare_rows(base, held.codes, held.labels, held.weights)
    if len(held.codes) >= FEW_VALIDATION_ROWS:
        return [_Fold(rows, checked)]
    joined = prepare_rows(
        base,
        np.concatenate([train.codes, held.codes]),
        np.concatenate([train.labels, held.labels]),
        np.concatenate([train.weights, held.weights]),
    )
    fold_of = rng.permutation(len(joined.labels)) % _N_FOLDS
    folds = [_Fold(joined, None)]
    for number in range(_N_FOLDS):
        fit_rows = take_rows(joined, np.flatnonzero(fold_of != number), base.trees[0])
        folds.append(
            _Fold(fit_rows, take_rows(joined, np.flatnonzero(fold_of == number), base.trees[0]))
        )
    return folds


def choose_prior(
    base: TiltedTree,
    folds: list[_Fold],
    layout: TiltLayout,
    options: FitOptions,
    tell: Callable[[float, str], None],
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
    kinds = ["start"] + ["fine"] * options.n_prior_updates + ["both"] * options.n_prior_updates
    if options.prior_scale != 1.0:
        kinds.append("scaled")
    tried: list[tuple[TiltPrior, Tables, FloatArray]] = []
    report: list[dict[str, float | str]] = []
    for number, kind in enumerate(kinds):
        tell(0.6 + 0.2 * number / len(kinds), f"tilt, prior {number + 1}")
        losses, entropy, nll, weight = [], 0.0, 0.0, 0.0
        for fold in folds:
            model = _fit_fold(base, fold, layout, prior, options.n_tilt_steps)
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


def _fit_fold(
    base: TiltedTree, fold: _Fold, layout: TiltLayout, prior: TiltPrior, n_steps: int
) -> TiltedTree:
    """Fit one fold's tilt under a prior, from its latest tables; later ones move little."""
    problem = TiltProblem(base, fold.rows, layout, prior)
    if fold.tables is None:
        vector, _ = fit_tilt(problem, start_vector(problem, _START_TAU), n_steps)
    else:
        vector, _ = fit_tilt(problem, problem.pack(*fold.tables), n_steps // 2)
    fold.tables = problem.unpack(vector)
    return problem.model_at(vector)


def try_class_transitions(
    model: TiltedTree,
    train: Sample,
    held: Sample,
    layout: TiltLayout,
    prior: TiltPrior,
    tables: Tables,
    n_sweeps: int,
    n_unseen: int,
    rng: np.random.Generator,
) -> tuple[TiltedTree, int, list[dict[str, float | None]]]:
    """Sweeps of Adam on class-dependent transitions and L-BFGS on the tilt.

    The first `n_unseen` of the held rows are those that the model's tree has not seen.
    A sweep counts only if the objective on the held rows falls by more than one standard error
    (two where those rows are few) and by 5e-4 nats a row. AUC does not decide: its error on some
    thousand rows is as large as the gain that is looked for. The likelihood's part is judged on
    rows that the given model's tree has not seen, the label's on all.

    Returns:
        The model of the best sweep on the held rows, its number (0: the one given) and a report.
    """
    assert held.labels is not None
    before = score(model, prepare_rows(model, held.codes, held.labels, held.weights))
    report = [before.summary()]
    best, best_sweep, highest, latest = model, 0, 0.0, -np.inf
    needed = 2.0 if len(held.codes) < FEW_VALIDATION_ROWS else 1.0
    states = class_sweeps(model, train, layout, prior, tables, n_sweeps, rng)
    for number, current in enumerate(states, start=1):
        after = score(current, prepare_rows(current, held.codes, held.labels, held.weights))
        report.append(after.summary())
        gain, error = _objective_gain(before, after, n_unseen)
        if gain > max(needed * error, _LEAST_GAIN, highest):
            best, best_sweep, highest = current, number, gain
        if gain <= latest:
            break
        latest = gain
    return best, best_sweep, report


def _objective_gain(before: Scores, after: Scores, n_unseen: int) -> tuple[float, float]:
    """Mean fall of the objective and its standard error."""
    label = before.row_cross_entropy - after.row_cross_entropy
    density = (before.row_objective - after.row_objective - label)[:n_unseen]
    error = np.sqrt(label.var() / label.size + density.var() / density.size)
    return float(label.mean() + density.mean()), float(error)


def class_sweeps(
    model: TiltedTree,
    train: Sample,
    layout: TiltLayout,
    prior: TiltPrior,
    tables: Tables,
    n_sweeps: int,
    rng: np.random.Generator,
) -> Iterator[TiltedTree]:
    """The model after every sweep of Adam epochs on all tables and L-BFGS on the tilt."""
    assert train.labels is not None
    adam = AdamOptions(batch_size=512 if len(train.codes) >= 2000 else 64)
    current = with_class_trees(model)
    batches = make_batches(current, train.codes, train.labels, train.weights, adam.batch_size, rng)
    for _ in range(n_sweeps):
        current = adam_epochs(current, batches, adam, rng)
        rows = prepare_rows(current, train.codes, train.labels, train.weights)
        problem = TiltProblem(current, rows, layout, prior)
        # Adam's small moves of g go into the fine table.
        coarse = tables[2]
        fine = current.g - (layout.coarse_of @ coarse.T).T
        start = problem.pack(current.c, fine, coarse, current.root_logits)
        vector, _ = fit_tilt(problem, start, 25)
        tables = problem.unpack(vector)
        current = problem.model_at(vector)
        yield current

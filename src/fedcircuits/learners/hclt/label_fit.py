"""Fit p(label | rest): tilt and prior in turn, choices on validation rows, last steps on all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import numpy.typing as npt

from fedcircuits.arrays import FloatArray
from fedcircuits.density.tilt import log_softmax
from fedcircuits.errors import LearningError
from fedcircuits.learners.hclt.beside import beside
from fedcircuits.learners.hclt.head.fit_head import (
    Head,
    HeadOptions,
    HeadTrial,
    boost_until_held_out,
    final_head,
    try_on_held_out,
    try_out_of_fold,
)
from fedcircuits.learners.hclt.head.fit_number_head import (
    NumberTrial,
    final_number_head,
    folds_with_held,
    try_number_head,
)
from fedcircuits.learners.hclt.head.headed.class_pass import ClassPass, row_seeds
from fedcircuits.learners.hclt.head.trees.number_trees import StateCells
from fedcircuits.learners.hclt.options import FitOptions
from fedcircuits.learners.hclt.sample import MIN_ROWS_FOR_VALIDATION, Sample
from fedcircuits.learners.hclt.tilt.prior_by_folds import choose_prior_by_folds, out_of_fold
from fedcircuits.learners.hclt.tilt.prior_choice import Tables, choose_prior, fit_fold, make_folds
from fedcircuits.learners.hclt.tilt.priors import TiltLayout, TiltPrior, tilt_layout
from fedcircuits.learners.hclt.tilt.rows import prepare_rows
from fedcircuits.learners.hclt.tilt.tilt import TiltedTree, untilted
from fedcircuits.learners.hclt.tilt.tilt_fit import TiltProblem, class_logits, fit_tilt
from fedcircuits.learners.hclt.tilt.transition_trial import (
    Sweep,
    carried_over,
    class_sweeps,
    try_class_transitions,
)
from fedcircuits.learners.hclt.tree.class_tree import class_tree_of
from fedcircuits.learners.hclt.tree.latent_tree import LatentTree
from fedcircuits.learners.hclt.tree.sizes import MAX_TILT_CELLS, MAX_TRIAL_CELLS
from fedcircuits.learners.hclt.tree.tree_em import column_marginals

# Rows that trials of the prior look at; the last fit sees all, unless classes are many.
_MAX_TRIAL_ROWS = 150_000
# Transitions that depend on the class are tried without being asked for up to so many
# multiplications of a pass over the trial rows under every class's tree, and up to so many numbers
# of evidence that such a pass leaves.
_MAX_TRANSITION_WORK, _MAX_TRANSITION_EVIDENCE = 2**36, 2**25
_CLASS_SWEEPS = 4
# Rows the trees of a head see.
_MAX_HEAD_ROWS = 200_000
# A head needs this many rows of every class, so that each fold has some.
_LEAST_CLASS_ROWS = 8
# In a column of which no larger share is missing the tree draws these cells before the tilt is
# fitted: rows with missing cells take passes of their own in every step.
_FEW_MISSING, _ROWS_AT_ONCE = 0.02, 4_096
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
    notify: Callable[[float, str], None],
) -> tuple[TiltedTree, Head | None, dict[str, object]]:
    """Fit the tilt, and a head where one is kept.

    Args:
        trial_tree: The tree trained without the validation rows; priors are chosen on it.
        final_tree: The tree after the last EM steps, which the result uses; it may be an average of
            trees, of which the first is the other one.
        train: Training rows.
        held: Validation rows, possibly none.
        n_unseen: How many of them, the first ones, `trial_tree` has not seen.
        everything: All rows.
        ordered: (D,) ordered columns.
        n_classes: Number of classes.
        options: Numbers of steps and of updates of the prior.
        rng: Source of the subsample of rows.
        notify: Progress.
    """
    few_missing = (everything.codes < 0).mean(axis=0) <= _FEW_MISSING
    train, held, everything = (
        _completed(rows, few_missing, trial_tree) for rows in (train, held, everything)
    )
    train = _at_most(train, min(_MAX_TRIAL_ROWS, MAX_TRIAL_CELLS // n_classes), rng)
    cards = trial_tree.cards
    layout = tilt_layout(cards, ordered, column_marginals(train.codes, cards, train.weights))
    base = untilted(trial_tree, n_classes)
    folds = make_folds(base, train, held, rng)
    report: dict[str, object] = {}
    n_sweeps = 0
    cross_validated = len(folds) > 1
    sharpness = 1.0
    if cross_validated:
        sharpened = options.prior_scale == 1.0 and not options.class_transitions
        found = choose_prior_by_folds(base, folds, layout, options, notify, sharpened=sharpened)
        prior, tables, sharpness = found.prior, found.tables, found.sharpness
        report["prior_updates"] = found.report
        if sharpened:
            report["sharpness"] = {"factor": sharpness, "gain": found.gain}
    else:
        prior, tables, report["prior_updates"] = choose_prior(
            base, folds[0], layout, options, notify
        )
    trial: HeadTrial | None = None
    head_options = _head_options(everything, n_classes, options)
    # Few rows cannot show whether transitions pay: they are learned there only if asked for.
    n_passed = len(train.codes) * n_classes  # rows under every class's tree
    is_cheap = (
        n_passed * trial_tree.transitions.size <= _MAX_TRANSITION_WORK
        and n_passed * trial_tree.n_states <= _MAX_TRANSITION_EVIDENCE
    )
    has_transitions = len(trial_tree.parent) > 1 and (
        options.class_transitions
        if options.class_transitions is not None
        else not cross_validated and is_cheap
    )
    seed = int(rng.integers(2**31)) if head_options is not None else 0
    is_judged = folds[-1].checked is not None
    boosted = None
    if is_judged and not cross_validated and head_options and options.label_cuts is None:
        # The trees need nothing of the tilt: they grow while class transitions are tried.
        boosted = beside(
            partial(boost_until_held_out, train, held, n_classes, head_options, seed),
            options.n_jobs,
        )
    if is_judged and (has_transitions or head_options is not None):
        # Cross-validated folds end with a fit that has seen the held rows: start without them.
        if has_transitions or not cross_validated:
            no_held = held.take(_NO_ROWS)
            main = make_folds(base, train, no_held, rng)[0] if cross_validated else folds[0]
            fitted = fit_fold(base, main, layout, prior, options.n_tilt_steps)
            assert main.tables is not None
            best = Sweep(fitted, main.tables)
            del main
            if not cross_validated:
                folds.clear()  # their rows are the largest arrays
        if has_transitions:
            notify(0.8, "class transitions")
            best, n_sweeps, tried = try_class_transitions(
                best.model, train, held, layout, prior, best.tables, _CLASS_SWEEPS, n_unseen, rng
            )
            if options.class_transitions:
                n_sweeps = max(n_sweeps, 1)
            report["class_transitions"] = {"kept_sweeps": n_sweeps, "sweeps": tried}
        if head_options is not None:
            notify(0.85, "a head of trees")
            if cross_validated:
                sharp = [model.sharpened(sharpness) for model in found.models]
                log_tilt, fold_of = out_of_fold(sharp, folds[1:])
                joined = train.joined(held)
                asked = np.arange(len(fold_of))
            else:
                log_tilt = _log_posterior(best.model, held)
                joined, fold_of = train, _NO_ROWS
            if options.label_cuts is not None:
                assert everything.targets is not None
                assert everything.labels is not None
                cells = StateCells.of(options.label_cuts, everything.targets, everything.labels)
                if not cross_validated:
                    joined = train.joined(held)
                    fold_of = folds_with_held(len(train.codes), len(held.codes), rng)
                    asked = np.arange(len(train.codes), len(fold_of))
                trial = try_number_head(joined, fold_of, asked, log_tilt, head_options, cells, seed)
            elif cross_validated:
                trial = try_out_of_fold(joined, fold_of, log_tilt, head_options, seed)
            else:
                assert boosted is not None
                trial = try_on_held_out(boosted(), held, log_tilt, head_options)
            report["head"] = trial

    everything = _at_most(everything, MAX_TILT_CELLS // n_classes, rng)
    assert everything.labels is not None
    final: Callable[[], Head] | None = None
    if trial is not None and head_options is not None and trial.kept:
        seen = _at_most(everything, _MAX_HEAD_ROWS, rng)
        if isinstance(trial, NumberTrial):
            final = partial(final_number_head, trial, seen, head_options, seed)
        else:
            final = partial(final_head, trial, seen, head_options, seed)
        final = beside(final, options.n_jobs)
    notify(0.9, "last steps on all rows")
    if n_sweeps > 0 and final_tree.n_states == trial_tree.n_states and best.model.trees[1:]:
        # All rows move the tables that training rows have placed.
        model = carried_over(best.model, trial_tree, final_tree)
        (last,) = class_sweeps(model, everything, layout, prior, best.tables, 1, rng)
        model = last.model
    else:
        base = untilted(final_tree, n_classes)
        start = (*tables[:3], _of_first_tree(tables[3], final_tree.n_states))
        model, placed, report["tilt"] = _tilted(
            base, everything, layout, prior, start, options.n_tilt_steps
        )
        model = model.sharpened(sharpness)
        if n_sweeps > 0:
            *_, last = class_sweeps(model, everything, layout, prior, placed, n_sweeps, rng)
            model = last.model
    if final is None:
        return model, None, report
    notify(0.95, "trees on all rows")
    return model, final(), report


def _tilted(
    base: TiltedTree,
    sample: Sample,
    layout: TiltLayout,
    prior: TiltPrior,
    start: Tables,
    n_steps: int,
) -> tuple[TiltedTree, Tables, dict[str, float]]:
    """The tree with a tilt fitted to rows, its tables, and a report; the rows' evidence goes."""
    assert sample.labels is not None
    rows = prepare_rows(base, sample.codes, sample.labels, sample.weights)
    problem = TiltProblem(base, rows, layout, prior)
    vector, report = fit_tilt(problem, problem.pack(*start), n_steps)
    return problem.model_at(vector), problem.unpack(vector), report


def _at_most(rows: Sample, most: int, rng: np.random.Generator) -> Sample:
    """The rows, or as many of them as there may be, and one of every class at least."""
    if len(rows.codes) <= most:
        return rows
    chosen = rng.choice(len(rows.codes), size=most, replace=False)
    assert rows.labels is not None
    classes, first = np.unique(rows.labels, return_index=True)
    absent = ~np.isin(classes, rows.labels[chosen])
    return rows.take(np.concatenate([chosen, first[absent]]))


def _completed(rows: Sample, columns: npt.NDArray[np.bool_], tree: LatentTree) -> Sample:
    """The rows, missing cells of some columns drawn from the tree; draws depend on the row."""
    missing = (rows.codes < 0) & columns
    with_holes = np.flatnonzero(missing.any(axis=1))
    if with_holes.size == 0:
        return rows
    codes, passes = rows.codes.copy(), ClassPass(class_tree_of(tree))
    for start in range(0, with_holes.size, _ROWS_AT_ONCE):
        some = with_holes[start : start + _ROWS_AT_ONCE]
        up = passes.upward(codes[some].astype(np.int64))
        every, one_class = np.arange(some.size), np.zeros(some.size, dtype=np.int64)
        drawn = passes.draw(up, every, row_seeds(up.codes), one_class)
        codes[some] = np.where(missing[some], drawn, codes[some])
    return replace(rows, codes=codes)


def _head_options(rows: Sample, n_classes: int, options: FitOptions) -> HeadOptions | None:
    """What a head looks like if one may be fitted."""
    if options.head is False or rows.values is None or options.n_codes is None:
        return None
    assert rows.labels is not None
    rarest = int(np.bincount(rows.labels, minlength=n_classes).min())
    needed = _LEAST_CLASS_ROWS if options.label_cuts is None else 1
    if rarest < needed or len(rows.codes) < MIN_ROWS_FOR_VALIDATION:
        if options.head:
            raise LearningError(
                f"head=True needs {MIN_ROWS_FOR_VALIDATION} rows and {needed} of every "
                f"class; found {len(rows.codes)} rows and {rarest} of the rarest class"
            )
        return None
    return HeadOptions(options.n_codes, bool(options.head), options.min_rows)


def _of_first_tree(root_logits: FloatArray, n_states: int) -> FloatArray:
    """(Y, n_states) root logits fitted with one tree, in an average of which it is the first."""
    more = n_states - root_logits.shape[1]
    return np.pad(root_logits, ((0, 0), (0, more)))


def _log_posterior(model: TiltedTree, sample: Sample) -> FloatArray:
    """(n, Y) log p(y | x) of coded rows."""
    assert sample.labels is not None
    rows = prepare_rows(model, sample.codes, sample.labels, sample.weights)
    return log_softmax(class_logits(model, rows)[0])

"""Class-dependent transitions tried on held-out rows, in sweeps of Adam and L-BFGS."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from fedcircuits.arrays import FloatArray
from fedcircuits.learners.hclt.sample import Sample
from fedcircuits.learners.hclt.tilt.class_transitions import (
    AdamOptions,
    adam_epochs,
    make_batches,
    with_class_trees,
)
from fedcircuits.learners.hclt.tilt.prior_choice import Tables
from fedcircuits.learners.hclt.tilt.priors import TiltLayout, TiltPrior
from fedcircuits.learners.hclt.tilt.rows import prepare_rows
from fedcircuits.learners.hclt.tilt.tilt import TiltedTree
from fedcircuits.learners.hclt.tilt.tilt_fit import Scores, TiltProblem, fit_tilt, score
from fedcircuits.learners.hclt.tree.latent_tree import LatentTree

# What class transitions must take off the objective to be worth their parameters, nats a row.
_LEAST_GAIN = 5e-4
_TINY = 1e-30
# Rows that sweeps of Adam look at; the tilt after them sees all.
_MAX_ADAM_ROWS = 200_000


@dataclass(frozen=True)
class Sweep:
    """A tilted tree, and its tilt as the tables it is the sum of."""

    model: TiltedTree
    tables: Tables


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
) -> tuple[Sweep, int, list[dict[str, float | None]]]:
    """Sweeps of Adam on class-dependent transitions and L-BFGS on the tilt.

    The first `n_unseen` of the held rows are those that the model's tree has not seen.
    A sweep counts only if the objective on the held rows falls by more than one standard error
    (two where those rows are few) and by 5e-4 nats a row. AUC does not decide: its error on some
    thousand rows is as large as the gain that is looked for. The likelihood's part is judged on
    rows that the given model's tree has not seen, the label's on all.

    Returns:
        The best sweep on the held rows, its number (0: the model given) and a report.
    """
    assert held.labels is not None
    before = score(model, prepare_rows(model, held.codes, held.labels, held.weights))
    report = [before.summary()]
    best, best_sweep, highest, latest = Sweep(model, tables), 0, 0.0, -np.inf
    needed = 2.0 if held.decides_little else 1.0
    states = class_sweeps(model, train, layout, prior, tables, n_sweeps, rng)
    for number, current in enumerate(states, start=1):
        rows = prepare_rows(current.model, held.codes, held.labels, held.weights)
        after = score(current.model, rows)
        del rows
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
) -> Iterator[Sweep]:
    """What there is after every sweep of Adam epochs on all tables and L-BFGS on the tilt."""
    assert train.labels is not None
    adam = AdamOptions(batch_size=512 if len(train.codes) >= 2000 else 64)
    current = with_class_trees(model)
    seen = train
    if len(train.codes) > _MAX_ADAM_ROWS:
        seen = train.take(rng.choice(len(train.codes), size=_MAX_ADAM_ROWS, replace=False))
    assert seen.labels is not None
    shuffled = rng.permutation(len(seen.codes))
    for _ in range(n_sweeps):
        # Batches and evidence are the largest arrays: both are made anew, a twentieth of a sweep,
        # rather than kept beside each other.
        batches = make_batches(
            current, seen.codes, seen.labels, seen.weights, adam.batch_size, shuffled
        )
        current = adam_epochs(current, batches, adam, rng)
        del batches
        rows = prepare_rows(current, train.codes, train.labels, train.weights)
        problem = TiltProblem(current, rows, layout, prior)
        # Adam's small moves of g go into the fine table.
        coarse = tables[2]
        fine = current.g - (layout.coarse_of @ coarse.T).T
        start = problem.pack(current.c, fine, coarse, current.root_logits)
        vector, _ = fit_tilt(problem, start, 25)
        tables = problem.unpack(vector)
        current = problem.model_at(vector)
        del rows, problem
        yield Sweep(current, tables)


def carried_over(model: TiltedTree, before: LatentTree, after: LatentTree) -> TiltedTree:
    """The model with what a tree learned since the model started from it: p after / before."""

    def moved(table: FloatArray, old: FloatArray, new: FloatArray) -> FloatArray:
        found = table * new / np.maximum(old, _TINY)
        return np.asarray(found / found.sum(axis=-1, keepdims=True))

    emissions = tuple(
        moved(*tables)
        for tables in zip(model.trees[0].emissions, before.emissions, after.emissions, strict=True)
    )
    trees = tuple(
        replace(
            after,
            transitions=moved(tree.transitions, before.transitions, after.transitions),
            emissions=emissions,
        )
        for tree in model.trees
    )
    return replace(model, trees=trees)

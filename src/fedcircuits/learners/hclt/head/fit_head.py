"""Fitting a head and deciding whether it stays.

Many rows: the trees are boosted on the training rows until the held-out ones no longer gain, and
the pool is fitted on the held-out rows. Few rows: boosters a fold, the best of those that start
from a line and the best of the others averaged, and the pool fitted on out-of-fold answers. Either
way the gain is that of a pool fitted on other rows than it is measured on, and a head that stays
has trees boosted again on all rows, in as many steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce

import numpy as np

from fedcircuits.arrays import FloatArray, IntArray, IntegerArray
from fedcircuits.density.tilt import by_class, log_softmax
from fedcircuits.learners.hclt.features import Values
from fedcircuits.learners.hclt.head.pool import Pool, fit_pool
from fedcircuits.learners.hclt.head.trees.boosted_trees import BoostedTrees
from fedcircuits.learners.hclt.head.trees.boosting import BoostOptions, boost
from fedcircuits.learners.hclt.head.trees.linear_part import linear_class_trees
from fedcircuits.learners.hclt.head.trees.number_trees import NumberTrees
from fedcircuits.learners.hclt.sample import Sample

# A head stays if it takes this many paired standard errors, and this share, off the log-loss.
LEAST_ERRORS, LEAST_SHARE = 2.0, 0.01
# Some hundred rows are never that certain, and gain most: there a head stays if it gains more than
# its error, measured with pools that are fitted on all but an eighth of the rows.
FEW_JUDGING, FEW_ERRORS, FEW_PARTS = 1_000, 1.0, 8
# More rows carry more steps.
MORE_STEPS = 1.1
# From how many classes on each has faster trees.
MANY_CLASSES = 4
# Sizes of trees that are averaged over clients, by the number of classes.
MIXED = BoostOptions(200, 0.07, 31, ridge=1.0, column_share=0.5)
MIXED_MANY = BoostOptions(80, 0.1, 15, ridge=1.0, column_share=0.3)
# Rows from which two kinds of trees are averaged over clients.
LEAST_OF_TWO_KINDS = 200
# Below this many rows trees are smaller, and the first fold chooses between kinds of them.
FEW_ROWS = 5_000
# Below this many, trees that split at random places are tried beside those that split at the best.
SOME_ROWS = 15_000
# Penalties of the logistic regressions that small trees start from there; from so many rows on
# the last one alone.
PENALTIES, FEW_PENALTIES_ROWS = (1.0, 10.0), 2_000


@dataclass(frozen=True)
class HeadOptions:
    """What the trees of a head look like.

    Attributes:
        n_codes: (D,) number of categories of every column, 0 for numbers.
        forced: whether the head stays whatever it gains.
        min_rows: least rows behind a leaf; by the number of rows if not given.
    """

    n_codes: IntArray
    forced: bool = False
    min_rows: int | None = None

    def sizes(self, n_rows: int, n_classes: int) -> tuple[BoostOptions, ...]:
        """Sizes of a booster for so many rows and classes; several to try where rows are few."""
        rows = self.leaf_rows(n_rows)
        few = self.min_rows or min(rows, 5)
        many_classes = n_classes > MANY_CLASSES
        if n_rows >= FEW_ROWS:
            if many_classes:
                return (BoostOptions(300, 0.1, 31, rows, ridge=1.0, column_share=0.3),)
            best = BoostOptions(400, 0.05, 63, rows, ridge=10.0, column_share=0.5)
            return (best, _at_random(rows)) if n_rows < SOME_ROWS else (best,)
        if many_classes:
            return (
                BoostOptions(300, 0.15, 15, rows, column_share=0.3, row_share=0.7),
                BoostOptions(300, 0.1, 31, rows, column_share=0.5, row_share=0.7, at_random=True),
            )
        penalties = PENALTIES if n_rows < FEW_PENALTIES_ROWS else PENALTIES[-1:]
        return (
            BoostOptions(400, 0.07, 15, few, column_share=1.0, row_share=0.8),
            BoostOptions(400, 0.07, 31, rows, column_share=0.5),
            _at_random(rows),
            *(BoostOptions(200, 0.07, 4, max(rows, 10), ridge=5.0, line=at) for at in penalties),
        )

    def leaf_rows(self, n_rows: int) -> int:
        """Least rows behind a leaf."""
        return self.min_rows or int(np.clip(n_rows // 50, 3, 20))


def _at_random(leaf_rows: int) -> BoostOptions:
    """Trees that split at random places."""
    return BoostOptions(300, 0.1, 31, leaf_rows, column_share=1.0, row_share=0.8, at_random=True)


@dataclass(frozen=True)
class Head:
    """Trees and how they are pooled with the circuit's posterior."""

    trees: BoostedTrees | NumberTrees
    pool: Pool


@dataclass(frozen=True)
class HeadTrial:
    """How a head does on held-out rows.

    Attributes:
        pool: how trees and circuit are pooled.
        sizes: of the boosters that are averaged, with the steps that held-out rows gained from.
        kept: whether the head stays.
        log_loss: of the circuit alone on these rows, nats a row.
        gain: what the head takes off it.
        error: paired standard error of the gain.
        n_rows: how many rows these are.
    """

    pool: Pool
    sizes: tuple[BoostOptions, ...]
    kept: bool
    log_loss: float
    gain: float
    error: float
    n_rows: int


def judged(
    sizes: tuple[BoostOptions, ...],
    outputs: FloatArray,
    log_tilt: FloatArray,
    labels: IntegerArray,
    weights: FloatArray,
    forced: bool,
) -> HeadTrial:
    """Pool trees with the circuit on rows neither has seen, and weigh what that gains.

    Args:
        sizes: of the boosters that are averaged.
        outputs: (n, K) of the trees, out of fold.
        log_tilt: (n, P) log t(y | x), out of fold.
        labels: (n,) classes.
        weights: (n,) row weights.
        forced: whether the head stays whatever it gains.
    """
    n = len(labels)
    every = np.arange(n)
    place = np.empty(n, dtype=int)  # rows in the order of their classes: parts have all of them
    place[np.argsort(labels, kind="stable")] = every
    few = n < FEW_JUDGING
    errors, parts = (FEW_ERRORS, FEW_PARTS) if few else (LEAST_ERRORS, 2)
    gains = np.empty(n)
    before = log_tilt[every, labels]
    for number in range(parts):
        part = place % parts == number
        rest, mine = ~part, (np.arange(part.sum()), labels[part])
        other = fit_pool(log_tilt[rest], outputs[rest], labels[rest], weights[rest])
        gains[part] = other.log_posterior(log_tilt[part], outputs[part])[mine]
        if few:  # what the circuit gains by being more or less confident is not due to trees
            none = np.zeros_like(outputs)
            alone = fit_pool(log_tilt[rest], none[rest], labels[rest], weights[rest])
            gains[part] -= alone.log_posterior(log_tilt[part], none[part])[mine]
        else:
            gains[part] -= before[part]
    share = weights / weights.sum()
    gain, loss = float(share @ gains), -float(share @ before)
    error = float(np.sqrt(np.square(share * (gains - gain)).sum()))
    pool = fit_pool(log_tilt, outputs, labels, weights)
    kept = forced or (gain > max(errors * error, LEAST_SHARE * loss) and pool.trees > 0)
    return HeadTrial(pool, sizes, kept, loss, gain, error, n)


@dataclass(frozen=True)
class Boosted:
    """Boosters whose outputs are averaged, and their trees together."""

    sizes: tuple[BoostOptions, ...]
    trees: BoostedTrees


def boost_until_held_out(
    train: Sample, held: Sample, n_classes: int, options: HeadOptions, seed: int
) -> Boosted:
    """Boost on training rows until the held-out ones stop gaining.

    Where a second kind of trees is tried, it or the mean of both replaces the first kind if that
    takes more than a standard error off the log-loss of held-out rows.

    Args:
        train: rows to boost on.
        held: rows that the trees do not see.
        n_classes: classes of the label.
        options: what the trees look like.
        seed: of the boosting.
    """
    asked = options.sizes(len(train.codes), n_classes)
    if len(train.codes) < FEW_ROWS:
        best, trees = best_sizes(train, held, asked, options, seed)
        return Boosted((best,), trees)
    found = []
    for sizes in asked:
        best, trees = best_sizes(train, held, (sizes,), options, seed)
        found.append(Boosted((best,), trees))
    if len(found) > 1:
        both = tuple(each.sizes[0] for each in found)
        found.append(Boosted(both, mean_of([each.trees for each in found])))
    fits = [_held_fit(each.trees, held) for each in found]
    share = held.weights / held.weights.sum()
    best_of = int(np.argmax([share @ fit for fit in fits]))
    more = fits[best_of] - fits[0]
    error = float(np.sqrt(np.square(share * (more - share @ more)).sum()))
    return found[best_of] if share @ more > error else found[0]


def try_on_held_out(
    boosted: Boosted,
    held: Sample,
    log_tilt: FloatArray,
    options: HeadOptions,
) -> HeadTrial:
    """Pool boosted trees with the circuit on held-out rows.

    Args:
        boosted: what `boost_until_held_out` returned.
        held: rows that neither the trees nor the circuit behind `log_tilt` has seen.
        log_tilt: (n held, P) log t(y | x).
        options: what the trees look like.
    """
    values, labels = _labelled(held)
    outputs = boosted.trees.outputs(values)
    return judged(boosted.sizes, outputs, log_tilt, labels, held.weights, options.forced)


def try_out_of_fold(
    rows: Sample, fold_of: IntArray, log_tilt: FloatArray, options: HeadOptions, seed: int
) -> HeadTrial:
    """Boosters a fold, each ended by its own fold, and a pool for all of them.

    The first fold chooses between small, large and random trees, and between penalties of a line
    that others start from; the best of both are averaged.

    Args:
        rows: all rows.
        fold_of: (n,) fold of every row.
        log_tilt: (n, P) log t(y | x), out of fold.
        options: what the trees look like.
        seed: of the boosting.
    """
    values, labels = _labelled(rows)
    n_classes = log_tilt.shape[1]
    outputs = np.zeros((len(labels), 1 if n_classes == 2 else n_classes))
    n_folds = int(fold_of.max()) + 1
    # A booster of many classes is dear: two folds are enough to judge it.
    n_folds = min(n_folds, 2) if n_classes > MANY_CLASSES else n_folds
    # Folds are for rows that say little, be they few or all of one class.
    sizes = options.sizes(min(int((fold_of != 0).sum()), FEW_ROWS - 1), n_classes)
    by_line = [tuple(at for at in sizes if (at.line is None) == plain) for plain in (True, False)]
    kinds = [asked for asked in by_line if asked]
    chosen = []
    for asked in kinds:
        steps = []
        for fold in range(n_folds):
            inside, out = np.flatnonzero(fold_of != fold), np.flatnonzero(fold_of == fold)
            best, trees = best_sizes(rows.take(inside), rows.take(out), asked, options, seed + fold)
            asked = (next(at for at in asked if replace(best, n_steps=at.n_steps) == at),)
            outputs[out] += trees.outputs(values[out]) / len(kinds)
            steps.append(best.n_steps)
        chosen.append(replace(asked[0], n_steps=round(float(np.mean(steps)))))
    seen = np.flatnonzero(fold_of < n_folds)
    return judged(
        tuple(chosen),
        outputs[seen],
        log_tilt[seen],
        labels[seen],
        rows.weights[seen],
        options.forced,
    )


def best_sizes(
    train: Sample,
    held: Sample,
    asked: tuple[BoostOptions, ...],
    options: HeadOptions,
    seed: int,
) -> tuple[BoostOptions, BoostedTrees]:
    """The sizes that are best on held-out rows, with the steps they gained from, and the trees."""
    best = None
    for sizes in asked:
        trees, n_steps = boosted_with_line(
            train, options.n_codes, sizes, seed, held, options.min_rows or 1
        )
        found = float(held.weights @ _held_fit(trees, held))
        if best is None or found > best[0]:
            best = found, replace(sizes, n_steps=n_steps), trees
    assert best is not None
    return best[1:]


def _held_fit(trees: BoostedTrees, held: Sample) -> FloatArray:
    """(n,) log-probability of the label of held-out rows by trees alone."""
    values, labels = _labelled(held)
    outputs = trees.outputs(values)
    return np.asarray(log_softmax(by_class(outputs))[np.arange(len(labels)), labels])


def boosted_with_line(
    rows: Sample,
    n_codes: IntArray,
    sizes: BoostOptions,
    seed: int,
    held: Sample | None = None,
    min_rows: int = 1,
) -> tuple[BoostedTrees, int]:
    """Trees of these sizes, the line they start from among them, and the steps of the others.

    Args:
        rows: values and labels.
        n_codes: (D,) number of categories, 0 for numbers.
        sizes: of the booster.
        seed: of the boosting.
        held: rows that end the boosting.
        min_rows: least rows behind a step of the line.
    """
    values, labels = _labelled(rows)
    ends = None if held is None else (*_labelled(held), held.weights)
    if sizes.line is None:
        trees = boost(values, labels, rows.weights, n_codes, sizes, seed, ends)
        return trees, n_steps_of(trees)
    line = linear_class_trees(values, labels, rows.weights, n_codes, sizes.line, min_rows)
    trees = boost(values, labels, rows.weights, n_codes, sizes, seed, ends, line)
    return line.plus(trees), n_steps_of(trees)


def trees_for_mixing(rows: Sample, n_codes: IntArray, min_rows: int, seed: int) -> BoostedTrees:
    """Trees of all rows whose outputs will be averaged with those of other rows' trees.

    Averaging takes care of variance, not of bias: they fit the rows closer than trees that answer
    alone, and no rows are left out to end them. Some hundred rows have trees that split at random
    places too: where one client has most of what tells the classes apart, there is little else to
    average. How many clients there are does not matter, so that any of them can leave.

    Args:
        rows: values and labels.
        n_codes: (D,) number of categories, 0 for numbers.
        min_rows: least rows behind a leaf.
        seed: of the boosting.
    """
    values, labels = _labelled(rows)
    least = max(min_rows, HeadOptions(n_codes).leaf_rows(len(labels)))
    many_classes = int(labels.max()) + 1 > MANY_CLASSES
    kinds = [replace(MIXED_MANY if many_classes else MIXED, min_rows=least)]
    if not many_classes and LEAST_OF_TWO_KINDS <= len(labels) < SOME_ROWS:
        kinds.append(replace(_at_random(least), n_steps=MIXED.n_steps, row_share=1.0))
    made = [
        boost(values, labels, rows.weights, n_codes, sizes, seed + number).times(1 / len(kinds))
        for number, sizes in enumerate(kinds)
    ]
    if len(made) == 1:
        return made[0]
    parts = [trees.parted() for trees in made]
    return reduce(BoostedTrees.plus, [first for first, _ in parts] + [later for _, later in parts])


def final_head(trial: HeadTrial, rows: Sample, options: HeadOptions, seed: int) -> Head:
    """The head that was tried with trees boosted on all rows."""
    trees = [
        boosted_with_line(
            rows, options.n_codes, with_more_steps(sizes), seed, None, options.min_rows or 1
        )[0]
        for sizes in trial.sizes
    ]
    return Head(mean_of(trees), trial.pool)


def with_more_steps(sizes: BoostOptions) -> BoostOptions:
    """The sizes for all rows, of those chosen on some of them."""
    return replace(sizes, n_steps=max(round(MORE_STEPS * sizes.n_steps), 1))


def mean_of(trees: Sequence[BoostedTrees]) -> BoostedTrees:
    """Trees whose outputs are the means of the outputs of some."""
    answer, *others = (part.times(1 / len(trees)) for part in trees)
    for other in others:
        answer = answer.plus(other)
    return answer


def n_steps_of(trees: BoostedTrees) -> int:
    """Number of boosting steps that grew some trees."""
    return int(trees.roots.size // trees.baseline.size)


def _labelled(rows: Sample) -> tuple[Values, IntegerArray]:
    assert rows.values is not None
    assert rows.labels is not None
    return rows.values, rows.labels

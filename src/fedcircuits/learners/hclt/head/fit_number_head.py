"""Fitting a head for a number: location, scale and shape out of fold, and a trial of the pool.

The location is boosted by squared error; the scale, a second booster with logarithms as outputs, on
absolute out-of-fold residuals; the shape is that of the residuals over their scales.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from fedcircuits.arrays import FloatArray, IntArray
from fedcircuits.learners.hclt.features import Values
from fedcircuits.learners.hclt.head.fit_head import (
    FEW_ROWS,
    Head,
    HeadOptions,
    HeadTrial,
    judged,
    n_steps_of,
    with_more_steps,
)
from fedcircuits.learners.hclt.head.trees.boosted_trees import BoostedTrees
from fedcircuits.learners.hclt.head.trees.boosting import BoostOptions, boost_numbers
from fedcircuits.learners.hclt.head.trees.linear_part import linear_trees
from fedcircuits.learners.hclt.head.trees.number_trees import NumberTrees, StateCells, log_masses
from fedcircuits.learners.hclt.sample import Sample

# Folds beside the held-out rows, where these are many.
_OTHER_FOLDS = 3
# Most quantiles of the residuals, and rows behind each.
_MOST_QUANTILES, _ROWS_PER_QUANTILE = 200, 8
# Residuals shrink like the number of rows to minus this power.
_LEARNING_RATE = 0.2
# Residuals count as at least this share of their mean when the scale is fitted.
_LEAST_RESIDUAL = 1e-2


@dataclass(frozen=True)
class NumberTrial(HeadTrial):
    """How a head for a number does on held-out rows.

    Attributes:
        scale: trees of the log of the scale.
        quantiles: (q,) of the residuals over their scales.
        cells: where the states lie.
    """

    scale: BoostedTrees
    quantiles: FloatArray
    cells: StateCells


def folds_with_held(n_train: int, n_held: int, rng: np.random.Generator) -> IntArray:
    """(n,) folds of training rows followed by held-out ones, which are fold 0."""
    folds = rng.permutation(n_train) % _OTHER_FOLDS + 1
    return np.concatenate([folds, np.zeros(n_held, dtype=np.int64)])


def try_number_head(
    rows: Sample,
    fold_of: IntArray,
    asked: IntArray,
    log_tilt: FloatArray,
    options: HeadOptions,
    cells: StateCells,
    seed: int,
) -> NumberTrial:
    """Boost location and scale out of fold, and weigh what the pool gains on some rows.

    Args:
        rows: all rows.
        fold_of: (n,) fold of every row.
        asked: (m,) the rows that judge; each fold of theirs is left out of what judges it.
        log_tilt: (m, P) log t(y | x) of these, out of fold.
        options: what the trees look like.
        cells: where the states lie.
        seed: of the boosting.
    """
    assert rows.values is not None
    assert rows.labels is not None
    assert rows.targets is not None
    x, w = rows.values, rows.weights
    y = cells.scaled(rows.targets)
    location = np.empty(y.size)
    steps: list[int] = []
    judging = np.unique(fold_of[asked])
    candidates = location_sizes(options, int((fold_of != judging[0]).sum()))
    # The first fold that judges chooses the sizes; those that do not judge take its steps.
    for fold in [*judging, *np.setdiff1d(fold_of, judging)]:
        inside, out = fold_of != fold, fold_of == fold
        line = line_of(x[inside], y[inside], w[inside], options)
        left = residuals(line, x, y)
        best: tuple[float, BoostOptions, BoostedTrees] | None = None
        for sizes in candidates:
            trees = boost_numbers(
                x[inside],
                left[inside],
                w[inside],
                options.n_codes,
                sizes,
                seed + int(fold),
                (x[out], left[out], w[out]) if fold in judging else None,
            )
            away = left[out] - trees.outputs(x[out])[:, 0]
            found = float(w[out] @ away**2)
            if best is None or found < best[0]:
                best = found, sizes, trees
        assert best is not None
        _, sizes, trees = best
        if fold in judging:
            steps.append(n_steps_of(trees))
            candidates = (sizes,)
        if fold == judging[-1]:
            chosen = replace(sizes, n_steps=round(float(np.mean(steps))))
            candidates = (chosen,)
        location[out] = y[out] - left[out] + trees.outputs(x[out])[:, 0]

    size = np.abs(y - location)
    size = np.maximum(size, _LEAST_RESIDUAL * float(np.average(size, weights=w)) + 1e-12)
    log_scale = np.empty(y.size)
    scale_steps: list[int] = []
    for fold in judging:
        inside, out = fold_of != fold, fold_of == fold
        trees = boost_numbers(
            x[inside],
            size[inside],
            w[inside],
            options.n_codes,
            scale_sizes(options, int(inside.sum())),
            seed,
            (x[out], size[out], w[out]),
            "gamma",
        )
        scale_steps.append(n_steps_of(trees))
        log_scale[out] = trees.outputs(x[out])[:, 0]
    sizes = replace(
        scale_sizes(options, y.size), n_steps=max(round(float(np.mean(scale_steps))), 1)
    )
    scale = boost_numbers(x, size, w, options.n_codes, sizes, seed, None, "gamma")

    z = (y[asked] - location[asked]) / np.exp(log_scale[asked])
    quantiles = residual_quantiles(z)
    outputs = log_masses(location[asked], np.exp(log_scale[asked]), quantiles, cells)
    # The last trees see all rows, these saw a share of them: their residuals are a little larger.
    share = float(np.mean([(fold_of != fold).mean() for fold in judging]))
    quantiles = quantiles * share**_LEARNING_RATE
    trial = judged((chosen,), outputs, log_tilt, rows.labels[asked], w[asked], options.forced)
    return NumberTrial(**vars(trial), scale=scale, quantiles=quantiles, cells=cells)


def final_number_head(trial: NumberTrial, rows: Sample, options: HeadOptions, seed: int) -> Head:
    """The head that was tried, with the location boosted on all rows."""
    assert rows.values is not None
    assert rows.targets is not None
    min_rows = options.leaf_rows(len(rows.targets))
    sizes = replace(with_more_steps(trial.sizes[0]), min_rows=min_rows)
    y = trial.cells.scaled(rows.targets)
    line = line_of(rows.values, y, rows.weights, options)
    left = residuals(line, rows.values, y)
    location = boost_numbers(rows.values, left, rows.weights, options.n_codes, sizes, seed)
    location = location if line is None else line.plus(location)
    trees = location.beside(trial.scale)
    return Head(NumberTrees(trees, trial.quantiles, trial.cells), trial.pool)


def line_of(x: Values, y: FloatArray, w: FloatArray, options: HeadOptions) -> BoostedTrees | None:
    """The line that boosting starts from, None where rows are many."""
    if y.size >= FEW_ROWS:
        return None
    return linear_trees(x, y, w, options.n_codes, options.min_rows or 1)


def residuals(line: BoostedTrees | None, x: Values, y: FloatArray) -> FloatArray:
    """(n,) numbers less what the line predicts; without a line the numbers."""
    return y if line is None else y - line.outputs(x)[:, 0]


def location_sizes(options: HeadOptions, n_rows: int) -> tuple[BoostOptions, ...]:
    """Sizes of the booster of the location; several to try where rows are few."""
    min_rows = options.leaf_rows(n_rows)
    if n_rows >= FEW_ROWS:
        return (BoostOptions(400, 0.07, 63, min_rows, ridge=1.0, column_share=0.5),)
    return (
        BoostOptions(200, 0.07, 4, max(min_rows, 10), ridge=5.0, column_share=0.5),
        BoostOptions(200, 0.07, 15, min_rows, ridge=1.0, column_share=0.5),
        BoostOptions(300, 0.1, 15, min_rows, column_share=1.0, row_share=0.8, at_random=True),
    )


def scale_sizes(options: HeadOptions, n_rows: int) -> BoostOptions:
    """Sizes of the booster of the log-scale: residuals are noisy, so its trees are small."""
    min_rows = max(options.min_rows or 0, int(np.clip(n_rows // 20, 10, 60)))
    return BoostOptions(100, 0.07, 15, min_rows, ridge=1.0, column_share=0.5)


def residual_quantiles(z: FloatArray) -> FloatArray:
    """(q,) rising quantiles of residuals (n,) at (i + 1/2) / q."""
    n = int(np.clip(z.size // _ROWS_PER_QUANTILE, 8, _MOST_QUANTILES))
    found = np.quantile(z, (np.arange(n) + 0.5) / n)
    # Ties are moved apart, so that the distribution function has no jump.
    least = 1e-9 * max(float(np.ptp(found)), 1e-9)
    return np.asarray(np.maximum.accumulate(found) + least * np.arange(n))

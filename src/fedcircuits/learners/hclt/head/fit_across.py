"""Trees that make codes of rows, and trees over columns and codes of others (`AcrossTrees`).

Codes of rows that a tree was boosted on would reveal too much of their labels: scores are out of
fold, and the leaf is of a tree so small that a single row hardly moves it. All outputs are what
they would be with classes of the same size, so that those of clients with other shares compare.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import reduce

import numpy as np

from fedcircuits.arrays import BoolArray, FloatArray, IntArray
from fedcircuits.density.row_codes import N_LEAVES
from fedcircuits.density.tilt import by_class, log_softmax
from fedcircuits.learners.hclt.head.fit_head import (
    SOME_ROWS,
    HeadOptions,
    best_sizes,
    with_more_steps,
)
from fedcircuits.learners.hclt.head.trees.boosted_trees import BoostedTrees
from fedcircuits.learners.hclt.head.trees.boosting import BoostOptions, boost, boost_numbers
from fedcircuits.learners.hclt.sample import Sample

FOLDS = 4
# From `SOME_ROWS` on half of the rows are enough for codes, trees of all but the left-out rows
# serve the model, and the least learning rate halves the steps.
FOLDS_OF_MANY, RATE_OF_MANY = 2, 0.1
# Trees that repeat numbers which are functions of the row: nothing is learned from noise.
NUMBER_STEPS, NUMBER_RATE = 60, 0.15


@dataclass(frozen=True, eq=False)
class CodeTrees:
    """Trees over a client's own columns, and their outputs for its rows.

    Attributes:
        trees: of all rows, or of most where they are many.
        leaf: one small tree; its output is the number of the leaf.
        outputs: (n, K) of trees that were not boosted on the row.
        leaves: (n,) the leaf of every row.
    """

    trees: BoostedTrees
    leaf: BoostedTrees
    outputs: FloatArray
    leaves: FloatArray


def fit_code_trees(
    rows: Sample,
    known: BoolArray,
    held: BoolArray,
    options: HeadOptions,
    seed: int,
    leaf: BoostedTrees | None,
) -> CodeTrees:
    """Return boosted trees and their outputs out of fold; grow the small tree unless it is given.

    Args:
        rows: values and labels; labels of rows that are not `known` are not used.
        known: (n,) whether the label is known.
        held: (n,) rows that end the boosting; they are in no fold.
        options: what the trees look like.
        seed: of the boosting.
        leaf: a small tree over the same columns.
    """
    assert rows.values is not None
    assert rows.labels is not None
    train, out = (rows.take(np.flatnonzero(known & which)) for which in (~held, held))
    every = rows.take(np.flatnonzero(known))
    assert every.labels is not None
    assert train.values is not None
    n_classes = int(every.labels.max()) + 1
    sizes, first = _boosted_until(out, train, n_classes, options, seed)
    many = len(train.codes) >= SOME_ROWS
    trees = first if many else _boosted(every, options, with_more_steps(sizes), seed)
    outputs = trees.outputs(rows.values)
    outputs[held] = first.outputs(rows.values[held])
    n_folds = FOLDS_OF_MANY if many else FOLDS
    fold_of = np.random.default_rng(seed).permutation(len(train.codes)) % n_folds
    out_of_fold = np.empty((len(train.codes), outputs.shape[1]))
    for fold in range(n_folds):
        inside, mine = np.flatnonzero(fold_of != fold), np.flatnonzero(fold_of == fold)
        some = _boosted(train.take(inside), options, sizes, seed + 1 + fold)
        out_of_fold[mine] = some.outputs(train.values[mine])
    outputs[known & ~held] = out_of_fold
    if leaf is None:
        leaf = small_tree(train, out_of_fold, options, seed)
    base = base_of(every, n_classes)
    trees = replace(trees, baseline=trees.baseline - base)
    return CodeTrees(trees, leaf, outputs - base, np.round(leaf.outputs(rows.values)[:, 0]))


def fit_trees_on_codes(
    rows: Sample, held: BoolArray, options: HeadOptions, seed: int
) -> tuple[BoostedTrees, FloatArray]:
    """Return trees of all rows, and (held, K) outputs of trees of the others.

    Args:
        rows: values, codes of other clients among them, and labels.
        held: (n,) rows that end the boosting and are scored.
        options: what the trees look like.
        seed: of the boosting.
    """
    assert rows.labels is not None
    train, out = (rows.take(np.flatnonzero(which)) for which in (~held, held))
    assert out.values is not None
    n_classes = int(rows.labels.max()) + 1
    sizes, first = _boosted_until(out, train, n_classes, options, seed)
    final = with_more_steps(sizes)
    trees, base = _boosted(rows, options, final, seed), base_of(rows, n_classes)
    return replace(trees, baseline=trees.baseline - base), first.outputs(out.values) - base


def trees_of_numbers(
    rows: Sample, numbers: FloatArray, options: HeadOptions, seed: int
) -> BoostedTrees:
    """Trees whose outputs are close to numbers (n, K) of the rows."""
    assert rows.values is not None
    least = options.leaf_rows(len(rows.values))
    sizes = BoostOptions(NUMBER_STEPS, NUMBER_RATE, min_rows=least, column_share=1.0)
    made = [
        boost_numbers(rows.values, column, rows.weights, options.n_codes, sizes, seed)
        for column in numbers.T
    ]
    return reduce(BoostedTrees.beside, made)


def base_of(rows: Sample, n_classes: int) -> FloatArray:
    """(K,) outputs of trees that predict the shares of the classes in every row."""
    assert rows.labels is not None
    counts = np.bincount(rows.labels, rows.weights, minlength=n_classes)
    logs = np.log(counts / counts.sum())
    return np.asarray(logs[1:] - logs[:1] if n_classes == 2 else logs - logs.mean())


def small_tree(rows: Sample, outputs: FloatArray, options: HeadOptions, seed: int) -> BoostedTrees:
    """One tree whose leaves differ in their classes; leaves are numbered by what they predict.

    With more than two classes it splits them along the axis on which the outputs (n, K) of boosted
    trees vary most.
    """
    assert rows.values is not None
    assert rows.labels is not None
    shares = np.exp(log_softmax(by_class(outputs)))
    away = shares - shares.mean(axis=0)
    axis = np.linalg.eigh(away.T @ away)[1][:, -1]  # (Y,)
    axis = axis * np.sign(axis[-1] or 1.0)
    least = options.leaf_rows(len(rows.codes))
    sizes = BoostOptions(1, 1.0, N_LEAVES, least, ridge=0.0, column_share=1.0)
    tree = boost_numbers(rows.values, axis[rows.labels], rows.weights, options.n_codes, sizes, seed)
    value = np.zeros(tree.value.size)
    ends = np.flatnonzero(tree.feature < 0)
    value[ends[np.argsort(tree.value[ends], kind="stable")]] = np.arange(ends.size)
    return replace(tree, value=value, baseline=np.zeros(1))


def _boosted_until(
    held: Sample, rows: Sample, n_classes: int, options: HeadOptions, seed: int
) -> tuple[BoostOptions, BoostedTrees]:
    """Sizes and trees of the rows, the best of those that start from no line."""
    asked = tuple(at for at in options.sizes(len(rows.codes), n_classes) if at.line is None)
    if len(rows.codes) >= SOME_ROWS:
        asked = tuple(replace(at, rate=max(at.rate, RATE_OF_MANY)) for at in asked)
    return best_sizes(rows, held, asked, options, seed)


def _boosted(rows: Sample, options: HeadOptions, sizes: BoostOptions, seed: int) -> BoostedTrees:
    assert rows.values is not None
    assert rows.labels is not None
    return boost(rows.values, rows.labels, rows.weights, options.n_codes, sizes, seed)


def options_of(n_codes: IntArray, min_rows: int, n_rows: int) -> HeadOptions:
    """Trees with at least so many rows behind a leaf."""
    return HeadOptions(n_codes, False, max(min_rows, HeadOptions(n_codes).leaf_rows(n_rows)))

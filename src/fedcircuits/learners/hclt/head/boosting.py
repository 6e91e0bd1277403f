"""Training the boosted trees of a head: scikit-learn's histogram boosting, taken over as arrays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from threadpoolctl import threadpool_limits

from fedcircuits.arrays import BoolArray, FloatArray, IntegerArray
from fedcircuits.learners.hclt.head.boosted_trees import BoostedTrees

Loss = Literal["squared_error", "gamma"]

# Categories scikit-learn can tell apart in one column; with more, codes count as numbers.
MOST_CATEGORIES = 255


@dataclass(frozen=True)
class BoostOptions:
    """Sizes of a booster.

    Attributes:
        n_steps: most boosting steps; held-out rows end them sooner.
        rate: learning rate.
        n_leaves: most leaves of a tree.
        min_rows: least rows behind a leaf.
        ridge: L2 penalty on the leaves' values.
        column_share: share of the columns each split looks at.
    """

    n_steps: int = 200
    rate: float = 0.07
    n_leaves: int = 31
    min_rows: int = 20
    ridge: float = 1.0
    column_share: float = 0.5


def boost(
    rows: FloatArray,
    labels: IntegerArray,
    weights: FloatArray,
    n_codes: IntegerArray,
    options: BoostOptions,
    seed: int,
    held: tuple[FloatArray, IntegerArray, FloatArray] | None = None,
) -> BoostedTrees:
    """Boosted trees with one output for two classes (the log-odds of the second), else one a class.

    Args:
        rows: (n, D) values, NaN where missing, categories by code.
        labels: (n,) classes; every class occurs.
        weights: (n,) row weights.
        n_codes: (D,) number of categories, 0 for numbers.
        options: sizes.
        seed: of the choice of columns.
        held: rows, labels and weights that end the boosting when they no longer gain.
    """
    return _boosted(
        HistGradientBoostingClassifier, rows, labels, weights, n_codes, options, seed, held
    )


def boost_numbers(
    rows: FloatArray,
    targets: FloatArray,
    weights: FloatArray,
    n_codes: IntegerArray,
    options: BoostOptions,
    seed: int,
    held: tuple[FloatArray, FloatArray, FloatArray] | None = None,
    loss: Loss = "squared_error",
) -> BoostedTrees:
    """Boosted trees with one output: the mean of a number, or with "gamma" the log of its mean.

    Args:
        rows: (n, D) values, NaN where missing, categories by code.
        targets: (n,) numbers, positive for "gamma".
        weights: (n,) row weights.
        n_codes: (D,) number of categories, 0 for numbers.
        options: sizes.
        seed: of the choice of columns.
        held: rows, numbers and weights that end the boosting when they no longer gain.
        loss: what the trees minimise.
    """
    kind = partial(HistGradientBoostingRegressor, loss=loss)
    return _boosted(kind, rows, targets, weights, n_codes, options, seed, held)


def _boosted(
    kind: Callable[..., Any],
    rows: FloatArray,
    targets: FloatArray | IntegerArray,
    weights: FloatArray,
    n_codes: IntegerArray,
    options: BoostOptions,
    seed: int,
    held: tuple[FloatArray, FloatArray | IntegerArray, FloatArray] | None,
) -> BoostedTrees:
    """The trees of a scikit-learn booster of some kind, fitted to rows."""
    is_category = (n_codes > 0) & (n_codes <= MOST_CATEGORIES)
    model = kind(
        learning_rate=options.rate,
        max_iter=options.n_steps,
        max_leaf_nodes=options.n_leaves,
        min_samples_leaf=options.min_rows,
        l2_regularization=options.ridge,
        max_features=options.column_share,
        categorical_features=is_category if is_category.any() else None,
        early_stopping=held is not None,
        n_iter_no_change=10,
        random_state=seed,
    )
    given: dict[str, Any] = {}
    if held is not None:
        given = {"X_val": held[0], "y_val": held[1]}
    # Weighted quantiles cost scikit-learn more than the boosting of a small table.
    weighed = [weights] if held is None else [weights, held[2]]
    if any((found != found[0]).any() for found in weighed):
        given |= {"sample_weight": weights}
        given |= {} if held is None else {"sample_weight_val": held[2]}
    # A second thread would mostly wait for the first.
    with threadpool_limits(limits=1, user_api="openmp"):
        model.fit(rows, targets, **given)
    return as_arrays(model, is_category, int(n_codes.max(initial=0)))


def as_arrays(model: Any, is_category: BoolArray, n_codes: int) -> BoostedTrees:
    """The trees of a fitted classifier or regressor over the columns it was given."""
    # scikit-learn numbers the categorical columns first, and the categories it has seen anew.
    column = np.concatenate([np.flatnonzero(is_category), np.flatnonzero(~is_category)])
    known = np.zeros((is_category.size, n_codes if is_category.any() else 0), dtype=bool)
    seen: dict[int, Any] = {}
    if is_category.any():
        encoder = model._preprocessor.named_transformers_["encoder"]
        for at, found in zip(np.flatnonzero(is_category), encoder.categories_, strict=True):
            seen[int(at)] = found[np.isfinite(found)].astype(np.int64)
            known[at, seen[int(at)]] = True
    nodes, sets, roots, outputs = [], [], [], []
    start = n_sets = 0
    for step in model._predictors:
        for output, tree in enumerate(step):
            found = tree.nodes
            leaf = found["is_leaf"].astype(bool)
            feature = np.where(leaf, -1, column[found["feature_idx"]])
            is_set = found["is_categorical"].astype(bool) & ~leaf
            nodes.append(
                (
                    feature,
                    np.where(leaf | is_set, 0.0, found["num_threshold"]),
                    np.where(leaf, -1, found["left"].astype(np.int64) + start),
                    np.where(leaf, -1, found["right"].astype(np.int64) + start),
                    np.where(leaf, found["value"], 0.0),
                    found["missing_go_to_left"].astype(bool),
                    np.where(is_set, found["bitset_idx"].astype(np.int64) + n_sets, -1),
                )
            )
            sides = np.zeros((len(tree.raw_left_cat_bitsets), known.shape[1]), dtype=bool)
            for node in np.flatnonzero(is_set):
                row = int(found["bitset_idx"][node])
                words = np.ascontiguousarray(tree.raw_left_cat_bitsets[row])
                bits = np.unpackbits(words.view(np.uint8), bitorder="little").astype(bool)
                codes = seen[int(feature[node])]
                sides[row, codes] = bits[: codes.size]
            sets.append(sides)
            roots.append(start)
            outputs.append(output)
            start += found.size
            n_sets += len(sides)
    parts = [np.concatenate(arrays) for arrays in zip(*nodes, strict=True)]
    return BoostedTrees(
        feature=parts[0],
        threshold=parts[1],
        left=parts[2],
        right=parts[3],
        value=parts[4],
        missing_left=parts[5],
        categories=parts[6],
        left_categories=np.concatenate(sets),
        known_categories=known,
        roots=np.array(roots, dtype=np.int64),
        output=np.array(outputs, dtype=np.int64),
        baseline=np.asarray(model._baseline_prediction, dtype=float).reshape(-1),
    )

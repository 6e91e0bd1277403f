"""Boosted trees as arrays: the answers of scikit-learn's own, from tables of bits."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.ensemble import HistGradientBoostingClassifier

from fedcircuits.learners.hclt.head.boosted_trees import BoostedTrees
from fedcircuits.learners.hclt.head.boosting import BoostOptions, as_arrays, boost


def table(n: int, n_classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Numbers, two categories (codes with holes) and missing cells."""
    rng = np.random.default_rng(n_classes)
    values = rng.normal(size=(n, 6))
    values[:, 0] = 2 * rng.integers(0, 7, size=n)
    values[:, 3] = rng.integers(0, 40, size=n)
    label = (values[:, 0] % 4 == 0).astype(int) ^ (values[:, 1] > 0)
    label = label + (n_classes - 2) * (values[:, 2] > 1)
    values[rng.random(values.shape) < 0.1] = np.nan
    return values, label


IS_CATEGORY = np.array([True, False, False, True, False, False])


@pytest.mark.parametrize("n_classes", [2, 3])
def test_answers_are_those_of_scikit_learn(n_classes: int) -> None:
    values, labels = table(1200, n_classes)
    model = HistGradientBoostingClassifier(
        categorical_features=IS_CATEGORY, max_iter=30, early_stopping=False
    ).fit(values[:800], labels[:800])
    trees = as_arrays(model, IS_CATEGORY, 60)
    values[1100:, 0], values[1100:, 3] = 59, 50  # categories the trees have not seen
    expected = model.decision_function(values).reshape(len(values), -1)
    np.testing.assert_allclose(trees.outputs(values), expected, atol=1e-9)
    n_outputs = expected.shape[1]
    again = BoostedTrees.from_arrays(trees.arrays(), 6, n_outputs)
    np.testing.assert_array_equal(again.outputs(values), trees.outputs(values))


def test_without_categories_and_with_weights() -> None:
    values, labels = table(600, 2)
    values, weights = values[:, 1:3], np.where(labels == 1, 3.0, 1.0)
    none = np.zeros(2, dtype=np.int64)
    options = BoostOptions(n_steps=20)
    equal = boost(values, labels, np.ones(600), none, options, 0)
    heavy = boost(values, labels, weights, none, options, 0)
    assert heavy.outputs(values).mean() > equal.outputs(values).mean() + 0.5


def test_held_out_rows_end_the_boosting() -> None:
    values, labels = table(900, 2)
    noise = np.random.default_rng(0).permutation(labels[600:])
    held = (values[600:], noise, np.ones(300))
    n_codes = np.array([13, 0, 0, 40, 0, 0])
    trees = boost(values[:600], labels[:600], np.ones(600), n_codes, BoostOptions(), 0, held)
    assert trees.roots.size < 50

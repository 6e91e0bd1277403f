"""Boosted trees: those of scikit-learn on numbers, those of the NumPy twin on all."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression

from fedcircuits.learners.hclt.head.fit_head import boosted_with_line
from fedcircuits.learners.hclt.head.trees.boosted_trees import BoostedTrees
from fedcircuits.learners.hclt.head.trees.boosting import BoostOptions, Loss, boost, boost_numbers
from fedcircuits.learners.hclt.head.trees.linear_part import linear_class_trees
from fedcircuits.learners.hclt.sample import Sample
from fedcircuits.native import numpy_only


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


N_CODES = np.array([13, 0, 0, 40, 0, 0])


@pytest.mark.parametrize("missing", [False, True])
def test_numbers_give_the_trees_of_scikit_learn(missing: bool) -> None:
    rng = np.random.default_rng(3)
    values = rng.normal(size=(2000, 4))
    labels = (values[:, 0] * values[:, 1] + 0.5 * rng.normal(size=2000) > 0).astype(np.int64)
    if missing:
        values[rng.random(values.shape) < 0.1] = np.nan
    model = HistGradientBoostingClassifier(
        learning_rate=0.07, max_iter=30, l2_regularization=1.0, early_stopping=False
    ).fit(values, labels)
    options = BoostOptions(n_steps=30, rate=0.07, column_share=1.0)
    trees = boost(values, labels, np.ones(2000), np.zeros(4, dtype=np.int64), options, 0)
    # Its gradients are float32.
    np.testing.assert_allclose(
        trees.outputs(values)[:, 0], model.decision_function(values), atol=1e-6
    )


@pytest.mark.parametrize(
    "options",
    [
        BoostOptions(rate=0.2),
        BoostOptions(rate=0.2, row_share=0.6),
        BoostOptions(30, at_random=True),
    ],
)
@pytest.mark.parametrize("n_classes", [2, 3])
def test_compiled_trees_are_those_of_numpy(n_classes: int, options: BoostOptions) -> None:
    values, labels = table(1500, n_classes)
    weights = np.random.default_rng(0).random(1000) + 0.5
    held = (values[1000:], labels[1000:], np.ones(500))

    def run() -> BoostedTrees:
        return boost(values[:1000], labels[:1000], weights, N_CODES, options, 0, held)

    one = run()
    with numpy_only():
        two = run()
    assert one.roots.size == two.roots.size
    np.testing.assert_array_equal(one.feature, two.feature)
    np.testing.assert_allclose(one.value, two.value, rtol=1e-9, atol=1e-12)
    values[1300:, 0], values[1300:, 3] = 59, 50  # categories the trees have not seen
    np.testing.assert_allclose(one.outputs(values), two.outputs(values), rtol=1e-9, atol=1e-12)
    with numpy_only():
        by_tables = one.outputs(values)
    np.testing.assert_allclose(one.outputs(values), by_tables, rtol=1e-9, atol=1e-12)
    again = BoostedTrees.from_arrays(one.arrays(), 6, one.baseline.size)
    np.testing.assert_array_equal(again.outputs(values), one.outputs(values))


@pytest.mark.parametrize("loss", ["squared_error", "gamma"])
def test_trees_of_numbers(loss: Loss) -> None:
    rng = np.random.default_rng(1)
    values = rng.normal(size=(1500, 3))
    mean = np.exp(values[:, 0] + (values[:, 1] > 0))
    targets = rng.gamma(4.0, mean / 4.0)
    none = np.zeros(3, dtype=np.int64)
    trees = boost_numbers(values, targets, np.ones(1500), none, BoostOptions(), 0, loss=loss)
    found = trees.outputs(values)[:, 0]
    found = np.exp(found) if loss == "gamma" else found
    assert np.corrcoef(found, mean)[0, 1] > 0.9


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


@pytest.mark.parametrize("n_classes", [2, 3])
def test_a_logistic_regression_as_trees_is_the_regression(n_classes: int) -> None:
    rng = np.random.default_rng(n_classes)
    values = rng.normal(size=(400, 3))
    values[:, 2] = rng.integers(0, 4, size=400)
    labels = (values[:, 0] + values[:, 2] + rng.normal(size=400) > 1.5).astype(np.int64)
    labels += (n_classes - 2) * (values[:, 1] > 0.8)
    n_codes = np.array([0, 0, 4])
    line = linear_class_trees(values, labels, np.ones(400), n_codes, penalty=2.0)
    numbers = (values[:, :2] - values[:, :2].mean(axis=0)) / values[:, :2].std(axis=0)
    dummies = (values[:, 2:] == np.arange(4)).astype(float)
    design = np.hstack([numbers, dummies - dummies.mean(axis=0)])
    model = LogisticRegression(C=1 / 2.0, tol=1e-8, max_iter=2000).fit(design, labels)
    found, wanted = line.outputs(values), model.decision_function(design).reshape(400, -1)
    wanted = wanted - wanted.mean(axis=1, keepdims=True) if n_classes > 2 else wanted
    found = found - found.mean(axis=1, keepdims=True) if n_classes > 2 else found
    # Numbers are steps: 60 of them to a column.
    assert np.corrcoef(found.ravel(), wanted.ravel())[0, 1] > 0.999
    np.testing.assert_allclose(found.mean(axis=0), wanted.mean(axis=0), atol=2e-3)


def test_trees_that_start_from_a_line_add_to_it() -> None:
    values, labels = table(900, 3)
    rows = Sample(np.zeros((600, 0), dtype=np.int32), np.ones(600), labels[:600], values[:600])
    held = Sample(np.zeros((300, 0), dtype=np.int32), np.ones(300), labels[600:], values[600:])
    sizes = BoostOptions(100, n_leaves=4, line=1.0)
    both, n_steps = boosted_with_line(rows, N_CODES, sizes, 0, held)
    line = linear_class_trees(values[:600], labels[:600], np.ones(600), N_CODES, 1.0)

    def loss(trees: BoostedTrees) -> float:
        logits = trees.outputs(values[600:])
        logs = logits - np.logaddexp.reduce(logits, axis=1)[:, None]
        return -float(logs[np.arange(300), labels[600:]].mean())

    assert both.roots.size == line.roots.size + 3 * n_steps
    assert loss(both) < loss(line)


@pytest.mark.parametrize("n_classes", [2, 3])
def test_outputs_in_parts_are_those_of_the_parted_trees(n_classes: int) -> None:
    values, labels = table(700, n_classes)
    trees = boost(values, labels, np.ones(700), N_CODES, BoostOptions(12), 0)
    for part, found in zip(trees.parted(), trees.outputs_in_parts(values), strict=True):
        np.testing.assert_array_equal(found, part.outputs(values))

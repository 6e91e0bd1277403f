"""Compiled loops over coded rows against their NumPy twins."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fedcircuits.learners.hclt.tilt.additive import AdditiveProblem, AdditiveRows
from fedcircuits.learners.hclt.tilt.priors import constant_prior, tilt_layout
from fedcircuits.learners.hclt.tree.patterns import block_patterns
from fedcircuits.learners.hclt.tree.tree_em import column_marginals
from fedcircuits.native import kernels, numpy_only

pytestmark = pytest.mark.skipif(kernels() is None, reason="no compiled loops")


@pytest.mark.parametrize("cards", [(2, 3, 2, 4), (2, 300, 40, 900), (2**20,) * 4])
@pytest.mark.parametrize("n_rows", [1, 7, 700])
def test_patterns_are_numbered_as_by_numpy(cards: tuple[int, ...], n_rows: int) -> None:
    rng = np.random.default_rng(n_rows)
    codes = np.stack([rng.integers(-1, card, n_rows) for card in cards], axis=1)
    codes = codes[rng.integers(0, n_rows, n_rows)].astype(np.int32)  # some rows twice
    shape = SimpleNamespace(
        columns_of=[[0], [1, 2, 3], []], children_of=[[1, 2], [], []], order=np.array([0, 1, 2])
    )
    tree: Any = SimpleNamespace(cards=cards, shape=shape)
    found = block_patterns(tree, codes)
    with numpy_only():
        twin = block_patterns(tree, codes)
    assert found.sizes == twin.sizes
    assert found.child_index.keys() == twin.child_index.keys()
    np.testing.assert_array_equal(found.row_index, twin.row_index)
    for child, index in twin.child_index.items():
        np.testing.assert_array_equal(found.child_index[child], index)
    for mine, other in zip(found.codes, twin.codes, strict=True):
        np.testing.assert_array_equal(mine, other)


@pytest.mark.parametrize("n_classes", [2, 3])
def test_additive_objective_and_gradient(n_classes: int) -> None:
    rng = np.random.default_rng(n_classes)
    cards, n = (2, 5, 12), 600
    codes = np.stack([rng.integers(-1, card, n) for card in cards], axis=1).astype(np.int32)
    labels, weights = rng.integers(0, n_classes, n), rng.uniform(0.5, 2.0, n)
    offset = rng.normal(size=(n, n_classes))
    ordered = np.array([False, False, True])
    layout = tilt_layout(cards, ordered, column_marginals(codes, cards, weights))
    rows = AdditiveRows.of(codes, cards, labels, weights, offset)
    problem = AdditiveProblem(rows, layout, constant_prior(len(cards)), 4)
    size = n_classes * (1 + layout.n_fine + layout.n_coarse)
    vector = rng.normal(size=size)
    value, gradient = problem(vector)
    with numpy_only():
        twin_value, twin_gradient = problem(vector)
    assert value == pytest.approx(twin_value, rel=1e-10)
    np.testing.assert_allclose(gradient, twin_gradient, rtol=1e-9, atol=1e-11)
    step = 1e-5 * rng.normal(size=size)
    slope = (problem(vector + step)[0] - problem(vector - step)[0]) / 2
    assert slope == pytest.approx(float(gradient @ step), rel=1e-4, abs=1e-10)

"""Compiled loops of the learner agree with their NumPy twins."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from fedcircuits import native
from fedcircuits.learners.hclt.head.trees.boosting import BoostOptions, _two_classes, boost
from fedcircuits.learners.hclt.tilt.class_transitions import (
    AdamOptions,
    adam_epochs,
    make_batches,
    with_class_trees,
)
from fedcircuits.learners.hclt.tilt.priors import constant_prior, tilt_layout
from fedcircuits.learners.hclt.tilt.rows import prepare_rows
from fedcircuits.learners.hclt.tilt.tilt import TiltedTree, untilted
from fedcircuits.learners.hclt.tilt.tilt_fit import TiltProblem
from fedcircuits.learners.hclt.tree.latent_tree import LatentTree
from fedcircuits.learners.hclt.tree.patterns import block_patterns
from fedcircuits.learners.hclt.tree.starts import _grouped, initial_tree
from fedcircuits.learners.hclt.tree.tree_em import (
    EmOptions,
    Smoothing,
    column_marginals,
    fit_em,
)
from fedcircuits.learners.hclt.tree.tree_pass import TreePass, add_by_index

pytestmark = pytest.mark.skipif(
    native.kernels() is None, reason="the inner loops are not compiled (no C compiler)"
)

N, H, CARDS = 300, 7, (3, 5, 2, 9, 4, 2, 3, 6)
PARENT = np.array([-1, 0, 0, 1, 1, 2, 0, 0])
ORDER = np.arange(8)


def rows(missing: float = 0.1) -> np.ndarray[Any, np.dtype[np.int16]]:
    rng = np.random.default_rng(0)
    codes = np.stack([rng.integers(card, size=N) for card in CARDS], axis=1)
    codes[rng.random(codes.shape) < missing] = -1
    return codes.astype(np.int16)


def tree() -> LatentTree:
    codes = rows()
    marginals = column_marginals(codes, CARDS, np.ones(N))
    rng = np.random.default_rng(1)
    return initial_tree(PARENT, ORDER, np.arange(8), marginals, H, codes, rng)


def tilted() -> TiltedTree:
    rng = np.random.default_rng(2)
    base = untilted(tree(), 2)
    shape = base.g.shape
    return base.with_tilt(rng.normal(size=2), rng.normal(size=shape), rng.normal(size=(2, H)))


def both(run: Callable[[], Any]) -> tuple[Any, Any]:
    """What the compiled loops answer, and what NumPy does."""
    compiled = run()
    with native.numpy_only():
        return compiled, run()


def agree(one: Any, two: Any) -> None:
    np.testing.assert_allclose(one, two, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("missing", [0.0, 0.3])
def test_upward_and_flows(missing: float) -> None:
    tree_pass = TreePass(tree())
    patterns = block_patterns(tree_pass.tree, rows(missing))

    def run() -> list[Any]:
        up = tree_pass.upward(patterns)
        found = [up.evidence.copy(), up.messages[patterns.rows_of(3)].copy(), up.log_scale]
        flows = tree_pass.flows(patterns, up, up.root.copy())
        assert flows.pairs is not None
        return [*found, flows.states, flows.pairs[1:], flows.cells]

    for one, two in zip(*both(run), strict=True):
        agree(one, two)


@pytest.mark.parametrize("n_states", [3, 16, 33, 64, 70])
def test_single_precision_multiplies_tables_of_any_width(n_states: int) -> None:
    codes = rows(0.2)
    marginals = column_marginals(codes, CARDS, np.ones(N))
    rng = np.random.default_rng(n_states)
    model = initial_tree(PARENT, ORDER, np.arange(8), marginals, n_states, codes, rng)
    patterns, weights = block_patterns(model, codes), rng.random(N)
    exact = TreePass(model, np.float64).counts_of((patterns, weights))
    found = TreePass(model, np.float32).counts_of((patterns, weights))
    assert found.log_likelihood == pytest.approx(exact.log_likelihood, rel=1e-5)
    np.testing.assert_allclose(found.pairs, exact.pairs, rtol=1e-3, atol=1e-5)
    for one, two in zip(found.emissions, exact.emissions, strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(("n", "width", "n_groups"), [(600, 3, 16), (600, 40, 70), (4, 5, 8)])
def test_groups_of_points(n: int, width: int, n_groups: int) -> None:
    points = np.random.default_rng(n).normal(size=(n, width))
    compiled, twin = both(lambda: _grouped(points, n_groups, np.random.default_rng(1)))
    np.testing.assert_array_equal(compiled, twin)


def test_an_impossible_row_is_impossible_in_both() -> None:
    model = tree()
    table = model.emissions[0].copy()
    table[:, 0] = 0.0
    broken = LatentTree(
        PARENT, ORDER, model.latent_of, model.root, model.transitions, (table, *model.emissions[1:])
    )
    codes = rows(0.0)[:3]
    codes[1, 0] = 0
    one, two = both(lambda: TreePass(broken).log_likelihood(codes))
    assert one[1] == two[1] == -np.inf
    agree(np.delete(one, 1), np.delete(two, 1))


def test_sums_by_index() -> None:
    rng = np.random.default_rng(3)
    index, values = rng.integers(11, size=200), rng.normal(size=(200, 5))
    agree(*both(lambda: add_by_index(index, values, 11)))


@pytest.mark.parametrize("missing", [0.0, 0.2])
@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize("apart", [False, True])
def test_objective_of_the_tilt(missing: float, n_classes: int, apart: bool) -> None:
    codes, rng = rows(missing), np.random.default_rng(4)
    base = untilted(tree(), n_classes)
    tilts = rng.normal(size=n_classes), rng.normal(size=base.g.shape)
    model = base.with_tilt(*tilts, rng.normal(size=(n_classes, H)))
    model = with_class_trees(model) if apart else model
    labels, weights = rng.integers(n_classes, size=N), rng.uniform(0.5, 2.0, size=N)
    layout = tilt_layout(CARDS, np.ones(8, dtype=bool), column_marginals(codes, CARDS, weights))
    coarse = rng.normal(size=(n_classes, layout.n_coarse))
    for dtype, rtol, atol in ((np.float64, 1e-9, 1e-12), (np.float32, 1e-4, 1e-5)):
        prepared = prepare_rows(model, codes, labels, weights, dtype)
        problem = TiltProblem(model, prepared, layout, constant_prior(8))
        at = problem.pack(model.c, model.g, coarse, model.root_logits)
        one, two = both(lambda problem=problem, at=at: problem(at))  # type: ignore[misc]
        assert one[0] == pytest.approx(two[0], rel=rtol)
        np.testing.assert_allclose(one[1], two[1], rtol=rtol, atol=atol)


def test_the_objective_does_not_depend_on_threads() -> None:
    model, codes = tilted(), np.tile(rows(0.0), (100, 1))
    n = len(codes)
    labels = np.random.default_rng(4).integers(2, size=n)
    layout = tilt_layout(CARDS, np.ones(8, dtype=bool), column_marginals(codes, CARDS, np.ones(n)))
    prepared = prepare_rows(model, codes, labels, np.ones(n))
    problem = TiltProblem(model, prepared, layout, constant_prior(8))
    at = problem.pack(model.c, model.g, np.zeros((2, layout.n_coarse)), model.root_logits)
    alone, slope = problem(at)
    with native.using_threads(3):
        together, same = problem(at)
    assert alone == together
    assert (slope == same).all()


@pytest.mark.parametrize("missing", [0.0, 0.2])
@pytest.mark.parametrize("n_classes", [2, 3])
def test_steps_of_adam(missing: float, n_classes: int) -> None:
    codes, rng = rows(missing), np.random.default_rng(5)
    base = untilted(tree(), n_classes)
    tilts = rng.normal(size=n_classes), rng.normal(size=base.g.shape)
    model = with_class_trees(base.with_tilt(*tilts, rng.normal(size=(n_classes, H))))
    labels, weights = rng.integers(n_classes, size=N), rng.uniform(0.5, 2.0, size=N)
    order = np.random.default_rng(6).permutation(N)
    batches = make_batches(model, codes, labels, weights, 100, order)
    options = AdamOptions(n_epochs=2, dtype=np.float64)
    one, two = both(lambda: adam_epochs(model, batches, options, np.random.default_rng(7)))
    for a, b in zip(one.trees, two.trees, strict=True):
        agree(a.transitions, b.transitions)
        for mine, theirs in zip(a.emissions, b.emissions, strict=True):
            agree(mine, theirs)
    agree(one.c, two.c)
    agree(one.g, two.g)
    agree(one.root_logits, two.root_logits)
    # In single precision too, loosely: steps follow the signs of gradients, so that rounding may
    # turn a tiny one. Threads change nothing.
    with native.using_threads(3):
        single = adam_epochs(model, batches, AdamOptions(), np.random.default_rng(7))
    alone = adam_epochs(model, batches, AdamOptions(), np.random.default_rng(7))
    assert (single.trees[0].transitions == alone.trees[0].transitions).all()
    assert (single.g == alone.g).all()
    np.testing.assert_allclose(single.trees[0].transitions, two.trees[0].transitions, atol=1e-3)
    np.testing.assert_allclose(single.g, two.g, atol=1e-4)


@pytest.mark.parametrize("missing", [0.0, 0.2])
@pytest.mark.parametrize("spread", [False, True])
def test_stepwise_em(missing: float, spread: bool) -> None:
    cards, n = (40, 3, 12, 9, 2), 900
    rng = np.random.default_rng(9)
    codes = np.stack([rng.binomial(card - 1, 0.3, size=n) for card in cards], axis=1)
    codes[rng.random(codes.shape) < missing] = -1
    weights = rng.uniform(0.5, 2.0, size=n)
    parent = np.array([-1, 0, 0, 1, 1])
    marginals = column_marginals(codes, cards, weights)
    start = initial_tree(parent, np.arange(5), np.arange(5), marginals, 6, codes, rng)
    # Bins of the first, third and fourth columns; the third has an atom before them.
    none = np.zeros(0, dtype=np.int64)
    bins = (np.arange(40), none, np.arange(1, 12), np.arange(9), none)
    smoothing = Smoothing(0.5, 0.3, 0.2, bins if spread else (), (0.0, 0.7, 0.0, 0.0, 0.0))
    options = EmOptions(0, 2, 100, smoothing, dtype=np.float64)
    fit = partial(fit_em, start, codes, weights, options)
    one, two = (found.tree for found in both(lambda: fit(np.random.default_rng(1))))
    agree(one.root, two.root)
    agree(one.transitions[1:], two.transitions[1:])
    for mine, theirs in zip(one.emissions, two.emissions, strict=True):
        agree(mine, theirs)


def test_loss_of_two_classes() -> None:
    rng = np.random.default_rng(8)
    outputs = np.concatenate([30 * rng.normal(size=400), [0.0, 600.0, -600.0]])[:, None]
    labels = rng.integers(2, size=len(outputs))
    for one, two in zip(*both(lambda: _two_classes(outputs, labels)), strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-9, atol=1e-14)


@pytest.mark.parametrize("held_rows", [0, 150])
@pytest.mark.parametrize("column_share", [0.5, 1.0])
def test_steps_of_boosting(held_rows: int, column_share: float) -> None:
    rng = np.random.default_rng(11)
    n, n_codes = 600, np.array([0, 0, 5, 0])
    x = np.stack([rng.normal(size=n), rng.normal(size=n), rng.integers(5, size=n), rng.random(n)])
    values = x.T.copy()
    values[rng.random(values.shape) < 0.1] = np.nan
    log_odds = 2 * x[0] + (x[2] == 3) - 1
    labels = (rng.random(n) < 1 / (1 + np.exp(-log_odds))).astype(np.int64)
    weights, cut = rng.uniform(0.5, 2.0, size=n), n - held_rows
    held = (values[cut:], labels[cut:], weights[cut:]) if held_rows else None
    options = BoostOptions(n_leaves=6, min_rows=5, column_share=column_share, n_steps=120)
    rows = values[:cut], labels[:cut], weights[:cut]
    one, two = both(lambda: boost(*rows, n_codes, options, seed=3, held=held))
    assert len(one.roots) == len(two.roots)
    assert len(one.roots) == 120 if held is None else 1 < len(one.roots) < 120
    np.testing.assert_array_equal(one.feature, two.feature)
    np.testing.assert_array_equal(one.left_categories, two.left_categories)
    np.testing.assert_allclose(one.threshold, two.threshold, rtol=1e-12)
    np.testing.assert_allclose(one.value, two.value, rtol=1e-9, atol=1e-12)
    again = boost(*rows, n_codes, options, seed=3, held=held, start=one)
    assert np.isfinite(again.value).all()


def test_without_the_library_numpy_does_the_work() -> None:
    program = "from fedcircuits import native; print(native.kernels())"
    found = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "FEDCIRCUITS_NATIVE": "0"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout.strip() == "None"


def test_a_library_of_other_sources_is_not_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedcircuits.native.build.source_digest", lambda: "another")
    with pytest.warns(UserWarning, match="built from other sources.*native.build"):
        assert native._loaded.__wrapped__() is None

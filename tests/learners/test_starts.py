"""Where EM starts: both starts are distributions; each is kept where it ends better."""

from __future__ import annotations

import numpy as np
import pytest

from fedcircuits.arrays import IntArray
from fedcircuits.learners.hclt.fit import fit_rows
from fedcircuits.learners.hclt.options import FitOptions
from fedcircuits.learners.hclt.tree.shape import TreeShape, shape_of
from fedcircuits.learners.hclt.tree.starts import Beginning, Start
from fedcircuits.learners.hclt.tree.tree_em import EmOptions, Smoothing, column_marginals, fit_em

CHAIN = shape_of(np.array([-1, 0, 1, 2]), np.arange(4), np.arange(4))
SINGLE = shape_of(np.array([-1]), np.array([0]), np.zeros(4, dtype=np.int64))


def walk(n: int, n_states: int = 40, step: float = 0.15) -> IntArray:
    """(n, 4) a number and three more, each close to the one before."""
    rng = np.random.default_rng(0)
    x = np.cumsum(rng.normal(size=(n, 4)) * [1.0, step, step, step], axis=1)
    edges = np.quantile(x[:, 0], np.linspace(0, 1, n_states + 1)[1:-1])
    return np.searchsorted(edges, x)


def beginning(codes: IntArray, shape: TreeShape, ordered: bool = True) -> Beginning:
    cards = tuple(int(card) + 1 for card in codes.max(axis=0))
    marginals = column_marginals(codes, cards, np.ones(len(codes)))
    return Beginning(shape, marginals, np.full(len(cards), ordered), codes)


@pytest.mark.parametrize("start", list(Start))
@pytest.mark.parametrize("shape", [CHAIN, SINGLE])
@pytest.mark.parametrize("ordered", [True, False])
def test_a_start_is_a_distribution_with_every_state_possible(
    start: Start, shape: TreeShape, ordered: bool
) -> None:
    codes = walk(60, 8)
    codes[::7, 1] = -1  # missing cells
    codes[:, 3] = -1
    codes[0, 3] = 0
    tree = beginning(codes, shape, ordered).tree(start, 12, np.random.default_rng(1))
    assert tree.root.sum() == pytest.approx(1.0)
    assert (tree.root > 0).all()
    for table in tree.emissions:
        assert np.allclose(table.sum(axis=1), 1.0)
        assert (table > 0).all()
    inner = tree.transitions[shape.parent >= 0]
    assert np.allclose(inner.sum(axis=2), 1.0)
    assert (inner > 0).all()


def test_one_row_is_enough_to_start() -> None:
    tree = beginning(walk(1, 4), CHAIN).tree(Start.LOCAL, 3, np.random.default_rng(0))
    assert np.isfinite(tree.root).all()


def test_local_starts_end_better_where_columns_far_apart_have_little_in_common() -> None:
    codes, fresh = np.split(walk(4_000, step=1.0), 2)
    begin = beginning(codes, CHAIN)
    one = np.ones(len(codes))
    options = EmOptions(n_iterations=15, n_warmup_epochs=0, smoothing=Smoothing(), dtype=np.float64)
    ends = {}
    for start in Start:
        first = begin.tree(start, 16, np.random.default_rng(0))
        found = fit_em(first, codes, one, options, np.random.default_rng(0), (fresh, one))
        ends[start] = found.best_score
    assert ends[Start.LOCAL] > ends[Start.PROTOTYPES] + 0.05


def test_more_states_are_tried_where_they_clearly_pay_and_not_at_a_client() -> None:
    codes = walk(3_000)
    cards = tuple(int(card) + 1 for card in codes.max(axis=0))
    ordered = np.ones(4, dtype=bool)
    rule = int(np.sqrt(len(codes) / 4))
    found = {}
    for n_trees in (None, 1):
        options = FitOptions(n_trees=n_trees)
        rng = np.random.default_rng(0)
        report = fit_rows(codes, cards, ordered, rng=rng, options=options).report
        found[n_trees] = {int(states) for states in report["validation_by_n_states"]}  # type: ignore[attr-defined]
    assert max(found[None]) > 1.4 * rule
    assert max(found[1]) <= rule

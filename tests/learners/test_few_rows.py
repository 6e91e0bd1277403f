"""Choices on few rows: folds that know nothing of what they leave out, means of boosters."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fedcircuits.learners.hclt.head import fit_head
from fedcircuits.learners.hclt.head.fit_head import boosted_with_line, mean_of
from fedcircuits.learners.hclt.head.trees.boosting import BoostOptions
from fedcircuits.learners.hclt.head.trees.linear_part import linear_class_trees
from fedcircuits.learners.hclt.label_fit import _completed
from fedcircuits.learners.hclt.options import FitOptions
from fedcircuits.learners.hclt.sample import Sample
from fedcircuits.learners.hclt.tilt.prior_by_folds import choose_prior_by_folds, out_of_fold
from fedcircuits.learners.hclt.tilt.prior_choice import make_folds
from fedcircuits.learners.hclt.tilt.priors import tilt_layout
from fedcircuits.learners.hclt.tilt.tilt import untilted
from fedcircuits.learners.hclt.tree.latent_tree import LatentTree
from fedcircuits.learners.hclt.tree.tree_em import column_marginals

CARDS = (6, 6, 3)
ORDERED = np.array([True, True, False])


def coded(n: int = 160) -> Sample:
    """Rows whose first column says much of the label and whose second says nothing."""
    rng = np.random.default_rng(5)
    codes = np.column_stack([rng.integers(0, card, size=n) for card in CARDS])
    labels = (codes[:, 0] + rng.integers(-1, 2, size=n) > 2).astype(np.int64)
    return Sample(codes.astype(np.int32), np.ones(n), labels)


def independent_columns(sample: Sample) -> LatentTree:
    """A tree of one state."""
    marginals = column_marginals(sample.codes, CARDS, sample.weights)
    return LatentTree(
        parent=np.array([-1]),
        order=np.array([0]),
        latent_of=np.zeros(len(CARDS), dtype=np.int64),
        root=np.ones(1),
        transitions=np.ones((1, 1, 1)),
        emissions=tuple(share[None] for share in marginals),
    )


def test_folds_estimate_their_strengths_without_the_rows_they_leave_out() -> None:
    sample = coded()
    train, held = sample.take(np.arange(140)), sample.take(np.arange(140, 160))
    base = untilted(independent_columns(sample), 2)
    layout = tilt_layout(CARDS, ORDERED, column_marginals(sample.codes, CARDS, sample.weights))
    found = []
    for swapped in (False, True):
        folds = make_folds(base, train, held, np.random.default_rng(0))
        if swapped:  # all rows together no longer say what any fold says
            folds[0].rows = replace(folds[0].rows, labels=1 - folds[0].rows.labels)
        chosen = choose_prior_by_folds(
            base, folds[:2], layout, FitOptions(), lambda *_: None, sharpened=False
        )
        found.append(chosen)
    plain, other = found
    assert not np.allclose(plain.tables[1], other.tables[1])
    np.testing.assert_array_equal(plain.models[0].g, other.models[0].g)


def test_the_mean_of_boosters_has_the_mean_of_their_outputs() -> None:
    rng = np.random.default_rng(1)
    values = np.column_stack([rng.normal(size=(300, 3)), rng.integers(0, 4, size=300)])
    values[rng.random(values.shape) < 0.05] = np.nan
    labels = (np.nan_to_num(values[:, 0]) + (values[:, 3] == 2) > 0.3).astype(np.int64)
    rows, n_codes = Sample(np.zeros((300, 0)), np.ones(300), labels, values), np.array([0, 0, 0, 4])
    boosters = [
        boosted_with_line(rows, n_codes, sizes, 0)[0]
        for sizes in (BoostOptions(20, min_rows=5), BoostOptions(10, n_leaves=4, line=1.0))
    ]
    mean = mean_of(boosters)
    wanted = np.mean([trees.outputs(values) for trees in boosters], axis=0)
    np.testing.assert_allclose(mean.outputs(values), wanted, atol=1e-12)


@pytest.mark.parametrize("few", [True, False])
def test_few_rows_keep_a_gain_that_is_not_certain(
    few: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not few:
        monkeypatch.setattr(fit_head, "FEW_JUDGING", 0)
    rng = np.random.default_rng(0)
    labels = rng.permutation(np.arange(200) % 2)
    outputs = 0.16 * (2 * labels - 1) + rng.normal(size=200)
    log_tilt = np.full((200, 2), np.log(0.5))
    sizes = (BoostOptions(),)
    trial = fit_head.judged(sizes, outputs[:, None], log_tilt, labels, np.ones(200), False)
    assert trial.error < trial.gain < 2 * trial.error
    assert trial.gain > 0.01 * trial.log_loss
    assert trial.kept == few


@pytest.mark.parametrize("min_rows", [1, 20])
def test_steps_of_a_line_have_as_many_rows_as_asked(min_rows: int) -> None:
    rng = np.random.default_rng(2)
    values = np.column_stack([rng.normal(size=200), rng.poisson(1.0, 200), rng.integers(0, 9, 200)])
    values[:70, 2] = 3.0
    values[rng.random(values.shape) < 0.05] = np.nan
    labels = (np.nan_to_num(values[:, 0]) > 0).astype(np.int64)
    trees = linear_class_trees(
        values, labels, np.ones(200), np.array([0, 0, 9]), penalty=1.0, min_rows=min_rows
    )
    behind = []
    for column in range(3):  # rows that differ in what this column adds differ in its leaf
        alone = np.full_like(values, np.nan)
        alone[:, column] = values[:, column]
        added, counts = np.unique(trees.outputs(alone) - trees.baseline, return_counts=True)
        behind += [count for part, count in zip(added, counts, strict=True) if part != 0]
    assert len(behind) > 10
    assert min(behind) >= min_rows


@pytest.mark.parametrize("n", [400, 1_200])
def test_a_head_is_judged_alike_where_classes_take_turns(n: int) -> None:
    """Parts that are judged with each other's pools hold rows of every class."""
    rng = np.random.default_rng(0)
    labels = np.arange(n) % 2
    outputs = (2.0 * labels - 1.0 + rng.normal(size=n))[:, None]
    log_tilt = np.full((n, 2), np.log(0.5))
    mixed = rng.permutation(n)
    found = [
        fit_head.judged((), outputs[rows], log_tilt, labels[rows], np.ones(n), False)
        for rows in (np.arange(n), mixed)
    ]
    assert all(trial.kept for trial in found)
    np.testing.assert_allclose(found[0].gain, found[1].gain, rtol=0.05)


def test_every_row_is_judged_on_by_one_of_four_folds() -> None:
    n, rng = 4_000, np.random.default_rng(3)
    codes = np.column_stack([rng.integers(0, c, size=n) for c in CARDS]).astype(np.int32)
    sample = Sample(codes, np.ones(n), (np.arange(n) % 40 == 0).astype(np.int64))
    train, held = sample.take(np.arange(400, n)), sample.take(np.arange(400))
    base = untilted(independent_columns(sample), 2)
    folds = make_folds(base, train, held, rng)[1:]
    assert len(folds) == 4
    judging = np.sort(np.concatenate([fold.checked_rows for fold in folds]))
    np.testing.assert_array_equal(judging, np.arange(n))
    log_tilt, fold_of = out_of_fold([base] * 4, folds)
    assert np.isfinite(log_tilt).all()
    assert np.bincount(fold_of).tolist() == [1_000] * 4
    labels = np.concatenate([train.labels, held.labels])
    assert np.bincount(fold_of[labels == 1]).tolist() == [25] * 4  # a rare class is in each


def test_cells_that_few_rows_lack_are_drawn_before_the_tilt_is_fitted() -> None:
    sample = coded()
    codes = sample.codes.copy()
    codes[:3, 0], codes[:80, 1] = -1, -1
    few = (codes < 0).mean(axis=0) <= 0.02
    assert few.tolist()[:2] == [True, False]
    tree = independent_columns(sample)
    found = _completed(replace(sample, codes=codes), few, tree)
    assert (found.codes[:3, 0] >= 0).all()
    assert (found.codes[:3, 0] < CARDS[0]).all()
    np.testing.assert_array_equal(found.codes[3:], codes[3:])
    np.testing.assert_array_equal(found.codes[:, 1:], codes[:, 1:])
    # The draws depend on the row alone.
    again = _completed(replace(sample.take(np.array([2, 7])), codes=codes[[2, 7]]), few, tree)
    np.testing.assert_array_equal(again.codes[0], found.codes[2])

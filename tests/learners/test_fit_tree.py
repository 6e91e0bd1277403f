"""The two learners end to end on small coded tables."""

from __future__ import annotations

import json
from functools import partial

import numpy as np
import pytest

from fedcircuits.learners.hclt.fit import fit_rows, with_more_held
from fedcircuits.learners.hclt.options import FitOptions
from fedcircuits.learners.hclt.sample import Sample, split_rows
from fedcircuits.learners.hclt.tree.tree_pass import log_likelihood

CARDS = (2, 12, 3, 5)
ORDERED = np.array([False, True, False, True])

fit_mixture = partial(fit_rows, is_tree=False)


def table(n: int, n_classes: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Codes that depend on a class and on each other."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, n_classes, size=n)
    first = (rng.random(n) < (labels + 1) / (n_classes + 1)).astype(np.int64)
    second = np.clip(rng.normal(5 + labels + 2 * first, 1.5, size=n).round(), 0, 11).astype(
        np.int64
    )
    third = (labels + rng.integers(0, 2, size=n)) % 3
    fourth = np.clip(second // 3 + rng.integers(-1, 2, size=n), 0, 4)
    return np.stack([first, second, third, fourth], axis=1), labels


@pytest.mark.parametrize("fit", [fit_rows, fit_mixture])
@pytest.mark.parametrize("n_classes", [2, 4])
def test_labelled_fit_classifies_has_mass_one_and_marginalises(fit, n_classes: int) -> None:  # type: ignore[no-untyped-def]
    codes, labels = table(1500, n_classes)
    fitted = fit(codes, CARDS, ORDERED, labels, n_classes, rng=np.random.default_rng(1))
    fresh, truth = table(2000, n_classes, seed=2)
    joint = fitted.model.log_joint(fresh)
    accuracy = float((joint.argmax(axis=1) == truth).mean())
    assert accuracy > {2: 0.72, 4: 0.5}[n_classes]
    grid = np.stack(np.meshgrid(*(np.arange(card) for card in CARDS), indexing="ij"), axis=-1)
    mass = np.exp(fitted.model.log_joint(grid.reshape(-1, 4)))
    assert mass.sum() == pytest.approx(1.0, abs=1e-9)
    nothing = fitted.model.log_joint(np.full((1, 4), -1))[0]
    np.testing.assert_allclose(np.exp(nothing), mass.sum(axis=0), atol=1e-9)
    np.testing.assert_allclose(np.exp(nothing), np.bincount(labels) / 1500, atol=0.03)
    json.dumps(fitted.report)


def test_unlabelled_fit_beats_independent_columns() -> None:
    codes, _ = table(3000, 2)
    fitted = fit_rows(codes, CARDS, ORDERED, rng=np.random.default_rng(1))
    fresh, _ = table(2000, 2, seed=2)
    independent = sum(
        np.log((np.bincount(codes[:, j], minlength=card) + 1) / (3000 + card))[fresh[:, j]]
        for j, card in enumerate(CARDS)
    )
    assert fitted.model.n_classes == 1
    found = fitted.model.log_joint(fresh)[:, 0]
    # The model is the tree with the marginals of the rows put right.
    np.testing.assert_allclose(found, log_likelihood(fitted.tree, fresh), atol=0.01)
    assert found.mean() > np.mean(independent) + 0.5


def test_marginals_of_the_model_are_those_of_the_rows() -> None:
    codes, labels = table(300, 2)
    model = fit_rows(codes, CARDS, ORDERED, labels, 2, rng=np.random.default_rng(1)).model
    for j, card in enumerate(CARDS):
        rows = np.full((card, len(CARDS)), -1)
        rows[:, j] = np.arange(card)
        found = np.exp(model.log_joint(rows)).sum(axis=1)
        counts = np.bincount(codes[:, j], minlength=card)
        expected = np.where(counts > 0, counts, 1 / card)  # a part of one row where there is none
        expected = expected / expected.sum()
        np.testing.assert_allclose(found, expected, atol=1e-4)


def test_the_same_seed_gives_the_same_model() -> None:
    codes, labels = table(600, 2)
    models = [
        fit_rows(codes, CARDS, ORDERED, labels, 2, rng=np.random.default_rng(3)).model
        for _ in range(2)
    ]
    np.testing.assert_array_equal(models[0].log_joint(codes), models[1].log_joint(codes))


@pytest.mark.parametrize("fit", [fit_rows, fit_mixture])
@pytest.mark.parametrize("n", [1, 2, 7, 45])
def test_tiny_tables_fit(fit, n: int) -> None:  # type: ignore[no-untyped-def]
    codes, labels = table(n, 2)
    model = fit(codes, CARDS, ORDERED, labels, 2, rng=np.random.default_rng(0)).model
    assert np.isfinite(model.log_joint(codes)).all()


def test_one_column_a_constant_column_and_one_class_present() -> None:
    codes, _ = table(200, 2)
    rng = np.random.default_rng(0)
    one = fit_rows(codes[:, :1], (2,), ORDERED[:1], rng=rng).model
    shares = np.exp(one.log_joint(np.array([[0], [1]])))[:, 0]
    np.testing.assert_allclose(shares, np.bincount(codes[:, 0]) / 200, atol=0.01)
    codes[:, 2] = 0
    constant = fit_rows(codes, (2, 12, 1, 5), ORDERED, np.zeros(200, dtype=int), 2, rng=rng).model
    assert np.exp(constant.log_prior[0]) > 0.95
    assert np.isfinite(constant.log_joint(codes)).all()


def test_missing_cells_and_weights_in_training() -> None:
    codes, labels = table(1000, 2)
    holes = codes.copy()
    holes[np.random.default_rng(4).random(codes.shape) < 0.3] = -1
    holes[:5] = -1
    weights = np.random.default_rng(5).uniform(0.5, 2.0, size=1000)
    model = fit_rows(holes, CARDS, ORDERED, labels, 2, weights, rng=np.random.default_rng(1)).model
    fresh, truth = table(2000, 2, seed=2)
    assert (model.log_joint(fresh).argmax(axis=1) == truth).mean() > 0.7


def test_options_override_the_sizes_and_progress_reaches_one() -> None:
    codes, labels = table(500, 2)
    seen: list[float] = []
    fitted = fit_rows(
        codes,
        CARDS,
        ORDERED,
        labels,
        2,
        rng=np.random.default_rng(0),
        options=FitOptions(n_states=3, n_iterations=4, class_transitions=False),
        progress=lambda fraction, _text: seen.append(fraction),
    )
    assert fitted.tree.n_states == 3
    assert "class_transitions" not in fitted.report
    assert seen[-1] == 1.0


def test_given_validation_rows_are_used() -> None:
    codes, _ = table(500, 2)
    fitted = fit_rows(
        codes[:400], CARDS, ORDERED, rng=np.random.default_rng(0), validation=(codes[400:], None)
    )
    assert fitted.report["n_validation_rows"] == 100
    assert fitted.report["n_rows"] == 400


def test_a_code_out_of_range_is_named() -> None:
    codes, _ = table(50, 2)
    codes[3, 1] = 12
    with pytest.raises(ValueError, match=r"column 1: expected codes -1 \.\. 11, found \d+ \.\. 12"):
        fit_rows(codes, CARDS, ORDERED, rng=np.random.default_rng(0))


def test_no_rows_is_an_error() -> None:
    with pytest.raises(ValueError, match="at least one row"):
        fit_rows(np.zeros((0, 4), dtype=int), CARDS, ORDERED, rng=np.random.default_rng(0))


def test_the_label_holds_out_more_rows_and_loses_none() -> None:
    codes, labels = table(6000, 3)
    codes[:, 1] = np.arange(6000)  # a name for every row
    rng = np.random.default_rng(0)
    everything = Sample(codes, np.arange(6000.0), labels)
    train, held = map(everything.take, split_rows(everything, 0.1, rng))
    fewer, more = with_more_held(train, held, rng)
    assert len(more.codes) == pytest.approx(1500, abs=10)
    assert set(held.codes[:, 1]) < set(more.codes[:, 1])
    both = fewer.joined(more)
    order = np.argsort(both.codes[:, 1])
    np.testing.assert_array_equal(both.codes[order], codes)
    np.testing.assert_array_equal(both.weights[order], everything.weights)
    np.testing.assert_array_equal(both.labels[order], labels)
    shares = np.bincount(more.labels) / np.bincount(labels)
    np.testing.assert_allclose(shares, 0.25, atol=0.01)


def test_few_validation_rows_stay_as_they_are() -> None:
    codes, labels = table(3000, 2)
    rng = np.random.default_rng(0)
    everything = Sample(codes, np.ones(3000), labels)
    train, held = map(everything.take, split_rows(everything, 0.1, rng))
    assert with_more_held(train, held, rng) == (train, held)

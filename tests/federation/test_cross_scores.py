"""Weights of clients' trees from moments of scores: those of the rows, for any set of clients."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import optimize

from fedcircuits.errors import StorageError
from fedcircuits.federation.client.label.head_scores import grouped, halves, moments
from fedcircuits.federation.server.cross_scores import fitted_pool
from fedcircuits.federation.wire import requests as m
from fedcircuits.learners.hclt.head.trees.boosting import BoostOptions, boost

CLIENTS = ("u", "v", "w")


def drawn(
    rng: np.random.Generator, n: int, n_classes: int
) -> tuple[np.ndarray[Any, Any], list[np.ndarray[Any, Any]]]:
    """Classes (n,) and the scores (n, L) of three clients: noisy, later trees least of all."""
    labels = rng.integers(0, n_classes, n)
    truth = (
        np.where(labels[:, None] == 1, 1.0, -1.0)
        if n_classes == 2
        else np.where(labels[:, None] == np.arange(n_classes), 1.5, -0.5)
    )
    scores = []
    for _ in CLIENTS:
        scores += [truth + rng.normal(0, noise, truth.shape) for noise in (2.5, 2.0, 1.5)]
    return labels, scores


def told(labels: Any, scores: list[Any], order: Any, least: int = 50) -> m.HeadScores:
    groups = grouped(labels, order, least, 16)
    picked, n_rows = np.concatenate(groups), np.array([g.size for g in groups])
    starts = np.concatenate([[0], np.cumsum(n_rows)[:-1]])
    found = moments([each[picked] for each in scores], starts, n_rows)
    return m.HeadScores(list(CLIENTS), np.array([labels[g[0]] for g in groups]), n_rows, *found)


def test_weights_from_moments_are_those_of_the_rows(rng: np.random.Generator) -> None:
    labels, scores = drawn(rng, 20_000, 2)
    found = fitted_pool(
        {"x": told(labels, scores, scores[0][:, 0])},
        dict.fromkeys(CLIENTS, 1.0),
        np.log([0.5, 0.5]),
    )
    assert found is not None
    mean = np.stack([np.mean(scores[part::3], axis=0)[:, 0] for part in range(3)], axis=1)  # (n, 3)

    def loss(theta: np.ndarray[Any, Any]) -> float:
        z = mean @ theta[:3] + theta[3]
        return float(np.logaddexp(0, z).mean() - (z * labels).mean())

    best = optimize.minimize(loss, [0.5, 0.5, 0.5, 0.0]).x
    mine = np.array([found.tilt, *found.trees, found.shift[1] - found.shift[0]])
    np.testing.assert_allclose(mine, best, atol=0.05)
    before = float(np.logaddexp(0, mean[:, 0]).mean() - (mean[:, 0] * labels).mean())
    assert found.log_loss == pytest.approx(before, abs=0.01)
    assert found.gain == pytest.approx(before - loss(best), abs=0.01)
    assert found.gain > 10 * found.error


def test_a_client_that_left_was_never_there(rng: np.random.Generator) -> None:
    labels, scores = drawn(rng, 2_000, 2)
    whole = told(labels, scores, scores[0][:, 0])
    kept = [0, 1, 2, 6, 7, 8]  # those of u and w
    rest = told(labels, [scores[at] for at in kept], scores[0][:, 0])
    rest = m.HeadScores(["u", "w"], rest.classes, rest.n_rows, rest.means, rest.covariances)
    weights, shares = {"u": 0.5, "w": 0.7}, np.log([0.4, 0.6])
    one, other = (fitted_pool({"x": each}, weights, shares) for each in (whole, rest))
    assert one is not None
    assert other is not None
    assert (one.tilt, *one.trees, one.gain) == (other.tilt, *other.trees, other.gain)
    assert fitted_pool({"x": whole}, {"nobody": 1.0}, shares) is None


def test_more_than_two_classes(rng: np.random.Generator) -> None:
    labels, scores = drawn(rng, 6_000, 4)
    found = fitted_pool(
        {"x": told(labels, scores, scores[0][np.arange(6_000), labels])},
        dict.fromkeys(CLIENTS, 1.0),
        np.log(np.full(4, 0.25)),
    )
    assert found is not None
    assert found.trees[1] > found.trees[0] > 0  # later trees have less noise here
    assert found.gain > 5 * found.error
    assert found.shift.shape == (4,)


def test_groups_have_one_class_and_rows_enough(rng: np.random.Generator) -> None:
    labels = (rng.random(1_000) < 0.03).astype(np.int64)
    groups = grouped(labels, rng.random(1_000), 50, 16)
    assert all(group.size >= 50 and np.unique(labels[group]).size == 1 for group in groups)
    assert {int(labels[group[0]]) for group in groups} == {0}  # too few rows of the other class
    half = halves(labels, rng)
    for label in (0, 1):
        assert abs(int(half[labels == label].sum()) - int((labels == label).sum()) / 2) <= 1


@pytest.mark.parametrize("n_classes", [2, 3])
def test_first_and_later_trees_add_up(n_classes: int, rng: np.random.Generator) -> None:
    x = rng.normal(size=(300, 3))
    y = rng.integers(0, n_classes, 300)
    trees = boost(x, y, np.ones(300), np.zeros(3, dtype=int), BoostOptions(8, 0.1, 4, 5), 0)
    first, later = trees.parted()
    assert first.roots.size == 2 * first.baseline.size
    np.testing.assert_allclose(first.outputs(x) + later.outputs(x), trees.outputs(x), atol=1e-12)


def test_scores_that_do_not_fit_are_refused(rng: np.random.Generator) -> None:
    labels, scores = drawn(rng, 500, 2)
    good = told(labels, scores, scores[0][:, 0])
    assert good.wrong(2) is None
    for spoilt in (
        replace(good, clients=["u"]),
        m.HeadScores(
            list(CLIENTS), good.classes, good.n_rows, good.means * np.nan, good.covariances
        ),
        m.HeadScores(list(CLIENTS), good.classes + 5, good.n_rows, good.means, good.covariances),
    ):
        assert spoilt.wrong(2) is not None
    with pytest.raises(StorageError):
        m.HeadScores.from_bytes(b"nothing")

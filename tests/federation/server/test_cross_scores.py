"""Weights of clients' trees from slopes and curvatures of the loss, for any set of clients."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import optimize

from fedcircuits.density.tilt import log_softmax
from fedcircuits.errors import StorageError
from fedcircuits.federation.client.label.head_scores import SURE, WEIGHTS, expanded, halves, whole
from fedcircuits.federation.server.cross_scores import MOST_SCORED, fitted_pool, those_after
from fedcircuits.federation.wire import requests as m
from fedcircuits.learners.hclt.head.trees.boosting import BoostOptions, boost

CLIENTS = ("u", "v", "w")
AnyArray = np.ndarray[Any, Any]


def drawn(
    rng: np.random.Generator, n: int, n_classes: int, noise: float = 0.3
) -> tuple[AnyArray, list[AnyArray]]:
    """Classes (n,), and scores (n, L, 3) of three clients whose mean has the odds of the classes.

    Later trees say nothing, tables and first trees half each.
    """
    n_logits = 1 if n_classes == 2 else n_classes
    truth = rng.normal(0, 1.5, (n, n_logits, 3))
    logits = truth @ np.array([0.8, 0.6, 0.0])
    p = np.exp(log_softmax(whole(logits)))
    labels = (rng.random((n, 1)) > p.cumsum(axis=1)[:, :-1]).sum(axis=1)
    return labels, [truth + rng.normal(0, noise, truth.shape) for _ in CLIENTS]


def shares(labels: AnyArray, n_classes: int) -> AnyArray:
    """(Y,) rows of each class."""
    return np.bincount(labels, minlength=n_classes).astype(float)


def told(labels: AnyArray, scores: list[AnyArray], counts: AnyArray) -> m.HeadScores:
    found = expanded(scores, labels, np.log(counts / counts.sum()), 50)
    clients = list(CLIENTS[: len(scores)])
    return m.HeadScores(clients, found.n_rows, found.losses, found.slopes, found.curvatures)


@pytest.mark.parametrize("n_classes", [2, 3])
def test_slopes_and_curvatures_are_those_of_the_loss(
    n_classes: int, rng: np.random.Generator
) -> None:
    labels, scores = drawn(rng, 80, n_classes)
    counts = shares(labels, n_classes)
    found = told(labels, scores[:2], counts)
    n_logits = 1 if n_classes == 2 else n_classes
    log_shares = np.log(counts / counts.sum())
    base = log_shares[1:] - log_shares[:1] if n_logits == 1 else log_shares - log_shares.mean()
    eye = np.broadcast_to(np.eye(n_logits), (80, n_logits, n_logits))
    numbers = np.concatenate([*scores[:2], eye], axis=2)  # (n, L, d)

    def loss(w: AnyArray) -> float:
        return -float(log_softmax(whole(numbers @ w))[np.arange(80), labels].sum())

    # The second model alone, as sure as suits the rows.
    points = [np.concatenate([np.zeros(3), by * WEIGHTS, base]) for by in SURE]
    at = min(points, key=loss)
    step = 1e-4 * np.eye(at.size)
    slope = [(loss(at + h) - loss(at - h)) / 2e-4 for h in step]
    mine = found.slopes[1] + found.curvatures[1] @ at
    np.testing.assert_allclose(mine, slope, atol=1e-5)
    wide = 1e-3 * np.eye(at.size)
    second = [
        [
            (loss(at + h + k) - loss(at + h - k) - loss(at - h + k) + loss(at - h - k)) / 4e-6
            for k in wide
        ]
        for h in wide
    ]
    np.testing.assert_allclose(found.curvatures[1], second, atol=2e-3)
    assert found.losses[0] == pytest.approx(loss(np.concatenate([[1.0], np.zeros(5), base])))


def test_weights_are_nearly_those_of_the_rows(rng: np.random.Generator) -> None:
    labels, scores = drawn(rng, 20_000, 2)
    counts = np.array([1.0, 1.0])
    found = fitted_pool(
        {"x": told(labels, scores, counts)}, dict.fromkeys(CLIENTS, 1.0), {"x": counts}
    )
    assert found is not None
    mean = np.mean(scores, axis=0)[:, 0]  # (n, 3)

    def loss(theta: AnyArray) -> float:
        z = mean @ theta[:3] + theta[3]
        return float(np.logaddexp(0, z).mean() - (z * labels).mean())

    best = optimize.minimize(loss, [0.5, 0.5, 0.0, 0.0], bounds=[(0, None)] * 3 + [(None, None)])
    mine = np.array([found.tilt, *found.trees, found.shift[1] - found.shift[0]])
    np.testing.assert_allclose(mine, best.x, atol=0.12)
    before = loss(np.array([1.0, 0.0, 0.0, 0.0]))
    assert before - loss(mine) > 0.97 * (before - best.fun)
    assert found.log_loss == pytest.approx(before, abs=0.05)
    assert found.gain == pytest.approx(before - loss(best.x), rel=0.3)
    assert found.gain > 10 * found.error


def test_models_that_are_far_too_sure_weigh_what_the_rows_say(rng: np.random.Generator) -> None:
    labels, scores = drawn(rng, 20_000, 2)
    counts = np.array([1.0, 1.0])
    # First trees follow their own rows: here mostly noise, of which the mean has less.
    for each in scores:
        each[:, :, 1] = 2 * each[:, :, 1] + rng.normal(0, 8, each[:, :, 1].shape)
    found = fitted_pool(
        {"x": told(labels, scores, counts)}, dict.fromkeys(CLIENTS, 1.0), {"x": counts}
    )
    assert found is not None
    mean = np.mean(scores, axis=0)[:, 0]  # (n, 3)

    def loss(theta: AnyArray) -> float:
        z = mean @ theta[:3] + theta[3]
        return float(np.logaddexp(0, z).mean() - (z * labels).mean())

    best = optimize.minimize(loss, [0.5, 0.1, 0.0, 0.0], bounds=[(0, None)] * 3 + [(None, None)])
    mine = np.array([found.tilt, *found.trees, found.shift[1] - found.shift[0]])
    before = loss(np.array([1.0, 0.0, 0.0, 0.0]))
    assert before - loss(mine) > 0.8 * (before - best.fun)


def test_a_client_that_left_was_never_there(rng: np.random.Generator) -> None:
    labels, scores = drawn(rng, 2_000, 2)
    counts = shares(labels, 2)
    every = told(labels, scores, counts)
    rest = replace(told(labels, [scores[0], scores[2]], counts), clients=["u", "w"])
    weights = {"u": 0.5, "w": 0.7}
    one, other = (fitted_pool({"x": each}, weights, {"x": counts}) for each in (every, rest))
    assert one is not None
    assert other is not None
    assert (one.tilt, *one.trees, one.gain) == (other.tilt, *other.trees, other.gain)
    assert fitted_pool({"x": every}, {"nobody": 1.0}, {"x": counts}) is None


def test_more_than_two_classes(rng: np.random.Generator) -> None:
    labels, scores = drawn(rng, 6_000, 4)
    counts = np.ones(4)
    found = fitted_pool(
        {"x": told(labels, scores, counts)}, dict.fromkeys(CLIENTS, 1.0), {"x": counts}
    )
    assert found is not None
    assert found.tilt > found.trees[0] > 0.3
    assert found.trees[1] < 0.1  # later trees say nothing here
    assert found.gain > 5 * found.error
    assert found.shift.shape == (4,)


def test_a_rare_class_stays_rare_whatever_the_weights(rng: np.random.Generator) -> None:
    """Tables and first trees say nothing: their weights may be nothing, but shares are shares."""
    labels = (rng.random(6_000) < 0.02).astype(np.int64)
    later = rng.normal(labels[:, None], 1.0)
    scores = [np.stack([0.0 * later, 0.0 * later, later - 0.02], axis=2) for _ in CLIENTS]
    counts = shares(labels, 2)
    found = fitted_pool(
        {"x": told(labels, scores, counts)}, dict.fromkeys(CLIENTS, 1.0), {"x": counts}
    )
    assert found is not None
    logits = np.log(counts) + found.shift + found.trees[1] * np.c_[0 * later, later]
    assert np.exp(log_softmax(logits))[:, 1].mean() == pytest.approx(0.02, abs=0.006)


def test_few_rows_say_nothing_and_halves_have_both_classes(rng: np.random.Generator) -> None:
    labels, scores = drawn(rng, 40, 2)
    few = told(labels, scores, np.ones(2))
    assert not few.n_rows.any()
    assert not few.curvatures.any()
    assert fitted_pool({"x": few}, dict.fromkeys(CLIENTS, 1.0), {"x": np.ones(2)}) is None
    labels = (rng.random(1_000) < 0.03).astype(np.int64)
    half = halves(labels, rng)
    for label in (0, 1):
        assert abs(int(half[labels == label].sum()) - int((labels == label).sum()) / 2) <= 1


def test_own_halves_count_where_the_others_weigh_less(rng: np.random.Generator) -> None:
    labels, scores = drawn(rng, 1_000, 2)
    counts = shares(labels, 2)
    log_shares = np.log(counts / counts.sum())
    own = expanded([scores[1]], labels, log_shares, 50)
    both = expanded([scores[0]], labels, log_shares, 50).beside(own)
    said = m.HeadScores(["u", "x"], both.n_rows, both.losses, both.slopes, both.curvatures)
    assert said.wrong(2) is None
    alone = m.HeadScores(["x"], own.n_rows, own.losses, own.slopes, own.curvatures)
    found, same = (fitted_pool({"x": each}, {"x": 1.0}, {"x": counts}) for each in (said, alone))
    assert found is not None
    assert same is not None
    assert (found.tilt, *found.trees) == (same.tilt, *same.trees)
    first = told(labels, scores[:1], counts)
    with_other = fitted_pool({"x": said}, {"u": 1.0, "x": 1.0}, {"x": counts})
    only = fitted_pool({"x": first}, {"u": 1.0}, {"x": counts})
    assert with_other is not None
    assert only is not None
    assert with_other.tilt == only.tilt
    heavy = fitted_pool({"x": said}, {"u": 1.0, "x": 2.0}, {"x": counts})
    assert heavy is not None
    assert heavy.tilt == found.tilt


def test_two_of_many_clients_may_leave_and_were_never_there(rng: np.random.Generator) -> None:
    clients = [f"c{at:02d}" for at in range(13)]
    weights = {c: float(1 + at % 3) for at, c in enumerate(clients)}
    labels, counts, models = {}, {}, {}
    for client in clients:
        labels[client], [truth, *_] = drawn(rng, 150, 2)
        counts[client] = shares(labels[client], 2)
        models[client] = {c: truth + rng.normal(0, 0.5, truth.shape) for c in clients}

    def run(members: list[str]) -> dict[str, m.HeadScores]:
        found = {}
        for client in members:
            scored = sorted(those_after(client, members)[:MOST_SCORED])
            mine = [models[client][c] for c in scored]
            found[client] = replace(told(labels[client], mine, counts[client]), clients=scored)
        return found

    rest = [c for c in clients if c not in ("c03", "c05")]
    left = {c: said for c, said in run(clients).items() if c in rest}
    one, other = (
        fitted_pool(each, {c: weights[c] for c in rest}, counts) for each in (left, run(rest))
    )
    assert one is not None
    assert other is not None
    assert (one.tilt, *one.trees, *one.shift) == (other.tilt, *other.trees, *other.shift)


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
    good = told(labels, scores, shares(labels, 2))
    assert good.wrong(2) is None
    for spoilt in (
        replace(good, clients=["u"]),
        replace(good, slopes=good.slopes * np.nan),
        replace(good, n_rows=good.n_rows[:1]),
    ):
        assert spoilt.wrong(2) is not None
    assert good.wrong(3) is not None
    with pytest.raises(StorageError):
        m.HeadScores.from_bytes(b"nothing")

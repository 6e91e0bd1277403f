"""Rounds of sums: the pieces. That they add up to centralised training: tests/federation."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from fedcircuits.learners.hclt.options import FitOptions
from fedcircuits.learners.hclt.rounds.in_rounds import (
    Task,
    _first_counts,
    _held_out,
    _PairCounts,
    fit_in_rounds,
)
from fedcircuits.learners.hclt.rounds.tilt_in_rounds import lbfgs
from fedcircuits.learners.hclt.sample import Sample
from fedcircuits.learners.hclt.tree.chow_liu import chow_liu_tree, mutual_information

FloatArray = NDArray[np.float64]
CARDS = (2, 3, 4)
TASK = Task(CARDS, np.array([False, False, True]), 2, True, FitOptions())


def rows(n: int, seed: int = 0) -> Sample:
    rng = np.random.default_rng(seed)
    a = rng.integers(2, size=n)
    b = np.where(rng.random(n) < 0.8, a, rng.integers(3, size=n))
    c = np.where(rng.random(n) < 0.7, b, rng.integers(4, size=n))
    codes = np.stack([a, b, c], axis=1)
    codes[rng.random(codes.shape) < 0.05] = -1
    return Sample(codes, np.ones(n), rng.integers(2, size=n))


def test_information_of_summed_counts_is_that_of_all_rows() -> None:
    sample = rows(500)
    halves = [sample.take(np.arange(200)), sample.take(np.arange(200, 500))]
    told = [_first_counts(half, TASK) for half in halves]
    summed = {key: told[0][key] + told[1][key] for key in told[0]}
    found = _PairCounts.of(summed, TASK)
    expected = mutual_information(sample.codes, CARDS, sample.weights)
    np.testing.assert_allclose(found.information(), expected, rtol=0, atol=1e-12)
    assert found.n_rows == 500


def test_prototypes_follow_the_tree_of_the_counts_and_are_nobodys_rows() -> None:
    sample = rows(4000)
    counts = _PairCounts.of(_first_counts(sample, TASK), TASK)
    shape = chow_liu_tree(sample.codes, CARDS)
    drawn = counts.draw(shape, 20_000, np.random.default_rng(0))
    both = (sample.codes[:, :2] >= 0).all(axis=1)
    for a in range(2):
        for b in range(3):
            share = ((sample.codes[both, 0] == a) & (sample.codes[both, 1] == b)).mean()
            got = ((drawn[:, 0] == a) & (drawn[:, 1] == b)).mean()
            assert got == pytest.approx(share, abs=0.02)


def test_validation_rows_are_the_same_rows_wherever_they_lie() -> None:
    codes = np.random.default_rng(0).integers(50, size=(3000, 4))
    sample = Sample(codes, np.ones(3000), np.arange(3000) % 2)
    held = _held_out(sample, 0.1, np.random.default_rng(5))
    assert held.mean() == pytest.approx(0.1, abs=0.02)
    order = np.random.default_rng(1).permutation(3000)
    again = _held_out(sample.take(order), 0.1, np.random.default_rng(5))
    assert (again == held[order]).all()
    assert not _held_out(sample, 0.0, np.random.default_rng(5)).any()
    other = _held_out(sample, 0.1, np.random.default_rng(6))
    assert (other != held).any()


def test_few_different_rows_do_not_leave_training_without_rows() -> None:
    """Equal rows are held out together, and then the only ones there are would be."""
    codes = np.zeros((100, 3), dtype=np.int64)
    for seed in range(8):
        rounds = fit_in_rounds(Sample(codes, np.ones(100), None), TASK, np.random.default_rng(seed))
        told, found = next(rounds), None
        while found is None:
            assert all(np.isfinite(array).all() for array in told.values())
            try:
                told = rounds.send(told)
            except StopIteration as stopped:
                found = stopped.value
        assert np.isfinite(found.tree.root).all()


def drive(
    function: Callable[[FloatArray], tuple[float, FloatArray]], start: FloatArray, n_steps: int
) -> FloatArray:
    search = lbfgs(start, n_steps)
    x = next(search)
    while True:
        try:
            x = search.send(function(x))
        except StopIteration as stopped:
            return np.asarray(stopped.value)


def test_lbfgs_finds_the_minimum_of_an_ill_conditioned_bowl() -> None:
    scale = np.logspace(0, 3, 8)
    centre = np.linspace(-1, 1, 8)

    def bowl(x: FloatArray) -> tuple[float, FloatArray]:
        return float(0.5 * scale @ (x - centre) ** 2), scale * (x - centre)

    found = drive(bowl, np.zeros(8), 200)
    assert bowl(found)[0] < 1e-6


def test_lbfgs_never_goes_up_and_survives_a_cliff() -> None:
    values = []

    def cliff(x: FloatArray) -> tuple[float, FloatArray]:
        if x[0] > 2:
            return np.inf, np.zeros(1)
        values.append(float(np.exp(x[0]) - 3 * x[0]))
        return values[-1], np.exp(x) - 3

    found = drive(cliff, np.array([-3.0]), 60)
    assert found[0] == pytest.approx(np.log(3), abs=1e-3)
    assert cliff(found)[0] <= values[0]

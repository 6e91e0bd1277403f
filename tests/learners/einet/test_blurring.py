"""Blurring: counts of a level are shared with the levels near it."""

# ruff: noqa: E402  (torch is an extra: what needs it is imported after the check for it)

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import fedcircuits as fc
from fedcircuits.learners.einet import EiNet
from fedcircuits.learners.einet.leaves import Categorical
from fedcircuits.learners.einet.leaves.blurring import blurring

LEVELS = 256


def shares(counts: np.ndarray) -> torch.Tensor:
    """Prior of two slots with these counts of the levels."""
    return torch.tensor(np.stack([counts, counts]) / counts.sum())


def uneven(rng: np.random.Generator) -> np.ndarray:
    """Counts of levels: an empty background, saturated pixels, and the others uneven."""
    counts = rng.uniform(1.0, 4.0, size=LEVELS)
    counts[0], counts[255] = 5000.0, 300.0
    return counts


def test_a_count_stays_one_count(rng: np.random.Generator) -> None:
    spread = blurring(shares(uneven(rng)), 6.0)
    assert (spread >= 0).all()
    torch.testing.assert_close(spread.sum(1), torch.ones(LEVELS, dtype=torch.float64))


def test_levels_that_stand_out_keep_their_counts_and_get_no_others(
    rng: np.random.Generator,
) -> None:
    spread = blurring(shares(uneven(rng)), 6.0)
    for level in (0, 255):
        assert spread[level, level] == 1.0
        assert spread[:, level].sum() == 1.0


def test_the_marginal_of_all_rows_hardly_moves(rng: np.random.Generator) -> None:
    """Only how a leaf differs from the marginal is smoothed: counts like it stay like it."""
    counts = uneven(rng)
    blurred = counts @ blurring(shares(counts), 6.0).numpy()
    naive = np.exp(-0.5 * (np.subtract.outer(np.arange(LEVELS), np.arange(LEVELS)) / 6.0) ** 2)
    naive = counts @ (naive / naive.sum(1, keepdims=True))
    inner = slice(30, 226)
    assert np.abs(blurred - counts)[inner].mean() < 0.5 * np.abs(naive - counts)[inner].mean()


def test_levels_that_no_image_has_stay_empty() -> None:
    """Levels 0, 15, 30, ...: nothing falls between them, and those near each other share."""
    counts = np.full(LEVELS, 1e-3)
    counts[15:255:15] = 50.0
    spread = blurring(shares(counts), 16.0)
    between = np.setdiff1d(np.arange(LEVELS), np.arange(0, LEVELS, 15))
    assert spread[120, between].sum() < 1e-2
    assert spread[120, 135] > 0.1


@pytest.mark.parametrize("reach", [0.3, 4.0])
def test_an_update_blurs_the_counts(reach: float, rng: np.random.Generator) -> None:
    family = Categorical(12, 0.0, reach)
    x = torch.as_tensor(rng.integers(12, size=(3, 40)))  # slots, rows
    params = family.initial(x, torch.ones_like(x, dtype=torch.bool), 5, torch.Generator())
    flow = torch.rand(3, 40, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    stats = family.statistics(params, x, flow)
    step = torch.ones(3, 5, dtype=torch.float64)
    found = family.update(params, stats, step)["probs"]
    spread = blurring(params["prior"], reach)
    wanted = torch.einsum("fc,sfk->sck", spread, stats["counts"])
    torch.testing.assert_close(found, wanted / wanted.sum(1, keepdim=True))


def test_few_images_are_learned_better_with_a_blur(rng: np.random.Generator) -> None:
    """Grey levels that follow a smooth law, on an empty background: held-out images gain."""
    ramp = np.linspace(0.2, 0.9, 36).reshape(6, 6)
    grey = rng.beta(4, 4 / ramp[None] - 4, size=(400, 6, 6)) * 250
    images = np.where(rng.random(grey.shape) < 0.3, 0, grey).astype(np.uint8)
    learner = EiNet(width=4, epochs=4, batch=50, device="cpu", leaf_count=1.0)
    plain, blurred = (
        fc.learn(images[:150], learner=replace(learner, blur=blur), seed=0) for blur in (0.0, 8.0)
    )
    held = images[150:]
    assert blurred.mean_log_prob(held) > plain.mean_log_prob(held) + 3.0

"""Blurring: counts of a level are shared with the levels near it, as no leaf sees enough rows."""

from __future__ import annotations

import torch
from torch import Tensor

# Levels on either side that a level is compared with, how often it must occur to be one of them
# (in uniform shares), and how many times more often than their median it must to stand alone.
WINDOW, OCCURS, ALONE = 32, 0.02, 5.0


def blurring(prior: Tensor, reach: float) -> Tensor:
    """Return the matrix [from, to] that spreads a count of each level, in double precision.

    A count goes to the levels near its own in proportion to how often each of them occurs at all:
    what is smoothed is how a leaf differs from the other leaves, and levels that no image has stay
    empty. Levels that occur far more often than those around them (an empty background, saturated
    pixels) keep their counts and get no others.

    Args:
        prior: Shares of the levels in every slot, (slots, levels).
        reach: Standard deviation of the spread, in levels; greater than 0.
    """
    shares = prior.double().mean(0)
    levels = torch.arange(len(shares), device=shares.device, dtype=torch.float64)
    away = levels[:, None] - levels[None, :]
    compared = (away.abs() <= WINDOW) & (shares > OCCURS / len(shares))[None, :]
    around = torch.where(compared, shares[None, :].expand_as(away), torch.nan)
    alone = shares > ALONE * torch.nanquantile(around, 0.5, dim=1)
    spread = torch.exp(-0.5 * (away / reach) ** 2) * shares[None, :]
    apart = (alone[:, None] | alone[None, :]) & (away != 0)
    spread = torch.where(apart, torch.zeros_like(spread), spread)
    return spread / spread.sum(1, keepdim=True)

"""Discretised Gaussian leaves: exact probability mass of the levels 0 .. n - 1.

Level k is the value x = k / (n - 1); its bin reaches half a step to either side, and the two outer
bins are open, so the masses sum to one. Masses are differences of log-CDFs taken on the nearer
tail: a plain difference of CDFs is exactly 0 at nine standard deviations.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedcircuits.learners.einet.leaves.base import Params, Stats
from fedcircuits.learners.einet.leaves.gaussian import Gaussian

LOG_SQRT_2PI = 0.5 * math.log(2 * math.pi)


def log_interval_mass(low: Tensor, high: Tensor) -> Tensor:
    """log(Phi(high) - Phi(low)) for standardised borders low < high, either may be infinite."""
    # Mirror intervals right of the centre, so that both log-CDFs come from the lower tail, where
    # they are accurate; an interval across the centre is fine either way.
    mirror = low > 0
    a, b = torch.where(mirror, -high, low), torch.where(mirror, -low, high)
    upper, lower = torch.special.log_ndtr(b), torch.special.log_ndtr(a)
    mass: Tensor = upper + torch.log(-torch.expm1(lower - upper))
    return mass


@dataclass(frozen=True)
class DiscretisedGaussian(Gaussian):
    """Normal mass of equal bins.

    Attributes:
        min_variance: Lower bound of the variance, in units of the whole range squared.
        max_variance: Upper bound.
        n_levels: Number of levels.
        exact: Exact EM by the truncated-normal moments of each bin: monotone in mass. False
            takes the level itself for its bin, which is monotone in density only, and cheaper.
    """

    n_levels: int = 256
    exact: bool = True
    scale: float = 1.0 / 255
    name: ClassVar[str] = "discretised-gaussian"

    def __post_init__(self) -> None:
        object.__setattr__(self, "scale", 1.0 / (self.n_levels - 1))

    @property
    def n_values(self) -> int | None:
        """Number of levels."""
        return self.n_levels

    def settings(self) -> dict[str, float | int | bool]:
        """Constructor arguments, for saving."""
        return {name: value for name, value in asdict(self).items() if name != "scale"}

    def _borders(self, params: Params, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Standardised bin borders (S, B, K), infinite at the outer bins, and the deviation."""
        mean = params["mean"].unsqueeze(1)
        deviation = params["variance"].unsqueeze(1).sqrt()
        level = x.to(mean.dtype).unsqueeze(2)
        infinity = torch.full_like(level, math.inf)
        low = torch.where(level <= 0, -infinity, (level - 0.5) * self.scale)
        high = torch.where(level >= self.n_levels - 1, infinity, (level + 0.5) * self.scale)
        return (low - mean) / deviation, (high - mean) / deviation, deviation

    def log_prob(self, params: Params, x: Tensor) -> Tensor:
        """Log-masses (S, B, K) of levels (S, B)."""
        low, high, _ = self._borders(params, x)
        return log_interval_mass(low, high)

    def statistics(self, params: Params, x: Tensor, flow: Tensor) -> Stats:
        """Flow and the expected first and second moments around the slot's mean parameter."""
        if not self.exact:
            return super().statistics(params, x, flow)
        mean = params["mean"].unsqueeze(1)
        low, high, deviation = self._borders(params, x)
        log_mass = log_interval_mass(low, high)

        def density(border: Tensor) -> Tensor:  # density over mass, 0 at infinity
            finite = torch.isfinite(border)
            inside = torch.where(finite, border, torch.zeros_like(border))
            ratio = torch.exp(-0.5 * inside**2 - LOG_SQRT_2PI - log_mass)
            return torch.where(finite, ratio, torch.zeros_like(ratio))

        at_low, at_high = density(low), density(high)
        zero = torch.zeros_like(low)
        # Rounding must not push a moment out of its bin.
        first = torch.minimum(torch.maximum(at_low - at_high, low), high)
        product = torch.where(torch.isfinite(low), low, zero) * at_low
        product = product - torch.where(torch.isfinite(high), high, zero) * at_high
        second = torch.maximum(1 + product, first**2)
        # From each state's own standard units to sums around the slot's centre.
        centre = params["mean"].mean(1, keepdim=True).unsqueeze(1)
        shift = mean - centre
        moment = shift + deviation * first
        square = shift**2 + 2 * shift * deviation * first + deviation**2 * second
        # A state with no mass in the bin has no flow there: keep its 0/0 out of the sums.
        legal = flow > 0
        none = torch.zeros_like(flow)
        return {
            "n": flow.sum(1),
            "first": torch.where(legal, flow * moment, none).sum(1),
            "second": torch.where(legal, flow * square, none).sum(1),
        }

    def sample(
        self, params: Params, slots: Tensor, states: Tensor, generator: torch.Generator
    ) -> Tensor:
        """The level whose bin a normal draw falls into."""
        draw = super().sample(params, slots, states, generator)
        return draw.round().clamp(0, self.n_levels - 1)

    def mode(self, params: Params) -> Tensor:
        """The level with the largest mass: the mean's own, or an open outer bin."""
        levels = torch.arange(self.n_levels).to(params["mean"])
        inner = super().mode(params).round().clamp(0, self.n_levels - 1)
        candidates = torch.stack([inner, torch.zeros_like(inner), inner * 0 + levels[-1]], dim=1)
        flat = {name: tensor.reshape(-1, 1) for name, tensor in params.items()}
        moved = candidates.transpose(1, 2).reshape(-1, 3)
        best = self.log_prob(flat, moved).squeeze(2).argmax(1, keepdim=True)
        return moved.gather(1, best).view_as(inner)

"""Gaussian leaves with bounds on the variance."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedcircuits.learners.einet.leaves.base import Family, Params, Stats, pick_rows

# Values of slots held at once on the way to a matrix product; small enough to stay in a cache.
CHUNK_ELEMENTS = 200_000


@dataclass(frozen=True)
class Gaussian(Family):
    """Normal densities; values are taken as `x * scale` (1/255 puts pixels into [0, 1]).

    The log-density is that of the scaled value. Clipping the variance to its bounds is the exact
    optimum under the bounds, since the expected log-likelihood is unimodal in the variance.
    """

    min_variance: float = 1e-3
    max_variance: float = 0.25
    scale: float = 1.0
    name: ClassVar[str] = "gaussian"

    def settings(self) -> dict[str, float | int | bool]:
        """Constructor arguments, for saving."""
        return asdict(self)

    def scaled(self, x: Tensor, like: Tensor) -> Tensor:
        """Values in the unit of the parameters."""
        return x.to(like.dtype) * self.scale

    def initial(
        self, x: Tensor, observed: Tensor, width: int, generator: torch.Generator
    ) -> dict[str, Tensor]:
        """Means at random rows, the slot's own variance."""
        z = x.double() * self.scale
        n = observed.sum(1, keepdim=True).clamp(min=1)
        centre = torch.where(observed, z, torch.zeros_like(z)).sum(1, keepdim=True) / n
        filled = torch.where(observed, z, centre)
        variance = ((filled - centre) ** 2).sum(1, keepdim=True) / n
        rows = pick_rows(observed, width, generator)
        mean = filled[:, rows]
        noise = torch.randn(mean.shape, generator=generator, dtype=torch.float64)
        mean = mean + 0.1 * variance.sqrt() * noise.to(mean)
        bounded = variance.clamp(self.min_variance, self.max_variance)
        return {"mean": mean.contiguous(), "variance": bounded.expand_as(mean).contiguous()}

    def log_prob(self, params: Params, x: Tensor) -> Tensor:
        """Log-densities (S, B, K) of values (S, B)."""
        mean, variance = params["mean"].unsqueeze(1), params["variance"].unsqueeze(1)
        z = self.scaled(x, mean).unsqueeze(2)
        offset = -0.5 * (variance.log() + math.log(2 * math.pi))
        return torch.addcmul(offset, (z - mean) ** 2, 1 / variance, value=-0.5)

    def region_log_prob(
        self, params: Params, columns: Tensor, variables: Tensor, per_region: int
    ) -> Tensor:
        """Log-densities summed over the slots of each region, as matrix products.

        A quadratic in the value, around the slot's mean parameter so that float32 keeps its
        digits. Slots come by region, equally many each.

        Args:
            params: Parameters.
            columns: Values, (variables, B).
            variables: Variable of each slot, (S,).
            per_region: Slots of a region.

        Returns:
            Log-densities, (regions, B, K).
        """
        mean, precision = params["mean"], 1 / params["variance"]
        away = mean - mean.mean(1, keepdim=True)
        offset = -0.5 * (away**2 * precision - precision.log() + math.log(2 * math.pi))
        total = offset.view(-1, per_region, mean.shape[1]).sum(1).unsqueeze(2)  # (R, K, 1)
        factors = torch.stack([away * precision, -0.5 * precision], dim=1)
        factors = factors.view(-1, per_region * 2, mean.shape[1]).transpose(1, 2)  # (R, K, 2n)
        # Rows along the wide side of the product; many times faster than (R, B, K) on a CPU.
        parts = [
            torch.bmm(factors[here], terms)
            for here, terms in self._region_terms(params, columns, variables, per_region)
        ]
        return torch.cat(parts).add_(total).transpose(1, 2)

    def _region_terms(
        self, params: Params, columns: Tensor, variables: Tensor, per_region: int
    ) -> Iterator[tuple[slice, Tensor]]:
        """Slices of the regions, and their centred values and squares, (regions, 2n, B)."""
        centre, batch = params["mean"].mean(1, keepdim=True), columns.shape[1]
        n_regions = len(variables) // per_region
        step = n_regions  # all at once, but where there is a small cache to stay in
        if columns.device.type == "cpu":
            step = max(1, CHUNK_ELEMENTS // (per_region * 2 * batch))
        for start in range(0, n_regions, step):
            here = slice(start, min(start + step, n_regions))
            slots = slice(here.start * per_region, here.stop * per_region)
            values = columns.index_select(0, variables[slots])
            z = self.scaled(values, centre) - centre[slots]  # (slots, B)
            yield here, torch.stack([z, z * z], dim=1).view(-1, per_region * 2, batch)

    def region_statistics(
        self, params: Params, columns: Tensor, variables: Tensor, flow: Tensor, per_region: int
    ) -> Stats:
        """As `statistics`, from the regions' flows (regions, B, K) without spreading them."""
        across = flow.transpose(1, 2)  # (R, K, B)
        parts = [
            torch.bmm(across[here], terms.transpose(1, 2))  # (R, K, 2n)
            for here, terms in self._region_terms(params, columns, variables, per_region)
        ]
        sums = torch.cat(parts).transpose(1, 2).reshape(len(variables), 2, -1)  # (S, 2, K)
        n = flow.sum(1).repeat_interleave(per_region, dim=0)
        return {"n": n, "first": sums[:, 0], "second": sums[:, 1]}

    def statistics(self, params: Params, x: Tensor, flow: Tensor) -> Stats:
        """Flow, and first and second sums around each slot's mean parameter."""
        centre = params["mean"].mean(1, keepdim=True)  # (S, 1)
        z = self.scaled(x, centre) - centre
        sums = torch.bmm(torch.stack([torch.ones_like(z), z, z * z], dim=1), flow)  # (S, 3, K)
        return {"n": sums[:, 0], "first": sums[:, 1], "second": sums[:, 2]}

    def update(
        self, params: Params, stats: Stats, step: Tensor, share: float = 1.0
    ) -> dict[str, Tensor]:
        """M-step in float64: the variance is a difference of two nearly equal numbers."""
        del share  # the bounds of the variance are all the smoothing there is
        mean, variance = params["mean"].double(), params["variance"].double()
        centre = params["mean"].mean(1, keepdim=True).double()
        n = stats["n"].double()
        alive = n > 0
        safe = torch.where(alive, n, torch.ones_like(n))
        first, second = stats["first"].double() / safe, stats["second"].double() / safe
        # Step in expectation parameters, as in online EM.
        rate = step.double()
        old = mean - centre
        new = (1 - rate) * old + rate * first
        moment = (1 - rate) * (variance + old**2) + rate * second
        bounded = (moment - new**2).clamp(self.min_variance, self.max_variance)
        return {
            "mean": torch.where(alive, new + centre, mean).to(params["mean"].dtype),
            "variance": torch.where(alive, bounded, variance).to(params["variance"].dtype),
        }

    def gradient(self, params: Params, stats: Stats, share: float = 1.0) -> dict[str, Tensor]:
        """With respect to the means, in units of the deviation, and log-variances, each (S, K).

        The statistics of discretised Gaussians (the exact ones) are expected moments within bins,
        so the same formula is the gradient of their log-mass.
        """
        del share  # no pseudo-counts
        mean, variance, n = params["mean"], params["variance"], stats["n"]
        away = mean - mean.mean(1, keepdim=True)  # statistics are around each slot's centre
        first = stats["first"] - n * away
        second = stats["second"] - 2 * away * stats["first"] + n * away**2
        return {"mean": first / variance.sqrt(), "log_variance": 0.5 * (second / variance - n)}

    def moved(self, params: Params, by: Params) -> dict[str, Tensor]:
        """Means and variances after a move, the variances within their bounds."""
        variance = params["variance"]
        moved = (variance * torch.exp(by["log_variance"])).clamp(
            self.min_variance, self.max_variance
        )
        return {"mean": params["mean"] + by["mean"] * variance.sqrt(), "variance": moved}

    def sample(
        self, params: Params, slots: Tensor, states: Tensor, generator: torch.Generator
    ) -> Tensor:
        """Draws in the unit of the values."""
        mean = params["mean"][slots, states]
        noise = torch.randn(mean.shape, generator=generator, dtype=torch.float64).to(mean)
        return (mean + params["variance"][slots, states].sqrt() * noise) / self.scale

    def mode(self, params: Params) -> Tensor:
        """The means."""
        return params["mean"] / self.scale

    @property
    def n_values(self) -> int | None:
        """A continuum, for Gaussians; a number of levels, where they are discretised."""
        return None

    def moments(self, params: Params, order: int) -> Tensor:
        """E[value ** order] of every distribution, (S, K)."""
        mean, variance = params["mean"] / self.scale, params["variance"] / self.scale**2
        before, now = torch.zeros_like(mean), torch.ones_like(mean)
        for n in range(order):
            before, now = now, mean * now + n * variance * before
        return now

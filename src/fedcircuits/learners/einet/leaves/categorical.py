"""Categorical leaves: one probability for each code."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedcircuits.learners.einet.leaves.base import Family, Params, Stats, pick_rows, uniform
from fedcircuits.learners.einet.leaves.blurring import blurring

# Probabilities that one pass of the update moves on a CPU.
CHUNK_ELEMENTS = 100_000


@dataclass(frozen=True)
class Categorical(Family):
    """Free probabilities of codes 0 .. n_categories - 1, kept as (S, categories, K).

    Attributes:
        n_categories: Number of codes.
        pseudo_count: Rows added to every distribution, spread as the slot's marginal in the data
            (parameter "prior"); 0 gives plain EM.
        blur: Levels over which a count is shared with its neighbours (`blurring.py`), for images,
            whose neighbouring levels are alike; 0 gives plain EM.
    """

    n_categories: int
    pseudo_count: float = 0.0
    blur: float = 0.0
    name: ClassVar[str] = "categorical"

    @property
    def n_values(self) -> int:
        """Number of values."""
        return self.n_categories

    def settings(self) -> dict[str, float | int | bool]:
        """Constructor arguments, for saving."""
        return asdict(self)

    def _marginal(self, x: Tensor, observed: Tensor) -> Tensor:
        """Smoothed frequencies (S, categories)."""
        counts = torch.zeros((x.shape[0], self.n_categories), dtype=torch.float64, device=x.device)
        counts.scatter_add_(1, x.long(), observed.double())
        counts += 1.0 / self.n_categories
        return counts / counts.sum(1, keepdim=True)

    def initial(
        self, x: Tensor, observed: Tensor, width: int, generator: torch.Generator
    ) -> dict[str, Tensor]:
        """The slot's frequencies, tilted for each state towards values near one row's."""
        marginal = self._marginal(x, observed)  # (S, C)
        rows = pick_rows(observed, width, generator)
        seen = observed[:, rows]  # (S, K)
        centre = x[:, rows].double()
        codes = torch.arange(self.n_categories, device=x.device, dtype=torch.float64)
        if self.n_categories > 8:  # levels: near means near in value
            reach = self.n_categories / 16
            near = torch.exp(-0.5 * ((codes[None, :, None] - centre[:, None, :]) / reach) ** 2)
        else:
            near = (codes[None, :, None] == centre[:, None, :]).double()
        near = near / near.sum(1, keepdim=True)
        noise = uniform(near.shape, generator, near.device, torch.float64)
        base = marginal.unsqueeze(2) * (0.5 + noise)
        base = base / base.sum(1, keepdim=True)
        probs = torch.where(seen.unsqueeze(1), 0.5 * base + 0.5 * near, base)
        return {"probs": probs.contiguous(), "prior": marginal}

    def _smoothed(self, params: Params, stats: Stats) -> Tensor:
        """Counts, blurred if so set, (S, categories, K)."""
        counts = stats["counts"]
        if self.blur > 0:
            return torch.matmul(blurring(params["prior"], self.blur).to(counts).T, counts)
        return counts

    def log_prob(self, params: Params, x: Tensor) -> Tensor:
        """Log-probabilities (S, B, K) of codes (S, B)."""
        probs = params["probs"]
        slots = torch.arange(probs.shape[0], device=probs.device).unsqueeze(1)
        return torch.log(probs[slots, x.long()])

    def statistics(self, params: Params, x: Tensor, flow: Tensor) -> Stats:
        """Flow of every code, (S, categories, K)."""
        probs = params["probs"]
        counts = torch.zeros_like(probs)
        counts.scatter_add_(1, x.long().unsqueeze(2).expand_as(flow), flow)
        return {"n": flow.sum(1), "counts": counts}

    def update(
        self, params: Params, stats: Stats, step: Tensor, share: float = 1.0
    ) -> dict[str, Tensor]:
        """Counts plus the pseudo-count, normalised."""
        add = self.pseudo_count * share
        probs, prior = params["probs"], params["prior"].unsqueeze(2)
        counts = self._smoothed(params, stats)
        n = stats["n"].unsqueeze(1)  # (S, 1, K)
        alive = n > 0
        rate = torch.where(alive, step.unsqueeze(1), torch.zeros_like(n))
        keep, gain = 1 - rate, rate / (torch.where(alive, n, torch.ones_like(n)) + add)
        moved = torch.empty_like(probs)
        chunk = len(probs)
        if probs.device.type == "cpu":  # all passes over some slots while they are in the cache
            chunk = max(1, CHUNK_ELEMENTS // max(1, probs[0].numel()))
        for start in range(0, len(probs), chunk):
            here = slice(start, start + chunk)
            part = torch.mul(probs[here], keep[here], out=moved[here])
            part.addcmul_(counts[here], gain[here])
            if add > 0:
                part.addcmul_(prior[here], add * gain[here])
            total = part.sum(1, keepdim=True)
            part.div_(torch.where(alive[here], total, torch.ones_like(total)))
        return {"probs": moved, "prior": params["prior"]}

    def gradient(self, params: Params, stats: Stats, share: float = 1.0) -> dict[str, Tensor]:
        """With respect to the logits: counts less expected counts, (S, categories, K)."""
        add = self.pseudo_count * share
        seen = self._smoothed(params, stats) + add * params["prior"].unsqueeze(2)
        return {"logits": seen - (stats["n"] + add).unsqueeze(1) * params["probs"]}

    def moved(self, params: Params, by: Params) -> dict[str, Tensor]:
        """Probabilities after a move of their logits."""
        probs = params["probs"] * torch.exp(by["logits"])
        return {"probs": probs / probs.sum(1, keepdim=True), "prior": params["prior"]}

    def sample(
        self, params: Params, slots: Tensor, states: Tensor, generator: torch.Generator
    ) -> Tensor:
        """Draws by inverting the cumulated probabilities."""
        cumulated = params["probs"][slots, :, states].double().cumsum(1)  # (N, C)
        draw = torch.rand(len(slots), generator=generator, dtype=torch.float64).to(cumulated)
        code = (cumulated <= (draw * cumulated[:, -1]).unsqueeze(1)).sum(1)
        return code.to(params["probs"].dtype)

    def mode(self, params: Params) -> Tensor:
        """The most probable codes."""
        return params["probs"].argmax(1).to(params["probs"].dtype)

    def n_parameters(self, params: Params) -> int:
        """The probabilities; the prior is data, not a parameter."""
        return params["probs"].numel()

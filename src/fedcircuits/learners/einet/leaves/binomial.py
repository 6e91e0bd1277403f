"""Binomial leaves: counts 0 .. n."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedcircuits.learners.einet.leaves.base import (
    Family,
    Params,
    Stats,
    pick_rows,
    uniform,
    weighted,
)

# How near to 0 and 1 gradient steps may bring a probability; float32 still resolves it.
NEAREST = 1e-6


@dataclass(frozen=True)
class Binomial(Family):
    """Successes in `n_trials` trials; 255 trials model a pixel, 1 trial is Bernoulli.

    Attributes:
        n_trials: Trials; values run from 0 to this.
        pseudo_count: Rows added to every distribution with the slot's mean in the data as theirs
            (parameter "prior"); 0 gives plain EM.
    """

    n_trials: int = 255
    pseudo_count: float = 0.0
    name: ClassVar[str] = "binomial"

    @property
    def n_values(self) -> int:
        """Number of values."""
        return self.n_trials + 1

    def settings(self) -> dict[str, float | int | bool]:
        """Constructor arguments, for saving."""
        return asdict(self)

    def initial(
        self, x: Tensor, observed: Tensor, width: int, generator: torch.Generator
    ) -> dict[str, Tensor]:
        """Between the slot's mean and one row's value."""
        share = x.to(torch.float64) / self.n_trials
        n = observed.sum(1, keepdim=True)
        total = torch.where(observed, share, torch.zeros_like(share)).sum(1, keepdim=True)
        marginal = (total + 0.5) / (n + 1)
        rows = pick_rows(observed, width, generator)
        near = torch.where(observed[:, rows], share[:, rows], marginal)
        noise = uniform(near.shape, generator, near.device, torch.float64)
        probs = 0.6 * marginal + 0.3 * near + 0.1 * noise
        return {"probs": probs.contiguous(), "prior": marginal}

    def log_prob(self, params: Params, x: Tensor) -> Tensor:
        """Log-probabilities (S, B, K); probabilities of exactly 0 and 1 are legal."""
        probs = params["probs"].unsqueeze(1)
        count = x.to(probs.dtype).unsqueeze(2)
        trials = float(self.n_trials)
        ways = (
            torch.lgamma(torch.full_like(count, trials + 1))
            - torch.lgamma(count + 1)
            - torch.lgamma(trials - count + 1)
        )
        some: Tensor = torch.xlogy(count, probs) + torch.special.xlog1py(trials - count, -probs)
        return ways + some

    def statistics(self, params: Params, x: Tensor, flow: Tensor) -> Stats:
        """Flow and expected successes."""
        del params
        return {"n": flow.sum(1), "first": weighted(x, flow)}

    def update(
        self, params: Params, stats: Stats, step: Tensor, share: float = 1.0
    ) -> dict[str, Tensor]:
        """Expected share of successes."""
        add = self.pseudo_count * share
        probs, n = params["probs"], stats["n"]
        alive = n > 0
        total = torch.where(alive, n, torch.ones_like(n)) + add
        target = (stats["first"] / self.n_trials + add * params["prior"]) / total
        moved = ((1 - step) * probs + step * target).clamp(0.0, 1.0)
        return {"probs": torch.where(alive, moved, probs), "prior": params["prior"]}

    def gradient(self, params: Params, stats: Stats, share: float = 1.0) -> dict[str, Tensor]:
        """With respect to the logits: successes seen less successes expected, (S, K)."""
        add = self.pseudo_count * share
        seen = stats["first"] + add * self.n_trials * params["prior"]
        return {"logits": seen - (stats["n"] + add) * self.n_trials * params["probs"]}

    def moved(self, params: Params, by: Params) -> dict[str, Tensor]:
        """Probabilities after a move of their logits, kept off 0 and 1."""
        probs = torch.sigmoid(torch.logit(params["probs"], eps=NEAREST) + by["logits"])
        return {"probs": probs.clamp(NEAREST, 1 - NEAREST), "prior": params["prior"]}

    def sample(
        self, params: Params, slots: Tensor, states: Tensor, generator: torch.Generator
    ) -> Tensor:
        """Sums of Bernoulli draws."""
        probs = params["probs"][slots, states].double().cpu()
        draws = torch.rand((len(slots), self.n_trials), generator=generator, dtype=torch.float64)
        return (draws < probs.unsqueeze(1)).sum(1).to(params["probs"])

    def mode(self, params: Params) -> Tensor:
        """The most probable counts."""
        return torch.floor((self.n_trials + 1) * params["probs"]).clamp(max=self.n_trials)

    def n_parameters(self, params: Params) -> int:
        """One for each distribution."""
        return params["probs"].numel()

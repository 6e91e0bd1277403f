"""Bernoulli leaves: binary variables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedcircuits.learners.einet.leaves.base import Params
from fedcircuits.learners.einet.leaves.binomial import Binomial


@dataclass(frozen=True)
class Bernoulli(Binomial):
    """One trial: the binomial without its combinatorial factor."""

    n_trials: int = 1
    name: ClassVar[str] = "bernoulli"

    def log_prob(self, params: Params, x: Tensor) -> Tensor:
        """Log-probabilities (S, B, K) of values 0 and 1."""
        probs = params["probs"].unsqueeze(1)
        return torch.where(x.unsqueeze(2) > 0.5, torch.log(probs), torch.log1p(-probs))

"""How far nodes move in one step, with every number that changes between steps on the device."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedcircuits.learners.einet.passes.m_step import LOWEST


@dataclass(frozen=True, eq=False)
class Rates:
    """The step size and smoothing of one EM step.

    Attributes:
        step: Step size, a scalar on the device: a captured graph is replayed with another.
        batch: Rows of the batch.
        add: Pseudo-count of every sum node, in rows of this batch.
        by_mass: Stepwise EM on averaged counts (see `m_step.py`).
    """

    step: Tensor
    batch: int
    add: float
    by_mass: bool

    def of_(self, flow: Tensor, mass: Tensor) -> Tensor:
        """Rate of every node, 0 for a dead one; its running mass is updated in place."""
        alive = flow > 0
        if not self.by_mass:
            return torch.where(alive, self.step, torch.zeros_like(flow))
        share = self.step * flow / self.batch
        mass.mul_(1 - self.step).add_(share)
        rate = share / torch.where(mass > 0, mass, torch.ones_like(mass))
        return torch.where(alive & (mass > 0), rate, torch.zeros_like(rate))

    def moved(self, old: Tensor, new: Tensor) -> Tensor:
        """The new parameters; the old ones, to the bit, if the step is 0."""
        return torch.where(self.step > 0, new, old)

    def coefficients_(
        self, flow: Tensor, mass: Tensor, n_edges: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Each (inner regions, K): weights <- weights * (keep + gain * edge ratio) + extra."""
        rate = self.of_(flow, mass)
        gain = rate / torch.where(flow > 0, flow + self.add, torch.ones_like(flow))
        # Where nothing smooths, a weight must not vanish altogether: it could never return.
        extra = gain * (self.add / n_edges) if self.add > 0 else rate * LOWEST[rate.dtype]
        return 1.0 - rate, gain, extra

"""A twin of the published EiNet implementation, written from the paper's formulas.

It keeps that implementation's organisation, which is what its speed depends on:

- every layer holds log-densities as (batch, K, nodes), nodes innermost;
- a layer of sums is one einsum over left children, right children and weights (K, K, K, nodes) in
  log-einsum-exp form, followed by a mixing layer where regions have several partitions, padded
  to the region with most of them;
- leaves are exponential families in natural parameters, all variables and repetitions at once,
  (batch, variables, K, repetitions), and a dense indicator einsum adds them up into leaf regions;
- expected counts come from the gradient tape: parameter times gradient.

Sums are computed level by level from the leaves, as the paper's layers are.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from fedcircuits.learners.einet.network.layout import Layout
from fedcircuits.learners.einet.network.network import Parameters

TINY = 1e-12


def log_einsum_exp(left: Tensor, right: Tensor, weights: Tensor) -> Tensor:
    """Log-densities (B, O, P) of sums over all pairs of children (B, K, P)."""
    top_left, top_right = left.amax(1, keepdim=True), right.amax(1, keepdim=True)
    linear = torch.einsum(
        "bip,bjp,ijop->bop", (left - top_left).exp(), (right - top_right).exp(), weights
    )
    return linear.log() + top_left + top_right


def log_mix_exp(logs: Tensor, mixing: Tensor) -> Tensor:
    """Log-densities (B, O, R) of mixtures over partitions: logs (B, O, R, S), mixing (O, R, S)."""
    top = logs.amax(3, keepdim=True)
    return torch.einsum("bors,ors->bor", (logs - top).exp(), mixing).log() + top.squeeze(3)


class EinsumLayer:
    """All sums of one level."""

    def __init__(
        self, regions: list[int], splits: list[list[int]], children: Tensor, start: Tensor
    ) -> None:
        self.regions = regions
        chosen = [p for group in splits for p in group]
        self.left, self.right = children[chosen].T
        block = start[chosen]  # (P, O, K, K)
        share = block.sum((2, 3))  # a partition's share of its region, (P, O)
        self.weights = (block / share[..., None, None]).permute(2, 3, 1, 0).contiguous()
        self.weights.requires_grad_()
        most = max(map(len, splits))
        self.mixing: Tensor | None = None
        if most > 1:
            # Absent partitions read a dummy column of log-density -inf, as padding.
            slot = torch.full((len(splits), most), len(chosen))
            mixing = torch.zeros((block.shape[1], len(splits), most))
            at = 0
            for row, group in enumerate(splits):
                slot[row, : len(group)] = torch.arange(at, at + len(group))
                mixing[:, row, : len(group)] = share[at : at + len(group)].T
                at += len(group)
            self.slot, self.mixing = slot, mixing.requires_grad_()

    def forward(self, values: Tensor) -> Tensor:
        """Log-densities (B, O, regions) from those of all layers below, (B, K, nodes)."""
        logs = log_einsum_exp(values[:, :, self.left], values[:, :, self.right], self.weights)
        if self.mixing is None:
            return logs
        logs = torch.nn.functional.pad(logs, (0, 1), value=-torch.inf)
        return log_mix_exp(logs[:, :, self.slot], self.mixing)

    def update(self) -> None:
        """M-step from the tape's gradients."""
        for parameter, axes in ((self.weights, (0, 1)), (self.mixing, (2,))):
            if parameter is not None:
                assert parameter.grad is not None
                count = (parameter * parameter.grad).clamp(min=1e-16)
                parameter.copy_(count / count.sum(axes, keepdim=True))
                parameter.grad = None


class Twin:
    """The whole network, started from the parameters of ours.

    Args:
        layout: The structure; leaf regions are put into repetitions of disjoint ones.
        start: Parameters of a Tucker network with Gaussian leaves.
        variance: Bounds of the variances.
    """

    def __init__(
        self, layout: Layout, start: Parameters, variance: tuple[float, float] = (1e-3, 0.25)
    ) -> None:
        self.layout, self.bounds = layout, variance
        width = start.weights.shape[1]
        of_region, covered = [], []
        for region in range(layout.n_leaves):
            scope = set(layout.slot_variable[layout.slot_region == region].tolist())
            at = next((n for n, seen in enumerate(covered) if not seen & scope), len(covered))
            if at == len(covered):
                covered.append(set())
            covered[at] |= scope
            of_region.append(at)
        n_repetitions = len(covered)
        shape = (layout.n_variables, width, n_repetitions)
        mean, spread = torch.zeros(shape), torch.full(shape, variance[1])
        self.scope = torch.zeros((layout.n_variables, n_repetitions, layout.n_leaves))
        for slot, (variable, region) in enumerate(
            zip(layout.slot_variable, layout.slot_region, strict=True)
        ):
            repetition = of_region[region]
            mean[variable, :, repetition] = start.leaves[0]["mean"][slot]
            spread[variable, :, repetition] = start.leaves[0]["variance"][slot]
            self.scope[variable, repetition, region] = 1.0
        # Expectation parameters E[x], E[x ** 2], (variables, K, repetitions, 2).
        self.expected = torch.stack([mean, spread + mean**2], dim=3)
        self.layers = self._make_layers(start)

    def _make_layers(self, start: Parameters) -> list[EinsumLayer]:
        layout, children = self.layout, torch.as_tensor(self.layout.children)
        levels = sorted({group.level for group in layout.groups})
        layers = []
        for level in levels:
            groups = [g for g in layout.groups if g.level == level]
            regions = [r for g in groups for r in range(*g.regions)]
            splits = [np.flatnonzero(layout.owner == region).tolist() for region in regions]
            layers.append(EinsumLayer(regions, splits, children, start.weights))
        top = torch.as_tensor(layout.root_children)
        every = [list(range(len(top)))]
        layers.append(EinsumLayer([layout.n_regions], every, top, start.root))
        return layers

    def forward(self, x: Tensor) -> Tensor:
        """Log-densities of rows, (batch,)."""
        mean, square = self.expected.unbind(3)
        variance = square - mean**2
        natural = torch.stack([mean / variance, -0.5 / variance], dim=3)
        self.stats = torch.stack([x, x**2], dim=2)[:, :, None, None]  # (B, D, 1, 1, 2)
        log_normaliser = mean**2 / (2 * variance) + 0.5 * variance.log()
        logs = (natural * self.stats).sum(4) - log_normaliser - 0.5 * math.log(2 * math.pi)
        self.logs = logs.requires_grad_() if torch.is_grad_enabled() else logs
        values = torch.einsum("bdkr,drl->bkl", self.logs, self.scope)  # (B, K, leaf regions)
        for layer in self.layers[:-1]:
            # Regions of a level are consecutive in the layout, and levels follow each other.
            values = torch.cat([values, layer.forward(values)], dim=2)
        return self.layers[-1].forward(values)[:, 0, 0]

    def step(self, x: Tensor) -> float:
        """One EM step; mean log-density before it."""
        total = self.forward(x)
        total.sum().backward()
        with torch.no_grad():
            for layer in self.layers:
                layer.update()
            flow = self.logs.grad  # (B, D, K, repetitions)
            assert flow is not None
            n = flow.sum(0).unsqueeze(3) + TINY
            self.expected = (flow.unsqueeze(4) * self.stats).sum(0) / n
            mean, square = self.expected.unbind(3)
            variance = (square - mean**2).clamp(*self.bounds)
            self.expected = torch.stack([mean, variance + mean**2], dim=3)
        return float(total.detach().mean())

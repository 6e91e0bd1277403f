"""Gradient ascent (Adam) on the log-likelihood, for those who prefer it to EM.

No gradient tape is needed: by Fisher's identity the gradient with respect to the log-weights of a
sum is the edges' expected counts, and that of an exponential-family leaf its expected statistics
less what the leaf itself expects. So one E-step (`flows.expected_counts`) serves both methods.

Coordinates are unconstrained: logits of sums, classes and discrete leaves, means and
log-variances of Gaussians (held within their bounds by projection). Parameters stay stored as
probabilities: a step multiplies them by exponentials and normalises, and a weight of exactly
zero stays zero.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedcircuits.learners.einet.network.network import Network, Parameters, normalise_
from fedcircuits.learners.einet.passes.downward import ExpectedCounts
from fedcircuits.learners.einet.passes.m_step import node_flow

FIRST_DECAY, SECOND_DECAY, TINY = 0.9, 0.999, 1e-8


@dataclass(eq=False)
class Moments:
    """Adam's running moments of the gradient.

    Attributes:
        first: Means of every coordinate's gradient, by the name `gradient` gives it.
        second: Means of its square.
        steps: Steps so far.
    """

    first: dict[str, Tensor] = field(default_factory=dict)
    second: dict[str, Tensor] = field(default_factory=dict)
    steps: int = 0

    def clone(self) -> Moments:
        """A copy that can be updated in place."""
        return Moments(
            {name: tensor.clone() for name, tensor in self.first.items()},
            {name: tensor.clone() for name, tensor in self.second.items()},
            self.steps,
        )


def gradient(
    network: Network, params: Parameters, counts: ExpectedCounts, pseudo_count: float, share: float
) -> dict[str, Tensor]:
    """Gradient of the mean log-likelihood per row, smoothing included.

    Args:
        network: The network.
        params: Its parameters.
        counts: Expected counts of one or more batches.
        pseudo_count: Rows' worth of uniform flow added to every sum node, for all rows.
        share: Share of all rows that the counts come from; scales pseudo-counts.

    Returns:
        By coordinate: "weights", "root" and "prior" (logits, shaped like the parameters) and
        "leafN.NAME" for every coordinate of leaf block N.
    """
    layout, add = network.layout, pseudo_count * share
    rows = counts.n_rows.clamp(min=1).to(params.weights.dtype)
    found: dict[str, Tensor] = {}
    edge_axes = [1] * (params.weights.dim() - 2)
    if layout.n_partitions:
        owner = network.index("owner", params.device) - layout.n_leaves  # (P,)
        splits = torch.bincount(owner).to(rows)  # (R,)
        uniform = (add / (splits * network.edges))[owner].view(-1, 1, *edge_axes)
        total = (node_flow(network, counts.weights) + add)[owner]  # (P, O)
        spread = total.view(*total.shape, *edge_axes)
        found["weights"] = (counts.weights + uniform - params.weights * spread) / rows
    uniform_root = add / (len(params.root) * network.edges)
    total_root = counts.root.flatten(2).sum(2).sum(0) + add  # (C,)
    spread = total_root.view(1, -1, *edge_axes)
    found["root"] = (counts.root + uniform_root - params.root * spread) / rows
    found["prior"] = (counts.prior - params.prior * counts.prior.sum()) / rows
    for number, block in enumerate(network.blocks):
        own = block.family.gradient(params.leaves[number], counts.leaves[number], share)
        found |= {f"leaf{number}.{name}": tensor / rows for name, tensor in own.items()}
    return found


def _directions(found: dict[str, Tensor], moments: Moments) -> dict[str, Tensor]:
    """Adam's direction of every coordinate; updates the moments in place."""
    moments.steps += 1
    bias = 1 - FIRST_DECAY**moments.steps, 1 - SECOND_DECAY**moments.steps
    directions = {}
    for name, slope in found.items():
        if name not in moments.first:
            moments.first[name] = torch.zeros_like(slope)
            moments.second[name] = torch.zeros_like(slope)
        first, second = moments.first[name], moments.second[name]
        first.mul_(FIRST_DECAY).add_(slope, alpha=1 - FIRST_DECAY)
        second.mul_(SECOND_DECAY).addcmul_(slope, slope, value=1 - SECOND_DECAY)
        directions[name] = (first / bias[0]) / ((second / bias[1]).sqrt() + TINY)
    return directions


def ascend_(
    network: Network,
    params: Parameters,
    counts: ExpectedCounts,
    learning_rate: float,
    moments: Moments,
    pseudo_count: float = 0.0,
    share: float = 1.0,
) -> Parameters:
    """One step of Adam uphill.

    Sum weights are updated in place; leaf parameters are replaced.

    Args:
        network: The network.
        params: Its parameters, owned by the caller.
        counts: Expected counts of one or more batches.
        learning_rate: Length of the step in the unconstrained coordinates.
        moments: Adam's moments, updated in place.
        pseudo_count: Rows' worth of uniform flow added to every sum node, for all rows.
        share: Share of all rows that the counts come from; scales pseudo-counts.

    Returns:
        The updated parameters.
    """
    return move_(
        network, params, gradient(network, params, counts, pseudo_count, share), learning_rate,
        moments,
    )  # fmt: skip


def move_(
    network: Network,
    params: Parameters,
    slopes: dict[str, Tensor],
    learning_rate: float,
    moments: Moments,
) -> Parameters:
    """Takes one step of Adam along a gradient in the coordinates of `gradient`.

    Sum weights are updated in place; leaf parameters are replaced.
    """
    moves = {n: d.mul_(learning_rate) for n, d in _directions(slopes, moments).items()}
    if "weights" in moves:
        params.weights.mul_(moves["weights"].exp_())
    params.root.mul_(moves["root"].exp_())
    normalise_(network, params.weights, params.root)
    params.prior.mul_(moves["prior"].exp_())
    params.prior.div_(params.prior.sum())
    leaves = []
    for number, block in enumerate(network.blocks):
        lead = f"leaf{number}."
        own = {name[len(lead) :]: by for name, by in moves.items() if name.startswith(lead)}
        leaves.append(block.family.moved(params.leaves[number], own))
    return Parameters(params.weights, params.root, params.prior, tuple(leaves))

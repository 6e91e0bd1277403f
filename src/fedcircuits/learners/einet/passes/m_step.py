"""Expectation-maximisation: the M-step, full-batch or online.

Full batch: `step=1`, no smoothing; the likelihood never decreases. Online: parameters move by a
step towards each batch's M-step, as in the paper. `by_mass` replaces the one step size by stepwise
EM on running averages of the counts: a node that saw little flow in a batch moves little. Only the
average mass of each node has to be kept for that, because the averaged edge counts are that mass
times the weights.

Edge counts add up to their node's flow, so the new weights add up to one but for rounding, which
does not build up: each update starts from counts. `train` normalises once more at the end.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedcircuits.learners.einet.network.network import Network, Parameters, sum_partitions
from fedcircuits.learners.einet.passes.downward import ExpectedCounts

# Weights that one pass of the update moves on a CPU.
CHUNK_ELEMENTS = 100_000
# No weight falls below this unless smoothing keeps it up anyway: a row whose only explanation
# would be an edge that underflowed stays possible, and flow over value stays finite.
LOWEST = {torch.float32: 1e-25, torch.float64: 1e-200}


@dataclass(frozen=True)
class EMSettings:
    """How an M-step is taken.

    Attributes:
        step: Step size in (0, 1]; 1 replaces the parameters.
        pseudo_count: Rows' worth of uniform edge flow added to every sum node, for all rows.
        by_mass: Stepwise EM on averaged counts rather than on parameters.
        share: Share of all rows that the counts of one update come from; scales pseudo-counts.
    """

    step: float = 1.0
    pseudo_count: float = 0.0
    by_mass: bool = False
    share: float = 1.0


@dataclass(eq=False)
class Masses:
    """Running average flow per row of every node, for `by_mass`.

    Attributes:
        sums: Inner sum nodes, (inner regions, K).
        root: Root nodes, (classes,).
        leaves: Leaf distributions of every block, each (slots, K).
        steps: Updates so far; the first ones weigh more, as in an average.
    """

    sums: Tensor
    root: Tensor
    leaves: list[Tensor]
    steps: int = 0

    @staticmethod
    def zeros(network: Network, params: Parameters) -> Masses:
        """Return masses of zero for all nodes, classes and leaf slots."""
        layout, like = network.layout, params.weights
        inner_regions = layout.n_regions - layout.n_leaves
        return Masses(
            like.new_zeros((inner_regions, network.width)),
            like.new_zeros((network.n_classes,)),
            [like.new_zeros((len(b.slots), network.width)) for b in network.blocks],
        )


def node_flow(network: Network, edge_flow: Tensor) -> Tensor:
    """Flow through every inner sum node from its edges' flows, (inner regions, K)."""
    return sum_partitions(network.layout, edge_flow.flatten(2).sum(2))


def _rate(step: float, flow: Tensor, mass: Tensor | None, n_rows: Tensor) -> Tensor:
    """Step size of every node; updates its running mass in place."""
    if mass is None:
        return torch.full_like(flow, step)
    share = step * flow / n_rows.clamp(min=1)
    mass.mul_(1 - step).add_(share)
    return torch.where(mass > 0, share / mass, torch.zeros_like(share))


def _move_(
    weights: Tensor, edge_flow: Tensor, flow: Tensor, rate: Tensor, add: float, n: Tensor
) -> None:
    """weights <- (1 - rate) weights + rate (edge_flow + add / n) / (flow + add), where alive."""
    shape = (*flow.shape, *([1] * (weights.dim() - flow.dim())))
    alive = (flow > 0).view(shape)
    total = torch.where(flow > 0, flow + add, torch.ones_like(flow)).view(shape)
    rate = torch.where(alive, rate.view(shape), torch.zeros_like(total))
    keep, gain, extra = 1 - rate, rate / total, rate * add / (n * total)
    lowest = LOWEST[weights.dtype]
    step = max(1, len(weights))
    if weights.device.type == "cpu":  # all passes over some weights while they are in the cache
        step = max(1, CHUNK_ELEMENTS // max(1, weights[0].numel() if len(weights) else 1))
    for start in range(0, len(weights), step):
        here = slice(start, start + step)
        moved = weights[here].mul_(keep[here]).addcmul_(edge_flow[here], gain[here])
        if add > 0:
            moved.add_(extra[here])
        else:
            moved.clamp_(min=lowest)


def m_step_(
    network: Network,
    params: Parameters,
    counts: ExpectedCounts,
    settings: EMSettings,
    masses: Masses | None = None,
) -> Parameters:
    """Moves the parameters to, or towards, the M-step of expected counts.

    Sum weights are updated in place; leaf parameters are replaced.

    Args:
        network: The network.
        params: Its parameters, owned by the caller.
        counts: Expected counts of one or more batches.
        settings: Step size and smoothing.
        masses: Running masses, updated in place; needed if `settings.by_mass`.

    Returns:
        The updated parameters.
    """
    layout = network.layout
    by_mass = masses if settings.by_mass else None
    step = settings.step
    if by_mass is not None:
        by_mass.steps += 1
        step = max(step, 1.0 / by_mass.steps)
    rows, add = counts.n_rows.to(params.weights.dtype), settings.pseudo_count * settings.share

    if layout.n_partitions:
        flow = node_flow(network, counts.weights)  # (R, O)
        rate = _rate(step, flow, by_mass.sums if by_mass else None, rows)
        owner = network.index("owner", flow.device) - layout.n_leaves
        splits = torch.bincount(owner, minlength=len(flow)).to(flow.dtype)
        n = (splits[owner] * network.edges).view(-1, *([1] * (params.weights.dim() - 1)))
        _move_(params.weights, counts.weights, flow[owner], rate[owner], add, n)
    root_flow = counts.root.flatten(2).sum(2).sum(0)  # (C,)
    rate = _rate(step, root_flow, by_mass.root if by_mass else None, rows)
    splits_root = params.root.shape[0]
    n = torch.tensor(float(splits_root * network.edges), device=params.device)
    spread = (splits_root, -1)
    _move_(params.root, counts.root, root_flow.expand(spread), rate.expand(spread), add, n)

    total = counts.prior.sum()
    target = torch.where(total > 0, counts.prior / total.clamp(min=1e-30), params.prior)
    params.prior.mul_(1 - step).add_(target, alpha=step)

    leaves = []
    for number, block in enumerate(network.blocks):
        stats = counts.leaves[number]
        rate = _rate(step, stats["n"], by_mass.leaves[number] if by_mass else None, rows)
        leaves.append(block.family.update(params.leaves[number], stats, rate, settings.share))
    return Parameters(params.weights, params.root, params.prior, tuple(leaves))

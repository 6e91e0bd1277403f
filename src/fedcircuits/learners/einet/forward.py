"""The upward pass: log-values of every node, in plain PyTorch on any device."""

from __future__ import annotations

import torch
from torch import Tensor

from . import inner
from .layout import Group
from .leaves import Gaussian
from .network import Network, Parameters


def leaf_values(
    network: Network, params: Parameters, x: Tensor, observed: Tensor | None = None
) -> Tensor:
    """Log-values of the leaf regions.

    Args:
        network: The network.
        params: Its parameters.
        x: Rows, (batch, variables); any legal number where missing.
        observed: Where values are known, (batch, variables); None for everywhere.

    Returns:
        Log-values, (leaf regions, batch, K).
    """
    layout, dtype = network.layout, params.weights.dtype
    device, batch = x.device, len(x)
    uniform = layout.slots_per_leaf
    total: Tensor | None = None
    for number, block in enumerate(network.blocks):
        variables = network.index(f"block{number}.variables", device)
        values = x.T.index_select(0, variables)  # (S, B)
        if observed is None and uniform and len(network.blocks) == 1 and uniform > 1:
            family = block.family
            if type(family) is Gaussian:
                return family.region_log_prob(params.leaves[number], values, uniform)
        logs = block.family.log_prob(params.leaves[number], values)  # (S, B, K)
        if observed is not None:
            known = observed.T.index_select(0, variables).unsqueeze(2)
            logs = torch.where(known, logs, torch.zeros_like(logs))
        if len(network.blocks) == 1 and uniform is not None:
            if uniform == 1:
                return logs
            return logs.view(layout.n_leaves, uniform, batch, network.width).sum(1)
        if total is None:
            shape = (layout.n_leaves, batch, network.width)
            total = torch.zeros(shape, dtype=dtype, device=device)
        total.index_add_(0, network.index(f"block{number}.regions", device), logs)
    assert total is not None
    return total


def upward(network: Network, params: Parameters, leaves: Tensor) -> tuple[Tensor, Tensor]:
    """Log-values of all inner regions and of the roots.

    Args:
        network: The network.
        params: Its parameters.
        leaves: Log-values of the leaf regions, (leaf regions, batch, K).

    Returns:
        Log-values (regions + 1, batch, K), the last being the padding child of value log 1, and
        log-values of the roots, (batch, classes).
    """
    layout = network.layout
    children = network.index("children", leaves.device)
    values = leaves.new_empty((layout.n_regions + 1, *leaves.shape[1:]))
    values[: layout.n_leaves] = leaves
    values[-1] = 0.0
    if network.layer == "tucker":
        return _tucker_upward(network, params, values, children)
    for group in layout.groups:
        first, last = group.partitions
        out = inner.cp_forward(values, params.weights[first:last], children[first:last], group)
        values[group.regions[0] : group.regions[1]] = out
    top = network.index("root_children", values.device)
    return values, inner.cp_forward(values, params.root, top, root_group(network))[0]


def _tucker_upward(
    network: Network, params: Parameters, values: Tensor, children: Tensor
) -> tuple[Tensor, Tensor]:
    """The groups of a Tucker network in turn, each scaled once for all who read it."""
    layout = network.layout
    first = inner.Scaled.of(values[: layout.n_leaves])
    shape = (layout.n_regions, network.width, values.shape[1])
    scaled = inner.Scaled(values.new_empty(shape), values.new_empty((shape[0], 1, shape[2])))
    scaled.values[: layout.n_leaves], scaled.tops[: layout.n_leaves] = first
    for group in layout.groups:
        span, here = slice(*group.partitions), slice(*group.regions)
        out = inner.tucker_forward(values, params.weights[span], children[span], group, scaled)
        values[here] = out
        scaled.values[here], scaled.tops[here] = inner.Scaled.of(out)
    top = network.index("root_children", values.device)
    root = inner.tucker_forward(values, params.root, top, root_group(network), scaled)
    return values, root[0]


def root_group(network: Network) -> Group:
    """The root as a group of one region."""
    n_splits, arity = network.layout.root_children.shape
    return Group((0, 1), (0, n_splits), n_splits, arity, -1)


def log_likelihood(
    network: Network,
    params: Parameters,
    x: Tensor,
    observed: Tensor | None = None,
    labels: Tensor | None = None,
) -> Tensor:
    """Log-likelihood of rows, (batch,).

    Args:
        network: The network.
        params: Its parameters.
        x: Rows, (batch, variables).
        observed: Where values are known, (batch, variables); None for everywhere.
        labels: Class of each row, -1 where unknown, (batch,); None for all unknown.

    Returns:
        log p(x) or log p(x, label), in nats.
    """
    _, root = upward(network, params, leaf_values(network, params, x, observed))
    return class_mixture(root, params.prior, labels)


def class_mixture(root: Tensor, prior: Tensor, labels: Tensor | None) -> Tensor:
    """log sum over classes of prior times root, or the labelled class's term alone, (batch,)."""
    joint = root + torch.log(prior)  # (B, C)
    total = torch.logsumexp(joint, dim=1)
    if labels is None:
        return total
    own = joint.gather(1, labels.clamp(min=0).unsqueeze(1)).squeeze(1)
    return torch.where(labels >= 0, own, total)

"""The upward pass: log-values of every node, in plain PyTorch on any device."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedcircuits.learners.einet.leaves import Gaussian
from fedcircuits.learners.einet.network.layout import Group
from fedcircuits.learners.einet.network.network import Network, Parameters
from fedcircuits.learners.einet.passes import inner


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
    columns = x.T.contiguous()  # rows of it are then copied whole
    for number, block in enumerate(network.blocks):
        variables = network.index(f"block{number}.variables", device)
        if observed is None and uniform and len(network.blocks) == 1 and uniform > 1:
            family, own = block.family, params.leaves[number]
            if type(family) is Gaussian:
                return family.region_log_prob(own, columns, variables, uniform)
        values = columns.index_select(0, variables)  # (S, B)
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


@dataclass(frozen=True, eq=False)
class Upward:
    """Values of all nodes after an upward pass.

    Attributes:
        root: Log-values of the roots, (batch, classes).
        logs: CP: log-values (regions + 1, batch, K), the last being the padding child, log 1.
        tucker: Tucker: the values in the layers' own form.
    """

    root: Tensor
    logs: Tensor | None = None
    tucker: TuckerValues | None = None

    @property
    def values(self) -> Tensor:
        """Log-values (regions or one more, batch, K)."""
        if self.logs is not None:
            return self.logs
        assert self.tucker is not None
        return self.tucker.regions.logs()


@dataclass(frozen=True, eq=False)
class TuckerValues:
    """Linear values of a Tucker network and the scales its flows need.

    Attributes:
        regions: All regions but the root.
        share: Scale of each partition's products over its region's, (partitions, 1, batch).
        root: The root; its K are the classes.
        root_share: As `share`, of the root's partitions.
    """

    regions: inner.Scaled
    share: Tensor
    root: inner.Scaled
    root_share: Tensor


def upward(network: Network, params: Parameters, leaves: Tensor) -> Upward:
    """Values of all inner regions and of the roots from log-values (leaf regions, batch, K)."""
    layout = network.layout
    children = network.index("children", leaves.device)
    top = network.index("root_children", leaves.device)
    if network.layer == "tucker":
        return _tucker_upward(network, params, leaves, children, top)
    values = leaves.new_empty((layout.n_regions + 1, *leaves.shape[1:]))
    values[: layout.n_leaves] = leaves
    values[-1] = 0.0
    for group in layout.groups:
        first, last = group.partitions
        out = inner.cp_forward(values, params.weights[first:last], children[first:last], group)
        values[group.regions[0] : group.regions[1]] = out
    return Upward(inner.cp_forward(values, params.root, top, root_group(network))[0], values)


def upward_of_rows(
    network: Network, params: Parameters, x: Tensor, observed: Tensor | None = None
) -> Upward:
    """Return the values of all nodes for rows (batch, variables); None: everything is observed."""
    return upward(network, params, leaf_values(network, params, x, observed))


def _tucker_upward(
    network: Network, params: Parameters, leaves: Tensor, children: Tensor, top: Tensor
) -> Upward:
    """The groups of a Tucker network in turn."""
    layout, batch = network.layout, leaves.shape[1]
    regions = inner.Scaled.empty(layout.n_regions, network.width, batch, leaves)
    regions.values[: layout.n_leaves], regions.tops[: layout.n_leaves] = inner.Scaled.of(leaves)
    share = leaves.new_empty((layout.n_partitions, 1, batch))
    for group in layout.groups:
        span, here = slice(*group.partitions), slice(*group.regions)
        out = inner.Scaled(regions.values[here], regions.tops[here])
        inner.tucker_up_(regions, params.weights[span], children[span], group, out, share[span])
    root = inner.Scaled.empty(1, network.n_classes, batch, leaves)
    root_share = leaves.new_empty((len(top), 1, batch))
    inner.tucker_up_(regions, params.root, top, root_group(network), root, root_share)
    return Upward(root.logs()[0], tucker=TuckerValues(regions, share, root, root_share))


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
    passed = upward_of_rows(network, params, x, observed)
    return class_mixture(passed.root, params.prior, labels)


def class_mixture(root: Tensor, prior: Tensor, labels: Tensor | None) -> Tensor:
    """log sum over classes of prior times root, or the labelled class's term alone, (batch,)."""
    joint = root + torch.log(prior)  # (B, C)
    total = torch.logsumexp(joint, dim=1)
    if labels is None:
        return total
    own = joint.gather(1, labels.clamp(min=0).unsqueeze(1)).squeeze(1)
    return torch.where(labels >= 0, own, total)

"""The sums and products of one group of regions, upward and downward, in plain PyTorch.

Values are log-values, one array (regions + 1, batch, K) whose last entry is the padding child of
value log 1. Both kinds fold the sum over a region's partitions p into one weighted sum:

- CP: out[o] = sum over p, k of W[p, o, k] * product over children c of value[c, k]
- Tucker: out[o] = sum over p, i, j of W[p, o, i, j] * left[i] * right[j]

Downward, `flow[r, b, o]` is the posterior probability that node (r, o) takes part in row b. With
ratio = flow / out, an edge's flow is W times the product's value times the ratio, summed over the
batch; it is what expectation-maximisation counts, with no gradient tape. -inf is a legal value:
only the subtracted maximum is guarded.

Tucker layers keep values linear, over their region's largest (`Scaled`): no node needs a logarithm
or an exponential, only each region and partition one per row. The flows use the very scales of
the upward pass, so they are conserved to rounding however large the log-values are.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fedcircuits.learners.einet.network.layout import Group

# Elements of the outer products a CPU cache holds; larger chunks stream through memory, smaller
# ones spend their time on calls.
CHUNK_ELEMENTS = 600_000
# On other devices there is only memory to spare.
CUDA_CHUNK_ELEMENTS = 50_000_000
# Scale of a region that is impossible: below all others, so that it never sets the scale of a sum
# it takes no part in, and finite, so that differences of scales are.
NOWHERE = -1e30
# Largest flow over value. A node beyond it is 30 digits below its region's best product; without
# the bound a sum of such ratios overflows, and infinity times a weight of zero is not a number.
LARGEST_RATIO = {torch.float32: 1e30, torch.float64: 1e290}


def finite_max(log_values: Tensor, dims: tuple[int, ...]) -> Tensor:
    """Maximum over dims (kept), with 0 where every value is -inf, so it can be subtracted."""
    top = log_values.amax(dim=dims, keepdim=True)
    return torch.where(torch.isneginf(top), torch.zeros_like(top), top)


def flow_ratio(flow: Tensor, out: Tensor) -> Tensor:
    """flow / out, bounded, and 0 where no flow arrives (also where out is 0 and so has none)."""
    return flow / out.clamp(min=1 / LARGEST_RATIO[out.dtype])


def _products(values: Tensor, children: Tensor, arity: int) -> Tensor:
    """Log-products of the children, element-wise: (partitions, batch, K)."""
    total = values.index_select(0, children[:, 0])
    for position in range(1, arity):
        total += values.index_select(0, children[:, position])
    return total


def _cp_scaled(
    values: Tensor, children: Tensor, n_splits: int, arity: int
) -> tuple[Tensor, Tensor]:
    """Products scaled per region and row: (regions, splits, batch, K) and the log-scale."""
    logs = _products(values, children, arity)
    logs = logs.view(-1, n_splits, *logs.shape[1:])  # (R, P, B, K)
    top = finite_max(logs, (1, 3))  # (R, 1, B, 1)
    return (logs - top).exp_(), top


def cp_forward(values: Tensor, weights: Tensor, children: Tensor, group: Group) -> Tensor:
    """Log-values of a group's regions.

    Args:
        values: Log-values of everything below, (regions + 1, batch, K).
        weights: The group's weights, (partitions, outputs, K).
        children: The group's child regions, (partitions, arity).
        group: Which group it is.

    Returns:
        Log-values, (group's regions, batch, outputs).
    """
    scaled, top = _cp_scaled(values, children, group.n_splits, group.arity)
    parts = torch.bmm(scaled.flatten(0, 1), weights.transpose(1, 2))  # (P, B, O)
    if group.n_splits > 1:
        parts = parts.view(*scaled.shape[:3], -1).sum(dim=1)  # (R, B, O)
    return torch.log(parts) + top.squeeze(1)


def cp_flows(
    values: Tensor,
    out: Tensor,
    flow: Tensor,
    weights: Tensor,
    children: Tensor,
    group: Group,
    child_flow: Tensor,
    edges: Tensor,
) -> None:
    """Sends the flows of a group's regions to its edges and children.

    Args:
        values: Log-values of everything below, (regions + 1, batch, K).
        out: Log-values of the group's regions, (regions, batch, outputs).
        flow: Their flows, same shape.
        weights: The group's weights, (partitions, outputs, K).
        children: The group's child regions, (partitions, arity).
        group: Which group it is.
        child_flow: Flows of everything below, added to in place, (regions + 1, batch, K).
        edges: Where the edge flows, summed over the batch, go, (partitions, outputs, K).
    """
    products = cp_product_flows(values, out, flow, weights, children, group, edges)
    for position in range(group.arity):
        child_flow.index_add_(0, children[:, position], products)


def cp_product_flows(
    values: Tensor,
    out: Tensor,
    flow: Tensor,
    weights: Tensor,
    children: Tensor,
    group: Group,
    edges: Tensor,
) -> Tensor:
    """Flows of the products (partitions, batch, K); those of the edges go to `edges`."""
    scaled, top = _cp_scaled(values, children, group.n_splits, group.arity)
    ratio = flow_ratio(flow, torch.exp(out - top.squeeze(1)))  # (R, B, O)
    ratio = ratio.unsqueeze(1).expand(-1, group.n_splits, -1, -1).flatten(0, 1)  # (P, B, O)
    scaled = scaled.flatten(0, 1)
    torch.bmm(ratio.transpose(1, 2), scaled, out=edges)
    edges.mul_(weights)
    return torch.bmm(ratio, weights).mul_(scaled)  # (P, B, K)


def _tucker_chunks(group: Group, below: Tensor) -> list[slice]:
    """Slices of a group's partitions, by whole regions, whose outer products fit the cache."""
    n_regions = group.regions[1] - group.regions[0]
    width, batch = below.shape[1:]
    per_region = group.n_splits * batch * width * width
    room = CHUNK_ELEMENTS if below.device.type == "cpu" else CUDA_CHUNK_ELEMENTS
    size = max(1, room // max(1, per_region))
    size = -(-n_regions // -(-n_regions // size))  # chunks of one size, as far as that goes
    step, last = size * group.n_splits, n_regions * group.n_splits
    return [slice(start, min(start + step, last)) for start in range(0, last, step)]


class Scaled(NamedTuple):
    """Values of regions in the form Tucker layers read and write.

    The batch comes last: outer products and sums over pairs then run along it, contiguous, and
    matrix products are as wide as the batch rather than as the few outputs.

    Attributes:
        values: Values over their region's largest, (regions, K, batch).
        tops: Logarithm of that largest value, `NOWHERE` where all are 0, (regions, 1, batch).
    """

    values: Tensor
    tops: Tensor

    @staticmethod
    def of(logs: Tensor) -> Scaled:
        """From log-values (regions, batch, K)."""
        logs = logs.transpose(1, 2).contiguous()  # (R, K, B)
        tops = logs.amax(1, keepdim=True).clamp(min=NOWHERE)
        return Scaled(torch.exp(logs - tops), tops)

    @staticmethod
    def empty(regions: int, outputs: int, batch: int, like: Tensor) -> Scaled:
        """Return unfilled scaled values for some regions."""
        shape = (regions, outputs, batch)
        return Scaled(like.new_empty(shape), like.new_empty((regions, 1, batch)))

    def logs(self) -> Tensor:
        """Log-values (regions, batch, K)."""
        return (torch.log(self.values) + self.tops).transpose(1, 2)


def _outer(left: Tensor, right: Tensor) -> Tensor:
    """Products of all pairs: (partitions, K * K, batch) of (partitions, K, batch) each."""
    return (left.unsqueeze(2) * right.unsqueeze(1)).flatten(1, 2)


def tucker_up_(
    below: Scaled, weights: Tensor, children: Tensor, group: Group, out: Scaled, share: Tensor
) -> None:
    """Values of a group's regions.

    Args:
        below: Everything below.
        weights: The group's weights, (partitions, outputs, K, K).
        children: The group's child regions, (partitions, 2).
        group: Which group it is.
        out: Where the group's values go.
        share: Where the scale of each partition's products over that of its region's values goes,
            (partitions, 1, batch); the flows need it.
    """
    batch, n_splits = below.values.shape[2], group.n_splits
    flat = weights.flatten(2)  # (P, O, K * K)
    left_of, right_of = children[:, 0], children[:, 1]
    tops = below.tops.index_select(0, left_of) + below.tops.index_select(0, right_of)
    tops = tops.view(-1, n_splits, 1, batch)
    best = tops.amax(1, keepdim=True)  # (R, 1, 1, B)
    scale = torch.exp(tops - best)  # (R, n, 1, B)
    parts = []
    for span in _tucker_chunks(group, below.values):
        left = below.values.index_select(0, left_of[span])  # (P, K, B)
        right = below.values.index_select(0, right_of[span])
        if n_splits > 1:
            left = left * scale.view(-1, 1, batch)[span]
        total = torch.bmm(flat[span], _outer(left, right))  # (P, O, B)
        if n_splits > 1:
            total = total.view(-1, n_splits, *total.shape[1:]).sum(1)
        parts.append(total)  # (R, O, B)
    total = parts[0] if len(parts) == 1 else torch.cat(parts)
    largest = total.amax(1, keepdim=True)  # (R, 1, B)
    # Below the smallest normal number its inverse would be infinite: left as it is.
    normal = largest >= torch.finfo(largest.dtype).tiny
    most = torch.where(normal, largest, torch.ones_like(largest))
    out.values[:] = total / most
    tops = (best.squeeze(1) + torch.log(most)).clamp(min=NOWHERE)
    out.tops[:] = torch.where(largest > 0, tops, torch.full_like(tops, NOWHERE))
    share[:] = (scale / most.unsqueeze(1)).view_as(share)


def tucker_down_(
    below: Scaled,
    own: Tensor,
    flow: Tensor,
    weights: Tensor,
    children: Tensor,
    group: Group,
    share: Tensor,
    child_flow: Tensor,
    edges: Tensor,
) -> None:
    """Sends the flows of a group's regions to its edges and children.

    Args:
        below: Everything below.
        own: Scaled values of the group's regions, (regions, outputs, batch).
        flow: Their flows, same shape.
        weights: The group's weights, (partitions, outputs, K, K).
        children: The group's child regions, (partitions, 2).
        group: Which group it is.
        share: Of the upward pass, (partitions, 1, batch).
        child_flow: Flows of everything below, added to in place, (regions, K, batch).
        edges: Where the edge flows, summed over the batch, go, shaped like the weights.
    """
    ratio = _ratio(flow_ratio(flow, own), share, group)
    for span in _tucker_chunks(group, below.values):
        part = children[span]
        to_left, to_right = _pair_flows(below, ratio[span], weights[span], part, edges[span])
        child_flow.index_add_(0, part[:, 0], to_left)
        child_flow.index_add_(0, part[:, 1], to_right)


def _ratio(pull: Tensor, share: Tensor, group: Group) -> Tensor:
    """Flow over value of every partition's sums, (partitions, outputs, batch).

    From that of the regions, (regions, outputs, batch), and the partitions' scales.
    """
    n_splits, batch = group.n_splits, pull.shape[2]
    ratio = pull.unsqueeze(1) * share.view(-1, n_splits, 1, batch)  # (R, n, O, B)
    return ratio.clamp_(max=LARGEST_RATIO[ratio.dtype]).view(-1, *pull.shape[1:])


def _pair_flows(
    below: Scaled, ratio: Tensor, weights: Tensor, children: Tensor, edges: Tensor
) -> tuple[Tensor, Tensor]:
    """Flows to left and right children, (partitions, K, batch); the edges' go to `edges`."""
    width, batch = below.values.shape[1:]
    flat = weights.flatten(2)  # (P, O, K * K)
    pairs = _outer(
        below.values.index_select(0, children[:, 0]), below.values.index_select(0, children[:, 1])
    )  # (P, K * K, B)
    torch.bmm(ratio, pairs.transpose(1, 2), out=edges.view_as(flat))
    edges.mul_(weights)
    flows = torch.bmm(flat.transpose(1, 2), ratio).mul_(pairs)  # flow of every product
    flows = flows.view(-1, width, width, batch)
    return flows.sum(2), flows.sum(1)


def tucker_forward(values: Tensor, weights: Tensor, children: Tensor, group: Group) -> Tensor:
    """Log-values of a group's regions from log-values; as `cp_forward`."""
    n_regions, batch = group.regions[1] - group.regions[0], values.shape[1]
    out = Scaled.empty(n_regions, weights.shape[1], batch, values)
    share = values.new_empty((len(weights), 1, batch))
    tucker_up_(Scaled.of(values), weights, children, group, out, share)
    return out.logs()


def tucker_product_flows(
    below: Scaled,
    out: Tensor,
    flow: Tensor,
    weights: Tensor,
    children: Tensor,
    group: Group,
    edges: Tensor,
) -> tuple[Tensor, Tensor]:
    """Flows to left and right children (partitions, batch, K), from log-values.

    `out` and `flow` are log-values and flows of the group's regions, (regions, batch, outputs);
    the edges' flows go to `edges`.
    """
    own = Scaled.of(out)
    tops = below.tops.index_select(0, children[:, 0]) + below.tops.index_select(0, children[:, 1])
    above = own.tops.unsqueeze(1).expand(-1, group.n_splits, -1, -1).reshape(tops.shape)
    pull = flow_ratio(flow.transpose(1, 2), own.values)
    # Where nothing is possible there is no flow either, only infinity to keep out.
    ratio = _ratio(pull, torch.exp((tops - above).clamp(max=80.0)), group)
    to_left, to_right = _pair_flows(below, ratio, weights, children, edges)
    return to_left.transpose(1, 2), to_right.transpose(1, 2)

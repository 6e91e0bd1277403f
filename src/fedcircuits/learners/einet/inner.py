"""The sums and products of one group of regions, upward and downward, in plain PyTorch.

Values are log-values, one array (regions + 1, batch, K) whose last entry is the padding child of
value log 1. Both kinds fold the sum over a region's partitions p into one weighted sum:

- CP: out[o] = sum over p, k of W[p, o, k] * product over children c of value[c, k]
- Tucker: out[o] = sum over p, i, j of W[p, o, i, j] * left[i] * right[j]

Downward, `flow[r, b, o]` is the posterior probability that node (r, o) takes part in row b. With
ratio = flow / out, an edge's flow is W times the product's value times the ratio, summed over the
batch; it is what expectation-maximisation counts, with no gradient tape. -inf is a legal value:
only the subtracted maximum is guarded.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .layout import Group

# Elements of the outer products a CPU cache holds; larger chunks stream through memory.
CHUNK_ELEMENTS = 250_000


def finite_max(log_values: Tensor, dims: tuple[int, ...]) -> Tensor:
    """Maximum over dims (kept), with 0 where every value is -inf, so it can be subtracted."""
    top = log_values.amax(dim=dims, keepdim=True)
    return torch.where(torch.isneginf(top), torch.zeros_like(top), top)


def flow_ratio(flow: Tensor, out: Tensor) -> Tensor:
    """flow / out, and 0 where no flow arrives (also where out is 0 and so has none)."""
    safe = torch.where(flow > 0, out, torch.ones_like(out))
    return torch.where(flow > 0, flow / safe, torch.zeros_like(out))


def _products(values: Tensor, children: Tensor, arity: int) -> Tensor:
    """Log-products of the children, element-wise: (partitions, batch, K)."""
    total = values[children[:, 0]]
    for position in range(1, arity):
        total = total + values[children[:, position]]
    return total


def _cp_scaled(
    values: Tensor, children: Tensor, n_splits: int, arity: int
) -> tuple[Tensor, Tensor]:
    """Products scaled per region and row: (regions, splits, batch, K) and the log-scale."""
    logs = _products(values, children, arity)
    logs = logs.view(-1, n_splits, *logs.shape[1:])  # (R, P, B, K)
    top = finite_max(logs, (1, 3))  # (R, 1, B, 1)
    return torch.exp(logs - top), top


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
    out = parts.view(*scaled.shape[:3], -1).sum(dim=1)  # (R, B, O)
    return torch.log(out) + top.squeeze(1)


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


def _tucker_chunks(group: Group, batch: int, width: int) -> list[tuple[int, int]]:
    """Slices of a group's regions whose outer products stay in the cache."""
    n_regions = group.regions[1] - group.regions[0]
    per_region = group.n_splits * batch * width * width
    size = max(1, CHUNK_ELEMENTS // max(1, per_region))
    return [(start, min(start + size, n_regions)) for start in range(0, n_regions, size)]


class Scaled(NamedTuple):
    """Values of regions in the form Tucker layers read, made once for all partitions.

    The batch comes last: outer products and sums over pairs then run along it, contiguous, and
    matrix products are as wide as the batch rather than as the few outputs.

    Attributes:
        values: exp(value - top), (regions, K, batch).
        tops: Largest log-value of each region and row, 0 where all are -inf, (regions, 1, batch).
    """

    values: Tensor
    tops: Tensor

    @staticmethod
    def of(values: Tensor) -> Scaled:
        """From log-values (regions, batch, K)."""
        logs = values.transpose(1, 2).contiguous()  # (R, K, B)
        tops = finite_max(logs, (1,))
        return Scaled(torch.exp(logs - tops), tops)


def _tucker_sides(scaled: Scaled, children: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Left and right values (partitions, K, batch) and the log-scale of their product."""
    left, right = children[:, 0], children[:, 1]
    tops = scaled.tops[left] + scaled.tops[right]  # (P, 1, B)
    return scaled.values[left], scaled.values[right], tops


def tucker_forward(
    values: Tensor,
    weights: Tensor,
    children: Tensor,
    group: Group,
    scaled: Scaled | None = None,
) -> Tensor:
    """Log-values of a group's regions; as `cp_forward`, weights (partitions, outputs, K, K).

    `scaled` is the scaled form of the values, where the caller has it.
    """
    batch, width = values.shape[1:]
    scaled = scaled or Scaled.of(values)
    results = []
    flat = weights.flatten(2)  # (P, O, K * K)
    for start, stop in _tucker_chunks(group, batch, width):
        span = slice(start * group.n_splits, stop * group.n_splits)
        left, right, top = _tucker_sides(scaled, children[span])
        outer = (left.unsqueeze(2) * right.unsqueeze(1)).flatten(1, 2)  # (P, K * K, B)
        parts = torch.bmm(flat[span], outer)  # (P, O, B)
        top = top.view(-1, group.n_splits, 1, batch)
        best = top.amax(dim=1, keepdim=True)
        parts = parts.view(-1, group.n_splits, *parts.shape[1:]) * torch.exp(top - best)
        results.append((torch.log(parts.sum(dim=1)) + best.squeeze(1)).transpose(1, 2))
    return torch.cat(results)


def tucker_flows(
    values: Tensor,
    out: Tensor,
    flow: Tensor,
    weights: Tensor,
    children: Tensor,
    group: Group,
    child_flow: Tensor,
    edges: Tensor,
    scaled: Scaled | None = None,
) -> None:
    """Sends flows down; as `cp_flows`, weights and edge flows (partitions, outputs, K, K)."""
    batch, width = values.shape[1:]
    scaled = scaled or Scaled.of(values)
    for start, stop in _tucker_chunks(group, batch, width):
        span = slice(start * group.n_splits, stop * group.n_splits)
        part, here = children[span], slice(start, stop)
        to_left, to_right = tucker_product_flows(
            scaled, out[here], flow[here], weights[span], part, group, edges[span]
        )
        child_flow.index_add_(0, part[:, 0], to_left)
        child_flow.index_add_(0, part[:, 1], to_right)


def tucker_product_flows(
    scaled: Scaled,
    out: Tensor,
    flow: Tensor,
    weights: Tensor,
    children: Tensor,
    group: Group,
    edges: Tensor,
) -> tuple[Tensor, Tensor]:
    """Flows to left and right children (partitions, batch, K); edges' flows go to `edges`."""
    width, batch = scaled.values.shape[1:]
    flat = weights.flatten(2)  # (P, O, K * K)
    left, right, top = _tucker_sides(scaled, children)  # (P, K, B), (P, K, B), (P, 1, B)
    top = top.view(-1, group.n_splits, 1, batch)
    best = top.amax(dim=1)  # (R, 1, B)
    ratio = flow_ratio(flow.transpose(1, 2), torch.exp(out.transpose(1, 2) - best))  # (R, O, B)
    ratio = (ratio.unsqueeze(1) * torch.exp(top - best.unsqueeze(1))).flatten(0, 1)  # (P, O, B)
    outer = (left.unsqueeze(2) * right.unsqueeze(1)).flatten(1, 2)  # (P, K * K, B)
    torch.bmm(ratio, outer.transpose(1, 2), out=edges.view_as(flat))
    edges.mul_(weights)
    pulled = torch.bmm(flat.transpose(1, 2), ratio).view(-1, width, width, batch)
    # The buffer of the outer product is free: pairs times the right values, then in place.
    torch.mul(pulled, right.unsqueeze(1), out=outer.view_as(pulled))
    to_left = outer.view_as(pulled).sum(dim=2).mul_(left)  # (P, K, B)
    to_right = pulled.mul_(left.unsqueeze(2)).sum(dim=1).mul_(right)
    return to_left.transpose(1, 2).contiguous(), to_right.transpose(1, 2).contiguous()

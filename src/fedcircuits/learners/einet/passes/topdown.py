"""Top-down selection: samples and decodings, with or without evidence.

Going down from the root every active node picks one edge: at random, in proportion to the edge's
share of the evidence's likelihood (exact conditional samples), or the best one (max-product).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from fedcircuits.learners.einet.network.layout import Group
from fedcircuits.learners.einet.network.network import Network, Parameters
from fedcircuits.learners.einet.passes.forward import root_group

Pick = Callable[[Tensor], Tensor]
# Scores held at once; bounds the memory whatever the width.
CHUNK_ELEMENTS = 20_000_000


def random_pick(generator: torch.Generator) -> Pick:
    """Picks a column of log-scores (n, m) in proportion to their exponentials, (n,)."""

    def pick(scores: Tensor) -> Tensor:
        # The exponential race: exact for any number of columns.
        noise = torch.rand(scores.shape, generator=generator, dtype=torch.float64)
        race = -torch.log(-torch.log(noise.clamp(min=1e-300))).to(scores)
        return (scores + race).argmax(dim=1)

    return pick


def best_pick(scores: Tensor) -> Tensor:
    """Picks the largest log-score of each row."""
    return scores.argmax(dim=1)


def edge_scores(
    network: Network,
    values: Tensor,
    weights: Tensor,
    children: Tensor,
    rows: Tensor,
    outputs: Tensor,
) -> Tensor:
    """Log-scores of all edges of some nodes.

    Args:
        network: The network.
        values: Log-values, (regions + 1, batch, K).
        weights: Weights of the nodes' partitions, (nodes, splits, outputs, K[, K]).
        children: Their child regions, (nodes, splits, arity).
        rows: Row of each node, (nodes,).
        outputs: Which output each node is, (nodes,).

    Returns:
        Log-scores, (nodes, splits * edges).
    """
    number = torch.arange(len(rows), device=rows.device)
    logs = torch.log(weights[number, :, outputs])  # (N, P, K[, K])
    below = values[children, rows[:, None, None]]  # (N, P, arity, K)
    if network.layer == "cp":
        logs = logs + below.sum(dim=2)
    else:
        logs = logs + below[:, :, 0, :, None] + below[:, :, 1, None, :]
    return logs.flatten(1)


def _descend(
    network: Network,
    values: Tensor,
    weights: Tensor,
    children: Tensor,
    n_splits: int,
    rows: Tensor,
    regions: Tensor,
    outputs: Tensor,
    states: Tensor,
    pick: Pick,
) -> None:
    """Lets nodes (rows, regions, outputs) pick an edge and sets the states of its children."""
    width, padding = network.width, network.layout.n_regions
    per_node = n_splits * network.edges
    size = max(1, CHUNK_ELEMENTS // per_node)
    by_region = weights.view(-1, n_splits, *weights.shape[1:])
    kids = children.view(-1, n_splits, children.shape[1])
    for start in range(0, len(rows), size):
        here = slice(start, start + size)
        row, region, output = rows[here], regions[here], outputs[here]
        if network.layer == "cp":
            w = by_region[region]
            scores = edge_scores(network, values, w, kids[region], row, output)
        else:
            # K ** 3 weights a node would be too many to gather: take the output's slice first.
            w = by_region[region, :, output].unsqueeze(2)
            zero = torch.zeros_like(output)
            scores = edge_scores(network, values, w, kids[region], row, zero)
        chosen = pick(scores)
        split, edge = chosen // network.edges, chosen % network.edges
        picked = kids[region, split]  # (N, arity)
        for position in range(picked.shape[1]):
            child = picked[:, position]
            real = child < padding
            if network.layer == "cp":
                state = edge
            else:
                state = edge // width if position == 0 else edge % width
            states[row[real], child[real]] = state[real]


def select(
    network: Network,
    params: Parameters,
    values: Tensor,
    root: Tensor,
    labels: Tensor | None,
    pick: Pick,
) -> tuple[Tensor, Tensor]:
    """Picks a class and one induced tree for every row.

    Args:
        network: The network.
        params: Its parameters.
        values: Log-values of an upward pass (sums for sampling, maxima for decoding).
        root: Log-values of the roots, (batch, classes).
        labels: Known classes, -1 where not, (batch,); None for none.
        pick: How an edge is picked.

    Returns:
        State of each leaf region, -1 where it takes no part, (batch, leaf regions); and the
        class, (batch,).
    """
    layout, device, batch = network.layout, values.device, values.shape[1]
    classes = pick(root + torch.log(params.prior))
    if labels is not None:
        classes = torch.where(labels >= 0, labels, classes)
    states = torch.full((batch, layout.n_regions), -1, dtype=torch.long, device=device)
    everyone = torch.arange(batch, device=device)
    children = network.index("root_children", device)
    origin = torch.zeros_like(everyone)
    _descend(
        network, values, params.root, children, len(children), everyone, origin, classes, states,
        pick,
    )  # fmt: skip
    children = network.index("children", device)
    for group in reversed(layout.groups):
        first, last = group.regions
        rows, regions = torch.nonzero(states[:, first:last] >= 0, as_tuple=True)
        if len(rows):
            outputs = states[rows, first + regions]
            span = slice(*group.partitions)
            _descend(
                network, values, params.weights[span], children[span], group.n_splits, rows,
                regions, outputs, states, pick,
            )  # fmt: skip
    return states[:, : layout.n_leaves], classes


def upward_max(network: Network, params: Parameters, leaves: Tensor) -> tuple[Tensor, Tensor]:
    """Max-product values of all regions and roots; shapes as `forward.upward`."""
    layout = network.layout
    values = leaves.new_empty((layout.n_regions + 1, *leaves.shape[1:]))
    values[: layout.n_leaves] = leaves
    values[-1] = 0.0
    children = network.index("children", leaves.device)
    for group in layout.groups:
        span = slice(*group.partitions)
        best = _group_max(network, values, params.weights[span], children[span], group)
        values[group.regions[0] : group.regions[1]] = best
    children = network.index("root_children", leaves.device)
    return values, _group_max(network, values, params.root, children, root_group(network))[0]


def _group_max(
    network: Network, values: Tensor, weights: Tensor, children: Tensor, group: Group
) -> Tensor:
    """Best edge's log-score of every node of a group, (regions, batch, outputs)."""
    found = []
    batch, outputs = values.shape[1], weights.shape[1]
    size = max(1, CHUNK_ELEMENTS // (batch * outputs * network.edges))
    for start in range(0, len(weights), size):
        here = slice(start, start + size)
        below = values[children[here]]  # (P, arity, B, K)
        if network.layer == "cp":
            product = below.sum(dim=1)  # (P, B, K)
        else:
            product = (below[:, 0, :, :, None] + below[:, 1, :, None, :]).flatten(2)
        logs = torch.log(weights[here]).flatten(2)  # (P, O, edges)
        found.append((product.unsqueeze(2) + logs.unsqueeze(1)).amax(dim=3))  # (P, B, O)
    best = torch.cat(found)
    return best.view(-1, group.n_splits, batch, outputs).amax(dim=1)


def fill(
    network: Network,
    states: Tensor,
    x: Tensor,
    observed: Tensor,
    leaf_value: Callable[[int, Tensor, Tensor], Tensor],
) -> Tensor:
    """Rows with the missing values taken from the selected leaves.

    Args:
        network: The network.
        states: State of each leaf region, -1 where it takes no part, (batch, leaf regions).
        x: Rows, (batch, variables).
        observed: Where values are known, (batch, variables).
        leaf_value: Values (n,) for a block's number, slots (n,) within it and states (n,).

    Returns:
        Completed rows, float64, (batch, variables).
    """
    filled = x.double().clone()
    for number in range(len(network.blocks)):
        variables = network.index(f"block{number}.variables", x.device)
        state = states[:, network.index(f"block{number}.regions", x.device)]  # (B, S)
        wanted = (state >= 0) & ~observed[:, variables]
        rows, slots = torch.nonzero(wanted, as_tuple=True)
        for start in range(0, len(rows), 50_000):
            row, slot = rows[start : start + 50_000], slots[start : start + 50_000]
            filled[row, variables[slot]] = leaf_value(number, slot, state[row, slot]).double()
    return filled

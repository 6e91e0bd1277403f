"""The downward pass: expected counts for EM, written out rather than taken from a gradient tape.

The flow of a node is the posterior probability that the node takes part in explaining a row. Flows
are conserved: what arrives at a sum leaves through its edges, so counts of a sum's edges add up to
the flow the sum received.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedcircuits.learners.einet.leaves import Gaussian, Stats
from fedcircuits.learners.einet.network.network import Network, Parameters
from fedcircuits.learners.einet.passes import inner
from fedcircuits.learners.einet.passes.forward import (
    Upward,
    class_mixture,
    root_group,
    upward_of_rows,
)


@dataclass(eq=False)
class ExpectedCounts:
    """Expected counts of a batch or of several; everything an M-step needs.

    Attributes:
        weights: Edge flows of inner sums, shaped like the weights.
        root: Edge flows of the roots, shaped like the root weights.
        prior: Flows of the classes, (classes,).
        leaves: Statistics of every leaf block.
        log_likelihood: Sum over rows, a float64 scalar.
        n_rows: Rows counted, by weight; rows of probability zero send no flow and do not count.
    """

    weights: Tensor
    root: Tensor
    prior: Tensor
    leaves: list[Stats]
    log_likelihood: Tensor
    n_rows: Tensor

    def add_(self, other: ExpectedCounts) -> ExpectedCounts:
        """Adds another batch's counts, in place."""
        self.weights += other.weights
        self.root += other.root
        self.prior += other.prior
        for mine, theirs in zip(self.leaves, other.leaves, strict=True):
            for name in mine:
                mine[name] += theirs[name]
        self.log_likelihood = self.log_likelihood + other.log_likelihood
        self.n_rows = self.n_rows + other.n_rows
        return self


@dataclass(frozen=True, eq=False)
class Downward:
    """Result of the downward pass over the sums.

    Attributes:
        weights: Edge flows, shaped like the weights.
        root: Edge flows of the roots.
        classes: Class posteriors of each row, (batch, classes).
        leaf_flow: Flows into the leaf regions, (leaf regions, batch, K).
        log_likelihood: Per row, (batch,).
    """

    weights: Tensor
    root: Tensor
    classes: Tensor
    leaf_flow: Tensor
    log_likelihood: Tensor


def class_flow(root: Tensor, prior: Tensor, labels: Tensor | None, total: Tensor) -> Tensor:
    """Class posteriors (batch, classes); zero for rows of probability zero."""
    possible = torch.isfinite(total).unsqueeze(1)
    safe = torch.where(possible, total.unsqueeze(1), torch.zeros_like(total).unsqueeze(1))
    share = torch.where(possible, torch.exp(root + torch.log(prior) - safe), torch.zeros_like(root))
    if labels is None:
        return share
    mine = torch.arange(root.shape[1], device=root.device) == labels.unsqueeze(1)
    return torch.where(mine | (labels < 0).unsqueeze(1), share, torch.zeros_like(share))


def downward(
    network: Network,
    params: Parameters,
    passed: Upward,
    labels: Tensor | None = None,
    weights: Tensor | None = None,
    spare: Tensor | None = None,
) -> Downward:
    """Sends each row's unit of flow from the roots to the leaves.

    Args:
        network: The network.
        params: Its parameters.
        passed: The upward pass.
        labels: Classes, -1 where unknown, (batch,); None for all unknown.
        weights: How often each row counts, (batch,); None for once.
        spare: Memory for the edge counts, shaped like the weights; overwritten.

    Returns:
        Edge counts and leaf flows.
    """
    total = class_mixture(passed.root, params.prior, labels)
    classes = class_flow(passed.root, params.prior, labels, total)
    if weights is not None:
        classes = classes * weights.to(classes.dtype).unsqueeze(1)
    counts = torch.empty_like(params.weights) if spare is None else spare
    root_counts = torch.empty_like(params.root)
    sends = _tucker_flows if network.layer == "tucker" else _cp_flows
    leaf_flow = sends(network, params, passed, classes, counts, root_counts)
    return Downward(counts, root_counts, classes, leaf_flow, total)


def _cp_flows(
    network: Network,
    params: Parameters,
    passed: Upward,
    classes: Tensor,
    counts: Tensor,
    root_counts: Tensor,
) -> Tensor:
    """Flows into the leaf regions, (leaf regions, batch, K); counts are filled."""
    layout, values = network.layout, passed.values
    children = network.index("children", values.device)
    top = network.index("root_children", values.device)
    flow = torch.zeros_like(values)
    inner.cp_flows(
        values, passed.root.unsqueeze(0), classes.unsqueeze(0), params.root, top,
        root_group(network), flow, root_counts,
    )  # fmt: skip
    for group in reversed(layout.groups):
        span, here = slice(*group.partitions), slice(*group.regions)
        inner.cp_flows(
            values, values[here], flow[here], params.weights[span], children[span], group, flow,
            counts[span],
        )  # fmt: skip
    return flow[: layout.n_leaves]


def _tucker_flows(
    network: Network,
    params: Parameters,
    passed: Upward,
    classes: Tensor,
    counts: Tensor,
    root_counts: Tensor,
) -> Tensor:
    """Flows through Tucker layers; arguments and result as those of `_cp_flows`."""
    layout, given = network.layout, passed.tucker
    assert given is not None
    children = network.index("children", classes.device)
    top = network.index("root_children", classes.device)
    below, flow = given.regions, torch.zeros_like(given.regions.values)  # (regions, K, batch)
    inner.tucker_down_(
        below, given.root.values, classes.T.unsqueeze(0), params.root, top, root_group(network),
        given.root_share, flow, root_counts,
    )  # fmt: skip
    for group in reversed(layout.groups):
        span, here = slice(*group.partitions), slice(*group.regions)
        inner.tucker_down_(
            below, below.values[here], flow[here], params.weights[span], children[span], group,
            given.share[span], flow, counts[span],
        )  # fmt: skip
    return flow[: layout.n_leaves].transpose(1, 2)


def leaf_statistics(
    network: Network, params: Parameters, x: Tensor, observed: Tensor | None, leaf_flow: Tensor
) -> list[Stats]:
    """Statistics of every leaf block; a missing value sends its leaf no flow."""
    found = []
    columns = x.T.contiguous()  # rows of it are then copied whole
    for number, block in enumerate(network.blocks):
        variables = network.index(f"block{number}.variables", x.device)
        flow, family = leaf_flow, block.family
        uniform = network.layout.slots_per_leaf
        if observed is None and uniform and len(network.blocks) == 1 and type(family) is Gaussian:
            own = params.leaves[number]
            return [family.region_statistics(own, columns, variables, leaf_flow, uniform)]
        values = columns.index_select(0, variables)  # (S, B)
        if network.layout.slots_per_leaf != 1 or len(network.blocks) > 1:
            regions = network.index(f"block{number}.regions", x.device)
            flow = leaf_flow.index_select(0, regions)  # (S, B, K)
        if observed is not None:
            known = observed.T.index_select(0, variables).unsqueeze(2)
            flow = torch.where(known, flow, torch.zeros_like(flow))
        found.append(family.statistics(params.leaves[number], values, flow))
    return found


def expected_counts(
    network: Network,
    params: Parameters,
    x: Tensor,
    observed: Tensor | None = None,
    labels: Tensor | None = None,
    weights: Tensor | None = None,
    spare: ExpectedCounts | None = None,
) -> ExpectedCounts:
    """E-step of one batch.

    Args:
        network: The network.
        params: Its parameters.
        x: Rows, (batch, variables).
        observed: Where values are known; None for everywhere.
        labels: Classes, -1 where unknown; None for all unknown.
        weights: How often each row counts, (batch,); None for once.
        spare: Counts that are no longer needed; their memory is used again. Fresh memory costs more
            than the counting itself where there are millions of weights.

    Returns:
        The batch's expected counts.
    """
    passed = upward_of_rows(network, params, x, observed)
    room = None if spare is None else spare.weights
    result = downward(network, params, passed, labels, weights, room)
    each = result.log_likelihood.double()
    if weights is not None:
        each = torch.where(weights > 0, each * weights.double(), torch.zeros_like(each))
    return ExpectedCounts(
        result.weights,
        result.root,
        result.classes.sum(0),
        leaf_statistics(network, params, x, observed, result.leaf_flow),
        each.sum(),
        result.classes.sum(),
    )

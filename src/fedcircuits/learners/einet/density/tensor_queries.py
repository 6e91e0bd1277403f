"""Queries of a network on tensors: samples, completions, class posteriors, expectations."""

from __future__ import annotations

import torch
from torch import Tensor

from fedcircuits.learners.einet.leaves import Gaussian
from fedcircuits.learners.einet.network.network import Network, Parameters
from fedcircuits.learners.einet.passes.downward import downward
from fedcircuits.learners.einet.passes.forward import leaf_values, upward_of_rows
from fedcircuits.learners.einet.passes.topdown import (
    best_pick,
    fill,
    random_pick,
    select,
    upward_max,
)


def sample(
    network: Network,
    params: Parameters,
    x: Tensor,
    observed: Tensor,
    labels: Tensor | None,
    generator: torch.Generator,
) -> tuple[Tensor, Tensor]:
    """Exact samples of the missing values given the known ones.

    Args:
        network: The network.
        params: Its parameters.
        x: Rows, (batch, variables).
        observed: Where values are known, (batch, variables).
        labels: Known classes, -1 where not, (batch,); None for none.
        generator: Source of randomness, on the CPU.

    Returns:
        Completed rows, float64, (batch, variables), and classes, (batch,).
    """
    passed = upward_of_rows(network, params, x, observed)
    pick = random_pick(generator)
    states, classes = select(network, params, passed.values, passed.root, labels, pick)

    def draw(number: int, slots: Tensor, chosen: Tensor) -> Tensor:
        family = network.blocks[number].family
        return family.sample(params.leaves[number], slots, chosen, generator)

    return fill(network, states, x, observed, draw), classes


def decode(
    network: Network,
    params: Parameters,
    x: Tensor,
    observed: Tensor,
    labels: Tensor | None,
    bonus: list[Tensor | None] | None = None,
) -> tuple[Tensor, Tensor]:
    """Max-product completion: the best induced tree and its leaves' modes.

    Args:
        network: The network.
        params: Its parameters.
        x: Rows, (batch, variables).
        observed: Where values are known, (batch, variables).
        labels: Known classes, -1 where not; None for none.
        bonus: For each leaf block None or (slots, values): what to add to the log-mass of every
            value, where a value stands for a bin with a density of its own.

    Returns:
        Completed rows, float64, (batch, variables), and classes, (batch,).
    """
    leaves = leaf_values(network, params, x, observed)
    modes: list[Tensor] = []
    for number, block in enumerate(network.blocks):
        own, family = params.leaves[number], block.family
        extra = None if bonus is None else bonus[number]
        if extra is None:
            mode = family.mode(own)  # (S, K)
            # log_prob (S, B, K) with the K modes as batch: its diagonal is each state's best.
            best = family.log_prob(own, mode).diagonal(dim1=1, dim2=2)  # (S, K)
        else:
            scores = torch.log(family.masses(own)) + extra.to(own["probs"]).unsqueeze(2)
            best, mode = scores.max(dim=1)
        modes.append(mode)
        variables = network.index(f"block{number}.variables", x.device)
        missing = ~observed.T.index_select(0, variables).unsqueeze(2)  # (S, B, 1)
        gain = torch.where(missing, best.unsqueeze(1), torch.zeros_like(best).unsqueeze(1))
        leaves = leaves.index_add(0, network.index(f"block{number}.regions", x.device), gain)
    values, root = upward_max(network, params, leaves)
    states, classes = select(network, params, values, root, labels, best_pick)

    def best_value(number: int, slots: Tensor, chosen: Tensor) -> Tensor:
        return modes[number][slots, chosen]

    return fill(network, states, x, observed, best_value), classes


def class_log_joint(
    network: Network, params: Parameters, x: Tensor, observed: Tensor | None
) -> Tensor:
    """log p(class, known values), (batch, classes)."""
    passed = upward_of_rows(network, params, x, observed)
    return passed.root + torch.log(params.prior)


def expectations(
    network: Network,
    params: Parameters,
    x: Tensor,
    observed: Tensor,
    labels: Tensor | None,
    tables: list[Tensor] | None,
    order: int,
) -> tuple[Tensor, Tensor]:
    """E[f(x_v) | known values] of every variable; where v itself is known, of its unknown self.

    Args:
        network: The network.
        params: Its parameters.
        x: Rows, (batch, variables).
        observed: Where values are known, (batch, variables).
        labels: Known classes, -1 where not; None for none.
        tables: For each block f of every value, (slots, values); not read for a continuum.
        order: f is the power of this order for a continuum.

    Returns:
        Expectations, (batch, variables), and class posteriors, (batch, classes).
    """
    passed = upward_of_rows(network, params, x, observed)
    result = downward(network, params, passed, labels)
    answer = torch.zeros(x.shape, dtype=torch.float64, device=x.device)
    for number, block in enumerate(network.blocks):
        own, family = params.leaves[number], block.family
        if family.n_values is None:
            assert isinstance(family, Gaussian)
            each = family.moments(own, order)  # (S, K)
        else:
            assert tables is not None
            mass = family.masses(own)
            each = torch.bmm(tables[number].to(mass).unsqueeze(1), mass).squeeze(1)
        regions = network.index(f"block{number}.regions", x.device)
        flow = result.leaf_flow.index_select(0, regions)  # (S, B, K)
        part = torch.bmm(flow, each.unsqueeze(2)).squeeze(2)  # (S, B)
        variables = network.index(f"block{number}.variables", x.device)
        answer.index_add_(1, variables, part.T.double())
    return answer, result.classes

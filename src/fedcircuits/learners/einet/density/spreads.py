"""Variances and covariances of an EiNet, exact and without cancellation.

Variances follow from the law of total variance over the leaves' posterior flows. A covariance is a
difference of two conditional means: with g >= 0 a shifted version of x_i,

    Cov[x_i, x_j | e] = E[g | e] * (E_g[x_j | e] - E[x_j | e]),

where E_g is taken under the measure tilted by g. The tilt only multiplies the leaves of variable
i by their means of g, so a batch of one tilted row per variable, one pass up and one down, gives
the whole matrix in positive arithmetic.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedcircuits.arrays import FloatArray
from fedcircuits.learners.einet.density.columns import Column, power_table
from fedcircuits.learners.einet.leaves import Gaussian
from fedcircuits.learners.einet.network.network import Network, Parameters
from fedcircuits.learners.einet.passes.downward import downward
from fedcircuits.learners.einet.passes.forward import leaf_values, upward, upward_of_rows
from fedcircuits.schema import Variable

# Leaf masses held in float64 at once.
CHUNK_ELEMENTS = 20_000_000


@dataclass(frozen=True, eq=False)
class Spread:
    """What variances need of one leaf block; all float64, (slots, K).

    Attributes:
        there: Probability that there is a value (less than 1 where "missing" is a state).
        mean: Mean of the value given that there is one.
        variance: Its variance.
    """

    there: Tensor
    mean: Tensor
    variance: Tensor

    def to(self, device: torch.device) -> Spread:
        """The same on another device."""
        return Spread(self.there.to(device), self.mean.to(device), self.variance.to(device))


def _within(variable: Variable, column: Column) -> FloatArray:
    """Variance of the value given each code, (values,)."""
    if column.kind == "grid":
        assert variable.grid is not None
        return variable.grid.variances()
    return np.zeros(column.n_values)


def leaf_spreads(
    network: Network,
    params: Parameters,
    variables: Sequence[Variable],
    columns: Sequence[Column],
) -> list[Spread]:
    """Means and variances of all leaves, in the schema's own units.

    Args:
        network: The network.
        params: Its parameters.
        variables: The schema's variables, without the label.
        columns: Their codings.

    Returns:
        One spread per leaf block.
    """
    found = []
    for block, own in zip(network.blocks, params.leaves, strict=True):
        exact = {name: tensor.double() for name, tensor in own.items()}
        size = block.family.n_values
        if size is None:
            assert isinstance(block.family, Gaussian)
            scale = np.array([columns[v].scale for v in block.variables])[:, None]
            shift = np.array([columns[v].shift for v in block.variables])[:, None]
            unit = torch.as_tensor(scale / block.family.scale, device=params.device)
            mean = exact["mean"] * unit + torch.as_tensor(shift, device=params.device)
            found.append(Spread(torch.ones_like(mean), mean, exact["variance"] * unit**2))
            continue
        tables = np.zeros((3, len(block.variables), size))
        for slot, v in enumerate(block.variables):
            for which in (0, 1):
                row = power_table(variables[v], columns[v], which)
                tables[which, slot, : len(row)] = row
            row = _within(variables[v], columns[v])
            tables[2, slot, : len(row)] = row
        parts = []
        step = max(1, CHUNK_ELEMENTS // (size * network.width))
        for start in range(0, len(block.variables), step):
            here = slice(start, start + step)
            mass = block.family.masses({name: tensor[here] for name, tensor in exact.items()})
            placed = torch.as_tensor(tables[:, here], device=params.device).unsqueeze(-1)
            parts.append(_table_spread(mass / mass.sum(1, keepdim=True), *placed))
        found.append(Spread(*(torch.cat(each) for each in zip(*parts, strict=True))))
    return found


def _table_spread(
    mass: Tensor, real: Tensor, value: Tensor, within: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Mean and variance within intervals (S, K) of masses (S, V, K) over values (S, V, 1)."""
    mass = mass * real  # codes without a value do not count
    there = mass.sum(1)
    safe = torch.where(there > 0, there, torch.ones_like(there))
    mean = (mass * value).sum(1) / safe
    away = value - mean.unsqueeze(1)
    return there, mean, (mass * (away**2 + within)).sum(1) / safe


@dataclass(frozen=True, eq=False)
class _Posterior:
    """Leaf flows of some rows and how to add them up by variable."""

    network: Network
    leaf_flow: Tensor  # (leaf regions, rows, K)

    def flow(self, number: int) -> Tensor:
        """Flows of one block's slots, float64, (slots, rows, K)."""
        regions = self.network.index(f"block{number}.regions", self.leaf_flow.device)
        return self.leaf_flow.index_select(0, regions).double()

    def by_variable(self, each: list[Tensor]) -> Tensor:
        """Sums of flow times `each` (slots, K) or (slots, rows, K): (rows, variables)."""
        n_rows = self.leaf_flow.shape[1]
        total = self.leaf_flow.new_zeros((n_rows, self.network.layout.n_variables)).double()
        for number, terms in enumerate(each):
            terms = terms.unsqueeze(1) if terms.dim() == 2 else terms
            variables = self.network.index(f"block{number}.variables", total.device)
            total.index_add_(1, variables, (self.flow(number) * terms).sum(2).T)
        return total


def _means(posterior: _Posterior, spreads: list[Spread]) -> tuple[Tensor, Tensor]:
    """Means of the value given that there is one, and the probability of one, (rows, D)."""
    there = posterior.by_variable([s.there for s in spreads])
    first = posterior.by_variable([s.there * s.mean for s in spreads])
    return torch.where(there > 0, first / there, torch.zeros_like(there)), there


def _aways(network: Network, spreads: list[Spread], centre: Tensor) -> list[Tensor]:
    """Leaf means about the centres of their variables (rows, D): (slots, rows, K)."""
    found = []
    for number, spread in enumerate(spreads):
        variables = network.index(f"block{number}.variables", centre.device)
        found.append(spread.mean.unsqueeze(1) - centre.T[variables].unsqueeze(2))
    return found


def variances(
    network: Network,
    params: Parameters,
    spreads: list[Spread],
    x: Tensor,
    observed: Tensor,
    labels: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Variances of the unknown values given the known ones, and class posteriors.

    Args:
        network: The network.
        params: Its parameters.
        spreads: Of `leaf_spreads`.
        x: Rows, (batch, variables).
        observed: Where values are known, (batch, variables).
        labels: Known classes, -1 where not; None for none.

    Returns:
        Variances, (batch, variables), NaN where there cannot be a value; class posteriors,
        (batch, classes).
    """
    passed = upward_of_rows(network, params, x, observed)
    result = downward(network, params, passed, labels)
    posterior = _Posterior(network, result.leaf_flow)
    mean, there = _means(posterior, spreads)
    squares = [
        spread.there.unsqueeze(1) * (away**2 + spread.variance.unsqueeze(1))
        for spread, away in zip(spreads, _aways(network, spreads, mean), strict=True)
    ]
    total = posterior.by_variable(squares)
    return torch.where(there > 0, total / there, torch.full_like(total, torch.nan)), result.classes


def covariances(
    network: Network,
    params: Parameters,
    spreads: list[Spread],
    x: Tensor,
    observed: Tensor,
    labels: Tensor | None,
    chosen: NDArray[np.int64],
    batch: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Covariances given one row of evidence; "missing", where it is a state, counts as the mean.

    Args:
        network: The network.
        params: Its parameters.
        spreads: Of `leaf_spreads`.
        x: The one row, (1, variables).
        observed: Where values are known, (1, variables).
        labels: Its class, -1 if unknown, (1,); None for unknown.
        chosen: Variables asked about, (d,).
        batch: Tilted rows evaluated at once.

    Returns:
        Covariances (d, d), class posteriors (classes,), and the variables' means about their
        overall mean given each class, (classes, d).
    """
    leaves = leaf_values(network, params, x, observed)  # (leaf regions, 1, K)
    base = downward(network, params, upward(network, params, leaves), labels)
    posterior = _Posterior(network, base.leaf_flow)
    centre, _ = _means(posterior, spreads)  # (1, D)
    # A known value is its own mean: it lies nowhere about it, and varies with nothing.
    unknown = ~observed[0]
    aways = []
    for number, away in enumerate(_aways(network, spreads, centre)):
        variables = network.index(f"block{number}.variables", x.device)
        own = spreads[number].there * away.squeeze(1) * unknown[variables].unsqueeze(1)
        aways.append(own)  # (slots, K)
    first = posterior.by_variable(aways)[0]  # (D,) zero but for rounding
    columns = torch.as_tensor(chosen, device=x.device)
    matrix = first.new_zeros((len(chosen), len(chosen)))
    for start in range(0, len(chosen), batch):
        here = slice(start, start + batch)
        tilted = _tilted(network, leaves, aways, columns[here])
        same = None if labels is None else labels.expand(tilted.shape[1])
        result = downward(network, params, upward(network, params, tilted), same)
        ratio = torch.exp((result.log_likelihood - base.log_likelihood).double())  # E[g | e]
        moved = _Posterior(network, result.leaf_flow).by_variable(aways)  # (rows, D)
        matrix[here] = ratio.unsqueeze(1) * (moved - first)[:, columns]
    matrix = (matrix + matrix.T) / 2  # equal but for rounding
    squares = [
        spread.there * (away.squeeze(1) ** 2 + spread.variance)
        for spread, away in zip(spreads, _aways(network, spreads, centre), strict=True)
    ]
    own = (posterior.by_variable(squares)[0] - first**2) * unknown
    matrix.diagonal().copy_(own[columns])
    every = torch.arange(network.n_classes, device=x.device)
    passed = upward(network, params, leaves.expand(-1, len(every), -1).contiguous())
    of_class = downward(network, params, passed, every)
    share = of_class.classes.sum(1, keepdim=True).double()
    found = _Posterior(network, of_class.leaf_flow).by_variable(aways)[:, columns]
    means = torch.where(share > 0, found / share, torch.zeros_like(found))
    return matrix, base.classes[0].double(), means


def _tilted(network: Network, leaves: Tensor, aways: list[Tensor], columns: Tensor) -> Tensor:
    """Leaf values (leaf regions, rows, K), row i times the shifted mean of its variable."""
    n_variables = network.layout.n_variables
    lowest = leaves.new_full((n_variables,), torch.inf).double()
    for number, away in enumerate(aways):
        variables = network.index(f"block{number}.variables", leaves.device)
        lowest.scatter_reduce_(0, variables, away.amin(1), "amin")
    row_of = torch.full((n_variables,), -1, dtype=torch.long, device=leaves.device)
    row_of[columns] = torch.arange(len(columns), device=leaves.device)
    tilted = leaves.expand(-1, len(columns), -1).clone()
    for number, away in enumerate(aways):
        variables = network.index(f"block{number}.variables", leaves.device)
        regions = network.index(f"block{number}.regions", leaves.device)
        mine = torch.nonzero(row_of[variables] >= 0).squeeze(1)
        gain = torch.log(away[mine] - lowest[variables[mine]].unsqueeze(1)).to(leaves.dtype)
        place = regions[mine], row_of[variables[mine]]
        tilted.index_put_(place, gain, accumulate=True)
    return tilted

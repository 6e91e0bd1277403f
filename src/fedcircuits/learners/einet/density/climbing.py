"""Most probable completions: several starts, each climbed until nothing changes.

A max-product decoding takes one induced tree for the whole sum, and may return an image that no
tree explains well. From each start we climb log p(x, y) itself: given the flows of the completed
row, every missing value becomes the one that maximises the flow-weighted log-mass of its leaves.
That is a step of EM in which the missing values are what is estimated, so that log p never falls.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedcircuits.learners.einet.density import tensor_queries
from fedcircuits.learners.einet.network.network import Network, Parameters
from fedcircuits.learners.einet.passes.downward import downward
from fedcircuits.learners.einet.passes.forward import upward_of_rows

# Starts besides the decoding, drawn with a fixed seed; most steps of each; rows at a time.
N_DRAWN, N_STEPS, ROWS = 2, 12, 32
_SMALLEST = 1e-30

Bonus = list[Tensor | None] | None


@dataclass(frozen=True)
class Question:
    """Rows to complete: the arguments of `tensor_queries.decode`."""

    network: Network
    params: Parameters
    x: Tensor
    observed: Tensor
    labels: Tensor | None
    bonus: Bonus

    def part(self, here: slice) -> Question:
        """Some of the rows."""
        labels = None if self.labels is None else self.labels[here]
        x, observed = self.x[here], self.observed[here]
        return Question(self.network, self.params, x, observed, labels, self.bonus)

    def classes(self, joint: Tensor) -> Tensor:
        """The known classes, and the likeliest ones by log p(x, y) (batch, classes) elsewhere."""
        best = joint.argmax(dim=1)
        return best if self.labels is None else torch.where(self.labels >= 0, self.labels, best)


def most_probable(asked: Question) -> tuple[Tensor, Tensor]:
    """The best completion found of every row, float64 (batch, variables), and classes, (batch,)."""
    found = [_of_part(asked.part(slice(s, s + ROWS))) for s in range(0, len(asked.x), ROWS)]
    return torch.cat([values for values, _ in found]), torch.cat([c for _, c in found])


def _of_part(asked: Question) -> tuple[Tensor, Tensor]:
    network, params, x, observed = asked.network, asked.params, asked.x, asked.observed
    best, classes = tensor_queries.decode(network, params, x, observed, asked.labels, asked.bonus)
    if bool(observed.all()):
        return best, classes
    best, classes, level = _climbed(asked, best)
    generator = torch.Generator().manual_seed(0)
    for _ in range(N_DRAWN):
        start, _ = tensor_queries.sample(network, params, x, observed, asked.labels, generator)
        values, found, reached = _climbed(asked, start)
        better = reached > level
        best = torch.where(better[:, None], values, best)
        classes, level = torch.where(better, found, classes), torch.maximum(level, reached)
    return best, classes


def _climbed(asked: Question, start: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The rows after the climb, their classes, and log p(x, y) with what the bonus adds, (batch,).

    A row stays where a step does not raise it, so that rounding cannot lower it.
    """
    values, level, classes = start, None, torch.zeros(len(start), dtype=torch.long)
    for step in range(N_STEPS + 1):
        tried = start if step == 0 else _moved(asked, values, classes)
        passed = upward_of_rows(asked.network, asked.params, tried.to(asked.x), None)
        joint = passed.root + torch.log(asked.params.prior)
        of_tried = asked.classes(joint)
        reached = joint.gather(1, of_tried[:, None])[:, 0] + _gained(asked, tried)
        if level is None:
            level, classes = reached, of_tried
            continue
        better = reached > level
        if not bool(better.any()):
            break
        values = torch.where(better[:, None], tried, values)
        classes, level = torch.where(better, of_tried, classes), torch.maximum(level, reached)
    assert level is not None
    return values, classes, level


def _moved(asked: Question, values: Tensor, classes: Tensor) -> Tensor:
    """Every missing discrete value as its leaves like it best, given the flows of the row."""
    network, params = asked.network, asked.params
    passed = upward_of_rows(network, params, values.to(asked.x), None)
    flows = downward(network, params, passed, classes).leaf_flow  # (leaf regions, B, K)
    answer = values.clone()
    for number, block in enumerate(network.blocks):
        if block.family.n_values is None:
            continue  # a continuum keeps the value of its start
        mass = block.family.masses(params.leaves[number])  # (S, V, K)
        regions = network.index(f"block{number}.regions", values.device)
        of_slot = torch.bmm(
            flows.index_select(0, regions), mass.clamp_min(_SMALLEST).log().transpose(1, 2)
        )  # (S, B, V)
        variables = network.index(f"block{number}.variables", values.device)
        places, slot_of = torch.unique(variables, return_inverse=True)
        scores = of_slot.new_zeros((len(places), *of_slot.shape[1:]))
        scores.index_add_(0, slot_of, of_slot)
        if asked.bonus is not None and (extra := asked.bonus[number]) is not None:
            of_place = extra.new_zeros((len(places), extra.shape[1]))
            of_place[slot_of] = extra
            scores += of_place.to(scores).unsqueeze(1)
        answer[:, places] = scores.argmax(dim=2).T.double()
    return torch.where(asked.observed, asked.x.double(), answer)


def _gained(asked: Question, values: Tensor) -> Tensor:
    """(batch,) log-densities within bins that the bonus gives to missing values."""
    total = torch.zeros(len(values), device=values.device)
    for number, _ in enumerate(asked.network.blocks):
        if asked.bonus is None or (extra := asked.bonus[number]) is None:
            continue
        variables = asked.network.index(f"block{number}.variables", values.device)
        places, slot_of = torch.unique(variables, return_inverse=True)
        of_place = extra.new_zeros((len(places), extra.shape[1]))
        of_place[slot_of] = extra
        codes = values[:, places].long().clamp(max=extra.shape[1] - 1)  # (B, places)
        added = of_place[torch.arange(len(places), device=values.device), codes]
        total = total + torch.where(asked.observed[:, places], 0.0, added).sum(dim=1).to(total)
    return total

"""Numbers that stay finite: what a training run checks after every epoch."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from fedcircuits.errors import LearningError
from fedcircuits.learners.einet.network.network import Network
from fedcircuits.learners.einet.training.checkpoint import State

REMEDY = (
    "use precision='float32' or 'float64' (float64 also on a CPU), then a smaller step, a smaller "
    "width, or a larger pseudo_count, leaf_count or min_variance"
)


def check_finite(network: Network, state: State, log_likelihood: float, kept: str | None) -> None:
    """Stop where a parameter, a running mass or the likelihood of an epoch is not finite.

    Args:
        network: the network.
        state: after the epoch that is checked, which it counts.
        log_likelihood: mean of the epoch, nats per row.
        kept: where the checkpoint of the epoch before is; None where there is none.

    Raises:
        LearningError: With the epoch, the layer and what to do about it.
    """
    faults = [
        f"{_layer(network, name, tensor)} ({int((~torch.isfinite(tensor)).sum())} of "
        f"{tensor.numel()} numbers)"
        for name, tensor in _tensors(state).items()
        if not bool(torch.isfinite(tensor).all())
    ]
    if not math.isfinite(log_likelihood):
        faults.append(f"the log-likelihood of the rows ({log_likelihood} nats per row)")
    if not faults:
        return
    before = "there is no checkpoint: pass checkpoint=FILE to keep one of every epoch"
    if kept is not None:
        before = f"the checkpoint of epoch {state.epoch - 1} is kept in {kept}"
    if kept is not None and state.epoch == 1:
        before = "no checkpoint was written before"
    raise LearningError(
        f"EiNet: epoch {state.epoch} left the finite numbers in {', '.join(faults)}; training "
        f"stopped, {before}. To go on, {REMEDY}"
    )


def _tensors(state: State) -> dict[str, Tensor]:
    """Parameters and running masses by name."""
    masses = {"mass.sums": state.masses.sums, "mass.root": state.masses.root}
    masses |= {f"mass.leaf{n}": tensor for n, tensor in enumerate(state.masses.leaves)}
    return state.params.tensors() | masses


def _layer(network: Network, name: str, tensor: Tensor) -> str:
    """Words for the layer that a tensor belongs to, of sums the lowest level that is affected."""
    if name == "weights":
        wrong = (~torch.isfinite(tensor)).flatten(1).any(dim=1).cpu().numpy()  # (partitions,)
        first = int(np.flatnonzero(wrong)[0])
        level = next(
            group.level
            for group in network.layout.groups
            if group.partitions[0] <= first < group.partitions[1]
        )
        return f"the sum layer of level {level}"
    if name in ("root", "prior"):
        return "the root layer" if name == "root" else "the class probabilities"
    if name.startswith("leaf"):
        number, _, what = name[4:].partition(".")
        family = type(network.blocks[int(number)].family).__name__
        return f"the leaf layer ({family} {what!r})"
    return f"the running masses of the {name.partition('.')[2]}"

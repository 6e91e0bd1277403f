"""What FedAvg and SplitNN share: batches, the loss, a search over settings, sizes of messages."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from safetensors.torch import save
from torch import Tensor, nn

from fedcircuits.arrays import FloatArray, IntArray
from fedcircuits.baselines.networks import NetworkOptions

# The settings that a search tries on validation rows; a plain network reads width, rate and decay.
SETTINGS = tuple(
    NetworkOptions(width=width, steps=steps, rate=rate, decay=decay)
    for width, steps, rate, decay in (
        (8, 3, 0.02, 0.0), (16, 3, 0.02, 0.0), (32, 3, 0.02, 0.0), (16, 5, 0.02, 0.0),
        (8, 3, 0.005, 0.0), (16, 3, 0.005, 0.0), (32, 3, 0.005, 1e-4), (16, 3, 0.01, 1e-4),
        (8, 4, 0.01, 1e-5), (24, 4, 0.01, 1e-5),
    )
)  # fmt: skip
PLAIN = tuple(replace(s, kind="plain", width=8 * s.width, rate=s.rate / 5) for s in SETTINGS)


@dataclass(frozen=True)
class Rival:
    """A trained rival.

    Attributes:
        proba: probabilities of the classes for prepared rows, (n, classes).
        n_bytes: of all messages of the training of the setting that was taken.
        n_parameters: numbers that were trained.
        rounds: of the training of that setting; epochs where columns are split.
        setting: that was taken, in words.
    """

    proba: Callable[[FloatArray], FloatArray]
    n_bytes: int
    n_parameters: int
    rounds: int
    setting: str


def batches(n_rows: int, size: int, seed: int, epoch: int) -> Iterator[IntArray]:
    """Return row numbers of an epoch in batches; a last one of a single row is left out.

    Few rows are cut into at least eight batches, so that an epoch of a small client has steps.
    """
    size = min(size, max(16, n_rows // 8))
    order = np.random.default_rng([seed, epoch]).permutation(n_rows)
    for start in range(0, n_rows, size):
        rows = order[start : start + size]
        if rows.size > 1:  # batch norm needs two
            yield rows


def n_message_bytes(tensors: Mapping[str, Tensor]) -> int:
    """Return how long the message is that carries these tensors, as safetensors."""
    return len(save({name: tensor.detach().contiguous() for name, tensor in tensors.items()}))


def log_loss(proba: FloatArray, y: IntArray) -> float:
    """Return the mean of -log p(y)."""
    return float(-np.log(np.clip(proba[np.arange(y.size), y], 1e-12, None)).mean())


def softmax_of(network: nn.Module, x: FloatArray, rows: int = 8192) -> FloatArray:
    """Return probabilities (n, classes) in evaluation mode."""
    network.eval()
    with torch.no_grad():
        parts = [
            torch.softmax(network(torch.as_tensor(x[at : at + rows])), dim=1).numpy()
            for at in range(0, len(x), rows)
        ]
    return np.concatenate(parts).astype(float)


def trial_rows(n_rows: int, most: int | None, seed: int) -> IntArray | slice:
    """Return the rows that a trial of a setting trains on: all, or as many as `most`, drawn."""
    if most is None or n_rows <= most:
        return slice(None)
    return np.sort(np.random.default_rng([seed, n_rows, 5]).permutation(n_rows)[:most])


def search(
    train: Callable[[NetworkOptions, int, bool], tuple[Rival, float]],
    settings: tuple[NetworkOptions, ...],
    short: int,
    long: int,
) -> Rival:
    """Return the rival of the best setting: all tried for a few rounds, the best for all rounds.

    Args:
        train: setting, most rounds and whether it is a trial, to a rival and its validation loss.
        settings: to try.
        short: rounds of a trial.
        long: rounds of the setting that is taken.
    """
    tried = [train(options, short, True) for options in settings] if len(settings) > 1 else []
    best = min(range(len(tried)), key=lambda at: tried[at][1]) if tried else 0
    rival, _ = train(settings[best], long, False)
    return rival

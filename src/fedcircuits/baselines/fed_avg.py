"""FedAvg (McMahan et al. 2017): rows split, one network averaged over the clients every round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from fedcircuits.arrays import FloatArray, IntArray
from fedcircuits.baselines.networks import Network, NetworkOptions, make_network
from fedcircuits.baselines.prepare import Features
from fedcircuits.baselines.training import (
    Rival,
    batches,
    log_loss,
    n_message_bytes,
    search,
    softmax_of,
    trial_rows,
)

Rows = tuple[FloatArray, IntArray]


def fed_avg(
    features: Features,
    clients: Sequence[Rows],
    valid: Rows,
    settings: tuple[NetworkOptions, ...],
    *,
    rounds: int = 30,
    trial_rounds: int = 5,
    trial_most: int | None = None,
    patience: int = 8,
    seed: int = 0,
) -> Rival:
    """Return the network of the round that is best on validation rows.

    Every round each client is sent the network, trains one epoch of Adam on its own rows and sends
    the network back. The average is weighted by rows and covers the running statistics of batch
    norm; scoring is in evaluation mode.

    Args:
        features: of the columns, agreed.
        clients: prepared rows and classes of each client.
        valid: of training rows that no client trains on.
        settings: to choose from on validation rows.
        rounds: at most.
        trial_rounds: of each setting in the search.
        trial_most: rows of all clients together that a trial trains on; None for all.
        patience: rounds without a better validation loss, then training ends.
        seed: of start and batches.
    """

    n_rows = sum(len(y) for _, y in clients)
    few = []
    for at, (x, y) in enumerate(clients):
        share = None if trial_most is None else max(2, round(trial_most * len(y) / n_rows))
        kept = trial_rows(len(y), share, seed + at)
        few.append((x[kept], y[kept]))

    def train(options: NetworkOptions, most: int, trial: bool) -> tuple[Rival, float]:
        torch.manual_seed(seed)
        network = make_network(features, len(features.classes), options)
        message = n_message_bytes(_distinct(network))  # as long down as up, whatever its values
        best, found, since, n_bytes, number = np.inf, dict(network.state_dict()), 0, 0, 0
        for number in range(most):
            start = {k: v.clone() for k, v in network.state_dict().items()}
            states, weights = [], []
            for at, (x, y) in enumerate(few if trial else clients):
                network.load_state_dict(start)
                _epoch(network, x, y, options, seed + 1000 * at, number)
                states.append({k: v.clone() for k, v in network.state_dict().items()})
                weights.append(len(y))
                n_bytes += 2 * message
            network.load_state_dict(_average(states, weights))
            loss = log_loss(softmax_of(network, valid[0]), valid[1])
            since += 1
            if loss < best - 1e-4:
                best, since = loss, 0
                found = {k: v.clone() for k, v in network.state_dict().items()}
            if since >= patience:
                break
        network.load_state_dict(found)
        size = sum(p.numel() for p in network.parameters())
        proba = partial(softmax_of, network)
        rival = Rival(proba, n_bytes, size, number + 1, str(options))
        return rival, best

    return search(train, settings, trial_rounds, rounds)


def _epoch(
    network: Network,
    x: FloatArray,
    y: IntArray,
    options: NetworkOptions,
    seed: int,
    epoch: int,
) -> None:
    """Train one epoch of Adam in place."""
    network.train()
    steps = torch.optim.Adam(network.parameters(), lr=options.rate, weight_decay=options.decay)
    for rows in batches(len(y), options.batch, seed, epoch):
        steps.zero_grad()
        outputs = network(torch.as_tensor(x[rows]))
        loss = nn.functional.cross_entropy(outputs, torch.as_tensor(y[rows])) + network.penalty
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(network.parameters(), 2.0)
        steps.step()


def _distinct(network: nn.Module) -> dict[str, Tensor]:
    """Return the tensors of a network, one that several layers share (TabNet has such) once."""
    seen: dict[int, str] = {}
    for name, tensor in network.state_dict().items():
        seen.setdefault(tensor.data_ptr(), name)
    return {name: network.state_dict()[name] for name in seen.values()}


def _average(states: Sequence[Mapping[str, Tensor]], weights: Sequence[int]) -> dict[str, Tensor]:
    """Return the mean of networks weighted by rows; whole numbers are those of the first."""
    share = np.asarray(weights, dtype=float) / sum(weights)
    return {
        name: sum((s[name] * w for s, w in zip(states, share, strict=True)), torch.zeros(()))
        if value.is_floating_point()
        else value
        for name, value in states[0].items()
    }

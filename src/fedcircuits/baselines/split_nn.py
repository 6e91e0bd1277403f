"""SplitNN (Vepakomma et al. 2018): columns split, an encoder a client, a head at one of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from fedcircuits.arrays import FloatArray, IntArray
from fedcircuits.baselines.networks import NetworkOptions, make_network
from fedcircuits.baselines.prepare import Features
from fedcircuits.baselines.training import (
    Rival,
    batches,
    log_loss,
    n_message_bytes,
    search,
    trial_rows,
)

ACTIVATION = 16  # numbers that a client sends of a row


def split_nn(
    features: Sequence[Features],
    blocks: Sequence[FloatArray],
    y: IntArray,
    valid: tuple[Sequence[FloatArray], IntArray],
    settings: tuple[NetworkOptions, ...],
    *,
    epochs: int = 30,
    trial_epochs: int = 5,
    trial_most: int | None = None,
    patience: int = 8,
    seed: int = 0,
) -> Rival:
    """Return the network of the epoch that is best on validation rows.

    Every batch each client sends the activations of its encoder to the label's owner (the first
    client), who returns their gradients; messages are counted as they would be sent.

    Args:
        features: of each client's columns.
        blocks: prepared rows of each client, in one order.
        y: classes of the rows.
        valid: the same of training rows that are not trained on.
        settings: to choose from on validation rows.
        epochs: at most.
        trial_epochs: of each setting in the search.
        trial_most: rows that a trial trains on; None for all.
        patience: epochs without a better validation loss, then training ends.
        seed: of start and batches.
    """
    n_classes = len(features[0].classes)

    some = trial_rows(len(y), trial_most, seed)
    few = [x[some] for x in blocks], y[some]

    def train(options: NetworkOptions, most: int, trial: bool) -> tuple[Rival, float]:
        xs, labels = few if trial else (blocks, y)
        torch.manual_seed(seed)
        encoders = [make_network(f, ACTIVATION, options) for f in features]
        head = nn.Sequential(
            nn.ReLU(),
            nn.Linear(ACTIVATION * len(encoders), 32),
            nn.ReLU(),
            nn.Linear(32, n_classes),
        )
        network = nn.ModuleList([*encoders, head])
        steps = torch.optim.Adam(network.parameters(), lr=options.rate, weight_decay=options.decay)

        def outputs(rows: Sequence[FloatArray]) -> tuple[Tensor, list[Tensor]]:
            found = [e(torch.as_tensor(x)) for e, x in zip(encoders, rows, strict=True)]
            return head(torch.cat(found, dim=1)), found

        def proba(rows: Sequence[FloatArray]) -> FloatArray:
            network.eval()
            with torch.no_grad():
                return torch.softmax(outputs(rows)[0], dim=1).numpy().astype(float)

        best, found, since, n_bytes, epoch = np.inf, dict(network.state_dict()), 0, 0, 0
        for epoch in range(most):
            network.train()
            for rows in batches(len(labels), options.batch, seed, epoch):
                steps.zero_grad()
                out, sent = outputs([x[rows] for x in xs])
                # Activations go to the owner, gradients of the same shape come back.
                n_bytes += 2 * sum(n_message_bytes({"a": a}) for a in sent[1:])
                loss = nn.functional.cross_entropy(out, torch.as_tensor(labels[rows]))
                for encoder in encoders:
                    loss = loss + encoder.penalty
                loss.backward()  # type: ignore[no-untyped-call]
                nn.utils.clip_grad_norm_(network.parameters(), 2.0)
                steps.step()
            now = log_loss(proba(valid[0]), valid[1])
            since += 1
            if now < best - 1e-4:
                best, since = now, 0
                found = {k: v.clone() for k, v in network.state_dict().items()}
            if since >= patience:
                break
        network.load_state_dict(found)
        ends = np.cumsum([x.shape[1] for x in blocks])[:-1]
        size = sum(p.numel() for p in network.parameters())
        rival = Rival(
            lambda x: proba(np.split(x, ends, axis=1)), n_bytes, size, epoch + 1, str(options)
        )
        return rival, best

    return search(train, settings, trial_epochs, epochs)

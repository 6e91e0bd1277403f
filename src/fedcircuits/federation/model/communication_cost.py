"""Bytes of a run beside the paper's formulas for the same run (section 3.4)."""

from __future__ import annotations

import numpy as np
import pandas as pd

from fedcircuits.errors import FederationError
from fedcircuits.federation.model.federated_circuit import FederatedCircuit
from fedcircuits.federation.wire import ledger as paper
from fedcircuits.federation.wire.names import JobId

TRAINING = ("schema", "alignment", "agreement", "validation", "training")


def communication(
    fed: FederatedCircuit,
    *,
    rounds: int = 50,
    epochs: int = 50,
    rival_parameters: int | None = None,
    activation: int = 64,
) -> pd.DataFrame:
    """Returns numbers and bytes of a run, measured and by the formulas, and their ratio.

    Args:
        fed: a federation that was trained.
        rounds: of FedAvg.
        epochs: of SplitNN.
        rival_parameters: of the network that FedAvg and SplitNN would train; by default as many
            as a client's models have.
        activation: width F of the vectors that SplitNN sends.
    """
    found = fed.fitted
    if found is None:
        raise FederationError(
            "this federation keeps no record of its fitted parts: federate again to compare"
        )
    clients = fed.clients
    size = {key: model.n_parameters for key, model in found.models.items()}
    total = {c: sum(n for k, n in size.items() if k.client == c) for c in clients}
    per_client = float(np.mean(list(total.values())))
    inner = fed.structure.is_sum
    n_products = int((~inner).sum())
    holders: dict[JobId, set[str]] = {}
    for key in size:
        holders.setdefault(key.job, set()).add(key.client)
    shared = {job for job, held in holders.items() if len(held) > 1}
    if fed.setting == "horizontal":
        name, numbers = "FedPC, |C| (M + 1)", paper.fed_pc_horizontal(per_client, len(clients))
    elif fed.setting == "vertical":
        models = len(size) / len(clients)  # K
        mean = float(np.mean(list(size.values())))  # M
        numbers = paper.fed_pc_vertical(mean, len(clients), models, n_products)
        name = "FedPC, K M |C| + P"
    else:
        name = "FedPC, shared as rows split + private as columns split"
        horizontal = [
            sum(n for k, n in size.items() if k.job == job) + len(holders[job]) for job in shared
        ]
        private = [float(n) for k, n in size.items() if k.job not in shared]
        numbers = paper.fed_pc_hybrid(horizontal, [*private, n_products])
    n_rows = max((fed.n_rows.get(client, 0) for client in clients), default=0)
    rival = per_client if rival_parameters is None else float(rival_parameters)
    measured = sum(fed.ledger.of_phase(phase) for phase in TRAINING)
    aligned = fed.ledger.of_phase("alignment")
    rows = [
        ("measured, all messages of the training", np.nan, measured),
        ("  of which alignment of rows", np.nan, aligned),
        (f"{name}, float64", numbers, 8 * numbers),
    ]
    average = paper.fed_avg(rival, len(clients), rounds)
    split = paper.split_nn(n_rows, activation, len(clients), epochs)
    rows += [
        (f"FedAvg, M |C| K, {rounds} rounds, float32", average, 4 * average),
        (f"SplitNN, E |C| F S, {epochs} epochs, F = {activation}, float32", split, 4 * split),
    ]
    table = pd.DataFrame(rows, columns=["what", "numbers", "bytes"])
    table["times measured"] = table["bytes"] / max(measured, 1)
    return table

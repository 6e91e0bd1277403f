"""Table 2 and the run-time figure of the paper: images over 1 to 16 clients beside one EiNet."""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np
from sklearn.cluster import KMeans

from fedcircuits.api.federate import federate
from fedcircuits.api.learn import learn
from fedcircuits.experiments import data
from fedcircuits.experiments.clocked import ClockedEngine
from fedcircuits.experiments.experiment import Cell, Context, Experiment
from fedcircuits.learners.einet import EiNet


def run(cell: Cell, experiment: Experiment, context: Context) -> dict[str, Any]:
    """Return nats a value of test images, time of the slowest client and parameters.

    "FedPC" is the mixture of one EiNet a client, each as wide as the one of a single client; "one
    EiNet" sees all images and has about as many parameters as the clients together.
    """
    options = experiment.options
    train, test = data.images(
        cell.data, context.folder, experiment.most_rows, options.get("pixels")
    )
    setting = experiment.settings[cell.setting]
    n, width = int(setting["clients"]), int(options["width"])
    n_values = int(np.prod(train.shape[1:]))
    start = time.perf_counter()
    if cell.model == "one EiNet":
        model: Any = learn(
            train, learner=_einet(_width_of(n, width), options, context), seed=cell.seed
        )
        slowest = time.perf_counter() - start
    else:
        owner = _owners(train, n, setting["how"], cell.seed)
        clients = {f"client-{at + 1:02d}": train[owner == at] for at in range(n)}
        model = federate(
            clients, learner=_einet(width, options, context), seed=cell.seed,
            agreement="independent", n_clusters=1, engine=ClockedEngine,
        )  # fmt: skip
        slowest = max(ClockedEngine.seconds.values())
    log_probs = np.concatenate(
        [model.log_prob(test[at : at + 500]).to_numpy() for at in range(0, len(test), 500)]
    )
    return {
        "rows": len(train),
        "columns": n_values,
        "seconds": time.perf_counter() - start,
        "seconds_slowest": slowest,
        "parameters": int(model.n_parameters),
        "nats_a_value": float(log_probs.mean() / n_values),
        "bits_a_value": float(-log_probs.mean() / n_values / np.log(2)),
    }


def _einet(width: int, options: Any, context: Context) -> EiNet:
    return EiNet(width=width, epochs=int(options["epochs"]), device=context.device)


def _width_of(n_clients: int, width: int) -> int:
    """Return the width of a hidden tree with as many parameters as n of them.

    A value has about 256 w numbers in leaves and w^2 in sums.
    """
    wanted = n_clients * (256 * width + width**2)
    return max(4, 4 * round((math.sqrt(128**2 + wanted) - 128) / 4))


def _owners(images: Any, n: int, how: str, seed: int) -> Any:
    """Return the client of every image, (n,): at random, or by clusters of small pictures."""
    if how == "random":
        return np.random.default_rng(seed).permutation(np.arange(len(images)) % n)
    small = images[:, ::4, ::4].reshape(len(images), -1).astype(np.float32)
    return KMeans(n, n_init=1, random_state=seed).fit_predict(small)

"""Table 2 and the run-time figure of the paper: images over 1 to 16 clients beside one EiNet."""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np
import torch
from sklearn.cluster import KMeans

from fedcircuits.api.federate import federate
from fedcircuits.api.learn import learn
from fedcircuits.experiments import data
from fedcircuits.experiments.clocked import ClockedEngine, WallClockedEngine
from fedcircuits.experiments.experiment import Cell, Context, Experiment
from fedcircuits.experiments.records import machine
from fedcircuits.learners.einet import EiNet, answering_on

# Test images that are scored at a time.
CHUNK = 2500


def run(cell: Cell, experiment: Experiment, context: Context) -> dict[str, Any]:
    """Return nats a value of test images, time of the slowest client, parameters and memory.

    "FedPC" is the mixture of one EiNet a client, each as wide as the one of a single client; "one
    EiNet" sees all images and has about as many parameters as the clients together. On a GPU time
    is that of the wall and memory the most that the device held while it trained.
    """
    options = experiment.options
    train, test = data.images(
        cell.data, context.folder, experiment.most_rows, options.get("pixels")
    )
    setting = experiment.settings[cell.setting]
    n, width = int(setting["clients"]), int(options["width"])
    n_values = int(np.prod(train.shape[1:]))
    on_device = context.device != "cpu"
    engine = WallClockedEngine if on_device else ClockedEngine
    if on_device:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(context.device)
    began, start = time.perf_counter(), engine.clock()
    if cell.model == "one EiNet":
        learner = _einet(_width_of(n, width), len(train), options, context)
        model: Any = learn(train, learner=learner, seed=cell.seed)
        slowest = engine.clock() - start
    else:
        owner = _owners(train, n, setting["how"], cell.seed)
        clients = {f"client-{at + 1:02d}": train[owner == at] for at in range(n)}
        model = federate(
            clients, learner=_einet(width, len(train) // n, options, context), seed=cell.seed,
            agreement="independent", n_clusters=1, engine=engine,
        )  # fmt: skip
        slowest = max(engine.seconds.values())
    seconds = time.perf_counter() - began
    held = torch.cuda.max_memory_allocated(context.device) / 2**30 if on_device else math.nan
    with answering_on(context.device):
        log_probs = np.concatenate(
            [model.log_prob(test[at : at + CHUNK]) for at in range(0, len(test), CHUNK)]
        )
    return {
        "rows": len(train),
        "columns": n_values,
        "seconds": seconds,
        "seconds_slowest": slowest,
        "parameters": int(model.n_parameters),
        "device_gib": held,
        "machine": machine(context.device),
        "nats_a_value": float(log_probs.mean() / n_values),
        "bits_a_value": float(-log_probs.mean() / n_values / np.log(2)),
    }


def _einet(width: int, n_rows: int, options: Any, context: Context) -> EiNet:
    """Return the learner: few images come in smaller batches, so that there are enough steps."""
    batch = int(np.clip(n_rows // int(options["steps_an_epoch"]), 64, 256))
    return EiNet(
        width=width, epochs=int(options["epochs"]), batch=batch, blur=float(options["blur"]),
        leaf_count=float(options["leaf_count"]), precision="bf16", device=context.device,
    )  # fmt: skip


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

"""Density estimation with EiNets: MNIST, Tiny-ImageNet-32 and the twenty binary datasets.

    python benchmarks/einet_density.py DATA_FOLDER '{"data": "mnist"}' '{"data": "tiny", ...}' ...

Each JSON is one run; what it leaves out is the default of `Run`. The last tenth of the training
rows is held out and reported beside the test set, for choices. At the end stands the mean of the
probabilities of all runs on the same data, as one model.
"""

from __future__ import annotations

import io
import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from fedcircuits.learners.einet.leaves import Categorical, DiscretisedGaussian, Family
from fedcircuits.learners.einet.network.layout import lay_out
from fedcircuits.learners.einet.network.network import (
    Parameters,
    initial_parameters,
    make_network,
)
from fedcircuits.learners.einet.structures.hidden_tree import hidden_chow_liu_tree
from fedcircuits.learners.einet.training.checkpoint import State
from fedcircuits.learners.einet.training.rows import Rows
from fedcircuits.learners.einet.training.train import Schedule, evaluate, train
from fedcircuits.schema.colour import N_LEVELS, to_ycocg


@dataclass(frozen=True)
class Run:
    """One run's settings."""

    data: str = "mnist"
    ycocg: bool = False
    leaf: str = "categorical"
    width: int = 128
    leaf_count: float = 1.0
    blur: float = 0.0
    sum_count: float = 1.0
    epochs: int = 10
    batch: int = 256
    step: float = 0.3
    last_step: float = 0.02
    precision: str = "tf32"
    codes: int = 8
    shift: int = 0  # pixels that training images are moved by at most, in the first epochs
    all_rows: bool = False
    seed: int = 0


def images_of(table, keep) -> np.ndarray:
    from PIL import Image

    def one(raw: bytes) -> np.ndarray:
        image = Image.open(io.BytesIO(raw)).convert("RGB")
        return np.asarray(image.resize((32, 32), Image.Resampling.BOX))

    with ThreadPoolExecutor() as pool:
        return np.stack(list(pool.map(one, table["jpeg"].take(keep).to_pylist(), chunksize=256)))


def tiny(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """Training and test images by the split of the peers' table, or as carried along."""
    import pyarrow.parquet as pq

    cache = Path("/tmp/tiny32.npz")
    if cache.exists():
        kept = np.load(cache)
        return kept["train"], kept["test"]
    parts = []
    for name in ("train", "val"):
        table = pq.read_table(folder / f"tiny_imagenet_{name}.parquet")
        rows = np.arange(len(table))
        if table.schema.metadata is None or b"subset" not in table.schema.metadata:
            rows = rows[rows % 5 < 2]
        parts.append(images_of(table, rows))
    np.savez(cache, train=parts[0], test=parts[1])
    return parts[0], parts[1]


def load(run: Run, folder: Path) -> tuple[np.ndarray, np.ndarray, list[int]]:
    if run.data == "tiny":
        train_x, test_x = tiny(folder)
        levels = [256] * 3072
        if run.ycocg:
            train_x, test_x = to_ycocg(train_x), to_ycocg(test_x)
            levels = list(N_LEVELS) * 1024
    else:
        kept = np.load(folder / f"{run.data}.npz")
        train_x, test_x = kept["x_train"], kept["x_test"]
        levels = [256] * train_x[0].size
    return train_x.reshape(len(train_x), -1), test_x.reshape(len(test_x), -1), levels


def moved(
    x: np.ndarray, most: int, share: float, rng: np.random.Generator, side: int = 28
) -> np.ndarray:
    """A share of the grey images moved by up to so many pixels each way; edges are repeated."""
    by = np.where(rng.random((len(x), 1)) < share, rng.integers(-most, most + 1, (len(x), 2)), 0)
    at = np.clip(np.arange(side)[None, None] + by[:, :, None], 0, side - 1)  # (n, 2, side)
    images = x.reshape(-1, side, side)
    found = images[np.arange(len(x))[:, None, None], at[:, 0, :, None], at[:, 1, None, :]]
    return found.reshape(len(x), -1)


def go(run: Run, folder: Path, device: torch.device) -> dict[str, np.ndarray]:
    """Trains, prints a line, and returns the log-likelihoods of held-out and test images."""
    x, test, levels = load(run, folder)
    start = time.time()
    cut = len(x) if run.all_rows else len(x) - len(x) // 10
    layout = lay_out(hidden_chow_liu_tree(x[:cut], run.codes, device=str(device)))
    most = max(levels)

    def family(n: int) -> Family:
        if run.leaf == "categorical":
            # One family for all channels keeps the leaves in one kernel; codes beyond a channel's
            # own levels never occur and end with no mass.
            return Categorical(most, run.leaf_count, run.blur)
        return DiscretisedGaussian(1e-4, 0.25, n_levels=n)

    network = make_network(layout, [family(n) for n in levels], run.width)
    sample = torch.as_tensor(x[:2048].astype(np.int16), device=device)
    params = initial_parameters(
        network,
        sample,
        torch.ones_like(sample, dtype=torch.bool),
        torch.Generator().manual_seed(run.seed),
    )
    schedule = Schedule(
        run.epochs, run.batch, run.step, run.last_step, pseudo_count=run.sum_count,
        precision=run.precision,
    )  # fmt: skip
    state: State | Parameters = params
    if run.shift:
        rng = np.random.default_rng(run.seed + 5)
        for epoch in range(run.epochs):  # every epoch sees other moves
            share = float(np.clip((0.85 - epoch / run.epochs) / 0.25, 0, 1))
            rows = Rows(moved(x[:cut], run.shift, share, rng))
            state = train(network, state, rows, schedule, run.seed, report=lambda _: True)
    else:
        state = train(network, state, Rows(x[:cut]), schedule, run.seed)
    if device.type == "cuda":
        torch.cuda.synchronize()
    seconds = time.time() - start
    d = x.shape[1]
    line = f"train {state.history[-1] / d:.4f}"
    each = {"TEST": evaluate(network, state.params, Rows(test)) / d}
    if cut < len(x):
        each["held out"] = evaluate(network, state.params, Rows(x[cut:])) / d
        line += f" held out {each['held out'].mean():.4f}"
    ll = each["TEST"].mean()
    levels_of_tree = len({group.level for group in layout.groups})
    print(
        f"{run}\n  {line} TEST {ll:.4f} nats/dim {-ll / np.log(2):.4f} bits/dim, "
        f"{seconds:.1f} s in all, {levels_of_tree} levels",
        flush=True,
    )
    return {name: found * d for name, found in each.items()}


def main() -> None:
    folder = Path(sys.argv[1])
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    runs = [Run(**json.loads(text)) for text in sys.argv[2:]]
    found = [go(run, folder, device) for run in runs]
    if len(runs) > 1 and len({run.data for run in runs}) == 1:
        for name in set.intersection(*map(set, found)):
            mixed = np.logaddexp.reduce([each[name] for each in found]) - np.log(len(found))
            print(f"  averaged: {name} {mixed.mean():.3f} nats an image")


if __name__ == "__main__":
    main()

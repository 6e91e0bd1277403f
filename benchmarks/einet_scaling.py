"""Scaling up by federation: Tiny-ImageNet-32 over n clients beside one EiNet of as many parameters.

    python benchmarks/einet_scaling.py run DATA_FOLDER RUNS.jsonl [--only random-4 ...] [--small]
    python benchmarks/einet_scaling.py table RUNS.jsonl

Every client trains one EiNet of the base width on its own images; the federation is their mixture,
weights the shares of rows, as `fc.federate` glues it (case `same` shows that on images). Beside it
stands one EiNet on all images whose width gives it as many parameters as the n clients have
together, and, the other way round, n clients that together have the parameters of one. Images are
split at random or by k-means clusters. A tenth of the training images is held out: epochs, batch
and blur are chosen on it for the first of 1, 4 and 16 random clients and used for all cases of
that size. The members of a mixture stay in host memory and answer one after the other.
"""

from __future__ import annotations

import argparse
import datetime
import gc
import json
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import fedcircuits as fc
from einet_density import tiny
from fedcircuits.federation.wire.seeds import named_rng
from fedcircuits.learners.einet import EiNetDensity, answering_on
from fedcircuits.schema.images import image_frame, image_schema, image_table
from tables import FOLDER, wrapped

BASE_WIDTH = 128
SIZES = (1, 2, 4, 8, 16)
CHOSEN_FOR = {1: 1, 2: 1, 4: 4, 8: 4, 16: 16}
# What is tried on validation rows; for all rows together only what ends in reasonable time.
GRID = [
    {"epochs": epochs, "batch": batch, "blur": blur}
    for epochs, batch in ((8, 256), (16, 64))
    for blur in (2.0, 4.0)
]
GRID_ONE = [
    {"epochs": epochs, "batch": 256, "blur": blur}
    for epochs, blur in ((8, 1.0), (8, 2.0), (16, 2.0))
]


@dataclass(frozen=True)
class Data:
    """Images (n, 32, 32, 3), uint8."""

    train: np.ndarray
    valid: np.ndarray
    test: np.ndarray

    @property
    def n_values(self) -> int:
        return int(np.prod(self.test.shape[1:]))


@dataclass(frozen=True)
class Case:
    """One line: n EiNets of a width on a split, or one on everything (`split` "none")."""

    name: str
    split: str
    n: int
    width: int
    settings_of: int


def n_parameters(width: int, n_values: int) -> int:
    """Of a hidden tree over `n_values` pixels of 256 levels, roughly: leaves and sums."""
    return n_values * (256 * width + width**2)


def width_of(parameters: float, n_values: int) -> int:
    """The width whose hidden tree has about so many parameters; a multiple of 4."""
    exact = math.sqrt(128**2 + parameters / n_values) - 128
    return max(4, 4 * round(exact / 4))


def cases(base: int, n_values: int) -> Iterator[Case]:
    """All lines of the table, the cheap ones first."""
    one = n_parameters(base, n_values)
    yield Case("one-1", "none", 1, base, 1)
    for n in (4, 16, 2, 8):
        for split in ("random", "clusters"):
            yield Case(f"{split}-{n}", split, n, base, CHOSEN_FOR[n])
        yield Case(f"one-{n}", "none", 1, width_of(n * one, n_values), 1)
    for n in (4, 16):
        for split in ("random", "clusters"):
            width = width_of(one / n, n_values)
            yield Case(f"{split}-{n}-shared", split, n, width, CHOSEN_FOR[n])


def k_means(images: np.ndarray, n: int, device: str, rounds: int = 30) -> np.ndarray:
    """Cluster of every image, (images,): Lloyd's rounds on pixels from a k-means++ start."""
    rng = np.random.default_rng(n)
    x = torch.as_tensor(images.reshape(len(images), -1), device=device).float() / 255
    centres = x[int(rng.integers(len(x)))].unsqueeze(0)
    while len(centres) < n:
        near = torch.cdist(x, centres).amin(1).double().square()
        drawn = rng.choice(len(x), p=(near / near.sum()).cpu().numpy())
        centres = torch.cat([centres, x[drawn].unsqueeze(0)])
    for _ in range(rounds):
        own = torch.cdist(x, centres).argmin(1)
        centres = torch.stack([x[own == c].mean(0) for c in range(n)])
    return own.cpu().numpy()


def split_rows(split: str, n: int, images: np.ndarray, device: str) -> list[np.ndarray]:
    """Rows of every client."""
    if split == "clusters":
        own = k_means(images, n, device)
    else:
        own = np.random.default_rng(n).permutation(len(images)) % n
    return [np.flatnonzero(own == c) for c in range(n)]


def learner(width: int, settings: dict[str, Any], device: str) -> fc.learners.EiNet:
    return fc.learners.EiNet(
        structure="hclt", width=width, leaf_count=5.0, precision="bf16", device=device, **settings
    )


def fit(images: np.ndarray, made: fc.learners.EiNet, client: int) -> tuple[EiNetDensity, float]:
    """A client's model as `fc.federate` has it fitted, in host memory, and the seconds it took."""
    began = time.perf_counter()
    model = made.fit(image_table(images), named_rng(0, f"c{client:02d}", "S0"))
    if model.params.device.type == "cuda":
        torch.cuda.synchronize()
    seconds = time.perf_counter() - began
    return replace(model.to("cpu"), batch=256), seconds


def per_value(model: fc.Density, images: np.ndarray) -> np.ndarray:
    """Log-mass per pixel value, nats, (images,)."""
    return np.asarray(model.log_prob_table(image_table(images))) / np.prod(images.shape[1:])


def choose(data: Data, size: int, base: int, device: str) -> dict[str, Any]:
    """Settings for clients of a size: best mean validation log-mass of the first client's model."""
    rows = split_rows("random", size, data.train, device)[0]
    tried = []
    for settings in GRID_ONE if size == 1 else GRID:
        model, seconds = fit(data.train[rows], learner(base, settings, device), 0)
        with answering_on(device):
            found = float(per_value(model, data.valid).mean())
        tried.append({**settings, "valid": found, "seconds": seconds})
    return {"case": f"choice-{size}", "tried": tried, "best": max(tried, key=lambda t: t["valid"])}


def run_case(case: Case, data: Data, settings: dict[str, Any], device: str) -> dict[str, Any]:
    parts = (
        [np.arange(len(data.train))]
        if case.split == "none"
        else split_rows(case.split, case.n, data.train, device)
    )
    made = learner(case.width, settings, device)
    fit(data.train[: 2 * settings["batch"]], replace(made, epochs=1), 0)  # compiles
    models, seconds = [], []
    for client, rows in enumerate(parts):
        model, took = fit(data.train[rows], made, client)
        models.append(model)
        seconds.append(took)
    gc.collect()
    on_device = 0.0
    if device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    began = time.perf_counter()
    shares = np.log([len(rows) / len(data.train) for rows in parts])
    with answering_on(device):
        each = np.stack([per_value(model, data.test) for model in models])  # (clients, images)
    if device == "cuda":
        on_device = torch.cuda.max_memory_allocated() / 2**30
    mixed = np.logaddexp.reduce(each * data.n_values + shares[:, None])  # (images,)
    size = sum(model.n_parameters for model in models)
    return {
        "case": case.name, "split": case.split, "n": case.n, "width": case.width,
        "parameters": size, "settings": settings, "test": float(mixed.mean()) / data.n_values,
        "best_single_test": float(each.mean(1).max()),
        "rows": [len(rows) for rows in parts], "seconds": seconds,
        "evaluation_s": time.perf_counter() - began,
        "parameters_gib": size * 4 / 2**30, "device_gib": on_device,
    }  # fmt: skip


def same_as_federate(data: Data, device: str, n: int = 4, width: int = 16) -> dict[str, Any]:
    """`fc.federate` on a small case beside the route of the other cases."""
    rows = split_rows("random", n, data.train, device)
    rows = [part[:400] for part in rows]
    made = learner(width, {"epochs": 2, "batch": 100, "blur": 2.0}, device)
    height, wide, channels = data.test.shape[1:]
    fed = fc.federate(
        {f"c{client:02d}": data.train[part] for client, part in enumerate(rows)},
        learner=made,
        schema=image_schema(height, wide, channels),
    )
    models = [fit(data.train[part], made, client)[0] for client, part in enumerate(rows)]
    images = data.test[:512]
    with answering_on(device):
        each = np.stack([per_value(model, images) * data.n_values for model in models])
        found = np.asarray(fed.log_prob(image_frame(images)))
    mixed = np.logaddexp.reduce(each - math.log(n))
    return {
        "case": "same", "n": n, "width": width,
        "largest_difference": float(abs(found - mixed).max()),
    }  # fmt: skip


def small_data() -> Data:
    """Digits in three channels: to try the script where there is neither GPU nor data."""
    from sklearn.datasets import load_digits

    rng = np.random.default_rng(0)
    grey = (load_digits().images[:, 1:6, 1:6] * 15)[..., None]
    images = np.clip(grey + rng.integers(-8, 9, size=(*grey.shape[:3], 3)), 0, 255)
    images = images.astype(np.uint8)
    return Data(images[:1200], images[1200:1400], images[1400:])


def load(folder: Path) -> Data:
    train, test = tiny(folder)
    order = np.random.default_rng(0).permutation(len(train))
    cut = len(train) // 10
    return Data(train[np.sort(order[cut:])], train[np.sort(order[:cut])], test)


def run(folder: Path, runs: Path, only: list[str], small: bool) -> None:
    """Works through the cases that the file does not have yet, writing each as it ends."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    base = 8 if small else BASE_WIDTH
    data = small_data() if small else load(folder)
    done = {}
    if runs.exists():
        done = {r["case"]: r for r in map(json.loads, runs.read_text().splitlines())}

    def keep(found: dict[str, Any]) -> None:
        done[found["case"]] = found
        with runs.open("a") as file:
            file.write(json.dumps(found) + "\n")
        print(json.dumps(found), flush=True)

    name = torch.cuda.get_device_name() if device == "cuda" else "CPU"
    if "machine" not in done:
        keep({"case": "machine", "name": name, "torch": torch.__version__,
              "date": datetime.date.today().isoformat(), "train": len(data.train),
              "valid": len(data.valid), "test": len(data.test)})  # fmt: skip
    found = {case.name: case for case in cases(base, data.n_values)}
    for case in (found[name] for name in only or found if name in found):
        if case.name in done:
            continue
        if f"choice-{case.settings_of}" not in done:
            keep(choose(data, case.settings_of, base, device))
        best = done[f"choice-{case.settings_of}"]["best"]
        settings = {key: best[key] for key in ("epochs", "batch", "blur")}
        keep(run_case(case, data, settings, device))
    if "same" not in done and (not only or "same" in only):
        keep(same_as_federate(data, device))


def table(runs: Path) -> None:
    """Writes docs/benchmarks/einet_scaling.md."""
    done = {r["case"]: r for r in map(json.loads, runs.read_text().splitlines())}
    about, same = done["machine"], done["same"]
    lines = [
        "# Scaling up by federation: Tiny-ImageNet at 32x32x3",
        "",
        "`PYTHONPATH=src python benchmarks/einet_scaling.py run FOLDER RUNS.jsonl`, then "
        f"`... table RUNS.jsonl`, {about['date']}, one {about['name']}, PyTorch {about['torch']}.",
        "",
        f"{about['train']:,} training, {about['valid']:,} validation and {about['test']:,} test "
        "images; log-mass of 256 levels, RGB, nats per value (uniform is -5.545).",
        "Hidden Chow-Liu trees, CP layers, categorical leaves, products in bf16, likelihoods in",
        "float32. Times include learning the tree, not compiling; *slowest* is what clients that",
        "run side by side take, *all* what one device takes for all of them.",
        "",
        "| EiNets | split | width | parameters | test | best client alone "
        "| seconds a client: median, slowest | all | rows a client |",
        "|" + "---|" * 9,
    ]
    for case in cases(BASE_WIDTH, 3072):
        if (r := done.get(case.name)) is None:
            continue
        alone = "" if r["n"] == 1 else f"{r['best_single_test']:.3f}"
        few, many = min(r["rows"]), max(r["rows"])
        cells = [
            r["n"], r["split"], r["width"], f"{r['parameters'] / 1e6:,.0f}M", f"{r['test']:.3f}",
            alone,
            f"{np.median(r['seconds']):.1f}, {max(r['seconds']):.1f}", f"{sum(r['seconds']):.0f}",
            f"{few:,}" if few == many else f"{few:,} to {many:,}",
        ]  # fmt: skip
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    lines += ["", "Chosen on validation images with the first of n random clients:", ""]
    for key, r in done.items():
        if key.startswith("choice-"):
            tried = "; ".join(
                f"{t['epochs']} epochs, batch {t['batch']}, blur {t['blur']:g}: {t['valid']:.3f}"
                for t in r["tried"]
            )
            lines.append(f"- n = {key[7:]}: {tried}.")
    mixtures = [r for r in done.values() if r.get("n", 0) > 1 and "device_gib" in r]
    largest = max(mixtures, key=lambda r: r["parameters"])
    lines += [
        "",
        f"- The {largest['n']} EiNets of the largest mixture have "
        f"{largest['parameters_gib']:.1f} GiB of parameters, kept in host memory; the most the "
        f"device held while all answered was {largest['device_gib']:.2f} GiB: one model and its "
        "buffers.",
        f"- `fc.federate` with {same['n']} clients (width {same['width']}, 400 images each) gives "
        "the mixture of the same models: log-likelihoods of 512 images differ by "
        f"{same['largest_difference']:.1e} nats at most.",
        "",
    ]
    (FOLDER / "einet_scaling.md").write_text(wrapped("\n".join(lines)))
    print("\n".join(lines))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["run", "table"])
    parser.add_argument("paths", nargs="+", type=Path)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--small", action="store_true", help="digits on any machine, as a trial")
    given = parser.parse_args()
    if given.what == "table":
        table(given.paths[0])
    else:
        run(given.paths[0], given.paths[1], given.only, given.small)


if __name__ == "__main__":
    main()

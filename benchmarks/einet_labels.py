"""Labels of EiNets: accuracy and likelihood by how classes are built in, on three sets of images.

    python benchmarks/einet_labels.py [--data DIR] [--seeds 3] [--images 3000] [--only digits]
    python benchmarks/einet_labels.py --device cuda --images 20000 ...

Rows: no label (likelihood alone), one root a class, sums of their own for every class, the same
with fine-tuning chosen on a tenth of the training rows, and the default, sums of their own with a
convolutional network for the label; beside a random forest. On a GPU only the first and the
last of these, with every setting as by default, all test images, and seconds of the wall, those of
compiling included.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import load_digits
from sklearn.ensemble import RandomForestClassifier

import fedcircuits as fc
import tables

MODELS: dict[str, dict[str, Any] | None] = {
    "no label": None,
    "one root a class": {"class_sums": "shared", "head": False},
    "sums of their own": {"head": False},
    "sums of their own, fine-tuned": {"fine_tune": 6, "head": False},
    "default: sums of their own, head": {},
}


def images_of(
    name: str, folder: Path, seed: int, most: int, most_test: int
) -> tuple[Any, Any, Any, Any]:
    """Training and test images with their labels."""
    rng = np.random.default_rng(seed)
    if name == "digits":
        found = load_digits()
        images, labels = (found.images * 15.9).astype(np.uint8), found.target
        order = rng.permutation(len(images))
        train, test = order[:1347], order[1347:]
        return images[train], labels[train], images[test], labels[test]
    found = np.load(folder / f"{name}.npz")
    kept = rng.permutation(len(found["x_train"]))[:most]
    test = (found["x_test"][:most_test], found["y_test"][:most_test].astype(int))
    return found["x_train"][kept], found["y_train"][kept].astype(int), *test


def measured(
    name: str, model: str, folder: Path, seed: int, most: int, device: str
) -> tuple[float, ...]:
    """Accuracy, bits a pixel of p(x), and seconds of learning: of the CPU, or beside a GPU all."""
    on_cpu = device == "cpu"
    clock = time.process_time if on_cpu else time.perf_counter
    x, y, test, truth = images_of(name, folder, seed, most, 2000 if on_cpu else 10_000)
    start = clock()
    if model == "random forest":
        forest = RandomForestClassifier(300, n_jobs=1, random_state=seed)
        forest.fit(x.reshape(len(x), -1), y)
        found = forest.predict(test.reshape(len(test), -1))
        return float((found == truth).mean()), np.nan, clock() - start
    options = MODELS[model]
    given: dict[str, Any] = {"learner": "einet", "seed": seed, "device": device}
    given |= {"epochs": 10, "batch": 100} if on_cpu else {}
    labelled = {} if options is None else {"label": y, **options}
    made = fc.learn(x, **given, **labelled)
    seconds = clock() - start
    bits = -made.mean_log_prob(test) / test[0].size / np.log(2)
    if options is None:
        return np.nan, float(bits), seconds
    found = made.predict(test, "label").astype(int).to_numpy()
    return float((found == truth).mean()), float(bits), seconds


def main() -> None:
    """Run all models and write the page."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, default=tables.ROOT.parent / "shared" / "data")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--images", type=int, default=3000)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--only", nargs="*", default=["digits", "mnist", "fashion_mnist"])
    given = parser.parse_args()
    rows = []
    on_cpu = given.device == "cpu"
    models = (*MODELS, "random forest") if on_cpu else (next(iter(MODELS)), list(MODELS)[-1])
    for name in given.only:
        for model in models:
            figures = [
                measured(name, model, given.data, s, given.images, given.device)
                for s in range(given.seeds)
            ]
            spread = [_spread([f[at] for f in figures]) for at in range(3)]
            rows.append([name, model, *spread])
            print(rows[-1], flush=True)
    tables.write(
        "einet_labels" if on_cpu else "einet_labels_gpu",
        "Labels of EiNets on a " + ("CPU" if on_cpu else "GPU"),
        ["images", "model", "accuracy", "bits a pixel of p(x)", "CPU s" if on_cpu else "s"], rows,
        f"python benchmarks/einet_labels.py --seeds {given.seeds} --images {given.images}"
        + ("" if on_cpu else f" --device {given.device}") + f" --only {' '.join(given.only)}",
        ["Hidden tree, categorical leaves, " + ("ten epochs, default width; " if on_cpu else
         "everything by default; ") + "mean and standard deviation (n - 1) over seeds, which draw "
         "training and test images (MNIST, Fashion-MNIST: training images).",
         "MNIST and Fashion-MNIST: " + ("2,000" if on_cpu else "10,000") + " test images."]
        + ([] if on_cpu else ["Seconds are those of the wall and include compiling kernels, where "
                              "they were not yet."]),
        device=given.device,
    )  # fmt: skip


def _spread(values: list[float]) -> str:
    if np.isnan(values).any():
        return "-"
    spread = f" ± {np.std(values, ddof=1):.3f}" if len(values) > 1 else ""
    return f"{np.mean(values):.3f}{spread}"


if __name__ == "__main__":
    main()

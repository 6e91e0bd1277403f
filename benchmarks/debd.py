"""The twenty binary datasets: test log-likelihood of `hclt` beside published figures."""

from __future__ import annotations

import argparse
import os
import time
import warnings
from pathlib import Path

import numpy as np
import pandas as pd

import fedcircuits as fc
import tables
from fedcircuits.api import datasets
from fedcircuits.learners.hclt.learner import Hclt

DATA = Path(os.environ.get("FEDCIRCUITS_DATA", tables.ROOT.parent / "shared" / "data"))
# Mean test log-likelihoods from the literature: LearnSPN, EiNet, HCLT.
PUBLISHED = {
    "nltcs": (-6.11, -6.02, -5.99), "msnbc": (-6.11, -6.12, -6.05), "kdd": (-2.18, -2.18, -2.18),
    "plants": (-12.98, -13.68, -14.26), "baudio": (-40.50, -39.88, -39.77),
    "jester": (-53.48, -52.56, -52.46), "bnetflix": (-57.33, -56.54, -56.27),
    "accidents": (-30.04, -35.59, -26.74), "tretail": (-11.04, -10.92, -10.84),
    "pumsb_star": (-24.78, -31.95, -23.64), "dna": (-82.52, -96.09, -79.05),
    "kosarek": (-10.99, -11.03, -10.66), "msweb": (-10.25, -10.03, -9.98),
    "book": (-35.89, -34.74, -33.83), "tmovie": (-52.49, -51.71, -50.81),
    "cwebkb": (-158.20, -157.28, -152.77), "cr52": (-85.07, -87.37, -86.26),
    "c20ng": (-155.93, -153.94, -153.40), "bbc": (-250.69, -248.33, -251.04),
    "ad": (-19.73, -26.27, -16.07),
}  # fmt: skip
# Continuous mixtures of Chow-Liu trees (S_CLT), and the best figure known of any circuit.
MIXTURES = {
    "nltcs": (-5.99, -5.99), "msnbc": (-6.05, -6.03), "kdd": (-2.12, -2.11),
    "plants": (-12.27, -12.26), "baudio": (-39.04, -39.02), "jester": (-51.94, -51.93),
    "bnetflix": (-55.36, -55.31), "accidents": (-28.81, -26.74), "tretail": (-10.81, -10.72),
    "pumsb_star": (-23.70, -22.40), "dna": (-84.58, -79.05), "kosarek": (-10.55, -10.52),
    "msweb": (-9.60, -9.60), "book": (-33.55, -33.55), "tmovie": (-49.29, -49.08),
    "cwebkb": (-147.75, -147.75), "cr52": (-81.31, -81.17), "c20ng": (-148.28, -148.17),
    "bbc": (-242.79, -240.19), "ad": (-14.42, -14.42),
}  # fmt: skip


def scores(parts: dict[str, np.ndarray], n_trees: int | None, seed: int) -> tuple[float, ...]:
    """Return the log-likelihood of valid and test rows, and the CPU seconds of learning."""
    names = [f"v{j}" for j in range(parts["train"].shape[1])]
    train, valid, test = (
        pd.DataFrame(parts[part], columns=names) for part in ("train", "valid", "test")
    )
    start = time.process_time()
    learner = Hclt(n_trees=n_trees)
    model = fc.learn(train, kinds=dict.fromkeys(names, "binary"), seed=seed, learner=learner)
    seconds = time.process_time() - start
    return model.mean_log_prob(valid), model.mean_log_prob(test), seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--data", nargs="*", default=list(datasets.DEBD))
    parser.add_argument(
        "--trees", type=int, nargs="+", default=[8], help="trees averaged, beside the default"
    )
    parser.add_argument("--minutes", type=float, help="begin no further data set after so many")
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore")
    if not DATA.is_dir():
        print(f"left out: no folder {DATA}")
        return
    rows, left_out, counts = [], [], np.zeros((2, 4), dtype=int)
    names = ["default", *map(str, arguments.trees)]
    begun = time.monotonic()
    for name in arguments.data:
        if arguments.minutes is not None and time.monotonic() - begun > 60 * arguments.minutes:
            left_out.append(name)
            continue
        parts = datasets.debd(DATA, name)
        # The usual protocol: train rows alone for learning, valid rows for choosing between models.
        tried = np.array(
            [
                [scores(parts, n, seed) for n in (None, *arguments.trees)]
                for seed in range(arguments.seeds)
            ]
        )  # (seeds, settings, 3)
        best = tried[:, :, 0].argmax(axis=1)
        plain, chosen = tried[:, 0], tried[np.arange(len(tried)), best]
        learnspn, einet, hclt = PUBLISHED[name]
        for at, found in enumerate((plain, chosen)):
            marks = (*MIXTURES[name], 1.01 * hclt, learnspn)
            counts[at] += [found[:, 1].mean() > mark for mark in marks]
        rows.append(
            [name, shown(plain[:, 1]), shown(chosen[:, 1]),
             ", ".join(dict.fromkeys(names[at] for at in best)), *MIXTURES[name], hclt, einet,
             learnspn, f"{plain[:, 2].mean():.1f}", f"{tried[:, 1:, 2].sum(axis=1).mean():.1f}"]
        )  # fmt: skip
        print(rows[-1], flush=True)
    n = len(rows)
    order = list(datasets.DEBD)
    rows.sort(key=lambda row: order.index(row[0]))
    tables.write(
        "debd",
        "Twenty binary datasets, mean test log-likelihood (nats per row)",
        [
            "data",
            "default",
            "chosen on valid",
            "trees chosen",
            "continuous mixtures",
            "best known",
            "HCLT",
            "EiNet",
            "LearnSPN",
            "default, CPU s",
            "further ones, CPU s",
        ],
        rows,
        f"python benchmarks/debd.py --seeds {arguments.seeds} --trees {' '.join(names[1:])}",
        [
            "*default* is `fc.learn(train)`, which decides by itself whether it averages trees; "
            "*chosen on valid* is the best on valid rows of it and `Hclt(n_trees=n)` for each n of "
            "`--trees`: trees of one structure from different starts that are averaged. We learn "
            "from the train rows alone; the default makes its choices on a tenth of them, and no "
            "model is fitted to valid rows.",
            f"Mean{' ± standard deviation (n - 1)' * (arguments.seeds > 1)} over "
            f"{arguments.seeds} seed(s). The figures of others are published ones with two "
            "decimals, from their papers.",
            *(
                f"{words}: above continuous mixtures {count[0]} of {n}, above the best known "
                f"{count[1]}, within 1 % of published HCLT or better {count[2]}, better than "
                f"published LearnSPN {count[3]}."
                for words, count in zip(("Default", "Chosen on valid"), counts, strict=True)
            ),
            *([f"Not run for want of time: {', '.join(left_out)}."] if left_out else []),
        ],
    )


def shown(values: np.ndarray) -> str:
    """Return mean and standard deviation (n - 1) over seeds."""
    spread = f" ± {values.std(ddof=1):.3f}" if len(values) > 1 else ""
    return f"{values.mean():.3f}{spread}"


if __name__ == "__main__":
    main()

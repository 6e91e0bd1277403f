"""Table learners on real data beside tuned LightGBM, LightGBM on masked copies, random forest.

Held-out test rows (Adult by its UCI split, the others 75/25), choices on validation rows inside the
training rows. Log-mass is the mass of (x, y) on the grid of the schema (nats per row), comparable
between models on one grid.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import subprocess
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.metrics import accuracy_score, log_loss

import fedcircuits as fc
import rivals
import tables
from fedcircuits.api import datasets

DATA = Path(os.environ.get("FEDCIRCUITS_DATA", tables.ROOT.parent / "shared" / "data"))
MISSING_SHARES, MISSING_ROWS = (0.1, 0.3, 0.5), 4_000
IN_FILES = ("adult", "credit", "magic", "spambase")
LOADERS: dict[str, Callable[[int], datasets.Split]] = {
    "magic": lambda seed: datasets.magic(DATA, seed),
    "spambase": lambda seed: datasets.spambase(DATA, seed),
    "cancer": lambda seed: datasets.cancer(seed, 0.25),
    "digits": datasets.digits,
    "wine": datasets.wine,
    "adult": lambda _: datasets.adult(DATA),
    "credit": lambda seed: datasets.credit(DATA, seed, 0.25),
}
# Rows of the table: learner and options.
OURS: dict[str, tuple[str, dict[str, Any]]] = {
    "hclt": ("hclt", {}),
    "hclt, head=False": ("hclt", {"head": False}),
}


def log_mass(model: fc.Density, rows: pd.DataFrame) -> float:
    """Mean log-mass of the rows' grid states."""
    table = model.schema.encode(rows)
    total = model.log_prob_table(table)
    for at, variable in enumerate(model.schema):
        if variable.grid is not None:
            seen = table.observed[:, at]
            total[seen] -= variable.grid.log_within(table.values[seen, at])
    return float(total.mean())


class Run:
    """One split: what a model says of the test rows, and of those with cells missing."""

    def __init__(self, split: datasets.Split, seed: int) -> None:
        self.split, self.data, self.seed = split, rivals.Prepared(split), seed
        rng = np.random.default_rng(seed)
        self.first = split.test.iloc[:MISSING_ROWS]
        self.gaps = {s: rivals.masked(self.first, split.label, s, rng) for s in MISSING_SHARES}
        self.proba: Any = None

    def scored(self, proba_of: Callable[[pd.DataFrame], Any], gaps: bool) -> dict[str, Any]:
        truth = self.data.test_labels
        start = time.process_time()
        proba = np.asarray(proba_of(self.split.test), dtype=float)
        seconds = time.process_time() - start
        answer = {
            "accuracy": accuracy_score(truth, proba.argmax(axis=1)),
            "AUC": rivals.auc(truth, proba),
            "log-loss": log_loss(truth, proba, labels=range(proba.shape[1])),
            "confidence": rivals.confidence(truth, proba),
            "predict, us a row": 1e6 * seconds / len(proba),
        }
        if gaps:
            truth = self.data.codes(self.first)
            for share, rows in self.gaps.items():
                start = time.process_time()
                found = np.asarray(proba_of(rows), dtype=float)
                seconds = time.process_time() - start
                answer[f"AUC, {share:.0%} missing"] = rivals.auc(truth, found)
                answer[f"ms a row, {share:.0%} missing"] = 1e3 * seconds / len(rows)
        return answer

    def ours(self, name: str) -> dict[str, Any]:
        learner, options = OURS[name]
        split, start = self.split, time.process_time()
        model = fc.learn(split.train, split.label, learner, seed=self.seed, **options)
        learned = time.process_time() - start

        def proba_of(rows: pd.DataFrame) -> Any:
            return model.predict_proba(rows, split.label)[self.data.classes]

        answer = self.scored(proba_of, gaps=True)
        answer["log-mass"] = log_mass(model, split.test)
        answer["learn, CPU s"] = learned
        assert model.fit_report is not None
        answer["head"] = model.fit_report.kept.get("head of trees kept", False)
        print(name, self.seed, model.fit_report.kept, flush=True)
        return answer

    def rival(self, name: str) -> dict[str, Any]:
        split, data, start = self.split, self.data, time.process_time()
        prepare: Callable[[pd.DataFrame], Any] = data.features
        if name == "LightGBM, tuned":
            model: Any = rivals.tuned_lightgbm(data, split.train, self.seed)
        elif name == "LightGBM on masked copies":
            model = rivals.lightgbm_on_masked_copies(data, split.train, split.label, self.seed)
        else:
            prepare = lambda rows: rivals.plain(data, rows)  # noqa: E731
            model = (
                rivals.random_forest(data, split.train, self.seed)
                if name == "random forest"
                else rivals.logistic_regression(data, split.train)
            )
        learned = time.process_time() - start
        gaps = name == "LightGBM on masked copies"
        answer = self.scored(lambda rows: model.predict_proba(prepare(rows)), gaps)
        answer["learn, CPU s"] = learned
        return answer


SMALL = ("cancer", "wine")
# Sizes were chosen with test rows of seeds 0 and 1 in view: a result starts from other seeds.
FRESH_SEED = 10
COLUMNS = (
    "seeds", "accuracy", "AUC", "AUC less tuned LightGBM", "log-loss",
    "log-loss less tuned LightGBM", "ECE",
    *(f"AUC, {s:.0%} missing" for s in MISSING_SHARES),
    *(f"ms a row, {s:.0%} missing" for s in MISSING_SHARES),
    "log-mass", "learn, CPU s", "predict, us a row", "head", "measured",
)  # fmt: skip
PAIRED = {"AUC less tuned LightGBM": "AUC", "log-loss less tuned LightGBM": "log-loss"}


def row(data: str, model: str, runs: list[dict[str, Any]], best: list[dict[str, Any]]) -> list[Any]:
    cells: list[Any] = [data, model]
    for name in COLUMNS:
        if name == "ECE":
            proba, hit = (np.concatenate(c) for c in zip(*(r["confidence"] for r in runs)))  # noqa: B905
            cells.append(f"{rivals.calibration_error(proba, hit):.4f}")
        elif name in PAIRED:
            of = PAIRED[name]
            other = {run["seed"]: run[of] for run in best}
            gaps = np.array([run[of] - other[run["seed"]] for run in runs if run["seed"] in other])
            error = gaps.std(ddof=1) / np.sqrt(gaps.size) if gaps.size > 1 else float("nan")
            cells.append(f"{gaps.mean():+.4f} ± {error:.4f}" if gaps.size else "-")
        elif name == "seeds":
            cells.append(len(runs))
        elif name == "measured":
            cells.append(" ".join(sorted({run[name] for run in runs})))
        elif not all(name in run for run in runs):
            cells.append("-")
        elif name == "head":
            cells.append(f"{sum(bool(run[name]) for run in runs)} of {len(runs)}")
        else:
            found = [run[name] for run in runs]
            digits = 2 if "CPU s" in name or "ms a row" in name else 0 if "us a" in name else 4
            spread = np.std(found, ddof=1) if len(found) > 1 else float("nan")
            cells.append(f"{np.mean(found):.{digits}f} ± {spread:.{digits}f}")
    return cells


def rivals_of(data: str) -> list[str]:
    """Return the names of the rivals on a table."""
    names = ["random forest", "LightGBM on masked copies", "LightGBM, tuned"]
    return [*names, "logistic regression"] if data in SMALL else names


def record_path(folder: Path, data: str, seed: int, model: str) -> Path:
    """Return the file of one run's figures."""
    return folder / f"{data}-{seed}-{model.replace(' ', '_')}.json"


def code_state(name: str) -> str:
    """Return date and, for our models, commit of the code that a run measures."""
    today = datetime.date.today().isoformat()
    if name not in OURS:
        return today
    command = ["git", "-C", str(tables.ROOT), "describe", "--always", "--dirty=+"]
    found = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    return f"{today} {os.environ.get('FEDCIRCUITS_COMMIT', found)}"


def measure(data: str, seeds: range, models: list[str], folder: Path) -> None:
    """Run some models on some seeds; what is recorded already is left as it is."""
    for seed in seeds:
        run: Run | None = None
        for name in models:
            path = record_path(folder, data, seed, name)
            if path.exists():
                continue
            run = run or Run(LOADERS[data](seed), seed)
            answer = run.ours(name) if name in OURS else run.rival(name)
            answer |= {"seed": seed, "measured": code_state(name)}
            path.parent.mkdir(parents=True, exist_ok=True)
            half = path.with_suffix(".half")
            half.write_text(json.dumps(answer, default=np.ndarray.tolist))
            half.replace(path)


def recorded(seeds: range, folder: Path) -> list[list[Any]]:
    """Return the rows of the page that records give."""
    rows = []
    for data in LOADERS:
        found: dict[str, list[dict[str, Any]]] = {}
        for name in [*OURS, *rivals_of(data)]:
            paths = [record_path(folder, data, seed, name) for seed in seeds]
            found[name] = [json.loads(path.read_text()) for path in paths if path.exists()]
        rows += [
            row(data, name, runs, found["LightGBM, tuned"]) for name, runs in found.items() if runs
        ]
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=FRESH_SEED)
    parser.add_argument("--data", nargs="*", default=list(LOADERS))
    parser.add_argument("--models", nargs="*", help="names of rows; all if not given")
    parser.add_argument("--records", type=Path, help="folder of runs done, to go on from")
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore")
    seeds = range(arguments.first_seed, arguments.first_seed + arguments.seeds)
    with tempfile.TemporaryDirectory() as fresh:
        folder = arguments.records or Path(fresh)
        for data in arguments.data:
            if data in IN_FILES and not DATA.is_dir():
                print(f"{data} left out: no folder {DATA}")
                continue
            names = [*OURS, *rivals_of(data)]
            models = [n for n in names if arguments.models is None or n in arguments.models]
            measure(data, seeds, models, folder)
            written(recorded(seeds, folder), arguments)


def written(rows: list[list[Any]], arguments: argparse.Namespace) -> None:
    """Write the page of the rows so far."""
    seeds = arguments.seeds
    tables.write(
        "learners",
        "Table learners beside boosted trees",
        ["data", "model", *COLUMNS],
        rows,
        f"python benchmarks/learners.py --seeds {seeds} --first-seed {arguments.first_seed} "
        "--records FOLDER",
        [
            "Mean ± standard deviation (n - 1) over the seeds (of the split where it is "
            "random, of the learner everywhere); differences to tuned LightGBM ± standard error, "
            "paired by seed. Adult: UCI split.",
            "Measured: date of the run, and for our models the commit of the code (+: with changes "
            "not committed yet). Times were taken on a machine with other work on it.",
            f"LightGBM, tuned: {rivals.N_SETTINGS} random settings (leaves 7-127, rate .02-.2, "
            "least leaf 5-100, row and column share .5-1, L2 0-10, early stop), chosen by "
            f"{rivals.N_FOLDS}-fold cross-validation on the training rows.",
            f"ECE: {rivals.N_BINS} equal-mass bins of the positive class's probability (of the top "
            "label with several classes), test rows of all seeds pooled, less what a perfectly "
            "calibrated model would show. AUC with several classes: one against rest.",
            f"Missing: cells hidden at random in the first {MISSING_ROWS:,} test rows. Models "
            "with a head answer by estimates there, those without exactly.",
            "Log-mass: of (x, y) on the schema's grid, nats per row.",
            "Head: in how many runs it is part of the model; where nobody asks for it, held-out "
            "rows decide.",
        ],
    )


if __name__ == "__main__":
    main()

"""Missing cells filled by a model, by nearest neighbours and by iterated regressions.

    .venv/bin/python benchmarks/imputation.py --data FOLDER   # writes docs/benchmarks/imputation.md

MAGIC, California housing (parquet files in the folder) and wine (scikit-learn). Three quarters of
the rows are for training, complete; of the others (2,000 at most) a fifth of all cells is removed
at random. A number counts by its error over the column's standard deviation in training, a category
by whether it is met. Neighbours and regressions see standardised numbers and categories as 0/1
columns, of which the largest is taken.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from time import perf_counter

import numpy as np
import pandas as pd
from sklearn.datasets import load_wine
from sklearn.experimental import enable_iterative_imputer  # noqa: F401
from sklearn.impute import IterativeImputer, KNNImputer

import fedcircuits as fc
from tables import write

REMOVED, MOST_ROWS, SEEDS = 0.2, 2000, 5
METHODS = ("model", "nearest neighbours", "iterated regressions")


def tables(folder: Path) -> dict[str, pd.DataFrame]:
    """The three tables, rows with a gap left out."""
    wine = load_wine(as_frame=True).frame
    return {
        "MAGIC": pd.read_parquet(folder / "magic_telescope.parquet"),
        "wine": wine.assign(target="class " + wine["target"].astype(str)),
        "housing": pd.read_parquet(folder / "california_housing.parquet").dropna(),
    }


def as_numbers(frame: pd.DataFrame, train: pd.DataFrame) -> pd.DataFrame:
    """Standardised numbers, and a 0/1 column for every category of the training rows."""
    columns = {}
    for name in train:
        if train[name].dtype.kind in "iuf":
            columns[name] = (frame[name].astype(float) - train[name].mean()) / train[name].std()
            continue
        for category in sorted(train[name].unique()):
            here = (frame[name] == category).astype(float)
            columns[f"{name}\t{category}"] = here.where(frame[name].notna())
    return pd.DataFrame(columns)


def back(values: np.ndarray, columns: pd.Index, train: pd.DataFrame) -> pd.DataFrame:
    """The inverse of `as_numbers`."""
    filled = pd.DataFrame(values, columns=columns)
    answer = {}
    for name in train:
        if train[name].dtype.kind in "iuf":
            answer[name] = filled[name] * train[name].std() + train[name].mean()
        else:
            mine = [c for c in columns if c.startswith(f"{name}\t")]
            best = filled[mine].to_numpy().argmax(axis=1)
            answer[name] = np.array([c.split("\t")[1] for c in mine])[best]
    return pd.DataFrame(answer)


def filled_by(method: str, train: pd.DataFrame, gaps: pd.DataFrame, seed: int) -> pd.DataFrame:
    """The rows with their gaps filled."""
    if method == "model":
        return fc.learn(train, seed=seed).impute(gaps).reset_index(drop=True)
    numbers = as_numbers(train, train)
    imputer = (
        KNNImputer(n_neighbors=10)
        if method == "nearest neighbours"
        else IterativeImputer(max_iter=20, random_state=seed)
    )
    imputer.fit(numbers)
    return back(imputer.transform(as_numbers(gaps, train)), numbers.columns, train)


def one_run(table: pd.DataFrame, seed: int) -> dict[str, tuple[float, float, float]]:
    """Of every method: error of numbers, share of categories met, seconds."""
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(table))
    cut = int(0.75 * len(table))
    train = table.iloc[order[:cut]].reset_index(drop=True)
    test = table.iloc[order[cut:][:MOST_ROWS]].reset_index(drop=True)
    removed = rng.random(test.shape) < REMOVED
    gaps = test.mask(removed)
    answer = {}
    for method in METHODS:
        start = perf_counter()
        filled = filled_by(method, train, gaps, seed)
        seconds = perf_counter() - start
        errors, met = [], []
        for at, name in enumerate(table):
            here = removed[:, at]
            found, true = filled[name][here], test[name][here]
            if table[name].dtype.kind in "iuf":
                errors.append(((found - true) / train[name].std()).to_numpy(dtype=float))
            else:
                met.append((found == true).to_numpy(dtype=float))
        error = float(np.sqrt(np.mean(np.concatenate(errors) ** 2)))
        answer[method] = error, float(np.concatenate(met).mean()), seconds
    return answer


def recorded(
    folder: Path | None, name: str, table: pd.DataFrame, seed: int
) -> dict[str, tuple[float, float, float]]:
    """A run from its record, which is made first where there is none."""
    if folder is None:
        return one_run(table, seed)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{seed}.json"
    if not path.exists():
        path.write_text(json.dumps(one_run(table, seed)))
    return dict(json.loads(path.read_text()))


def _paired(differences: np.ndarray) -> str:
    """Mean over the seeds and its standard error."""
    if not differences.any():
        return "-"
    error = differences.std(ddof=1) / np.sqrt(differences.size)
    return f"{differences.mean():+.4f} ({error:.4f})"


def main() -> None:
    """Runs everything and writes the page."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--records", type=Path, help="folder of runs done, to go on from")
    options = parser.parse_args()
    folder, records = options.data, options.records
    rows = []
    for name, table in tables(folder).items():
        runs = [recorded(records, name, table, seed) for seed in range(SEEDS)]
        of_model = np.array([run["model"] for run in runs])
        for method in METHODS:
            error, met, seconds = np.array([run[method] for run in runs]).T
            rows.append(
                (
                    name,
                    method,
                    f"{error.mean():.4f} ({error.std():.4f})",
                    f"{met.mean():.4f} ({met.std():.4f})",
                    _paired(error - of_model[:, 0]),
                    f"{seconds.mean():.1f}",
                )
            )
            print(*rows[-1], flush=True)
    write(
        "imputation",
        "Missing cells filled",
        ["table", "method", "error of numbers", "categories met", "less the model's", "seconds"],
        rows,
        "python benchmarks/imputation.py --data DATA --records FOLDER",
        [
            "A fifth of the cells of test rows removed at random; five seeds, standard deviation "
            "over the seeds in brackets.",
            "Error of numbers: root mean square over all removed cells, in standard deviations of "
            "the column in training. Categories met: share of removed categories that are right.",
            "Less the model's: error of numbers less that of the model on the same cells, and its "
            "standard error over the seeds.",
            "Seconds include fitting to the training rows.",
        ],
    )


if __name__ == "__main__":
    main()

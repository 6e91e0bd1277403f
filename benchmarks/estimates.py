"""Estimates of a model with a head for rows with missing cells: coverage of stated errors, times.

A head is asked for even where it would not be kept. Cells of test rows are hidden at random; what
1,200 completions a row say is compared with the answer and its stated standard error.
"""

from __future__ import annotations

import argparse
import time
import warnings
from typing import Any

import numpy as np
import pandas as pd

import fedcircuits as fc
import learners
import rivals
import tables

SHARES, MANY = (0.1, 0.3, 0.5), 1_200
MOST_ROWS = 15_000
DATA = ("magic", "spambase", "adult", "credit", "digits", "cancer", "housing")


def split_of(data: str, seed: int) -> tuple[pd.DataFrame, pd.DataFrame, str]:
    """Training rows, test rows and the label of a table."""
    if data == "housing":
        rows = pd.read_parquet(learners.DATA / "california_housing.parquet")
        rows = rows.sample(frac=1.0, random_state=seed)
        return rows[:MOST_ROWS], rows[MOST_ROWS:], "median_house_value"
    split = learners.LOADERS[data](seed)
    n = min(len(split.train), MOST_ROWS)
    return split.train.sample(n, random_state=seed), split.test, split.label


def answers(model: Any, rows: pd.DataFrame, label: str, number: bool) -> tuple[Any, Any]:
    """(n, k) estimates and their standard errors."""
    if number:
        mean, error = model.expectation(label, rows, with_error=True)
        return mean.to_numpy()[:, None], error.to_numpy()[:, None]
    proba, error = model.predict_proba(rows, label, with_error=True)
    return proba.to_numpy(), error.to_numpy()


def seconds(model: Any, rows: pd.DataFrame, label: str, number: bool) -> float:
    """CPU seconds of answers without errors."""
    start = time.process_time()
    if number:
        model.expectation(label, rows)
    else:
        model.predict_proba(rows, label)
    return time.process_time() - start


def measured(data: str, n_rows: int, seed: int) -> list[list[Any]]:
    """The rows of the page about one table."""
    train, test, label = split_of(data, seed)
    model: Any = fc.learn(train, label, seed=seed, head=True)
    number = data == "housing"
    found = []
    for share in SHARES:
        rng = np.random.default_rng(seed)
        batch = rivals.masked(test.iloc[:1000], label, share, rng).drop(columns=label)
        seconds(model, batch.iloc[:50], label, number)  # tables of the model are made once
        in_batch = 1e3 * seconds(model, batch, label, number) / len(batch)
        alone = np.mean([seconds(model, batch.iloc[i : i + 1], label, number) for i in range(20)])
        rows = batch.iloc[:n_rows]
        answer, error = answers(model, rows, label, number)
        few = model._completer.n_drawn
        model._completer.n_drawn = MANY
        truth, _ = answers(model, rows, label, number)
        model._completer.n_drawn = few
        drawn = error.max(axis=1) > 0
        inside = (np.abs(answer - truth) <= 1.96 * error + 1e-12)[drawn]
        top = inside[np.arange(len(inside)), answer[drawn].argmax(axis=1)]
        size = np.sqrt(np.mean((answer - truth)[drawn] ** 2))
        stated = np.sqrt(np.mean(error[drawn] ** 2))
        found.append(
            [data, f"{share:.0%}", int(drawn.sum()), few, f"{inside.mean():.1%}",
             "-" if number else f"{top.mean():.1%}", f"{size:.4g}", f"{stated:.4g}",
             f"{in_batch:.2f}", f"{1e3 * alone:.1f}"]
        )  # fmt: skip
        print(found[-1], flush=True)
    return found


def main() -> None:
    """Measure all tables and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", nargs="*", default=list(DATA))
    parser.add_argument("--rows", type=int, default=250)
    parser.add_argument("--seed", type=int, default=20)
    given = parser.parse_args()
    warnings.filterwarnings("ignore")
    rows = [row for data in given.data for row in measured(data, given.rows, given.seed)]
    tables.write(
        "estimates",
        "Estimates for rows with missing cells: stated errors and times",
        ["data", "missing", "rows estimated", "draws", "covered", "likeliest class covered",
         "root mean square error", "stated, root mean square", "ms a row, 1,000 at once",
         "ms a row alone"],
        rows,
        f"python benchmarks/estimates.py --rows {given.rows} --seed {given.seed}",
        [
            f"Covered: how many of the intervals estimate ± 1.96 stated errors contain the mean "
            f"over {MANY:,} completions, all classes counted; for housing, the mean of the label.",
            "Rows whose missing cells have at most 16 completions are summed exactly and left out.",
            f"At most {MOST_ROWS:,} training rows; CPU time of answers without errors.",
        ],
    )  # fmt: skip


if __name__ == "__main__":
    main()

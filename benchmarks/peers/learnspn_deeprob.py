"""The peer of `benchmarks/learnspn.py`: deeprob-kit's learn_spn on rows of grid states.

Runs in an environment of its own (`.bench-venv`), without fedcircuits: rows come and figures go
through files.

    .bench-venv/bin/python benchmarks/peers/learnspn_deeprob.py ROWS.npz ANSWER.json

Every leaf is a table of masses of the states that fedcircuits uses, so that log-masses compare.
Two ways to show the columns to RDC and k-means, both standardised:

- "mixed": numbers as numbers, categories as categories (indicators inside deeprob-kit);
- "numbers": categories target-encoded as well.
"""

from __future__ import annotations

import json
import platform
import sys
import time
from importlib.metadata import version
from typing import Any

import numpy as np
from deeprob.spn.algorithms.inference import log_likelihood
from deeprob.spn.learning.learnspn import learn_spn
from deeprob.spn.structure.leaf import Categorical, LeafType
from deeprob.spn.structure.node import bfs


class StateTable(Categorical):
    """Masses of the states of a column that RDC and k-means see as one number.

    deeprob-kit has no such leaf; its own histogram picks bins of its own, so that masses could not
    be compared. Fitting is the same counting (alpha = .1 a state) as that of its Categorical.
    """

    LEAF_TYPE = LeafType.CONTINUOUS
    # (s,) the number that stands for each state, by column, because learn_spn makes leaves from
    # the class and the column alone.
    numbers: dict[int, np.ndarray[Any, Any]] = {}  # noqa: RUF012

    def _states(self, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        numbers = self.numbers[self.scope[0]]
        order = np.argsort(numbers)
        ranked = numbers[order]
        return order[np.searchsorted((ranked[1:] + ranked[:-1]) / 2, x)]

    def fit(self, data: Any, _domain: Any, alpha: float = 0.1, **_: Any) -> None:
        size = self.numbers[self.scope[0]].size
        counts = np.bincount(self._states(data.reshape(-1)), minlength=size) + alpha
        self.probabilities = (counts / counts.sum()).astype(np.float32)
        self.categories = np.arange(size)

    def log_likelihood(self, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return np.log(self.probabilities[self._states(x)])


def as_numbers(
    states: np.ndarray[Any, Any], n_states: int, by: np.ndarray[Any, Any]
) -> np.ndarray[Any, Any]:
    """(s,) standardised and distinct numbers for the states, ordered by `by` (s,)."""
    apart = by + 1e-4 * np.arange(n_states) * max(float(np.ptp(by)), 1.0) / n_states
    return (apart - apart[states].mean()) / apart[states].std()


def main(rows_path: str, answer_path: str) -> None:
    """Learn, evaluate, write the figures."""
    rows = np.load(rows_path)
    cards, ordered, label = rows["cards"], rows["ordered"], int(rows["label"])
    train, test = rows["train"], rows["test"]
    shown_train, shown_test = train.astype(np.float32), test.astype(np.float32)
    distributions: list[Any] = [Categorical] * len(cards)
    domains: list[Any] = [list(range(c)) for c in cards]
    for at, n_states in enumerate(cards.tolist()):
        if not ordered[at] and str(rows["mode"]) == "mixed":
            continue
        by = np.arange(n_states, dtype=float)
        if not ordered[at]:
            count = np.bincount(train[:, at], minlength=n_states)
            by = np.bincount(train[:, at], train[:, label], minlength=n_states) / np.maximum(
                count, 1
            )
        numbers = as_numbers(train[:, at], n_states, by)
        StateTable.numbers[at] = numbers
        shown_train[:, at], shown_test[:, at] = numbers[train[:, at]], numbers[test[:, at]]
        distributions[at] = StateTable
        domains[at] = (float(numbers.min()), float(numbers.max()))
    start = time.process_time()
    root = learn_spn(
        shown_train,
        distributions,
        domains,
        split_rows="kmeans",
        split_cols="rdc",
        split_cols_kwargs={"d": float(rows["threshold"])},
        min_rows_slice=int(rows["min_instances"]),
        random_state=int(rows["seed"]),
        verbose=False,
    )
    learned = time.process_time() - start
    start = time.process_time()
    log_mass = log_likelihood(root, shown_test)
    answer = {
        "cpu_seconds": learned,
        "evaluate_cpu_seconds": time.process_time() - start,
        "nodes": len(list(bfs(root))),
        "log_mass": float(np.asarray(log_mass, dtype=np.float64).mean()),
        "versions": f"deeprob-kit {version('deeprob-kit')}, numpy {version('numpy')}, "
        f"scikit-learn {version('scikit-learn')}, Python {platform.python_version()}",
    }
    with open(answer_path, "w") as file:
        json.dump(answer, file)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])

"""Boosted trees as rivals: LightGBM on one table, and XGBoost's federated mode.

The federated mode of XGBoost (its wheel has it) adds up gradient histograms at a server: with rows
split the trees are those of one table up to sketches, with columns split only the label's owner
knows gradients. Server and clients are processes of their own in a network namespace, whose
loopback counter says how many bytes were sent; where no namespace can be made the rival is left
out.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedcircuits.arrays import FloatArray, IntArray
from fedcircuits.baselines.training import log_loss
from fedcircuits.errors import FedcircuitsError

TREE_SETTINGS: tuple[dict[str, Any], ...] = tuple(
    {"max_depth": depth, "eta": eta, "min_child_weight": least, "lambda": ridge}
    for depth, eta, least, ridge in (
        (6, 0.1, 1, 1), (4, 0.1, 1, 1), (8, 0.1, 5, 1), (6, 0.05, 5, 1), (4, 0.2, 1, 1),
        (6, 0.2, 5, 5), (8, 0.05, 10, 5), (3, 0.1, 1, 1), (5, 0.1, 10, 5), (10, 0.05, 10, 10),
    )
)  # fmt: skip
TUNED = 20
Rows = tuple[FloatArray, IntArray]


class NoNamespaceError(FedcircuitsError):
    """No network namespace can be made here, so bytes cannot be counted."""


def tree_setting(
    train: Rows,
    valid: Rows,
    settings: Sequence[dict[str, Any]] = TREE_SETTINGS,
    rounds: int = 300,
) -> dict[str, Any]:
    """Return the setting of least validation loss of XGBoost on all rows in one place.

    The federated mode grows the same trees up to sketches of the columns, so a search in one place
    finds the setting that ten federated trainings would, in a twentieth of the time.

    Args:
        train: prepared rows and classes.
        valid: of rows that are not trained on.
        settings: to choose from.
        rounds: trees at most; training ends 20 after the best one.
    """
    import xgboost

    from fedcircuits.baselines.boosted_worker import objective

    tables = [xgboost.DMatrix(*rows) for rows in (train, valid)]
    n_classes = 1 + int(train[1].max())

    def loss(setting: dict[str, Any]) -> float:
        found: dict[str, dict[str, list[float]]] = {}
        xgboost.train(
            {**objective(n_classes), **setting, "tree_method": "hist", "nthread": 1, "seed": 0},
            tables[0], rounds, evals=[(tables[1], "valid")], early_stopping_rounds=20,
            evals_result=found, verbose_eval=False,
        )  # fmt: skip
        return min(next(iter(found["valid"].values())))

    return min(settings, key=loss)


def federated_trees(
    mode: str,
    clients: Sequence[dict[str, FloatArray | IntArray]],
    settings: Sequence[dict[str, Any]] = TREE_SETTINGS,
    rounds: int = 300,
    seconds: float = 1800,
) -> dict[str, Any]:
    """Return probabilities of the test rows, bytes of the training and the setting that was taken.

    Args:
        mode: "rows" or "columns".
        clients: of each, arrays `train`, `valid` and `test` and classes `y_train` and `y_valid`;
            with columns split every client has all rows, and the first one the label.
        settings: to choose from by the validation loss.
        rounds: trees at most; training ends 20 after the best one.
        seconds: after which the training is given up.
    """
    unshare = shutil.which("unshare")
    if unshare is None or subprocess.run([unshare, "-rn", "true"], capture_output=True).returncode:
        raise NoNamespaceError(
            "federated trees are left out: `unshare -rn` makes no network namespace here"
        )
    with tempfile.TemporaryDirectory() as folder:
        for rank, arrays in enumerate(clients):
            np.savez(Path(folder) / f"{rank}.npz", **arrays)  # type: ignore[arg-type]
        task = {"mode": mode, "world": len(clients), "settings": list(settings), "rounds": rounds}
        (Path(folder) / "task.json").write_text(json.dumps(task))
        worker = f"{sys.executable} -P -m fedcircuits.baselines.boosted_worker {folder}"
        done = subprocess.run(
            [unshare, "-rn", "sh", "-c", f"ip link set lo up; exec {worker}"],
            capture_output=True,
            text=True,
            timeout=seconds,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        if done.returncode:
            raise FedcircuitsError(f"federated trees failed: {done.stderr[-500:]}")
        found: dict[str, Any] = json.loads((Path(folder) / "answer.json").read_text())
        found["proba"] = np.load(Path(folder) / "proba.npy")
    return found


def lightgbm(
    train: Rows,
    valid: Rows,
    test: FloatArray,
    categories: Sequence[int],
    *,
    tuned: bool,
    seed: int = 0,
) -> FloatArray:
    """Return probabilities of the test rows of a LightGBM, with default settings or tuned ones.

    Default: nothing is chosen, so it is trained on validation rows too.

    Tuned: 20 random settings, trees by early stopping, chosen by the loss of validation rows.
    """
    from lightgbm import LGBMClassifier, early_stopping

    rng = np.random.default_rng(seed)

    def fitted(options: dict[str, Any]) -> Any:
        model = LGBMClassifier(
            verbose=-1, n_jobs=1, random_state=seed, deterministic=True, force_row_wise=True,
            **options,
        )  # fmt: skip
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # newer versions rename `eval_set`
            return model.fit(
                *train, eval_set=[valid], callbacks=[early_stopping(30, verbose=False)],
                categorical_feature=list(categories),
            )  # fmt: skip

    if not tuned:
        model = LGBMClassifier(verbose=-1, n_jobs=1, random_state=seed)
        rows, labels = (np.concatenate(both) for both in zip(train, valid, strict=True))
        model.fit(rows, labels, categorical_feature=list(categories))
        return np.asarray(model.predict_proba(test), dtype=float)
    best, answer = np.inf, np.empty(0)
    for _ in range(TUNED):
        options = {
            "num_leaves": int(np.exp(rng.uniform(np.log(7), np.log(127)))),
            "learning_rate": float(np.exp(rng.uniform(np.log(0.02), np.log(0.2)))),
            "min_child_samples": int(rng.integers(5, 101)),
            "subsample": rng.uniform(0.5, 1),
            "subsample_freq": 1,
            "colsample_bytree": rng.uniform(0.5, 1),
            "reg_lambda": rng.uniform(0, 10),
            "n_estimators": 1000,
        }
        model = fitted(options)
        loss = log_loss(np.asarray(model.predict_proba(valid[0])), valid[1])
        if loss < best:
            best, answer = loss, np.asarray(model.predict_proba(test), dtype=float)
    return answer

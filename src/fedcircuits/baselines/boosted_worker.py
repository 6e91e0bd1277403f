"""One federated training of XGBoost: a server and its clients, as processes of this one.

    python -m fedcircuits.baselines.boosted_worker FOLDER

`boosted.federated_trees` writes the folder and starts this in a network namespace of its own.
"""

from __future__ import annotations

import json
import multiprocessing
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import xgboost
from xgboost import collective, federated

PORT = 19100
COLUMNS = 1  # DataSplitMode.COL of XGBoost


def sent_bytes() -> int:
    """Return the bytes that were sent over the loopback interface of this namespace."""
    lines = Path("/proc/net/dev").read_text().splitlines()
    line = next(line for line in lines if line.strip().startswith("lo:"))
    return int(line.split(":")[1].split()[8])


def objective(n_classes: int) -> dict[str, Any]:
    """Return the loss that XGBoost trains and reports for so many classes."""
    if n_classes == 2:
        return {"objective": "binary:logistic", "eval_metric": "logloss"}
    return {"objective": "multi:softprob", "eval_metric": "mlogloss", "num_class": n_classes}


def client(folder: Path, rank: int, task: dict[str, Any]) -> None:
    """Train with every setting; the first client writes the answer of the best one."""
    arrays = np.load(folder / f"{rank}.npz")
    by_columns = task["mode"] == "columns"
    where = {"data_split_mode": COLUMNS} if by_columns else {}
    labelled = not by_columns or rank == 0

    def matrix(part: str) -> xgboost.DMatrix:
        y = arrays[f"y_{part}"] if labelled and f"y_{part}" in arrays else None
        return xgboost.DMatrix(arrays[part], y, **where)

    n_classes = int(task["classes"])
    address = {
        "dmlc_communicator": "federated",
        "federated_server_address": f"127.0.0.1:{PORT}",
        "federated_world_size": task["world"],
        "federated_rank": rank,
    }
    best: tuple[float, dict[str, Any]] = (np.inf, {})
    proba = np.empty(0)
    with collective.CommunicatorContext(**address):
        train, valid, test = matrix("train"), matrix("valid"), matrix("test")
        for setting in task["settings"]:
            start = sent_bytes()
            found: dict[str, dict[str, list[float]]] = {}
            model = xgboost.train(
                {**objective(n_classes), **setting, "tree_method": "hist", "nthread": 1, "seed": 0},
                train,
                task["rounds"],
                evals=[(valid, "valid")],
                early_stopping_rounds=20,
                evals_result=found,
                verbose_eval=False,
            )
            moved = sent_bytes() - start
            loss = min(next(iter(found["valid"].values())))
            answer = model.predict(test, iteration_range=(0, model.best_iteration + 1))
            if loss < best[0]:
                proba = answer if n_classes > 2 else np.stack([1 - answer, answer], axis=1)
                trees = model.best_iteration + 1
                best = (loss, {"setting": setting, "bytes": moved, "trees": trees})
    if rank == 0:
        (folder / "answer.json").write_text(json.dumps({**best[1], "validation": best[0]}))
        np.save(folder / "proba.npy", proba.astype(float))


def main(folder: Path) -> int:
    """Start server and clients, wait for the clients, stop the server."""
    task = json.loads((folder / "task.json").read_text())
    labels = [np.load(folder / f"{rank}.npz") for rank in range(task["world"])]
    task["classes"] = 1 + max(int(a["y_train"].max()) for a in labels if "y_train" in a)
    start = multiprocessing.get_context("spawn")
    server = start.Process(target=federated.run_federated_server, args=(task["world"], PORT))
    server.start()
    time.sleep(1.0)
    clients = [start.Process(target=client, args=(folder, r, task)) for r in range(task["world"])]
    for each in clients:
        each.start()
    for each in clients:
        each.join()
    server.terminate()
    server.join()
    return max(abs(each.exitcode or 0) for each in clients)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))

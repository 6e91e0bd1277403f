"""What an engine costs: start-up, bytes and seconds of one training with three clients.

The same federation on every engine, rows split and columns split; the model must be the same bit
for bit, else the row says so. Engines whose package is not installed are left out with the reason.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import psutil

import fedcircuits as fc
import tables
from fedcircuits.api import datasets, partition
from fedcircuits.engines import ENGINES, LATER, engine_named

COLUMNS = (
    "split", "engine", "start-up s", "training s", "closing s", "all s", "over local s",
    "CPU s", "bytes", "same model", "s for a remote query",
)  # fmt: skip
N_FEATURES = 12
Clients = dict[str, pd.DataFrame]


def splits() -> dict[str, tuple[Clients, dict[str, Any], pd.DataFrame]]:
    """Clients, options of federate and rows to ask about, by name."""
    split = datasets.cancer()
    label = split.label
    features = [name for name in split.train.columns if name != label][:N_FEATURES]
    rows = split.train[[*features, label]].reset_index(drop=True)
    groups = {name: features[at::3] for at, name in enumerate(("a", "b", "c"))}
    return {
        "rows": (partition.iid(rows, 3), {"label": label}, rows),
        "columns": (
            partition.columns(rows, groups, label=label, share_label=True),
            {"label": label, "id": partition.ID, "agreement": "product"},
            rows,
        ),
    }


def cpu_seconds() -> float:
    """Of this process and of all that it has started."""
    total = 0.0
    for process in [psutil.Process(), *psutil.Process().children(recursive=True)]:
        with contextlib.suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            total += times.user + times.system
    return total


def timed(name: str, marks: dict[str, float]) -> str | Callable[..., Any]:
    """An engine that notes when it was started and when closing began."""
    if name == "local":
        return name
    kind = engine_named(name)

    def start(specs: Any, make: str) -> Any:
        before = time.perf_counter()
        engine = kind(specs, make)
        marks["start"] = time.perf_counter() - before
        close = engine.close

        def closing() -> None:
            marks["CPU"] = cpu_seconds()
            marks["closing"] = time.perf_counter()
            close()
            marks["closing"] = time.perf_counter() - marks["closing"]

        engine.close = closing
        return engine

    return start


def measure(
    name: str, clients: Clients, options: dict[str, Any], rows: pd.DataFrame, folder: Path
) -> tuple[dict[str, Any], bytes]:
    marks = {"start": 0.0, "closing": 0.0}
    before, used = time.perf_counter(), cpu_seconds()
    fed = fc.federate(clients, engine=timed(name, marks), **options)
    whole = time.perf_counter() - before
    marks.setdefault("CPU", cpu_seconds())
    fed.save(folder / "model.fc")
    remote = fc.federate(clients, engine=name, placement="remote", **options)
    try:
        remote.log_prob(rows.head(5))
        before = time.perf_counter()
        answer = np.asarray(remote.log_prob(rows))
        query = time.perf_counter() - before
    finally:
        remote.close()
    apart = float(np.abs(answer - np.asarray(fed.log_prob(rows))).max())
    assert apart < 1e-9, f"{name}: remote answers are {apart} from those of the gathered model"
    found = {
        "start-up s": marks["start"],
        "training s": whole - marks["start"] - marks["closing"],
        "closing s": marks["closing"],
        "all s": whole,
        "CPU s": marks["CPU"] - used,
        "bytes": fed.ledger.n_bytes,
        "s for a remote query": query,
    }
    return found, (folder / "model.fc").read_bytes()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engines", nargs="+", default=[*ENGINES, *LATER])
    told = parser.parse_args()
    rows, notes = [], [f"Load of the machine before the run: {os.getloadavg()[0]:.1f}."]
    for split, (clients, options, asked) in splits().items():
        local: tuple[dict[str, Any], bytes] | None = None
        for name in dict.fromkeys(["local", *told.engines]):
            try:
                engine_named(name)
            except fc.FedcircuitsError as error:
                notes.append(f"{name} is left out: {error}")
                continue
            with tempfile.TemporaryDirectory() as folder:
                found, model = measure(name, clients, options, asked, Path(folder))
            local = local or (found, model)
            found |= {
                "split": split,
                "engine": name,
                "over local s": found["all s"] - local[0]["all s"],
                "same model": "yes" if model == local[1] else "NO",
            }
            rows.append([found[column] for column in COLUMNS])
    tables.write(
        "engines",
        "Engines: the same training, three clients on one machine",
        COLUMNS,
        rows,
        "python benchmarks/engines.py",
        [
            f"Breast cancer data, {len(asked)} training rows of {N_FEATURES} columns, default "
            "learner, rule `product`; the remote query is the log-density of all rows, one message "
            "to each client.",
            "CPU seconds: of the program and of all processes that it started, before they "
            "are closed.",
            "Clients of `local` work one after the other in one process, those of the others at "
            "once.",
            *dict.fromkeys(notes),
        ],
    )


if __name__ == "__main__":
    main()

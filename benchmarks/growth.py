"""How cost grows: rows, columns, categories and classes of a table, files, and clients.

Every case runs in a process of its own, so that its peak memory is its own, and leaves a line in
--records; cases that are there are not run again. The page is made of all of them.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

import fedcircuits as fc
import growth_page

TEST_ROWS = 2_000
# What grows, its sizes, and of what kind the table is.
SIZES = {
    "rows": [1_000, 10_000, 100_000],
    "columns": [20, 200, 2_000],
    "categories": [50, 500, 5_000],
    "classes": [5, 50, 500, 5_000],
    "clients": [5, 20, 80, 200, 1_000],
    "small clients": [5, 20, 80, 200],
    "Ray clients": [20, 200, 1_000],
    "file": [100_000, 400_000],
}


def mixed_table(n: int, seed: int = 0) -> pd.DataFrame:
    """15 numbers, 8 counts and 7 categories driven by three hidden numbers, and a yes or no."""
    rng = np.random.default_rng(seed)
    hidden = rng.normal(size=(n, 3))
    columns: dict[str, object] = {}
    for j in range(15):
        noise = rng.normal(size=n)
        x = hidden[:, j % 3] * (0.3 + 0.1 * j) + noise
        columns[f"number{j}"] = np.exp(x) if j % 5 == 0 else x
    for j in range(8):
        columns[f"count{j}"] = rng.poisson(np.exp(0.5 * hidden[:, j % 3] + 0.2 * j))
    for j in range(7):
        n_kinds = 3 + 4 * j
        shifted = hidden[:, j % 3] + 0.8 * rng.normal(size=n)
        kind = np.clip((shifted + 3) / 6 * n_kinds, 0, n_kinds - 1).astype(int)
        columns[f"kind{j}"] = pd.Categorical.from_codes(
            kind, [f"k{i}" for i in range(n_kinds)]
        ).astype(str)
    logit = hidden[:, 0] + 0.5 * hidden[:, 1] * hidden[:, 2]
    columns["label"] = np.where(rng.random(n) < 1 / (1 + np.exp(-logit)), "yes", "no")
    return pd.DataFrame(columns)


def wide_table(n: int, n_columns: int) -> pd.DataFrame:
    """Half numbers, half of two categories, driven by five hidden numbers, and a yes or no."""
    rng = np.random.default_rng(0)
    hidden = rng.normal(size=(n, 5))
    columns: dict[str, object] = {}
    for j in range(n_columns):
        x = hidden[:, j % 5] + rng.normal(size=n)
        columns[f"column{j}"] = x if j % 2 == 0 else np.where(x > 0, "a", "b")
    logit = hidden[:, 0] + 0.5 * hidden[:, 1] * hidden[:, 2]
    columns["label"] = np.where(rng.random(n) < 1 / (1 + np.exp(-logit)), "yes", "no")
    return pd.DataFrame(columns)


def table_of_kinds(n: int, n_kinds: int) -> pd.DataFrame:
    """A column of so many categories, three numbers and a yes or no, driven by two numbers."""
    rng = np.random.default_rng(0)
    hidden = rng.normal(size=(n, 2))
    rank = np.argsort(np.argsort(hidden[:, 0]))
    return pd.DataFrame(
        {
            "kind": [f"k{k}" for k in rank * n_kinds // n],
            "x": hidden[:, 0] + rng.normal(size=n),
            "z": hidden[:, 1],
            "w": hidden[:, 1] + rng.normal(size=n),
            "label": np.where(hidden.sum(axis=1) + rng.normal(size=n) > 0, "yes", "no"),
        }
    )


def learned(rows: pd.DataFrame, label: str) -> dict[str, Any]:
    """Learn from all but the last rows, and answer about those."""
    train, test = rows.iloc[:-TEST_ROWS], rows.iloc[-TEST_ROWS:]
    found, model = measured(lambda: fc.learn(train, label=label, seed=0))
    # What the states of all cells take as whole numbers of four bytes.
    return {**found, "coded": 4 * train.size, **answers(model, test, label)}


def measured(work: Callable[[], Any]) -> tuple[dict[str, Any], Any]:
    """CPU and wall seconds and what the peak of memory rose by, in bytes; modules loaded before."""
    fc.learn(mixed_table(200), label="label")
    before = peak()
    wall, start = time.perf_counter(), time.process_time()
    made = work()
    return {
        "cpu": time.process_time() - start,
        "wall": time.perf_counter() - wall,
        "peak": peak(),
        "rise": peak() - before,
        "parameters": made.n_parameters,
    }, made


def peak() -> int:
    """Most memory of this process so far, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def answers(model: Any, test: pd.DataFrame, label: str) -> dict[str, Any]:
    """CPU microseconds a row of three questions, the model prepared before."""
    questions: dict[str, Callable[[pd.DataFrame], Any]] = {
        "log_prob": lambda rows: model.log_prob(rows, unknown="missing"),
        "predict": lambda rows: model.predict_proba(rows, label, unknown="missing"),
        "sample": lambda rows: model.sample(len(rows), seed=0),
    }
    found = {}
    for name, ask in questions.items():
        ask(test.head(2))
        start = time.process_time()
        ask(test)
        found[name] = 1e6 * (time.process_time() - start) / len(test)
    return found


def federated(n_clients: int, n_rows: int, engine: str) -> dict[str, Any]:
    """Federate clients of so many rows of the mixed table."""
    rows = mixed_table(n_clients * n_rows + TEST_ROWS)
    test = rows.iloc[-TEST_ROWS:]
    parts = {f"{i:05d}": rows.iloc[i * n_rows : (i + 1) * n_rows] for i in range(n_clients)}
    options = {"clients_per_process": max(n_clients // 8, 1)} if engine == "ray" else None
    all_memory: list[int] = []
    if engine == "ray":  # clients have processes of their own
        threading.Thread(target=watch, args=(all_memory,), daemon=True).start()
    found, model = measured(
        lambda: fc.federate(parts, label="label", engine=engine, engine_options=options, seed=0)
    )
    sent = sum(entry.n_bytes for entry in model.ledger.entries)
    found |= {"sent": sent, "all": max(all_memory, default=0)}
    return {**found, **answers(model, test, "label")}


def watch(found: list[int]) -> None:
    """Note every two seconds how much memory this process and all it has started take, in bytes."""
    while True:
        found.append(memory_of_all(os.getpid()))
        time.sleep(2)


def memory_of_all(root: int) -> int:
    """Memory of a process and its descendants, in bytes; pages that several share are divided."""
    parent = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        parent[int(folder.name)] = int(words[1])
    total = 0
    for number in parent:
        at = number
        while at not in (root, 0):
            at = parent.get(at, 0)
        if at != root:
            continue
        try:
            lines = Path(f"/proc/{number}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        total += next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return 1024 * total


def from_file(n: int) -> dict[str, Any]:
    """Learn from a Parquet file of n rows, in pieces that differ in seed; 50,000 in memory."""
    with tempfile.TemporaryDirectory() as folder:
        path, piece = Path(folder) / "rows.parquet", min(n, 100_000)
        with pq.ParquetWriter(path, pa.Table.from_pandas(mixed_table(2)).schema) as file:
            for number in range(n // piece):
                file.write_table(pa.Table.from_pandas(mixed_table(piece, number)))
        found, model = measured(
            lambda: fc.learn(path, label="label", seed=0, rows_in_memory=50_000)
        )
    test = mixed_table(TEST_ROWS, 1_000_000)
    return {**found, "coded": 4 * n * len(test.columns), **answers(model, test, "label")}


CASES: dict[str, Callable[[int], dict[str, Any]]] = {
    "rows": lambda n: learned(mixed_table(n + TEST_ROWS), "label"),
    "columns": lambda d: learned(wide_table(500 + TEST_ROWS, d), "label"),
    "categories": lambda k: learned(table_of_kinds(20_000 + TEST_ROWS, k), "label"),
    "classes": lambda k: learned(table_of_kinds(20_000 + TEST_ROWS, k), "kind"),
    "clients": lambda k: federated(k, 100, "local"),
    "small clients": lambda k: federated(k, 10, "local"),
    "Ray clients": lambda k: federated(k, 100, "ray"),
    "file": from_file,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--what", nargs="*", choices=list(SIZES), default=list(SIZES))
    parser.add_argument("--sizes", type=int, nargs="*", help="instead of the usual ones")
    parser.add_argument("--records", type=Path, default=Path("build/growth.jsonl"))
    parser.add_argument("--no-page", action="store_true", help="run and record only")
    parser.add_argument("--one", nargs=2, metavar=("WHAT", "SIZE"), help="in this process, as JSON")
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore")
    if arguments.one is not None:
        what, size = arguments.one
        print(json.dumps(CASES[what](int(size))))
        return
    arguments.records.parent.mkdir(parents=True, exist_ok=True)
    done = growth_page.read(arguments.records)
    for what in arguments.what:
        for size in arguments.sizes or SIZES[what]:
            if any((each["what"], each["size"]) == (what, size) for each in done):
                continue
            command = [sys.executable, __file__, "--one", what, str(size)]
            ran = subprocess.run(command, capture_output=True, text=True, check=False)
            if ran.returncode != 0:
                sys.exit(f"{what} {size} failed:\n{ran.stderr}")
            found = json.loads(ran.stdout.strip().splitlines()[-1])
            with arguments.records.open("a") as file:
                file.write(json.dumps({"what": what, "size": size, **found}) + "\n")
            print(what, size, {k: round(v, 2) for k, v in found.items()}, flush=True)
    if not arguments.no_page:
        growth_page.write(growth_page.read(arguments.records))


if __name__ == "__main__":
    main()

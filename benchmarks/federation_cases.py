"""What the federation benchmark runs: every case is one dictionary of figures.

A task is a data set, a case and a seed. `run` loads the data, makes the split, trains, scores on
the held-out rows and gives plain numbers, so that tasks can run in any order and in any process.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.metrics import accuracy_score, f1_score, roc_auc_score

import fedcircuits as fc
import tables
from fedcircuits.api import datasets
from fedcircuits.federation.client.client import Client
from federation_splits import ID, Clients, both_split, columns_split, rows_split, synthetic

DATA = Path(os.environ.get("FEDCIRCUITS_DATA", tables.ROOT.parent / "shared" / "data"))
SHARED = {"id": ID, "agreement": "product"}
NAIVE = {"agreement": "independent", "glueing": "naive", "n_clusters": 1}
TIME, GROWTH = "time", "growth"


@dataclass(frozen=True)
class Task:
    """One thing to run: a data set, the name of a case, and a seed."""

    data: str
    case: str
    seed: int

    @property
    def cost(self) -> float:
        """A guess at its CPU seconds, to start long ones first."""
        if self.case.startswith(GROWTH):
            return float(self.case.split()[1].replace(",", "")) / 5000
        seconds = {"adult": 15.0, "credit": 30.0, "magic": 15.0, "cancer": 5.0}[self.data]
        slow = {"joint": 6.0, "latent": 2.0, "auto": 3.0, "10 clients": 2.0}
        return seconds * max([1.0, *(by for word, by in slow.items() if word in self.case)])


@cache
def load(data: str, seed: int) -> datasets.Split:
    """Training and test rows; Adult has a fixed split, the others are drawn by the seed."""
    if data == "adult":
        return datasets.adult(DATA)
    if data == "magic":
        return datasets.magic(DATA, seed)
    return datasets.credit(DATA, seed) if data == "credit" else datasets.cancer(seed)


@cache
def grid_of(data: str, seed: int) -> fc.Schema:
    """One grid for all models of a data set, so that their log-masses compare."""
    split = load(data, seed)
    table = fc.Schema.infer(split.train, {split.label: "categorical"}).encode(split.train)
    return table.schema.with_grids(table)


# --- cases ----------------------------------------------------------------------------------------

Make = Callable[[datasets.Split, int], Clients]


def federations() -> dict[str, tuple[Make, dict[str, Any]]]:
    """Every federation by name: how the clients' tables are made, and the options."""
    found: dict[str, tuple[Make, dict[str, Any]]] = {}
    for n, how in ((5, "iid"), (10, "iid"), (5, "dirichlet"), (5, "one class")):
        found[f"rows, {n} clients, {how}"] = (
            lambda split, seed, n=n, how=how: rows_split(split, n, how, seed),
            {},
        )
    for name, n in (("rows, 5 clients, iid, joint", 5), ("all rows at one client, joint", 1)):
        found[name] = (
            lambda split, seed, n=n: rows_split(split, n, "iid", seed),
            {"agreement": "joint"},
        )
    for n in (2, 3):
        found[f"columns, {n} clients, label shared"] = (
            lambda split, seed, n=n: columns_split(split, n, seed),
            SHARED,
        )
    two: Make = lambda split, seed: columns_split(split, 2, seed)  # noqa: E731
    for rule in ("auto", "product", "latent", "joint"):
        name = f"columns, 2 clients, label on one, {rule}"
        found[name] = (two, {"id": ID, "agreement": rule})
    table = {"id": ID, "agreement": "latent", "table": True}
    found["columns, 2 clients, label on one, latent from a table"] = (two, table)
    found["columns, 2 clients, label on one, independent"] = (two, {"id": ID, **NAIVE})
    private = {"id": ID, "agreement": "latent", "label_use": "used"}
    found["columns, 2 clients, label private, latent"] = (two, private)
    for shared in (True, False):
        for rule in ("auto", "product", "latent", "anchors"):
            told = "label shared" if shared else "label on one"
            found[f"both, 2 clients, {told}, {rule}"] = (
                lambda split, seed, shared=shared: both_split(split, shared, seed),
                {"id": ID, "agreement": rule},
            )
    return found


BASELINES: dict[str, Make] = {
    "centralised": lambda split, _: {"c0": split.train},
    "one client of 5 (rows)": lambda split, seed: rows_split(split, 5, "iid", seed),
    "the label's owner of 2 (columns)": lambda split, seed: columns_split(split, 2, seed),
    "the label's owner of 2 (both)": lambda split, seed: both_split(split, False, seed),
}
GROWTH_ROWS = (10_000, 100_000, 1_000_000)
GROWTH_LEARNERS = ("hclt", "mixture")
BESIDE_SEEDS = 2


def tasks(seeds: int, data: list[str]) -> list[Task]:
    """Every task, long ones first; cases without a floor take fewer seeds and come last."""
    names = [*BASELINES, *federations()]
    found = [
        Task(d, case, seed)
        for d in data
        for case in names
        for seed in range(min(seeds, BESIDE_SEEDS) if beside(d, case) else seeds)
    ]
    if "adult" in data:
        found += [Task("adult", TIME, seed) for seed in range(seeds)]
        found += [
            Task("synthetic", f"{GROWTH} {n:,} rows, {learner}", 0)
            for n in GROWTH_ROWS
            for learner in GROWTH_LEARNERS
        ]
    return sorted(found, key=lambda task: (beside(task.data, task.case), -task.cost))


def beside(data: str, case: str) -> bool:
    """Whether a case only stands beside others: no floor, and dear where rows are many."""
    words = ("from a table", "private", "all rows at one client", "anchors")
    return data != "cancer" and any(word in case for word in words)


def run(task: Task) -> dict[str, Any]:
    """The figures of one task."""
    if task.case.startswith(GROWTH):
        return grown(task)
    split, schema = load(task.data, task.seed), grid_of(task.data, task.seed)
    if task.case == TIME:
        return timed(split, schema, task.seed)
    if task.case in BASELINES:
        return alone(BASELINES[task.case](split, task.seed)["c0"], split, task.seed, schema)
    make, options = federations()[task.case]
    return federated(make(split, task.seed), options, split, task.seed, schema)


# --- figures --------------------------------------------------------------------------------------


def log_mass(model: fc.Density, rows: pd.DataFrame) -> float:
    """Mean log-mass of the rows' grid states."""
    table = model.schema.encode(rows, unknown="missing")
    total = model.log_prob_table(table)
    for at, variable in enumerate(model.schema):
        if variable.grid is not None:
            seen = table.observed[:, at]
            total[seen] -= variable.grid.log_within(table.values[seen, at])
    return float(total.mean())


def scored(model: fc.Density, split: datasets.Split) -> dict[str, Any]:
    """Accuracy, macro-F1 and AUC of the label, and the density, on the test rows."""
    rows = split.test[[c for c in split.test.columns if c in model.schema.names]]
    truth = (split.test[split.label] == split.positive).to_numpy()
    proba = model.predict_proba(rows.drop(columns=split.label), split.label, unknown="missing")
    positive = proba[split.positive].to_numpy()
    return {
        "accuracy": float(accuracy_score(truth, positive > 0.5)),
        "macro-F1": float(f1_score(truth, positive > 0.5, average="macro")),
        "AUC": float(roc_auc_score(truth, positive)),
        "log-mass": log_mass(model, rows),
        "parameters": model.n_parameters,
    }


def alone(
    frame: pd.DataFrame, split: datasets.Split, seed: int, schema: fc.Schema
) -> dict[str, Any]:
    """One learner on one table."""
    rows = frame.drop(columns=ID, errors="ignore")
    mine = schema.select([name for name in schema.names if name in rows.columns])
    start = time.process_time()
    model = fc.learn(rows, label=split.label, seed=seed, schema=mine)
    seconds = time.process_time() - start
    return {**scored(model, split), "CPU s": seconds}


@contextmanager
def clients_clocked() -> Iterator[dict[str, float]]:
    """CPU seconds of every client of this process, over all messages it answers."""
    seconds: dict[str, float] = {}
    plain = Client.handle

    def handle(self: Client, verb: str, payload: bytes) -> bytes:
        start = time.process_time()
        answer = plain(self, verb, payload)
        seconds[self.name] = seconds.get(self.name, 0.0) + time.process_time() - start
        return answer

    Client.handle = handle  # type: ignore[method-assign]
    try:
        yield seconds
    finally:
        Client.handle = plain  # type: ignore[method-assign]


def trained(
    clients: Clients, options: dict[str, Any], label: str, seed: int, schema: fc.Schema | None
) -> tuple[Any, dict[str, float]]:
    """A federation, and CPU seconds: in all, of the slowest client, of the server."""
    with clients_clocked() as seconds:
        start = time.process_time()
        fed = fc.federate(
            clients, label=label, seed=seed, schema=schema, trust="one owner", **options
        )
        total = time.process_time() - start
    slowest = max(seconds.values())
    server = total - sum(seconds.values())
    return fed, {"CPU s": total, "slowest client, CPU s": slowest, "server, CPU s": server}


def federated(
    clients: Clients,
    options: dict[str, Any],
    split: datasets.Split,
    seed: int,
    schema: fc.Schema,
) -> dict[str, Any]:
    """One federation: quality, time and bytes."""
    fed, seconds = trained(clients, options, split.label, seed, schema)
    moved = fed.ledger.table(["phase", "direction"])
    by_phase = {
        f"{p}, {d}": int(n) for p, d, n in moved[["phase", "direction", "bytes"]].to_numpy()
    }
    found = fed.fitted
    return {
        **scored(fed, split),
        **seconds,
        "bytes": fed.ledger.n_bytes,
        "bytes by phase": by_phase,
        "aligned rows": _aligned(clients),
        "clients": len(clients),
        "rule": fed.rule.name,
        "tilt": bool(found.tilts),
        "scores": fed.why.scores,
    }


def _aligned(clients: Clients) -> int:
    """Rows that two or more clients hold."""
    if not all(ID in frame.columns for frame in clients.values()):
        return 0
    counts = pd.concat([frame[ID] for frame in clients.values()]).value_counts()
    return int((counts > 1).sum())


def timed(split: datasets.Split, schema: fc.Schema, seed: int) -> dict[str, Any]:
    """Centralised training and two federations one after the other in one process."""
    start = time.process_time()
    fc.learn(split.train, label=split.label, seed=seed, schema=schema)
    answer: dict[str, Any] = {"centralised, CPU s": time.process_time() - start}
    for name, clients, options in (
        ("rows, 5 clients", rows_split(split, 5, "iid", seed), {}),
        ("columns, 2 clients", columns_split(split, 2, seed), SHARED),
    ):
        _, seconds = trained(clients, options, split.label, seed, schema)
        answer |= {f"{name}: {what}": value for what, value in seconds.items()}
    return answer


def grown(task: Task) -> dict[str, Any]:
    """CPU seconds on a made-up table: rows over five clients, and columns over two."""
    _, n, _, learner = task.case.replace(",", "").split()
    split = synthetic(int(n), task.seed)
    answer: dict[str, Any] = {"rows": int(n), "learner": learner}
    for name, clients, options in (
        ("rows, 5 clients", rows_split(split, 5, "iid", task.seed), {}),
        ("columns, 2 clients", columns_split(split, 2, task.seed), SHARED),
    ):
        _, seconds = trained(clients, {**options, "learner": learner}, split.label, task.seed, None)
        answer |= {f"{name}: {what}": value for what, value in seconds.items()}
    answer["CPU s"] = float(np.sum([v for k, v in answer.items() if k.endswith(": CPU s")]))
    return answer

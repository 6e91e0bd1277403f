"""Federations of Adult, Give Me Some Credit and Cancer beside centralised and single clients.

Rows split (iid, Dirichlet, one class a client), columns split (label shared, label on one client)
and both (30 % of the columns shared, 40 % of the rows aligned). Held-out test rows; every choice is
made on rows inside the training part. Rows that lose are kept.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.metrics import accuracy_score, f1_score, roc_auc_score

import fedcircuits as fc
import tables
from fedcircuits import datasets

DATA = Path(os.environ.get("FEDCIRCUITS_DATA", tables.ROOT.parent / "shared" / "data"))
ID = "row_id"
Clients = dict[str, pd.DataFrame]
Case = tuple[str, Clients, dict[str, Any]]  # name, clients, options of federate


def log_mass(model: fc.Density, rows: pd.DataFrame) -> float:
    """Mean log-mass of the rows' grid states."""
    table = model.schema.encode(rows, unknown="missing")
    total = model.log_prob_table(table)
    for at, variable in enumerate(model.schema):
        if variable.grid is not None:
            seen = table.observed[:, at]
            total[seen] -= variable.grid.log_within(table.values[seen, at])
    return float(total.mean())


def scored(model: fc.Density, split: datasets.Split, seconds: dict[str, float]) -> dict[str, Any]:
    rows = split.test[[c for c in split.test.columns if c in model.schema.names]]
    truth = (split.test[split.label] == split.positive).to_numpy()
    proba = model.predict_proba(rows.drop(columns=split.label), split.label, unknown="missing")
    positive = proba[split.positive].to_numpy()
    return {
        "accuracy": accuracy_score(truth, positive > 0.5),
        "macro-F1": f1_score(truth, positive > 0.5, average="macro"),
        "AUC": roc_auc_score(truth, positive),
        "log-mass": log_mass(model, rows),
        "parameters": model.n_parameters,
        **seconds,
    }


# --- splits ---------------------------------------------------------------------------------------


def rows_split(split: datasets.Split, n: int, how: str, seed: int) -> Clients:
    """Rows over n clients: iid, Dirichlet(.3) over the classes, or one class a client."""
    rng, frame = np.random.default_rng(seed), split.train
    label = frame[split.label].to_numpy()
    owner = rng.permutation(np.arange(len(frame)) % n)
    if how == "dirichlet":
        for value in np.unique(label):
            share = rng.dirichlet(np.full(n, 0.3))
            mine = np.flatnonzero(label == value)
            owner[mine] = rng.choice(n, size=mine.size, p=share)
    if how == "one class":
        n_positive = max(1, n // 2)
        positive = label == split.positive
        owner = np.where(positive, owner % n_positive, n_positive + owner % (n - n_positive))
    return {f"c{i}": frame[owner == i].reset_index(drop=True) for i in range(n)}


def columns_of(split: datasets.Split, n: int, rng: np.random.Generator) -> list[list[str]]:
    names = [c for c in split.train.columns if c != split.label]
    return [list(part) for part in np.array_split(rng.permutation(names), n)]


def columns_split(split: datasets.Split, n: int, seed: int) -> Clients:
    """Columns over n clients at random; the first has the label."""
    frame = split.train.assign(**{ID: np.arange(len(split.train))})
    parts = columns_of(split, n, np.random.default_rng(seed))
    return {
        f"c{i}": frame[[ID, *names, *([split.label] if i == 0 else [])]]
        for i, names in enumerate(parts)
    }


def both_split(split: datasets.Split, share_label: bool, seed: int) -> Clients:
    """Two clients: 30 % of the columns at both, 40 % of the rows at both."""
    rng = np.random.default_rng(seed)
    frame = split.train.assign(**{ID: np.arange(len(split.train))})
    names = rng.permutation([c for c in split.train.columns if c != split.label])
    n_shared = max(1, round(0.3 * names.size))
    shared, rest = list(names[:n_shared]), np.array_split(names[n_shared:], 2)
    order = rng.permutation(len(frame))
    first, both, second = np.split(order, [int(0.3 * len(frame)), int(0.7 * len(frame))])
    label = [split.label]
    return {
        "c0": frame.iloc[np.sort(np.r_[first, both])][[ID, *shared, *rest[0], *label]],
        "c1": frame.iloc[np.sort(np.r_[both, second])][
            [ID, *shared, *rest[1], *(label if share_label else [])]
        ],
    }


def cases(split: datasets.Split, seed: int) -> Iterator[Case]:
    """Every federation of one data set."""
    for n, how in ((5, "iid"), (10, "iid"), (5, "dirichlet"), (5, "one class")):
        yield f"rows, {n} clients, {how}", rows_split(split, n, how, seed), {}
    for n in (2, 3):
        options = {"id": ID, "share_label": True, "agreement": "product"}
        yield f"columns, {n} clients, label shared", columns_split(split, n, seed), options
    for rule in ("product", "latent", "auto", "counts", "latent-table"):
        yield (
            f"columns, 2 clients, label on one, {rule}",
            columns_split(split, 2, seed),
            {"id": ID, "agreement": rule},
        )
    private = {"id": ID, "agreement": "latent", "label_private": True}
    yield "columns, 2 clients, label private, latent", columns_split(split, 2, seed), private
    for shared in (True, False):
        told = "label shared" if shared else "label on one"
        for rule in ("product", "latent", "anchors"):
            yield (
                f"both, 2 clients, {told}, {rule}",
                both_split(split, shared, seed),
                {"id": ID, "agreement": rule},
            )
    for rule, more in (("independent", {"glueing": "naive", "n_clusters": 1}), ("joint", {})):
        yield (
            f"columns, 2 clients, label on one, {rule}",
            columns_split(split, 2, seed),
            {"id": ID, "agreement": rule, **more},
        )


def run(case: Case, split: datasets.Split, seed: int, schema: fc.Schema) -> dict[str, Any]:
    _, clients, options = case
    start = time.process_time()
    fed = fc.federate(clients, label=split.label, seed=seed, schema=schema, **options)
    total = time.process_time() - start
    found = fed.ingredients
    answer = scored(
        fed,
        split,
        {
            "CPU s": total,
            "slowest client, CPU s": max(found.seconds.values()),
            "bytes": fed.ledger.n_bytes,
        },
    )
    answer["rule"] = fed.rule.name
    answer["calibrated"] = found.calibration is not None
    answer["scores"] = found.scores
    return answer


def grid_of(split: datasets.Split) -> fc.Schema:
    """One grid for all models of a data set, so that their log-masses compare."""
    table = fc.Schema.infer(split.train, {split.label: "categorical"}).encode(split.train)
    return table.schema.with_grids(table)


def alone(
    frame: pd.DataFrame, split: datasets.Split, seed: int, schema: fc.Schema
) -> dict[str, Any]:
    """One learner on one table."""
    rows = frame.drop(columns=ID, errors="ignore")
    mine = schema.select([name for name in schema.names if name in rows.columns])
    start = time.process_time()
    model = fc.learn(rows, label=split.label, seed=seed, schema=mine)
    return scored(model, split, {"CPU s": time.process_time() - start})


def baselines(split: datasets.Split, seed: int) -> Iterator[tuple[str, pd.DataFrame]]:
    yield "centralised", split.train
    yield "one client of 5 (rows)", rows_split(split, 5, "iid", seed)["c0"]
    yield "the label's owner of 2 (columns)", columns_split(split, 2, seed)["c0"]
    yield "the label's owner of 2 (both)", both_split(split, False, seed)["c0"]


# --- table ----------------------------------------------------------------------------------------

COLUMNS = ("accuracy", "macro-F1", "AUC", "log-mass", "CPU s", "slowest client, CPU s", "bytes")


def table_rows(done: list[dict[str, Any]]) -> list[list[Any]]:
    rows = []
    for data, case in dict.fromkeys((d["data"], d["case"]) for d in done):
        runs = [d for d in done if (d["data"], d["case"]) == (data, case)]
        rules = ", ".join(sorted({r["rule"] for r in runs if "rule" in r}))
        cells: list[Any] = [data, case, rules or "-", len(runs)]
        for name in COLUMNS:
            found = [r[name] for r in runs if name in r]
            if not found:
                cells.append("-")
            elif name in COLUMNS[:4]:
                spread = f" ± {np.std(found):.4f}" if len(found) > 1 else ""
                cells.append(f"{np.mean(found):.4f}{spread}")
            else:
                cells.append(f"{np.mean(found):,.0f}")
        rows.append(cells)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--data", nargs="*", default=["adult", "cancer", "credit"])
    parser.add_argument("--only", default="", help="run cases whose name holds this")
    parser.add_argument("--credit-rows", type=int, default=30_000, help="0 for all")
    parser.add_argument("--runs", type=Path, help="file of finished runs, added to and kept")
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore")
    kept = arguments.runs
    done = [json.loads(t) for t in kept.read_text().splitlines()] if kept and kept.exists() else []
    loaders: dict[str, Callable[[int], datasets.Split]] = {
        "adult": lambda _: datasets.adult(DATA),
        "credit": lambda seed: datasets.credit(DATA, seed),
        "cancer": datasets.cancer,
    }

    def record(data: str, case: str, seed: int, make: Callable[[], dict[str, Any]]) -> None:
        known = any((d["data"], d["case"], d["seed"]) == (data, case, seed) for d in done)
        if known or arguments.only not in case:
            return
        found = {"data": data, "case": case, "seed": seed, **make()}
        done.append(found)
        print(found, flush=True)
        if kept:
            with kept.open("a") as file:
                file.write(json.dumps(found, default=float) + "\n")

    for seed, data in itertools.product(range(arguments.seeds), arguments.data):
        split = loaders[data](seed)
        if data == "credit" and arguments.credit_rows:
            some = split.train.sample(arguments.credit_rows, random_state=seed)
            split = replace(split, train=some.reset_index(drop=True))
        schema = grid_of(split)
        for name, frame in baselines(split, seed):
            record(data, name, seed, partial(alone, frame, split, seed, schema))
        for case in cases(split, seed):
            record(data, case[0], seed, partial(run, case, split, seed, schema))
    tables.write(
        "federation",
        "Federations beside centralised training and single clients",
        ["data", "case", "rule", "seeds", *COLUMNS],
        table_rows(done),
        f"python benchmarks/federation.py --seeds {arguments.seeds}",
        [
            "Mean ± standard deviation over seeds (of the split over clients, of the learner, and "
            "of the test rows where they are drawn at random). Adult: UCI split. Default learner.",
            f"Credit: {arguments.credit_rows or 'all'} training rows, all test rows.",
            "Log-mass: of (x, y) on one grid for all models of a data set, nats per row; that of "
            "the label's owner alone is over fewer columns and does not compare with the others.",
            "A case that is absent has not been run; `--runs FILE` keeps runs and adds to them.",
            "CPU s: all clients and the server together; slowest client: its fits alone. "
            "Bytes: all messages, models included.",
        ],
    )


if __name__ == "__main__":
    main()

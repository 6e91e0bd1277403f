"""Prints or compares digests of fifteen models, to show that a change of the code changes no model.

    python benchmarks/model_digests.py --write before.json      # before the change
    python benchmarks/model_digests.py --compare before.json    # after it

A digest covers the structure and parameters of a model as one circuit, the order of its nodes
included, and the bits of its answers on test rows. Names in file headers are left out. Digests of
different machines or library versions may differ: record and compare on one machine.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.datasets import load_breast_cancer, load_wine

import fedcircuits as fc


def _cancer() -> pd.DataFrame:
    frame = load_breast_cancer(as_frame=True).frame.iloc[:, [*range(8), 30]]
    return frame.rename(columns=lambda name: name.replace(" ", "_")).rename_axis("id").reset_index()


ROWS = _cancer()
TRAIN, TEST = ROWS.iloc[::2].reset_index(drop=True), ROWS.iloc[1::2].drop(columns="id")
WINE = load_wine(as_frame=True).frame


def _rows_split() -> dict[str, Any]:
    return {name: TRAIN.iloc[at::3].drop(columns="id") for at, name in enumerate("abc")}


def _columns_split() -> dict[str, Any]:
    left, right = ["id", *TRAIN.columns[1:5], "target"], ["id", *TRAIN.columns[5:9]]
    return {"left": TRAIN[left], "right": TRAIN[right].iloc[::-1].reset_index(drop=True)}


def _both_split() -> dict[str, Any]:
    n = len(TRAIN)
    left = ["id", *TRAIN.columns[1:6], "target"]
    right = ["id", *TRAIN.columns[4:9], "target"]
    return {"left": TRAIN[left].iloc[: 3 * n // 4], "right": TRAIN[right].iloc[n // 4 :]}


def _federated(clients: Callable[[], dict[str, Any]], **settings: Any) -> Callable[[], Any]:
    rows_split = clients is _rows_split
    return lambda: fc.federate(
        clients(),
        id=None if rows_split else "id",
        label="target",
        seed=3,
        trust="one owner",
        **settings,
    )


MODELS: dict[str, Callable[[], Any]] = {
    "rows, product": _federated(_rows_split, agreement="product"),
    "rows, product, processes": _federated(_rows_split, agreement="product", engine="processes"),
    "rows, joint": _federated(_rows_split, agreement="joint"),
    "rows, independent": _federated(_rows_split, agreement="independent", learner="mixture"),
    "columns, auto, label shared": _federated(_columns_split),
    "columns, product": _federated(_columns_split, agreement="product"),
    "columns, latent": _federated(_columns_split, agreement="latent"),
    "columns, latent, processes": _federated(
        _columns_split, agreement="latent", engine="processes", learner="mixture"
    ),
    "columns, joint": _federated(_columns_split, agreement="joint"),
    "columns, em": _federated(_columns_split, agreement="em", learner="mixture"),
    "columns, independent": _federated(_columns_split, agreement="independent"),
    "both, product": _federated(_both_split, agreement="product"),
    "both, anchors": _federated(_both_split, agreement="anchors", learner="mixture"),
    "both, joint": _federated(_both_split, agreement="joint"),
    "table, hclt, label": lambda: fc.learn(TRAIN.drop(columns="id"), label="target"),
    "table, hclt": lambda: fc.learn(WINE),
    "table, mixture": lambda: fc.learn(WINE, label="target", learner="mixture"),
    "table, learnspn": lambda: fc.learn(WINE, learner="learnspn"),
    "table, factorised": lambda: fc.learn(WINE, learner="factorised"),
}


def digest(model: Any, rows: pd.DataFrame) -> str:
    """Returns a digest of a model's circuit and of its answers on some rows."""
    hashed = hashlib.sha256()

    def add(array: Any) -> None:
        array = np.ascontiguousarray(array)
        hashed.update(f"{array.dtype} {array.shape}".encode() + array.tobytes())

    circuit = model.merged() if hasattr(model, "merged") else model
    for _, array in sorted(circuit.to_record().arrays.items()):
        add(array)
    add(model.log_prob(rows).to_numpy())
    add(model.predict_proba(rows, "target").to_numpy())
    add(model.sample(3, seed=1)[list(rows.columns)].to_numpy(dtype=float))
    return hashed.hexdigest()[:32]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", type=Path)
    parser.add_argument("--compare", type=Path)
    options = parser.parse_args()
    before = json.loads(options.compare.read_text()) if options.compare else {}
    found: dict[str, str] = {}
    changed = []
    for name, make in MODELS.items():
        rows = WINE if name.startswith("table, ") and "label" not in name else TEST
        found[name] = digest(make(), rows)
        same = before.get(name) == found[name]
        print(f"{name:32} {found[name]}", "" if not before else "same" if same else "CHANGED")
        if before and not same:
            changed.append(name)
    if options.write:
        options.write.write_text(json.dumps(found, indent=1) + "\n")
    if changed:
        raise SystemExit(f"{len(changed)} models changed: {', '.join(changed)}")


if __name__ == "__main__":
    main()

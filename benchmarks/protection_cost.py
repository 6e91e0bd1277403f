"""What protection costs: label, density, bytes and seconds with and without each protection.

    .venv/bin/python benchmarks/protection_cost.py --rows 4000 --seeds 1    # writes its page

Adult over three clients, rows or columns split, or two branches and a register of other columns. A
pair of lines differs in one protection. Masks and seals have no switch: they are taken out of the
code for the line without them.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pandas as pd
from sklearn.metrics import roc_auc_score

import fedcircuits as fc
from fedcircuits.api.datasets import adult
from fedcircuits.federation.agreement._shared import masked_sums
from fedcircuits.federation.client import mailbox
from fedcircuits.federation.policy.policy import Policy
from tables import ROOT, write

LABEL, ID = "income", "row"
LEARNER = "hclt"
OPEN = Policy(label="sent", min_rows=1, rare_categories="offered")
CASES: dict[str, tuple[str, dict[str, Any], str]] = {
    "rows, policy: none": ("rows", {}, ""),
    "rows, policy: default (min_rows 5)": ("rows", {"policies": Policy()}, ""),
    "rows, joint: masked": ("rows", {"agreement": "joint"}, ""),
    "rows, joint: not masked": ("rows", {"agreement": "joint"}, "masks"),
    "columns, label sent, sealed": ("columns", {}, ""),
    "columns, label sent, not sealed": ("columns", {}, "seals"),
    "columns, label used": ("columns", {"label_use": "used"}, ""),
    "columns, label sent, min_rows 1": ("columns", {"policies": OPEN}, ""),
    "columns, default policy (label used, min_rows 5)": ("columns", {"policies": Policy()}, ""),
    "columns, table of counts": ("columns", {"agreement": "latent", "table": True}, ""),
    "columns, table of counts, Laplace noise, epsilon 1": (
        "columns", {"agreement": "latent", "table": True, "epsilon": 1.0}, "",
    ),
    "both, anchors (k-means at the clients, masked)": ("both", {"agreement": "anchors"}, ""),
    "both, anchors, not masked": ("both", {"agreement": "anchors"}, "masks"),
}  # fmt: skip


def parts(rows: pd.DataFrame, split: str) -> dict[str, pd.DataFrame]:
    """A table over three clients; where columns are split the first has the label."""
    features = [name for name in rows if name not in (LABEL, ID)]
    if split == "rows":
        plain = rows.drop(columns=ID)
        return {f"c{at}": plain.iloc[at::3].reset_index(drop=True) for at in range(3)}
    if split == "columns":
        shares = [features[at::3] for at in range(3)]
        held = [[ID, *shares[0], LABEL], *([ID, *share] for share in shares[1:])]
        return {f"c{at}": rows[columns] for at, columns in enumerate(held)}
    third = len(features) // 3
    shared, first, second = features[:third], features[third : 2 * third], features[2 * third :]
    n = len(rows)
    return {
        "c0": rows[[*shared, *first, LABEL]].iloc[: n // 3],
        "c1": rows[[*shared, *second, LABEL]].iloc[n // 3 : 2 * n // 3],
        "c2": rows[[*shared, *first, LABEL]].iloc[2 * n // 3 :],
    }


@contextmanager
def without(what: str) -> Iterator[None]:
    """Masks or seals taken out of the code: what travels is in clear."""
    if what == "masks":

        def clear(box: Any, terms: Any, request: Any, clients: Any) -> Any:
            del box, request, clients
            return {name: np.asarray(each, dtype=float) for name, each in terms.items()}

        def added(terms: Any, **how: Any) -> Any:
            del how
            names = sorted(terms)
            return {k: np.sum([terms[n][k] for n in names], axis=0) for k in terms[names[0]]}

        from fedcircuits.federation.agreement import joint_rows
        from fedcircuits.federation.wire.requests import kmeans, rounds

        with (
            mock.patch.object(mailbox.Mailbox, "mask", clear),
            mock.patch.object(masked_sums, "add_up", added),
            mock.patch.object(joint_rows, "add_up", added),
            mock.patch.object(rounds.RoundDone, "fault", return_value=None),
            mock.patch.object(kmeans, "_sums_fault", return_value=None),
        ):
            yield
    elif what == "seals":

        class Clear:
            """Stands for AES-GCM: the bytes as they are."""

            def __init__(self, key: bytes) -> None:
                del key

            def encrypt(self, nonce: bytes, data: bytes, aad: bytes) -> bytes:
                del nonce, aad
                return data

            def decrypt(self, nonce: bytes, data: bytes, aad: bytes) -> bytes:
                del nonce, aad
                return data

        from fedcircuits.federation.wire import sealing

        with (
            mock.patch.object(sealing, "AESGCM", Clear),
            mock.patch.object(sealing, "_derived", return_value=bytes(32)),
        ):
            yield
    else:
        yield


def measured(
    clients: Mapping[str, pd.DataFrame], test: pd.DataFrame, options: dict[str, Any], taken: str
) -> list[float]:
    """AUC, nats a row, bytes, CPU seconds."""
    given = {"id": ID, "label": LABEL, "learner": LEARNER, **options}
    if all(ID not in frame for frame in clients.values()):
        del given["id"]
    with warnings.catch_warnings(), without(taken):
        warnings.simplefilter("ignore")
        start = time.process_time()
        fed = fc.federate(dict(clients), **given)
        seconds = time.process_time() - start
        rows = test.drop(columns=ID)
        proba = fed.predict_proba(rows.drop(columns=LABEL), LABEL, unknown="missing").to_numpy()
        nats = float(fed.log_prob(rows, unknown="missing").mean())
    positive = (test[LABEL] == fed.schema[LABEL].categories[1]).to_numpy()
    total = float(fed.ledger.table()["bytes"].sum())
    return [float(roc_auc_score(positive, proba[:, 1])), nats, total, seconds]


def main() -> None:
    """Every case over the seeds."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rows", type=int, default=4000)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data")
    chosen = parser.parse_args()
    split = adult(chosen.data)
    found: dict[str, list[list[float]]] = {case: [] for case in CASES}
    for seed in range(chosen.seeds):
        train = split.train.sample(chosen.rows, random_state=seed).reset_index(drop=True)
        test = split.test.sample(3000, random_state=seed).reset_index(drop=True)
        train, test = (each.assign(**{ID: np.arange(len(each)) + 10_000}) for each in (train, test))
        for case, (how, options, taken) in CASES.items():
            one = measured(parts(train, how), test, {**options, "seed": seed}, taken)
            found[case].append(one)
            print(case, one, flush=True)
    lines: list[list[Any]] = []
    for case, each in found.items():
        auc, nats, n_bytes, seconds = np.mean(each, axis=0)
        spread = float(np.std([e[0] for e in each], ddof=1)) if len(each) > 1 else 0.0
        shown = f"{auc:.4f}" + (f" ± {spread:.4f}" if len(each) > 1 else "")
        lines.append([case, shown, f"{nats:.3f}", f"{n_bytes / 2**20:.2f}", f"{seconds:.1f}"])
    heads = ["protection", "AUC", "nats a row", "MiB", "CPU s"]
    command = f"python benchmarks/protection_cost.py --rows {chosen.rows} --seeds {chosen.seeds}"
    notes = [
        f"Adult, {chosen.rows} rows over three clients, 3,000 test rows, learner `{LEARNER}`, "
        f"{chosen.seeds} seed(s). CPU seconds of all clients and the server in one process.",
        "Masks and seals have no switch: for the lines without them they were taken out of the "
        "code. Models with and without are the same up to rounding.",
        "Epsilon covers the table of counts alone, not the circuits.",
        "A default policy hides categories of fewer than five rows: cells of test rows that hold "
        "one are summed out, so that nats with and without it are not of the same cells.",
    ]
    write("protection_cost", "What protection costs", heads, lines, command, notes)


if __name__ == "__main__":
    main()

"""Rows that a server can reconstruct from the messages and models it receives, by rule.

    .venv/bin/python benchmarks/row_recovery.py   # writes docs/benchmarks/row_recovery.md, a minute

A server that follows the protocol keeps every message and the gathered models. Where clients send
log-likelihoods of single rows, it enumerates all cells of a client's columns under the client's own
models and looks for the one cell combination that has the values it received. Where clients send
sums around centres in rounds (`anchors`), the server reads sums over clients; differences between
rounds in which one row changed its centre would be that row.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from scipy.spatial import cKDTree

import fedcircuits as fc
from fedcircuits import encoding
from fedcircuits.api.client_spec import ClientSpec
from fedcircuits.arrays import FloatArray
from fedcircuits.engines import LocalEngine
from fedcircuits.federation.client.clustering import features
from fedcircuits.federation.client.rounds import add_up
from fedcircuits.federation.wire import requests as m
from recorder import Recorder
from tables import write

ID, LABEL, VICTIM = "id", "y", "b"
SAME = 1e-9  # nats: the same number up to rounding
RULES = ("independent", "product", "latent", "em", "joint")


def table(n: int, seed: int = 0) -> pd.DataFrame:
    """Rows of a discrete table; `b0`..`b3` belong to the client whose rows are looked for."""
    rng = np.random.default_rng(seed)
    y = rng.integers(2, size=n)
    hidden = rng.integers(3, size=n) + y
    rows = pd.DataFrame({ID: np.arange(n), LABEL: np.where(y == 1, "yes", "no")})
    for at, size in enumerate((5, 3)):
        rows[f"a{at}"] = [f"v{v}" for v in (hidden + rng.integers(size, size=n)) % size]
    for at, size in enumerate((40, 5, 2, 30)):
        noise = rng.integers(size // 2 + 1, size=n)
        rows[f"b{at}"] = [f"v{v}" for v in (hidden * (at + 1) + noise) % size]
    return rows


def clients(rows: dict[str, pd.DataFrame]) -> Recorder:
    """Clients in this process whose messages are kept."""
    kinds: dict[str, Any] = {name: "categorical" for f in rows.values() for name in f if name != ID}
    made = {
        name: ClientSpec(
            name, frame, "hclt", id=ID if ID in frame else None,
            kinds={k: v for k, v in kinds.items() if k in frame}, id_secret="only clients know it",
        ).make()
        for name, frame in rows.items()
    }  # fmt: skip
    return Recorder(LocalEngine(made))


def log_likelihoods(engine: Recorder) -> list[FloatArray]:
    """Vectors of at least a hundred float64 numbers that the client sent."""
    vectors: list[FloatArray] = []
    for message in engine.messages:
        if message.to_client or message.client != VICTIM:
            continue
        for name, array in encoding.unpack(message.data).arrays.items():
            if name.startswith("trees/"):
                continue  # nodes of a head, not rows
            if array.dtype.kind == "f" and array.ndim in (1, 2) and len(array) >= 100:
                vectors += list(np.asarray(array, dtype=float).reshape(len(array), -1).T)
    return vectors


def matched(sent: Sequence[FloatArray], models: Sequence[Any]) -> tuple[int, int]:
    """How many rows have one cell combination only that explains what was sent; of how many."""
    schema = models[0].schema
    cells = itertools.product(*(variable.categories for variable in schema))
    combos = pd.DataFrame(list(cells), columns=list(schema.names))
    values = [np.asarray(model.log_prob(combos)) for model in models]
    pairs: dict[int, list[tuple[FloatArray, FloatArray]]] = {}
    for vector in sent:
        if not np.isfinite(vector).all():
            continue
        for own in values:  # which model a vector stems from shows in the values themselves
            near = cKDTree(own[np.isfinite(own), None]).query(vector[:, None])[0]
            if np.mean(near < SAME) > 0.99:
                pairs.setdefault(vector.size, []).append((own, vector))
                break
    if not pairs:
        return 0, max(vector.size for vector in sent)
    found = max(pairs.values(), key=len)
    tree = cKDTree(np.column_stack([own for own, _ in found]))
    asked = np.column_stack([vector for _, vector in found])
    counts = np.array([len(near) for near in tree.query_ball_point(asked, SAME)])
    return int((counts == 1).sum()), counts.size


def by_rule(rule: str, rows: pd.DataFrame) -> list[Any]:
    """One line of the table: columns split over two clients, the label at both."""
    engine = clients(
        {
            "a": rows[[ID, "a0", "a1", LABEL]],
            VICTIM: rows[[ID, "b0", "b1", "b2", "b3", LABEL]].sample(frac=1, random_state=3),
        }
    )
    fed = fc.federate(id=ID, label=LABEL, engine=engine, agreement=rule, trust="one owner")
    models = [
        model
        for key, model in fed.fitted.models.items()
        if key.client == VICTIM and LABEL not in model.schema.names
    ]
    sent = log_likelihoods(engine)
    done, asked = matched(sent, models) if sent and models else (0, 0)
    return [f"`{rule}`, columns split", len(rows), asked, done]


def by_anchors(n: int) -> list[Any]:
    """One line of the table: two shared columns of numbers, rounds of k-means over split rows."""
    rng = np.random.default_rng(1)
    z = rng.integers(4, size=n)
    frame = pd.DataFrame(
        {
            "s0": rng.normal(z, 1.0).round(3),
            "s1": rng.normal(-z, 2.0).round(3),
            "s2": rng.gamma(2.0, 1.0 + z).round(3),
            "p": rng.normal(z, 1.0),
            "q": rng.normal(-z, 1.0),
        }
    )
    shared = ["s0", "s1", "s2"]
    engine = Recorder(
        LocalEngine(
            {
                "a": ClientSpec("a", frame.iloc[: n // 2][[*shared, "p"]], "factorised").make(),
                VICTIM: ClientSpec(
                    VICTIM, frame.iloc[n // 2 :][[*shared, "q"]].reset_index(drop=True),
                    "factorised",
                ).make(),
            }
        )
    )  # fmt: skip
    fed = fc.federate(engine=engine, agreement="anchors")
    own = fed.schema.select(shared).encode(frame[shared], missing_as_state=True)
    truth = features(own)  # (n, F), for the score alone
    terms: dict[bytes, dict[str, Any]] = {}  # by request: masked, so that their sum alone is read
    asked: dict[str, bytes] = {}
    for x in engine.messages:
        if x.verb == "centres" and x.to_client:
            asked[x.client] = x.data
        elif x.verb == "centres":
            terms.setdefault(asked[x.client], {})[x.client] = m.CentreSums.from_bytes(x.data).sums
    totals = [add_up(of, masked=True) for of in terms.values()]
    rounds = [(total["rows"], total["sums"]) for total in totals]
    moved = exact = 0
    for (rows, sums), (later_rows, later_sums) in itertools.pairwise(rounds):
        if rows.shape != later_rows.shape:
            continue
        for at in np.flatnonzero(np.abs(later_rows - rows) == 1):
            guess = (later_sums[at] - sums[at]) * (later_rows[at] - rows[at])
            moved += 1
            exact += bool((np.abs(truth - guess).max(axis=1) < SAME).any())
    return ["`anchors`, rows and columns split", n, moved, exact]


def main() -> None:
    """Run every rule and write the page."""
    rows = table(8000)
    lines = [by_rule(rule, rows) for rule in RULES] + [by_anchors(1000)]
    write(
        "row_recovery",
        "Rows that a server can reconstruct",
        ["rule", "rows of the client", "rows it sent numbers about", "reconstructed exactly"],
        lines,
        "python benchmarks/row_recovery.py",
        [
            "Generated data. The server follows the protocol, keeps what it receives and holds the "
            "gathered models; `id_secret` is set. The client has four discrete columns (12,000 "
            "cell combinations) or, under `anchors`, three shared columns of numbers.",
            "A row counts as reconstructed where exactly one combination of cells explains the "
            "log-likelihoods that were sent about it; under `anchors` where the difference of the "
            "sums of two rounds, over both clients, is a row of one of them (third column: "
            "differences of one row).",
            "0 means that this comparison finds nothing, not that nothing can be found. Under "
            "`joint` log-likelihoods of every aligned row are sent in every round, of models that "
            "have changed since; `latent` sends the cluster index of every aligned row.",
        ],
    )


if __name__ == "__main__":
    main()

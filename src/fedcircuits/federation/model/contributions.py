"""What each client adds to a federation: scores of held-out rows when it leaves, and when alone.

Every figure is of the model that remains when clients leave, which is exact and needs no training
(`FederatedCircuit.without`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from itertools import combinations
from math import factorial
from typing import Any

import numpy as np
import pandas as pd

from fedcircuits.errors import FederationError, QueryError, unknown_name
from fedcircuits.report.scores import label_scores
from fedcircuits.schema import Data
from fedcircuits.schema.reading.known import read_known

MOST_FOR_SHAPLEY = 6  # clients: 2**6 coalitions are scored
SCORES = ("log-loss", "AUC", "nats")


def contributions(fed: Any, rows: Data, label: str | None = None) -> pd.DataFrame:
    """Returns one row a client: scores without it, scores of it alone, and its Shapley values.

    "gain in log-loss", "gain in AUC" and "gain in nats" say how much better the federation is with
    the client than without. Nats are of the columns that remain when the client leaves. Shapley
    values share out the whole gain over the classes' shares among up to six clients.

    Args:
        fed: a gathered federation.
        rows: held-out rows.
        label: the variable whose prediction is scored; where there is none, or the rows lack it,
            the density alone.
    """
    frame = read_known(rows, fed.schema)
    if label is not None and label not in fed.schema:
        raise QueryError(unknown_name("variable", label, fed.schema.names, "the model"))
    label = label if label in frame.columns else None
    clients = list(fed.clients)
    if len(clients) < 2:
        raise FederationError("contributions compare clients: this federation has one")
    score = _scorer(fed, frame, label)
    together = score(clients)
    table = []
    for client in clients:
        rest = score([c for c in clients if c != client])
        alone = score([client])
        row: dict[str, Any] = {"client": client, "rows": fed.n_rows.get(client)}
        for name in SCORES:
            if name in together:
                sign = -1.0 if name == "log-loss" else 1.0
                row[f"gain in {name}"] = sign * (together[name] - rest[name])
                if name != "nats":
                    row[f"{name} alone"] = alone[name]
        row["gain in nats"] = _nats_gained(fed, client, frame)
        table.append(row)
    found = pd.DataFrame(table)
    if label is not None and len(clients) <= MOST_FOR_SHAPLEY:
        for name in ("log-loss", "AUC"):
            values = _shapley(clients, partial(_score_named, score, name))
            sign = -1.0 if name == "log-loss" else 1.0
            found[f"Shapley value, {name}"] = [sign * values[c] for c in clients]
    return found


def _score_named(
    score: Callable[[Iterable[str]], dict[str, float]], name: str, some: Iterable[str]
) -> float:
    return score(some)[name]


def _scorer(
    fed: Any, frame: pd.DataFrame, label: str | None
) -> Callable[[Iterable[str]], dict[str, float]]:
    """Scores of the federation of some clients, each coalition computed once."""
    known: dict[frozenset[str], dict[str, float]] = {}

    def score(some: Iterable[str]) -> dict[str, float]:
        key = frozenset(some)
        if key not in known:
            known[key] = _scores(_only(fed, key), frame, label)
        return known[key]

    return score


def _only(fed: Any, clients: frozenset[str]) -> Any:
    """The federation of some of its clients; None where nobody is left."""
    if not clients:
        return None
    for client in fed.clients:
        if client not in clients:
            fed = fed.without(client)
    return fed


def _scores(model: Any, frame: pd.DataFrame, label: str | None) -> dict[str, float]:
    """Log-loss and AUC of the label; those of its shares where the model does not know it."""
    if label is None:
        return {}
    rows = frame[frame[label].notna()]
    if model is None or label not in model.schema:
        shares = rows[label].value_counts(normalize=True).to_numpy()
        return {"log-loss": float(-(shares * np.log(shares)).sum()), "AUC": 0.5}
    known = [name for name in model.schema.names if name in rows.columns and name != label]
    proba = model.predict_proba(rows[known], label, unknown="missing")
    found = label_scores(proba, rows[label])
    return {"log-loss": found.log_loss, "AUC": found.auc}


def _nats_gained(fed: Any, client: str, frame: pd.DataFrame) -> float:
    """Mean log-density gained by a client, over the columns that remain without it."""
    rest = fed.without(client)
    names = [name for name in rest.schema.names if name in frame.columns]
    some = frame[names]
    together = fed.mean_log_prob(some, unknown="missing")
    return float(together - rest.mean_log_prob(some, unknown="missing"))


def _shapley(clients: list[str], value: Callable[[Iterable[str]], float]) -> dict[str, float]:
    """Shapley values: the mean gain of a client over all orders in which clients may join."""
    n = len(clients)
    found = {}
    for client in clients:
        others = [c for c in clients if c != client]
        total = 0.0
        for size in range(n):
            weight = factorial(size) * factorial(n - size - 1) / factorial(n)
            for some in combinations(others, size):
                total += weight * (value([*some, client]) - value(some))
        found[client] = total
    return found

"""How the table of a cell is split over clients, from the settings of an experiment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedcircuits.api import partition
from fedcircuits.api.datasets import Split
from fedcircuits.api.partition import Shares


def shares(split: Split, setting: Mapping[str, Any], seed: int) -> Shares:
    """Return the clients' tables.

    Args:
        split: the data; its training rows are split.
        setting: `split` ("none", "rows", "columns", "both", or "alone" for the first client where
            rows are split), `clients`, and for rows `how` ("iid", "classes" or "dirichlet"); where
            columns are split, `label` is "all" (every client holds it, the default) or "one" (the
            first client alone).
        seed: of the choice.
    """
    frame, label, n = split.train, split.label, int(setting.get("clients", 1))
    shared = setting.get("label", "all") == "all"
    match setting["split"]:
        case "alone":
            name, table = next(iter(shares(split, {**setting, "split": "rows"}, seed).items()))
            return {name: table}
        case "rows":
            how = setting.get("how", "iid")
            if how == "dirichlet":
                return partition.dirichlet(frame, label, n, 0.3, seed)
            if how == "classes":
                most = frame[label].nunique()
                return partition.by_class(frame, label, n, max(1, -(-most // n)), seed)
            return partition.iid(frame, n, seed)
        case "columns":
            return partition.random_columns(frame, n, label=label, share_label=shared, seed=seed)
        case "both":
            return partition.hybrid(frame, n, label=label, share_label=shared, seed=seed)
        case _:
            return {"all": frame}


def id_of(setting: Mapping[str, Any]) -> str | None:
    """Return the column that aligns rows, None where only rows are split."""
    return partition.ID if setting["split"] in ("columns", "both") else None

"""The part of a report about a federation: who holds what, and what each client sent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import pandas as pd

from fedcircuits.report import figures

COLUMNS_SHOWN = 60


class Federation(Protocol):
    """What a report asks of a federated model beyond a density."""

    clients: Any
    owners: Any
    parts: Any
    setting: Any
    rule: Any
    ledger: Any
    dropped: Any
    n_rows: Any

    def contributions(self, rows: Any, label: str | None = None) -> pd.DataFrame:
        """Returns the change of each score when a client leaves."""
        ...


def is_federation(model: object) -> bool:
    """Whether a model says which client each of its parts came from."""
    return bool(getattr(model, "owners", ())) and getattr(model, "rule", None) is not None


def holdings(fed: Federation) -> str:
    """A drawing of which client holds which column, shaded by its number of rows."""
    clients = list(fed.clients)
    held: dict[str, set[str]] = {client: set() for client in clients}
    for part, owner in zip(fed.parts, fed.owners, strict=True):
        if owner in held:
            held[owner] |= set(part.schema.names)
    columns = list(fed.schema.names)[:COLUMNS_SHOWN]  # type: ignore[attr-defined]
    cells = np.array(
        [[fed.n_rows.get(c, 1) if name in held[c] else 0 for name in columns] for c in clients],
        dtype=float,
    )
    return figures.holdings(clients, columns, cells, "which client holds which column")


def facts(fed: Federation) -> list[tuple[str, str]]:
    """Names and values that describe a federation in a table."""
    found = [
        ("setting", f"{fed.setting}: {_SETTINGS.get(fed.setting, '')}"),
        ("agreement rule", str(fed.rule.name)),
        ("clients", ", ".join(f"{c} ({fed.n_rows.get(c, '?')} rows)" for c in fed.clients)),
        ("bytes sent in all", f"{fed.ledger.n_bytes:,}"),
    ]
    return found + [(f"left out: {name}", why) for name, why in fed.dropped.items()]


_SETTINGS = {
    "horizontal": "every client holds the same columns of its own rows (sum nodes)",
    "vertical": "every client holds its own columns of the same rows (product nodes)",
    "hybrid": "clients differ in rows and in columns (sum and product nodes)",
}


def reveals(fed: Federation) -> Sequence[str]:
    """What leaves a client under the rule, a line each."""
    return [str(line) for line in fed.rule.reveals]


def sent(fed: Federation) -> pd.DataFrame:
    """Bytes by client and phase, a row for each client."""
    table = fed.ledger.table(["client", "phase"])
    wide = table.pivot(index="client", columns="phase", values="bytes").fillna(0).astype(int)
    wide["all"] = wide.sum(axis=1)
    answer: pd.DataFrame = wide.reset_index()
    return answer

"""Tables in every split, for runs on default settings with silos on default policies."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pandas as pd

import fedcircuits as fc
from contracts.engine import table
from contracts.federations import ID, LABEL, split
from fedcircuits.errors import FedcircuitsWarning
from fedcircuits.federation.policy.policy import Policy

N_ROWS = 400


def shared_label() -> dict[str, pd.DataFrame]:
    rows = table(n=N_ROWS)
    return {"a": rows[[ID, "height", LABEL]], "b": rows[[ID, "visits", "size", LABEL]]}


SPLITS: dict[str, Callable[[], dict[str, pd.DataFrame]]] = {
    "rows": lambda: split("horizontal", table(n=N_ROWS)),
    "columns, label at one": lambda: split("vertical", table(n=N_ROWS)),
    "columns, label at all": shared_label,
    "both": lambda: split("hybrid", table(n=N_ROWS)),
    "branches and a register": lambda: split("branches", table(n=N_ROWS)),
}


def by_defaults(case: str, **options: Any) -> Any:
    """A federation of nothing but defaults; `auto` says which rules policies refuse."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FedcircuitsWarning)
        return fc.federate(
            SPLITS[case](), **{"id": ID, "label": LABEL, "policies": Policy(), **options}
        )

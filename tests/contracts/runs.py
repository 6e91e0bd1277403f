"""One small run of every agreement rule in every setting, and the bits of what it made.

`CASES` are cheap; `FURTHER` has the messages that they lack: heads, labels that are used, trials,
models that stay.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import fedcircuits as fc
from contracts.engine import table
from contracts.federations import ID, LABEL, split
from fedcircuits.api.client_spec import ClientSpec
from fedcircuits.federation.model.federated_circuit import FederatedCircuit
from fedcircuits.federation.model.remote_circuit import RemoteCircuit

SETTINGS = {"n_clusters": 3, "n_classes": 3}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "rows, independent": ("horizontal", {"agreement": "independent"}),
    "rows, product": ("horizontal", {"agreement": "product"}),
    "rows, joint": ("horizontal", {"agreement": "joint"}),
    "columns, independent": ("vertical", {"agreement": "independent"}),
    "columns, product": ("vertical", {"agreement": "product"}),
    "columns, product, label shared": ("vertical", {"agreement": "product"}),
    "columns, latent": ("vertical", {"agreement": "latent", **SETTINGS}),
    "columns, latent from a table": (
        "vertical",
        {"agreement": "latent", "table": True, **SETTINGS},
    ),
    "columns, em": ("vertical", {"agreement": "em", "n_clusters": 3}),
    "columns, joint": ("vertical", {"agreement": "joint", "n_rounds": 2, **SETTINGS}),
    "columns, auto": ("vertical", {"agreement": "auto"}),
    "rows, tilt": ("horizontal", {"agreement": "product"}),
    "columns, tilt": ("vertical", {"agreement": "latent", **SETTINGS}),
    "both, product": ("hybrid", {"agreement": "product"}),
    "both, latent": ("hybrid", {"agreement": "latent", **SETTINGS}),
    "both, anchors": (
        "hybrid",
        {"agreement": "anchors", "n_clusters": 3, "n_anchors": 3, "n_rounds": 2},
    ),
    "both, joint": ("hybrid", {"agreement": "joint", "n_rounds": 1, **SETTINGS}),
}

FURTHER: dict[str, tuple[str, dict[str, Any]]] = {
    "rows, vote": ("horizontal", {"operation": "vote"}),
    "rows, heads": ("horizontal", {"agreement": "product"}),
    "rows, tilts that stay": ("horizontal", {"agreement": "product", "placement": "remote"}),
    "columns, label used": ("vertical", {"agreement": "auto", "label_use": "used"}),
    "columns, heads": ("vertical", {"agreement": "product"}),
}
ALL = CASES | FURTHER
N_ROWS = {  # as many as what they try needs
    "columns, auto": 320,
    "rows, heads": 300,
    "columns, label used": 300,
    "columns, heads": 700,
}


def specs_of(case: str) -> dict[str, bytes]:
    """The encoded specs of a case's clients."""
    setting, _ = ALL[case]
    rows = table(n=N_ROWS.get(case, 90))
    learns = "joint" in case or "tilt" in case or case == "rows, vote"
    learner = ("mixture", {"n_iterations": 3}) if learns else ("factorised", {})
    if "heads" in case or "used" in case:
        learner = ("hclt", {})
    kinds: dict[str, Any] = {LABEL: "categorical"}
    return {
        name: ClientSpec(
            name, frame, *learner, id=ID, kinds={k: v for k, v in kinds.items() if k in frame}
        ).to_bytes()
        for name, frame in split(setting, rows).items()
    }


def run(case: str, engine: Any, **options: Any) -> FederatedCircuit:
    """Federate a case with an engine that has its clients."""
    label = None if case == "rows, joint" else LABEL  # without one it takes fewer rounds
    chosen = {**ALL[case][1], **options}
    chosen = {"trust": "one owner", **chosen}
    return fc.federate(None, engine=engine, id=ID, label=label, min_rows=3, **chosen)


def bits(fed: FederatedCircuit) -> bytes:
    """The bits of a model's parameters and of some answers; of answers alone where models stay."""
    test = table(n=20, seed=1).drop(columns=ID)
    found = [fed.predict_proba(test, LABEL).to_numpy()]
    if hasattr(fed, "log_prob"):  # classifiers that vote have none
        found.append(fed.log_prob(test).to_numpy())
    if hasattr(fed, "merged") and not isinstance(fed, RemoteCircuit):
        arrays = fed.merged().to_record().arrays
        found += [arrays[name] for name in sorted(arrays)]
    return b"".join(np.ascontiguousarray(array).tobytes() for array in found)

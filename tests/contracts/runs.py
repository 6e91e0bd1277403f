"""One small run of every agreement rule in every setting, and the bits of what it made."""

from __future__ import annotations

from typing import Any

import numpy as np

import fedcircuits as fc
from contracts.engine import table
from contracts.federations import ID, LABEL, split
from fedcircuits.api.client_spec import ClientSpec
from fedcircuits.federation.model.federated_circuit import FederatedCircuit

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


def specs_of(case: str) -> dict[str, bytes]:
    """The encoded specs of a case's clients."""
    setting, _ = CASES[case]
    rows = table(n=300 if case == "columns, auto" else 90)
    learns = "joint" in case or "tilt" in case
    learner = ("mixture", {"n_iterations": 3}) if learns else ("factorised", {})
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
    chosen = {**CASES[case][1], **options}
    chosen = {"trust": "one owner", **chosen}
    return fc.federate(None, engine=engine, id=ID, label=label, min_rows=3, **chosen)


def bits(fed: FederatedCircuit) -> bytes:
    """The bits of a model's parameters and of some answers."""
    arrays = fed.merged().to_record().arrays
    test = table(n=20, seed=1).drop(columns=ID)
    answers = fed.log_prob(test).to_numpy(), fed.predict_proba(test, LABEL).to_numpy()
    found = [*(arrays[name] for name in sorted(arrays)), *answers]
    return b"".join(np.ascontiguousarray(array).tobytes() for array in found)

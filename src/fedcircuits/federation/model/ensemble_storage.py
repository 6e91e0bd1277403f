"""Saves a federation of classifiers and reads it back: client models, their rows, the operation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from fedcircuits.density import Density
from fedcircuits.encoding import Record
from fedcircuits.errors import MALFORMED, FederationError, StorageError
from fedcircuits.federation.client.classifiers import Classifier, classifier_from_record
from fedcircuits.federation.model.definition4 import OPERATIONS
from fedcircuits.federation.model.ensemble import FederatedEnsemble
from fedcircuits.federation.model.storage import id_of
from fedcircuits.federation.server.remote import RemoteDensity
from fedcircuits.federation.wire.ledger import Ledger
from fedcircuits.schema import Schema

KIND = "ensemble"


def to_record(fed: FederatedEnsemble) -> Record:
    """Returns header and arrays; a model that stays at its client is an error."""
    arrays: dict[str, Any] = {}
    models: list[dict[str, Any]] = []
    for at, client in enumerate(fed.clients):
        model = fed.models[client]
        record = None if isinstance(model, RemoteDensity) else model.to_record()
        if record is None:
            raise FederationError(
                f"the model of client {client!r} stays there, so the ensemble cannot be saved: "
                "train with placement='gathered' and learners that have an encoding"
            )
        arrays[f"rows.{at}"] = fed.rows[client]
        models.append({"client": client, **record.put_into(arrays, f"model.{at}.")})
    header = {
        "schema": fed.schema.to_json(),
        "label": fed.label,
        "models": models,
        "operation": fed.operation.name,
        "weighting": fed.weighting,
        "rebase": fed.rebase,
        "setting": fed.setting,
        "dropped": fed.dropped,
        "id": fed.id,
        "ledger": fed.ledger.totals(),
    }
    return Record(KIND, header, arrays)


def from_record(record: Record, decode: Callable[[Record], Density]) -> FederatedEnsemble:
    """Returns the ensemble of a record; `decode` makes a density of a record."""
    header = record.header
    try:
        label = str(header["label"])
        models: dict[str, Classifier | RemoteDensity] = {}
        rows = {}
        for at, entry in enumerate(header["models"]):
            inner = record.inner(f"model.{at}.", entry)
            models[str(entry["client"])] = classifier_from_record(inner, label, decode)
            rows[str(entry["client"])] = np.asarray(record.arrays[f"rows.{at}"], dtype=float)
        if header["weighting"] not in ("rows", "equal") or header["setting"] not in (
            "horizontal", "vertical", "hybrid",
        ):  # fmt: skip
            raise StorageError("the ensemble in the file is not valid: weighting or setting")
        schema = Schema.from_json(header["schema"])
        if label not in schema or not models:
            raise StorageError("the ensemble in the file is not valid: label or models")
        return FederatedEnsemble(
            schema,
            label,
            models,
            rows,
            OPERATIONS[header["operation"]],
            weighting=header["weighting"],
            rebase=bool(header["rebase"]),
            setting=header["setting"],
            ledger=Ledger.from_totals(header["ledger"]),
            dropped={str(k): str(v) for k, v in header["dropped"].items()},
            id=id_of(header),
        )
    except StorageError:
        raise
    except MALFORMED as error:
        raise StorageError(f"the ensemble in the file is not valid: {error!r}") from None

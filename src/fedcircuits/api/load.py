"""Models from bytes, of any kind; the registry of kinds (`DENSITIES`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from fedcircuits import encoding
from fedcircuits.arrays import Arrays
from fedcircuits.circuits import Circuit, Composite
from fedcircuits.density import Density
from fedcircuits.density.conditioned import Conditioned
from fedcircuits.errors import StorageError

if TYPE_CHECKING:
    from fedcircuits.federation.client.classifiers import Classifier
    from fedcircuits.federation.model.ensemble import FederatedEnsemble

# How a density is rebuilt, by its registry name in files and messages. Names are never reused:
# docs/file-format.md lists them.
DENSITIES: dict[str, Callable[[encoding.Record], Density]] = {
    "circuit": Circuit.from_record,
    "composite": lambda record: Composite.from_record(record, decode),
    "conditioned": lambda record: Conditioned.from_record(record, decode),
    "headed_circuit": lambda record: _headed_circuit(record),
    "federated": lambda record: _federated(record),
    "einet": lambda record: _einet(record),
    "classified_einet": lambda record: _classified_einet(record),
}


def from_file_bytes(data: bytes, name: str) -> Density | FederatedEnsemble:
    """Return the model in the bytes of a file; `name` is the file's, for errors."""
    record = encoding.unpack(data, name=name, oldest=encoding.OLDEST_FILE)
    return _ensemble(record) if record.kind == "ensemble" else decode(record)


def from_bytes(data: bytes, name: str = "the data") -> Density:
    """Return the density that was encoded in some bytes."""
    return decode(encoding.unpack(data, name=name))


def from_message(data: bytes, arrays: Arrays) -> Density:
    """Return the density in bytes that were a part of a message, whose SHA-256 was compared.

    Args:
        data: the density, of a large one without its arrays.
        arrays: of a large one, by name.
    """
    record = encoding.unpack(data, checked=True)
    return decode(replace(record, arrays={**record.arrays, **arrays}))


def classifier_from_bytes(data: bytes, label: str) -> Classifier:
    """Return the classifier that a client encoded in some bytes."""
    from fedcircuits.federation.client.classifiers import classifier_from_record

    return classifier_from_record(encoding.unpack(data, name="the classifier"), label, decode)


def _einet(record: encoding.Record) -> Density:
    from fedcircuits.learners.einet import EiNetDensity  # needs torch, so only when asked for

    return EiNetDensity.from_record(record)


def _classified_einet(record: encoding.Record) -> Density:
    from fedcircuits.learners.einet import ClassifiedEiNet  # needs torch

    return ClassifiedEiNet.from_record(record)


def _federated(record: encoding.Record) -> Density:
    from fedcircuits.federation.model.headed_federation import HeadedFederation
    from fedcircuits.federation.model.storage import from_record  # imported where it is needed

    described = record.header.get("federation")
    left = described.get("left", []) if isinstance(described, dict) else None
    if not isinstance(left, list) or not all(isinstance(name, str) for name in left):
        raise StorageError("the federation in the file is not valid: who left it")
    return HeadedFederation.of(from_record(record, decode), left)


def _ensemble(record: encoding.Record) -> FederatedEnsemble:
    from fedcircuits.federation.model.ensemble_storage import from_record

    return from_record(record, decode)


def _headed_circuit(record: encoding.Record) -> Density:
    from fedcircuits.learners.hclt.head.headed.headed_circuit import HeadedCircuit  # on demand

    return HeadedCircuit.from_record(record)


def decode(record: encoding.Record) -> Density:
    """Return the density in a record."""
    if not isinstance(record.kind, str) or record.kind not in DENSITIES:
        raise StorageError(
            f"the file holds {record.kind!r}, which this fedcircuits does not know (it knows "
            f"{', '.join(sorted(DENSITIES))}): upgrade fedcircuits"
        )
    return DENSITIES[record.kind](record)

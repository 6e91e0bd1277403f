"""Every record on the wire: typed, versioned, encoded once (`fedcircuits.encoding`).

A message is a frozen dataclass whose fields are JSON values, arrays, or mappings from names to
arrays. The server's requests and the clients' replies are all here; nothing else is ever sent.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from fedcircuits import encoding
from fedcircuits.errors import StorageError

Array = NDArray[Any]
Arrays = dict[str, Array]


@dataclass(frozen=True)
class Message:
    """Base of all messages."""

    def to_bytes(self) -> bytes:
        """The message as it travels."""
        header: dict[str, Any] = {}
        arrays: Arrays = {}
        for entry in fields(self):
            value = getattr(self, entry.name)
            if entry.type == "Array":
                arrays[entry.name] = np.asarray(value)
            elif entry.type == "Arrays":
                header[entry.name] = sorted(value)
                arrays |= {f"{entry.name}/{key}": np.asarray(v) for key, v in value.items()}
            else:
                header[entry.name] = value
        return encoding.pack(encoding.Record(type(self).__name__, header, arrays))

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """The message in some bytes; anything else is a `StorageError`."""
        record = encoding.unpack(data, kind=cls.__name__, name="the message")
        values: dict[str, Any] = {}
        try:
            for entry in fields(cls):
                if entry.type == "Array":
                    values[entry.name] = record.arrays[entry.name]
                elif entry.type == "Arrays":
                    keys = record.header[entry.name]
                    values[entry.name] = {k: record.arrays[f"{entry.name}/{k}"] for k in keys}
                else:
                    values[entry.name] = record.header[entry.name]
        except (KeyError, TypeError) as error:
            raise StorageError(f"a {cls.__name__} message lacks {error}") from None
        return cls(**values)


def model_array(data: bytes) -> Array:
    """The bytes of a model as an array, so that it travels inside a message."""
    return np.frombuffer(data, dtype=np.uint8)


@dataclass(frozen=True)
class Describe(Message):
    """Server: what are your columns? Sketches say nothing that fewer than min_rows rows share."""

    min_rows: int


@dataclass(frozen=True)
class Description(Message):
    """Client: names, kinds, domains, row count, missing counts and sketches of numeric columns."""

    schema: list[Any]
    n_rows: int
    n_missing: dict[str, int]
    exact: dict[str, bool]
    sketches: Arrays = field(default_factory=dict)


@dataclass(frozen=True)
class Agree(Message):
    """Server: the merged schema with its grids, and the run's seed."""

    schema: list[Any]
    seed: int
    label: str | None


@dataclass(frozen=True)
class Ready(Message):
    """Client: done; the rows I can train on, and label counts where the label is mine to tell."""

    n_rows: int
    label_counts: list[float]


@dataclass(frozen=True)
class AskDigests(Message):
    """Server: digests of your ids, please, salted with this."""

    salt: str


@dataclass(frozen=True)
class Digests(Message):
    """Client: (n, 12) bytes, one digest a row, in my order."""

    digests: Array


@dataclass(frozen=True)
class Align(Message):
    """Server: these rows of yours (m,) are rows `numbers` (m,) of the federation."""

    rows: Array
    numbers: Array


@dataclass(frozen=True)
class AskLabel(Message):
    """Server: the owner's label of the aligned rows is to be shared."""


@dataclass(frozen=True)
class Label(Message):
    """The label codes (m,) of rows `numbers` (m,), from its owner or on to the others."""

    numbers: Array
    codes: Array
    categories: list[Any]
    kind: str


@dataclass(frozen=True)
class Cluster(Message):
    """Server: cluster these columns into K parts; within the label's classes if you may."""

    job: str
    columns: list[str]
    n_clusters: int
    within_label: bool
    tell_rows: bool


@dataclass(frozen=True)
class Clustered(Message):
    """Client: rows and stratum (label class, unnamed) of each cluster, indices of aligned rows."""

    rows: Array
    strata: Array
    numbers: Array
    indices: Array


@dataclass(frozen=True)
class Assign(Message):
    """Server: the latent class of aligned rows, and r(l | k) for the rest."""

    job: str
    numbers: Array
    classes: Array
    table: Array


@dataclass(frozen=True)
class AskStart(Message):
    """Server: centres of your own clusters of these shared columns, to start from."""

    columns: list[str]
    n_clusters: int
    within_label: bool
    min_rows: int


@dataclass(frozen=True)
class Start(Message):
    """Client: (K, 1 + F) stratum and centre of each large enough cluster, and its rows (K,)."""

    centres: Array
    rows: Array


@dataclass(frozen=True)
class AskCentres(Message):
    """Server: sums and counts of your shared columns around these centres (federated k-means)."""

    job: str
    columns: list[str]
    centres: Array
    within_label: bool


@dataclass(frozen=True)
class CentreSums(Message):
    """Client: for each centre the sum of rows nearest to it, their number and squared distances."""

    sums: Array
    rows: Array
    inertia: float


@dataclass(frozen=True)
class AskTable(Message):
    """Server: how often your private cluster k meets anchor s, please."""

    job: str
    anchor: str
    n_anchors: int
    n_clusters: int


@dataclass(frozen=True)
class JointTable(Message):
    """Client: (anchors, clusters) counts."""

    counts: Array


@dataclass(frozen=True)
class Fit(Message):
    """Server: fit these; each job has an id, columns, a row filter and whether per label class."""

    jobs: list[Any]
    keep: bool


@dataclass(frozen=True)
class Fitted(Message):
    """Client: rows behind every model, and the models themselves unless they stay here."""

    rows: dict[str, float]
    parameters: dict[str, int]
    seconds: float
    models: Arrays = field(default_factory=dict)


@dataclass(frozen=True)
class Ask(Message):
    """Server: evaluate a model that stayed with you, on rows sent along or on aligned rows."""

    model: str
    what: str
    order: int
    values: Array
    observed: Array
    numbers: Array
    seed: int


@dataclass(frozen=True)
class Answer(Message):
    """Client: a vector or matrix, one row for each row asked."""

    values: Array


@dataclass(frozen=True)
class Failed(Message):
    """Client: I could not; why."""

    error: str

"""What a client is made from: in this process, in a process of its own, or on another machine.

An engine that starts processes sends each of them one encoded `ClientSpec`, of which
`client_from_spec` makes the client there. Nothing is pickled: a table is sent as Arrow bytes or as
the path of a file that the client reads, a learner as its name with plain options.
"""

from __future__ import annotations

import io
import os
import secrets
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from fedcircuits import encoding, learners
from fedcircuits.api.learn import colour_of, make_learner
from fedcircuits.density import Learner, LearnsClassifier
from fedcircuits.errors import FederationError, SchemaError, StorageError, warn
from fedcircuits.federation.client.client import Client
from fedcircuits.federation.client.memory import Memory
from fedcircuits.federation.client.own_learner import MakeLearner, described
from fedcircuits.federation.policy.guard import Guarded
from fedcircuits.federation.policy.policy import Policy
from fedcircuits.schema import Data, Kind, images, read

# The function that an engine calls, in a client's own process, with the encoded spec.
CLIENT_FROM_SPEC = "fedcircuits.api.client_spec:client_from_spec"
# Classifiers are no learners of densities; they serve federations that average or vote.
CLASSIFIERS = {"tree": "TreeClassifier", "forest": "ForestClassifier"}
RECORD = "client_spec"
ClientLearner = Learner | LearnsClassifier
_JSON = (bool, int, float, str, type(None))


@dataclass(frozen=True, eq=False)
class ClientSpec:
    """Everything that one client of a federation is made from.

    Attributes:
        name: of the client, the same everywhere.
        data: its rows, or the path of a file that the client itself reads.
        learner: name of its learner, or the learner.
        options: of the named learner.
        id: column that aligns rows, or None; never a variable.
        kinds: kinds of columns, where a guess would be wrong.
        drop: columns that are left out.
        missing_values: spellings of a missing value besides those pandas knows.
        id_secret: mixed into digests of ids; clients know it, the server does not.
        label: the run's, for a client with a policy, whose own kinds hold.
        policy: of the owner of the table; id, kinds and missing values are then the policy's.
        key: private half of its sealing key, so that a client that is started again has the same.
        pins: fingerprints of the other clients' keys, None where any key is taken.
    """

    name: str
    data: pd.DataFrame | Path
    learner: str | ClientLearner
    options: Mapping[str, Any] = field(default_factory=dict)
    id: str | None = None
    kinds: Mapping[str, Kind] = field(default_factory=dict)
    drop: tuple[str, ...] = ()
    missing_values: tuple[object, ...] = ()
    id_secret: str = field(default="", repr=False)
    label: str | None = None
    policy: Policy | None = None
    key: str = field(default_factory=lambda: secrets.token_hex(32), repr=False)
    pins: Mapping[str, str] | None = None

    def make(self, memory: Path | None = None) -> Client:
        """Return the client, its file read and its pixels in the learner's colour.

        Args:
            memory: folder of what it answered, which outlives it.
        """
        colour = colour_of(self.learner, self.options)
        rows = images.pixels_in_colour(read(self.data), colour)
        id, kinds, missing = self.id, dict(self.kinds), self.missing_values
        if self.policy is not None:
            id = self.policy.id_of(rows, id)
            rows = self.policy.apply(rows, id=id, client=self.name, label=self.label)
            kinds, missing = self.policy.kinds_of(self.label, rows), self.policy.missing_values
        rows = rows.drop(columns=list(self.drop), errors="ignore")  # others may have them
        return Client(
            self.name,
            rows.drop(columns=self._empty(rows)),
            learner_maker(self.learner, self.options),
            id=id,
            kinds=kinds,
            missing_values=missing,
            id_secret=self.id_secret,
            min_rows=0 if self.policy is None else self.policy.min_rows,
            key=bytes.fromhex(self.key),
            pins=self.pins,
            memory=Memory(memory),
        )

    def _empty(self, rows: pd.DataFrame) -> list[str]:
        """Return columns without a value, which this client then does not hold."""
        holds = rows.notna().any()
        empty = [str(name) for name in rows.columns if not holds[name]]
        if len(rows) == 0 or len(empty) == rows.shape[1]:
            return []  # an error of whoever guesses the kinds
        for name in empty:
            warn(f"client {self.name!r}: left out column {name!r}: no value in any row")
        return empty

    def guarded(self, audit: Path | None = None) -> Client | Guarded:
        """Return the client behind its policy's guard; without a policy the client itself.

        Args:
            audit: file of all messages; beside it lies what the client remembers of them.
        """
        if self.policy is None:
            return self.make()
        memory = None if audit is None else audit.with_name(f"{audit.name}.memory")
        return Guarded(self.make(memory), self.policy, audit=audit)

    def to_bytes(self) -> bytes:
        """Return the spec as it is sent to a client's process; `from_bytes` reads it."""
        learner, options = learner_by_name(self.learner, self.options, self.name)
        header: dict[str, Any] = {
            "name": self.name,
            "path": None,
            "learner": learner,
            "options": options,
            "id": self.id,
            "kinds": dict(self.kinds),
            "drop": list(self.drop),
            "missing_values": list(self.missing_values),
            "id_secret": self.id_secret,
            "label": self.label,
            "key": self.key,
            "pins": None if self.pins is None else dict(self.pins),
            "policy": None if self.policy is None else asdict(self.policy),
        }
        arrays = {}
        if isinstance(self.data, Path):
            header["path"] = str(self.data.resolve())
        else:
            arrays["arrow"] = np.frombuffer(_to_arrow(self.name, self.data), dtype=np.uint8)
        try:
            return encoding.pack(encoding.Record(RECORD, header, arrays))
        except (TypeError, ValueError) as error:
            raise FederationError(
                f"client {self.name!r}: its options cannot be sent to a process of its own "
                f"({error}); use engine='local'"
            ) from None

    @staticmethod
    def from_bytes(data: bytes) -> ClientSpec:
        """Return the spec that `to_bytes` encoded."""
        record = encoding.unpack(data, kind=RECORD, name="the client spec")
        header = dict(record.header)
        try:
            path = header.pop("path")
            rows = Path(path) if path is not None else _from_arrow(record.arrays["arrow"].tobytes())
            for name in ("drop", "missing_values"):
                header[name] = tuple(header[name])
            if header["policy"] is not None:
                header["policy"] = Policy(**header["policy"])
            return ClientSpec(data=rows, **header)
        except (KeyError, TypeError, ValueError, pa.ArrowInvalid) as error:
            raise StorageError(f"the client spec is not valid: {error}") from None


def client_from_spec(data: bytes, rows: pd.DataFrame | None = None) -> Client | Guarded:
    """Return the client of an encoded spec.

    Args:
        data: from `ClientSpec.to_bytes`.
        rows: its rows, where the engine has them and the spec does not.
    """
    spec = ClientSpec.from_bytes(data)
    return (spec if rows is None else replace(spec, data=rows)).guarded()


# --- rows -----------------------------------------------------------------------------------------


def as_table(client: str, data: Data) -> pd.DataFrame | Path:
    """Return the rows of a client; a path stays a path, for the client itself to read.

    Args:
        client: its name, for errors.
        data: DataFrame, mapping, CSV or Parquet file, or images (n, h, w) or (n, h, w, 3).
    """
    if isinstance(data, (str, os.PathLike)):
        path = Path(data)
        if not path.is_file():
            raise FederationError(f"client {client!r}: no such file: {path}")
        return path
    try:
        if isinstance(data, np.ndarray) and images.is_images(data):
            return images.image_frame(data)
        return read(data)
    except SchemaError as error:
        raise FederationError(f"client {client!r}: {error}") from None


def _to_arrow(name: str, frame: pd.DataFrame) -> bytes:
    """Return a table as an Arrow stream."""
    try:
        table = pa.Table.from_pandas(frame)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise FederationError(
            f"client {name!r}: its table cannot be sent to a process of its own ({error}); give "
            "the path of a CSV or Parquet file, or use engine='local'"
        ) from None
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


def _from_arrow(data: bytes) -> pd.DataFrame:
    with pa.ipc.open_stream(data) as reader:
        frame: pd.DataFrame = reader.read_pandas()
    return frame


# --- learners -------------------------------------------------------------------------------------


def learner_maker(
    learner: str | ClientLearner, options: Mapping[str, Any] | None = None
) -> MakeLearner:
    """Return a function that makes the learner of a job, given the label's name or None."""
    options = options or {}
    if isinstance(learner, str):
        if learner in CLASSIFIERS:
            from fedcircuits.learners import trees

            made = getattr(trees, CLASSIFIERS[learner])(**options)
            return lambda _: made
        make_learner(learner, options, {})  # an unknown name is an error now, not at the first fit
        return lambda label: make_learner(learner, options, {"label": label})
    if not isinstance(learner, (Learner, LearnsClassifier)):
        raise FederationError(f"a learner has fit(table, rng), found {type(learner).__name__}")
    if is_dataclass(learner) and "label" in {entry.name for entry in fields(learner)}:
        chosen: Any = learner
        return lambda label: replace(chosen, label=label)
    return lambda _: learner


def learner_by_name(
    learner: str | ClientLearner, options: Mapping[str, Any], client: str
) -> tuple[str, dict[str, Any]]:
    """Return a learner as name and options, which can be sent to another process."""
    if isinstance(learner, str):
        return learner, dict(options)
    kind = type(learner).__name__
    names = {made: name for name, made in (learners.BY_NAME | CLASSIFIERS).items()}
    if kind in names and type(learner).__module__.startswith("fedcircuits.learners."):
        own: Any = learner
        found = {
            entry.name: getattr(learner, entry.name)
            for entry in fields(own)
            if entry.name != "label" and getattr(learner, entry.name) != _default(entry)
        }
        if all(isinstance(value, _JSON) for value in found.values()):
            return names[kind], found
    raise FederationError(
        f"client {client!r}: a learner of type {kind} cannot be sent to a process of its own (only "
        f"{', '.join(sorted(names.values()))} with plain options can); use engine='local'"
    )


def learner_in_words(learner: str | ClientLearner | Mapping[str, Any]) -> str:
    """Return a learner, or those of clients by name, as a plan says it."""
    if isinstance(learner, str):
        return learner
    if isinstance(learner, Mapping):
        return "; ".join(f"{name}: {learner_in_words(learner[name])}" for name in sorted(learner))
    return described(learner)


def _default(entry: Any) -> Any:
    return entry.default_factory() if entry.default_factory is not MISSING else entry.default

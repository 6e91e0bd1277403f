"""What a client is made from, wherever it runs: names, numbers and Arrow bytes or a path.

An engine that starts processes or reaches other machines sends this record once. It is encoded like
every message; there is no pickle, so a learner travels as a name with options.
"""

from __future__ import annotations

import io
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from fedcircuits import encoding
from fedcircuits.errors import FederationError, StorageError
from fedcircuits.schema import read

KIND = "ClientSpec"


@dataclass(frozen=True, eq=False)
class ClientSpec:
    """One client before it exists.

    Attributes:
        name: the same everywhere.
        data: rows, or the path of a file that the client itself reads.
        learner: name of the learner.
        options: of the learner.
        id: column that aligns rows, or None.
        kinds: kinds of columns, where a guess would be wrong.
        missing_values: spellings of a missing value besides those pandas knows.
        id_secret: what clients mix into digests of ids and the server does not know.
    """

    name: str
    data: pd.DataFrame | Path
    learner: str
    options: dict[str, Any] = field(default_factory=dict)
    id: str | None = None
    kinds: dict[str, Any] = field(default_factory=dict)
    missing_values: tuple[Any, ...] = ()
    id_secret: str = ""

    def frame(self) -> pd.DataFrame:
        """The rows."""
        return read(self.data)

    def to_bytes(self) -> bytes:
        """The record as it travels."""
        header: dict[str, Any] = {
            "name": self.name,
            "path": None,
            "learner": self.learner,
            "options": self.options,
            "id": self.id,
            "kinds": self.kinds,
            "missing_values": list(self.missing_values),
            "id_secret": self.id_secret,
        }
        arrays = {}
        if isinstance(self.data, Path):
            header["path"] = str(self.data.resolve())
        else:
            arrays["arrow"] = np.frombuffer(_to_arrow(self.name, self.data), dtype=np.uint8)
        try:
            return encoding.pack(encoding.Record(KIND, header, arrays))
        except (TypeError, ValueError) as error:
            raise FederationError(
                f"client {self.name!r}: its options cannot travel to a process of its own "
                f"({error}); use engine='local'"
            ) from None

    @staticmethod
    def from_bytes(data: bytes) -> ClientSpec:
        """Inverse of `to_bytes`."""
        record = encoding.unpack(data, kind=KIND, name="the client spec")
        header = record.header
        try:
            path = header["path"]
            rows = Path(path) if path is not None else _from_arrow(record.arrays["arrow"].tobytes())
            return ClientSpec(
                name=header["name"],
                data=rows,
                learner=header["learner"],
                options=dict(header["options"]),
                id=header["id"],
                kinds=dict(header["kinds"]),
                missing_values=tuple(header["missing_values"]),
                id_secret=header["id_secret"],
            )
        except (KeyError, TypeError, ValueError, pa.ArrowInvalid) as error:
            raise StorageError(f"the client spec is not valid: {error}") from None


def _to_arrow(name: str, frame: pd.DataFrame) -> bytes:
    """A table as an Arrow stream."""
    try:
        table = pa.Table.from_pandas(frame)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise FederationError(
            f"client {name!r}: its table cannot travel to a process of its own ({error}); give the "
            "path of a CSV or Parquet file, or use engine='local'"
        ) from None
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


def _from_arrow(data: bytes) -> pd.DataFrame:
    with pa.ipc.open_stream(data) as reader:
        frame: pd.DataFrame = reader.read_pandas()
    return frame

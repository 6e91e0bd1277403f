"""What a message is: a frozen dataclass that encodes itself and checks what it decodes."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, fields, replace
from typing import Any, Self

import numpy as np

from fedcircuits import encoding
from fedcircuits.arrays import Array, Arrays
from fedcircuits.density import Density
from fedcircuits.errors import StorageError

AS_IT_IS, PACKED = b"=", b"z"  # first byte of a model inside a message
PACKED_UP_TO = 16 * 2**20


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

    def fault(self, request: Message) -> str | None:
        """What is wrong with this as the reply to a request, if anything."""
        del request
        return None

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
                    if not isinstance(values[entry.name], _PLAIN[str(entry.type).split("[")[0]]):
                        raise StorageError(
                            f"{entry.name} of a {cls.__name__} message is not {entry.type}"
                        )
        except (KeyError, TypeError) as error:
            raise StorageError(f"a {cls.__name__} message lacks {error}") from None
        return cls(**values)


# What a field of a message may hold, by the first word of its type.
_PLAIN: dict[str, Any] = {
    "int": int,
    "float": (int, float),
    "str": str,
    "bool": bool,
    "list": list,
    "dict": dict,
    "str | None": (str, type(None)),
}


def encoded(model: Density) -> Array:
    """A model as an array, without its fit report: how long a fit took is not part of it."""
    record = model.to_record()
    record.header["fit_report"] = None
    return model_array(encoding.pack(record))


def report_of(model: Density) -> list[Any]:
    """What the learner says about a fit, as it travels; time is told beside it, in fixed width."""
    if model.fit_report is None:
        return []
    return [replace(model.fit_report, seconds=float("nan")).to_json()]


def model_array(data: bytes) -> Array:
    """The bytes of a model as an array that travels inside a message, made smaller if it is small.

    Large models (EiNets) hardly shrink, and packing them takes longer than sending them.
    """
    if len(data) > PACKED_UP_TO:
        return np.frombuffer(AS_IT_IS + data, dtype=np.uint8)
    return np.frombuffer(PACKED + zlib.compress(data, level=1), dtype=np.uint8)


def model_bytes(array: Array) -> bytes:
    """The bytes of a model that came as an array."""
    data = array.tobytes()
    if data[:1] == AS_IT_IS:
        return data[1:]
    try:
        if data[:1] != PACKED:
            raise zlib.error("an unknown first byte")
        return zlib.decompress(data[1:])
    except zlib.error as error:
        raise StorageError(f"a model came in a form that cannot be read: {error}") from None

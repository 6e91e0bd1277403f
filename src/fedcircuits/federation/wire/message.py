"""What a message is: a frozen dataclass that encodes itself and checks what it decodes."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np

from fedcircuits import encoding
from fedcircuits.arrays import Array, Arrays
from fedcircuits.density import Density
from fedcircuits.density.fit_report import FitReport
from fedcircuits.errors import StorageError
from fedcircuits.federation.wire.codecs import decode_fields, encode_fields
from fedcircuits.federation.wire.ids import fingerprint

AS_IT_IS, PACKED = b"=", b"z"  # first byte of a model inside a message
PACKED_UP_TO = 16 * 2**20
# What a header travels as that is compressed.
HEADER = "="


@dataclass(frozen=True)
class Message:
    """Base of all messages; the types of its fields say how they travel (`codecs.py`).

    Attributes:
        packs_header: whether names and numbers beside the arrays travel compressed: for requests
            that list many models, whose names repeat much.
        drawn: fields of such a header that travel as they are. They are drawn anew in every run
            and would make its compressed length another each time.
    """

    packs_header: ClassVar[bool] = False
    drawn: ClassVar[frozenset[str]] = frozenset()

    def to_bytes(self, answers: str | None = None) -> bytes:
        """Return the message as it travels; a reply names the request it answers (`request_name`).

        Args:
            answers: name of the request, for a reply.
        """
        arrays: Arrays = {}
        header = encode_fields(self, "", arrays)
        if self.packs_header:
            rest = {name: value for name, value in header.items() if name not in self.drawn}
            text = json.dumps(rest, allow_nan=False, sort_keys=True).encode()
            arrays[HEADER] = model_array(text)
            header = {name: header[name] for name in self.drawn & header.keys()}
        return encoding.pack(encoding.Record(type(self).__name__, header, arrays), answers)

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Return the message in some bytes; anything else is a `StorageError`."""
        record = encoding.unpack(data, kind=cls.__name__, name="the message")
        try:
            header = record.header
            if cls.packs_header and HEADER in record.arrays:
                rest = json.loads(
                    bytes(model_bytes(record.arrays[HEADER])), parse_constant=_no_number
                )
                if not isinstance(rest, dict):
                    raise StorageError("its compressed header is not an object")
                header = {**rest, **{name: record.header[name] for name in cls.drawn}}
            made: Self = decode_fields(cls, header, "", record.arrays)
        except (StorageError, KeyError, ValueError, RecursionError) as error:
            raise StorageError(f"a {cls.__name__} message: {error}") from None
        return made

    def fault(self, request: Message) -> str | None:
        """Return what is wrong with this as the reply to a request, None where nothing is."""
        del request
        return None

    @property
    def series(self) -> str:
        """What the request is about, where several of one kind can be under way; else empty."""
        return ""


def request_name(client: str, verb: str, payload: bytes) -> str:
    """Return the name by which a reply refers to its request: client, verb and payload hashed.

    A reply of another client, or to an earlier request, has another name and is refused.
    """
    return fingerprint(client.encode(), verb.encode(), payload)[:16]


@dataclass(frozen=True)
class Failed(Message):
    """Client: the request was not carried out, and why."""

    error: str


def encoded(model: Density) -> Array:
    """Return a model as an array, without its fit report: how long a fit took is not part of it."""
    return _as_array(encoding.pack(_bare(model), lead=AS_IT_IS))


def encoded_apart(model: Density) -> tuple[Array, Arrays]:
    """Return a model as `encoded` does; of a large one its arrays stand beside the rest of it.

    They then are arrays of the message, copied into it once and digested with it.
    """
    record = _bare(model)
    if sum(array.nbytes for array in record.arrays.values()) <= PACKED_UP_TO:
        return _as_array(encoding.pack(record, lead=AS_IT_IS)), {}
    return _as_array(encoding.pack(replace(record, arrays={}), lead=AS_IT_IS)), record.arrays


def _bare(model: Density) -> encoding.Record:
    record = model.to_record()
    record.header["fit_report"] = None
    return record


def report_of(
    model: Density, *, brief: bool = False, said: Mapping[str, str] | None = None
) -> list[Any]:
    """Return what a learner reports about a fit; its time is sent beside it, in fixed width.

    Args:
        model: that was fitted.
        brief: its name and warnings alone. Choices and curves are likelihoods of validation rows,
            which may be fewer than a policy's smallest group; sizes may hold times.
        said: words of warnings, names of columns that the client made up among them, as a reader
            knows them.
    """
    report = model.fit_report
    if report is None:
        return []
    warnings = report.warnings
    for word, known in (said or {}).items():
        warnings = tuple(warning.replace(word, known) for warning in warnings)
    report = replace(report, warnings=warnings)
    if brief:
        report = FitReport(report.learner, 0.0, warnings=report.warnings)
    return [replace(report, seconds=float("nan")).to_json()]


def _no_number(text: str) -> float:
    raise ValueError(f"{text} in a header")


def model_array(data: bytes) -> Array:
    """Return the bytes of a model as an array for a message, compressed if they are few."""
    return _as_array(AS_IT_IS + data)


def _as_array(marked: bytes) -> Array:
    """Return bytes behind the mark `AS_IT_IS` as an array, compressed if they are few.

    Large models (EiNets) hardly shrink, and packing them takes longer than sending them.
    """
    if len(marked) > PACKED_UP_TO + 1:
        return np.frombuffer(marked, dtype=np.uint8)
    return np.frombuffer(PACKED + zlib.compress(marked[1:], level=1), dtype=np.uint8)


def model_bytes(array: Array) -> bytes:
    """Return the bytes of a model that came as an array; never more than a sender would pack."""
    if array[:1].tobytes() == AS_IT_IS:
        return array[1:].tobytes()
    data = array.tobytes()
    try:
        if data[:1] != PACKED:
            raise zlib.error("an unknown first byte")
        unpacker = zlib.decompressobj()
        found = unpacker.decompress(data[1:], PACKED_UP_TO + 1)
        if len(found) > PACKED_UP_TO:
            raise zlib.error(f"more than {PACKED_UP_TO} bytes when unpacked")
        if not unpacker.eof:
            raise zlib.error("it is cut short")
        return found
    except zlib.error as error:
        raise StorageError(f"what came packed cannot be read: {error}") from None

"""A header of JSON values and some bytes as one parcel, for what engines add to messages."""

from __future__ import annotations

import json
import struct
from typing import Any

from fedcircuits.errors import StorageError

_HEAD = struct.Struct("<4sQ")
_MARK = b"FCP1"


def wrap(header: dict[str, Any], *bodies: bytes) -> bytes:
    """Return a header of JSON values and some bytes as one parcel."""
    text = json.dumps({**header, "sizes": [len(b) for b in bodies]}).encode()
    return _HEAD.pack(_MARK, len(text)) + text + b"".join(bodies)


def unwrap(data: bytes) -> tuple[dict[str, Any], list[bytes]]:
    """Return header and bodies of a parcel; anything else is a `StorageError`."""
    try:
        mark, length = _HEAD.unpack_from(data)
        header = json.loads(data[_HEAD.size : _HEAD.size + length])
        at, bodies = _HEAD.size + length, []
        for size in header["sizes"]:
            bodies.append(bytes(data[at : at + size]))
            at += size
    except (struct.error, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        raise StorageError("not a parcel of an engine, or a damaged one") from None
    if mark != _MARK or at != len(data):
        raise StorageError("not a parcel of an engine, or one that is cut short")
    return header, bodies

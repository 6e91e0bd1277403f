"""Bytes of files and messages: safetensors with a versioned JSON header and a SHA-256.

A record is a JSON header and named arrays. The header travels in the metadata of an ordinary
safetensors file, so any safetensors reader can open it; the digest covers header and arrays,
because safetensors itself checks no integrity. There is no pickle. Reading checks length, header,
version, digest, dtypes and shapes before anything is built, and every fault is a `StorageError`.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import secrets
import stat
import struct
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from fedcircuits.arrays import Array
from fedcircuits.errors import StorageError

T = TypeVar("T")

FORMAT = "fedcircuits"
VERSION = 2  # what each change did: docs/file-format.md
OLDEST_FILE = 1  # of saved models; messages are of this version alone
MAX_HEADER_BYTES = 256 * 2**20
MAX_DIMENSIONS = 16
# Larger arrays are digested in parts of this size, at the same time.
PART_BYTES = 16 * 2**20
MOST_THREADS = 8
DIGESTS = ("sha256", "sha256-parts")  # names of the digest: of all bytes, of large arrays in parts
_FILE_TYPES = {
    stat.S_IFBLK: "device",
    stat.S_IFCHR: "device",
    stat.S_IFDIR: "folder",
    stat.S_IFIFO: "pipe",
    stat.S_IFLNK: "symbolic link",
    stat.S_IFSOCK: "socket",
}
# Types of arrays, in the order in which safetensors puts the arrays into a file.
_DTYPES = {
    "int64": "I64", "float64": "F64", "float32": "F32", "int32": "I32", "float16": "F16",
    "int8": "I8", "uint8": "U8", "bool": "BOOL",
}  # fmt: skip
_STORED = {stored: name for name, stored in _DTYPES.items()}


@dataclass(frozen=True)
class Record:
    """Contents of a file or message.

    Attributes:
        kind: registry name of what it holds ("circuit", ...), never the name of a class.
        header: JSON values; no NaN and no infinity.
        arrays: by name.
    """

    kind: str
    header: dict[str, Any]
    arrays: dict[str, Array]

    def put_into(self, arrays: dict[str, Array], prefix: str) -> dict[str, Any]:
        """Add the arrays to those of an outer record; return kind and header for its header."""
        arrays.update({prefix + name: array for name, array in self.arrays.items()})
        return {"kind": self.kind, "header": self.header}

    def inner(self, prefix: str, entry: Mapping[str, Any]) -> Record:
        """Return the record that `put_into` put into this one; `entry` holds kind and header."""
        named = [name for name in self.arrays if name.startswith(prefix)]
        arrays = {name.removeprefix(prefix): self.arrays[name] for name in named}
        return Record(entry["kind"], entry["header"], arrays)


def _digest(text: str, arrays: dict[str, Array], *, in_parts: bool = False) -> str:
    """Return the SHA-256 of a header and arrays, of large arrays that of the digests of parts.

    Args:
        text: of the header.
        arrays: by name.
        in_parts: as `sha256-parts` has it; `sha256` is of all bytes one after the other.
    """
    digest = hashlib.sha256(text.encode())
    for name in sorted(arrays):
        array = arrays[name]
        digest.update(f"|{name}|{array.dtype.str}|{array.shape}|".encode())
        data = _bytes_of(array)
        if in_parts and data.size > PART_BYTES:
            for part in _over_parts(_sha256, data):
                digest.update(part)
        else:
            digest.update(data.data)
    return digest.hexdigest()


def _over_parts(work: Callable[[Array], T], data: Array) -> list[T]:
    """Return what a function makes of every part of some bytes, several parts at a time."""
    parts = [data[at : at + PART_BYTES] for at in range(0, data.size, PART_BYTES)]
    with ThreadPoolExecutor(min(MOST_THREADS, os.cpu_count() or 1)) as pool:
        return list(pool.map(work, parts))


def _sha256(data: Array) -> bytes:
    return hashlib.sha256(data.data).digest()


def _bytes_of(array: Array) -> Array:
    """Return the memory of an array in C order as bytes, without a copy where it is in order."""
    flat = np.ascontiguousarray(array).reshape(-1)
    return flat.view(np.uint8)


def _finite(text: str) -> float:
    """Return a number of a header; NaN and infinity pass every comparison with a limit."""
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is no number of a header")
    return value


def pack(record: Record, answers: str | None = None, lead: bytes = b"") -> bytes:
    """Return the bytes of a record, the same each time.

    Args:
        record: the contents.
        answers: of a reply: the name of the request that it answers (see `answers_of`).
        lead: what the bytes begin with, where they are a part of something else.
    """
    text = json.dumps(
        {"format": FORMAT, "version": VERSION, "kind": record.kind, "header": record.header},
        allow_nan=False,
        sort_keys=True,
    )
    arrays = {name: _as_stored(name, array) for name, array in record.arrays.items()}
    in_parts = any(array.nbytes > PART_BYTES for array in arrays.values())
    metadata = {"fedcircuits": text, DIGESTS[in_parts]: _digest(text, arrays, in_parts=in_parts)}
    if answers is not None:
        metadata["answers"] = answers
    # Written here and not by safetensors: models of gigabytes are copied once, and in one order.
    ranks = list(_DTYPES)
    order = sorted(arrays, key=lambda name: (ranks.index(arrays[name].dtype.name), name))
    head: dict[str, Any] = {"__metadata__": metadata}
    end = 0
    for name in order:
        array, start = arrays[name], end
        end = start + array.nbytes
        head[name] = {
            "dtype": _DTYPES[array.dtype.name], "shape": array.shape, "data_offsets": [start, end],
        }  # fmt: skip
    first = json.dumps(head, sort_keys=True, separators=(",", ":")).encode()
    first += b" " * (-len(first) % 8)
    parts = [_bytes_of(arrays[name]).data for name in order]
    return b"".join([lead, struct.pack("<Q", len(first)), first, *parts])


def _as_stored(name: str, array: Array) -> Array:
    """Return an array in C order and little-endian, the same one where it is so."""
    array = np.asarray(array, order="C")
    if array.dtype.name not in _DTYPES:
        raise StorageError(f"the array {name!r} has the type {array.dtype}, which is not stored")
    return array.astype(array.dtype.newbyteorder("<"), copy=False)


def unpack(
    data: bytes,
    kind: str | None = None,
    name: str = "the data",
    oldest: int = VERSION,
    *,
    checked: bool = False,
) -> Record:
    """Return the record in some bytes, or raise a `StorageError` that says what is wrong.

    Args:
        data: bytes made by `pack`.
        kind: the kind expected, if only one will do.
        name: what to call the bytes in errors.
        oldest: format version that is still accepted.
        checked: whether the bytes were part of others whose SHA-256 was compared.
    """
    metadata, places = _metadata(data, name)
    try:
        text = metadata["fedcircuits"]
        head = json.loads(text, parse_float=_finite, parse_constant=_finite)
        found, version = head["format"], head["version"]
        record_kind, header = head["kind"], head["header"]
    except (KeyError, TypeError, ValueError, RecursionError):
        raise StorageError(f"{name} is a safetensors file, but not one of fedcircuits") from None
    if found != FORMAT or not isinstance(version, int) or not isinstance(header, dict):
        raise StorageError(f"{name} is a safetensors file, but not one of fedcircuits")
    if not oldest <= version <= VERSION:
        reads = f"version {VERSION}" if oldest == VERSION else f"versions {oldest} to {VERSION}"
        raise StorageError(
            f"{name} has format version {version}; this fedcircuits reads {reads}: "
            + ("upgrade fedcircuits" if version > VERSION else "save it again from the older one")
        )
    if not isinstance(record_kind, str) or (kind is not None and record_kind != kind):
        raise StorageError(f"{name} holds {record_kind!r}, expected {kind!r}")
    seen = {key: _array_at(data, *place) for key, place in places.items()}
    stated = [(at, metadata[key]) for at, key in enumerate(DIGESTS) if key in metadata]
    if not checked and (
        len(stated) != 1 or stated[0][1] != _digest(text, seen, in_parts=bool(stated[0][0]))
    ):
        raise StorageError(f"{name} is damaged: its contents do not match their SHA-256")
    arrays = {key: _copied(array) for key, array in seen.items()}
    return Record(record_kind, header, arrays)


def answers_of(data: bytes) -> str | None:
    """Return the name of the request that a packed reply answers; None where it says none."""
    found = _metadata(data, "the message")[0].get("answers")
    return found if isinstance(found, str) else None


def sha256_of(data: bytes) -> str:
    """Return the SHA-256 that packed bytes state of their contents."""
    metadata = _metadata(data, "the message")[0]
    return str(metadata.get(DIGESTS[0], metadata.get(DIGESTS[1])))


Place = tuple[str, tuple[int, ...], int]  # type of an array, its shape and its first byte


def _array_at(data: bytes, dtype: str, shape: tuple[int, ...], start: int) -> Array:
    """Return an array of packed bytes as a view of them."""
    kind = np.dtype(dtype).newbyteorder("<")
    found = np.frombuffer(data, kind, count=math.prod(shape), offset=start).reshape(shape)
    return found.view(np.dtype(dtype)) if kind.isnative else found


def _copied(array: Array) -> Array:
    """Return an array in memory of its own that can be written to.

    The memory is that of a bytearray: NumPy asks for huge pages, which can take longer to get
    than the copy.
    """
    data = _bytes_of(array)
    if data.size <= PART_BYTES:
        return np.frombuffer(bytearray(data.data), array.dtype).reshape(array.shape)
    memory = np.frombuffer(bytearray(data.size), np.uint8)
    first = data.ctypes.data

    def copy(part: Array) -> None:
        at = part.ctypes.data - first
        memory[at : at + part.size] = part

    _over_parts(copy, data)
    return memory.view(array.dtype).reshape(array.shape)


def _metadata(data: bytes, name: str) -> tuple[dict[str, Any], dict[str, Place]]:
    """Return the metadata of safetensors bytes, and where their arrays are.

    The arrays follow each other without a gap, as safetensors has it.
    """
    if len(data) < 10:
        raise StorageError(f"{name} is not a fedcircuits file: only {len(data)} bytes")
    (length,) = struct.unpack("<Q", data[:8])
    if length > min(len(data) - 8, MAX_HEADER_BYTES):
        raise StorageError(f"{name} is not a fedcircuits file, or is cut short")
    try:
        head = json.loads(bytes(data[8 : 8 + length]))
        metadata = head.pop("__metadata__")
        places: dict[str, Place] = {}
        end = 0
        for key, entry in sorted(head.items(), key=lambda item: item[1]["data_offsets"]):
            start, stop = entry["data_offsets"]
            shape, dtype = entry["shape"], _STORED[entry["dtype"]]
            # Plain small integers first: a product of huge numbers can take for ever.
            if len(shape) > MAX_DIMENSIONS or not all(
                type(n) is int and 0 <= n <= len(data) for n in (start, stop, *shape)
            ):
                raise ValueError("array entries do not fit")
            if start != end or stop - start != math.prod(shape) * np.dtype(dtype).itemsize:
                raise ValueError("array entries do not fit")
            places[key] = dtype, tuple(shape), 8 + length + start
            end = stop
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise StorageError(f"{name} is not a fedcircuits file, or its header is damaged") from None
    if end != len(data) - 8 - length:
        raise StorageError(f"{name} is cut short or has bytes too many")
    if not isinstance(metadata, dict):
        raise StorageError(f"{name} is not a fedcircuits file, or its header is damaged")
    return metadata, places


def write(path: Path, data: bytes) -> None:
    """Write a file completely or not at all: an interrupted save never loses the old one.

    The file has the mode of any new file (the umask's), or of the one it replaces. Only a regular
    file is replaced: a device, pipe, folder or symbolic link of that name stays, with an error.
    """
    try:
        replaced = _mode(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.parent / f".fedcircuits-{secrets.token_hex(8)}"
        try:
            with temporary.open("xb") as file:
                file.write(data)
            if replaced is not None:
                temporary.chmod(stat.S_IMODE(replaced))
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error.strerror}") from None


def _mode(path: Path) -> int | None:
    """Return the mode of the regular file at a path, None where there is nothing yet."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(mode):
        found = _FILE_TYPES.get(stat.S_IFMT(mode), "special file")
        raise StorageError(
            f"cannot write {path}: a {found} of that name is there, and only a regular file is "
            "replaced; choose another path"
            + (", or the one that the link points to" if stat.S_ISLNK(mode) else "")
        )
    return mode


def read(path: Path) -> bytes:
    """Return the bytes of a file, or raise a `StorageError`."""
    try:
        return path.read_bytes()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise StorageError(f"cannot read {path}: {reason}") from None

"""Arrays about single rows among all that a server saw, found by their shapes alone.

Axes as long as a set of rows that both sides know, in arrays and in headers, and whole numbers
packed into bytes.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import numpy as np

from fedcircuits import encoding
from fedcircuits.arrays import Array, IntArray
from fedcircuits.errors import StorageError
from fedcircuits.federation.wire import requests as m
from fedcircuits.federation.wire.message import model_bytes
from fedcircuits.federation.wire.packing import unpack_choice, unpack_codes
from fedcircuits.federation.wire.verbs import VERBS, Level
from fedcircuits.learners.hclt.head.trees.boosted_trees import BoostedTrees
from recorder import Recorder

MOST_CODES = 4096


@dataclass(frozen=True)
class Seen:
    """Numbers about single rows in a reply.

    Attributes:
        client: who sent them.
        verb: of the reply.
        field: of the reply.
        level: that the verb declares for this request.
        bits: a row that it declares.
        rows: (n,) positions in the client's table; -1 where the length tells no set of rows.
        values: (n, k).
    """

    client: str
    verb: str
    field: str
    level: Level
    bits: float
    rows: IntArray
    values: Array

    @property
    def is_code(self) -> bool:
        """Whether it is a declared code."""
        return self.level is Level.BOUNDED_CODES


def per_row(engine: Recorder, sizes: dict[str, int], least: int) -> list[Seen]:
    """Everything in replies that may be about single rows; not ciphertext, digests and models.

    Args:
        engine: that carried the messages.
        sizes: rows of each client.
        least: an axis of so many entries is taken to be about rows, of which ones or not.
    """
    found: list[Seen] = []
    sets = {client: [np.arange(n)] for client, n in sizes.items()}
    aligned: dict[str, IntArray] = {}
    asked: dict[tuple[str, str], m.Message] = {}
    for message in engine.messages:
        client, verb = message.client, VERBS[message.verb]
        record = encoding.unpack(message.data)
        if message.to_client:
            asked[client, verb.name] = verb.request.from_bytes(message.data)
            if verb.name == "align":
                aligned[client] = np.asarray(record.arrays["rows"], dtype=np.int64)
                sets[client].append(aligned[client])
            sets[client] += _chosen(record, aligned.get(client))
            sent = asked[client, verb.name]
            if isinstance(sent, m.NameRows) and sent.draw is not None:
                sets[client].append(aligned[client][sent.draw.of(aligned[client].size)])
            continue
        if record.kind == "Failed" or verb.name == "draw":
            continue  # rows drawn from a model are none of the client's
        request = vars(asked[client, verb.name])
        level = verb.level("server", request)
        reply = verb.reply.from_bytes(message.data)
        bits = verb.bits(request, reply)
        groups = {len(list(counts(reply))) for counts in verb.groups.values()}
        hidden = _sealed(reply)
        for field, array in _arrays(record):
            if (
                field in hidden
                or _is_opaque(verb.name, level, array)
                or (array.ndim == 1 and array.size in groups)
            ):
                continue  # random to the server, or an entry a group whose rows are counted
            for rows, values in _about_rows(array, sets[client], record, least):
                found.append(Seen(client, verb.name, field, level, bits, rows, values))
    return found


def opaque(engine: Recorder) -> bytes:
    """Ciphertext, masked terms and digests that the server saw, end to end, nothing twice."""
    parts: dict[bytes, None] = {}
    asked = {}
    for message in engine.messages:
        verb = VERBS[message.verb]
        if message.to_client:
            asked[message.client, verb.name] = vars(verb.request.from_bytes(message.data))
            continue
        level = verb.level("server", asked[message.client, verb.name])
        record = encoding.unpack(message.data)
        hidden = set()
        if record.kind == verb.reply.__name__:
            hidden = _sealed(verb.reply.from_bytes(message.data))
        for field, array in record.arrays.items():
            if field in hidden or _is_opaque(verb.name, level, array):
                parts |= dict.fromkeys(row.tobytes() for row in np.atleast_2d(array))
    return b"".join(parts)


def _is_opaque(verb: str, level: Level, array: Array) -> bool:
    """Whether an array must look like random bytes: ciphertext, masked terms, keyed digests."""
    if level is Level.MASKED_SUMS:
        return array.dtype == np.int64
    return array.dtype == np.uint8 and (level is Level.NOTHING or verb == "digests")


def _sealed(value: Any, path: str = "") -> set[str]:
    """Names of arrays that a reply says are sealed for another client."""
    if isinstance(value, m.Piece):
        return {f"{path}values"}
    if isinstance(value, tuple):
        inner = [(each, f"{path}{at}/") for at, each in enumerate(value)]
    elif is_dataclass(value):
        inner = [(getattr(value, each.name), f"{path}{each.name}/") for each in fields(value)]
    else:
        return set()
    return set().union(*(_sealed(each, name) for each, name in inner))


def _chosen(record: encoding.Record, aligned: IntArray | None) -> list[IntArray]:
    """Sets of aligned rows that a request chooses."""
    if aligned is None:
        return []
    sets = []
    for field, array in record.arrays.items():
        if field.split("/")[-1] in ("choice", "elsewhere") and array.size:
            sets.append(aligned[unpack_choice(array, aligned.size)])
    return sets


def _of_trees(record: encoding.Record) -> set[str]:
    """Names of arrays that make up valid trees: a part of the model."""
    found: set[str] = set()
    for kind in ("trees", "leaf"):
        names = {name: f"{kind}/{name}" for name in BoostedTrees.__dataclass_fields__}
        if set(names.values()) <= set(record.arrays):
            arrays = {name: record.arrays[field] for name, field in names.items()}
            n_columns = len(arrays["known_categories"])
            BoostedTrees.from_arrays(arrays, n_columns, arrays["baseline"].size)
            found |= set(names.values())
    return found


def _arrays(record: encoding.Record) -> Iterator[tuple[str, Array]]:
    """Arrays of a reply, lists in its header among them; no models, no trees, nothing sealed."""
    left_out = _of_trees(record)
    if record.header.get("context"):  # what sealed values were sealed with
        left_out.add("values")
    for field, array in record.arrays.items():
        if field in left_out:
            continue
        if array.dtype == np.uint8 and array.ndim == 1 and array.size:
            try:
                encoding.unpack(model_bytes(array))
                continue
            except StorageError:
                pass
        yield field, array
    stack: list[tuple[str, Any]] = [("header", record.header)]
    while stack:
        name, value = stack.pop()
        inner: list[tuple[str, Any]] = []
        if isinstance(value, dict):
            inner = [(f"{name}/{key}", each) for key, each in value.items()]
        elif isinstance(value, list):
            if value and all(isinstance(each, (int, float, str)) for each in value):
                yield name, np.unique(np.array([str(v) for v in value]), return_inverse=True)[1]
            inner = [(f"{name}/{at}", each) for at, each in enumerate(value)]
        stack += [each for each in inner if isinstance(each[1], (dict, list))]


def _about_rows(
    array: Array, sets: Sequence[IntArray], record: encoding.Record, least: int
) -> Iterator[tuple[IntArray, Array]]:
    """The array with rows first, and which rows they are, the latest set of that length."""
    if not array.size:
        return
    if array.dtype == np.uint8 and array.ndim == 1 and 8 * array.size >= least:
        sizes = [other.size for other in record.arrays.values() if other.ndim == 1]
        likely = [(rows, k) for k in sizes for rows in reversed(sets)]
        large_first = sorted(sets, key=len, reverse=True)
        for rows, n_codes in (*likely, *itertools.product(large_first, range(2, MOST_CODES))):
            try:
                codes = unpack_codes(array, rows.size, n_codes)
            except StorageError:
                continue
            yield rows, codes[:, None]
            return
    for axis, length in enumerate(array.shape):
        known = next((rows for rows in reversed(sets) if rows.size == length), None)
        if known is not None:
            yield known, np.moveaxis(array, axis, 0).reshape(length, -1)
            return
    if max(array.shape, default=0) >= least:
        yield np.full(len(array), -1), array.reshape(len(array), -1)

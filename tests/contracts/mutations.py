"""Mutations of bytes, JSON values, arrays and text: what fuzzing and storage tests break."""

from __future__ import annotations

import copy
import json
import struct
from collections.abc import Callable
from typing import Any

import numpy as np

from fedcircuits.encoding import Record


def parts(data: bytes) -> tuple[dict[str, Any], bytes]:
    """Header and body of safetensors bytes."""
    (length,) = struct.unpack("<Q", data[:8])
    return json.loads(data[8 : 8 + length]), data[8 + length :]


def joined(head: Any, body: bytes) -> bytes:
    """Safetensors bytes with the length of the header recomputed."""
    text = head if isinstance(head, bytes) else json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + body


def put(at: int, value: Any) -> Callable[[np.ndarray], np.ndarray]:
    def change(array: np.ndarray) -> np.ndarray:
        array = array.copy()
        array.reshape(-1)[at] = value
        return array

    return change


def nested(depth: int) -> list[Any]:
    answer: list[Any] = []
    for _ in range(depth):
        answer = [answer]
    return answer


JUNK: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 7, 2**31, 2**63, -(2**70), 10**400, 0.5, -0.0, 1e308, "", "x",
    "variable", "\ud800", [], [[]], [0, 1], ["a", "b"], {}, {"atoms": []}, nested(300),
)  # fmt: skip


def mutate_bytes(data: bytes, rng: np.random.Generator) -> bytes:
    """Flip, cut, insert, repeat or overwrite bytes."""
    kind = rng.integers(6)
    at = (
        int(rng.integers(len(data)))
        if rng.random() < 0.5
        else int(rng.integers(min(3000, len(data))))
    )
    if kind == 0:
        return data[:at] + bytes([data[at] ^ (1 << int(rng.integers(8)))]) + data[at + 1 :]
    if kind == 1:
        return data[:at]
    if kind == 2:
        return data[:at] + rng.bytes(int(rng.integers(1, 40))) + data[at:]
    if kind == 3:
        end = at + int(rng.integers(1, 60))
        return data[:at] + data[end:]
    if kind == 4:
        many = bytearray(data)
        for _ in range(int(rng.integers(2, 30))):
            many[int(rng.integers(len(many)))] = int(rng.integers(256))
        return bytes(many)
    return struct.pack("<Q", int(rng.integers(2 ** int(rng.integers(1, 62))))) + data[8:]


def somewhere(tree: Any, rng: np.random.Generator) -> tuple[Any, Any]:
    """A random container inside JSON values, and one of its keys."""
    places = []
    stack = [tree]
    while stack:
        at = stack.pop()
        keys = list(at) if isinstance(at, dict) else range(len(at))
        places += [(at, key) for key in keys]
        stack += [at[key] for key in keys if isinstance(at[key], (dict, list))]
    return places[int(rng.integers(len(places)))]


def mutate_tree(tree: Any, rng: np.random.Generator) -> None:
    """Replace, drop or repeat a random value."""
    at, key = somewhere(tree, rng)
    kind = rng.integers(4)
    if kind == 0:
        del at[key]
    elif kind == 1 and isinstance(at, list):
        at.append(copy.deepcopy(at[key]))
    elif kind == 1:
        at[f"{key}x"] = at[key]
    else:
        at[key] = copy.deepcopy(JUNK[int(rng.integers(len(JUNK)))])


def mutate_outer(data: bytes, rng: np.random.Generator) -> bytes:
    """Edit the safetensors header, or the JSON text in its metadata; lengths are recomputed."""
    head, body = parts(data)
    if rng.random() < 0.5:
        mutate_tree(head, rng)
    else:
        inner = json.loads(head["__metadata__"]["fedcircuits"])
        mutate_tree(inner, rng)
        head["__metadata__"]["fedcircuits"] = json.dumps(inner)
    return joined(head, body)


def mutate_array(array: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    kind = rng.integers(7)
    if kind == 0 and array.size:
        values: list[Any] = [np.nan, np.inf, -np.inf, -1, 0, 1, 2, 5, 1e308]
        if array.dtype.kind != "f":
            values = [0, 1, 2, 5, 17, 18, 19, -1, 2**62, -(2**63)]
        picked = values[int(rng.integers(len(values)))]
        return put(int(rng.integers(array.size)), picked)(array)
    if kind == 1:
        return array[: int(rng.integers(array.shape[0] + 1))]
    if kind == 2:
        return np.concatenate([array, array[:1]])
    if kind == 3:
        types = (np.float64, np.float32, np.int64, np.int32, np.bool_, np.uint8)
        with np.errstate(all="ignore"):
            return array.astype(types[int(rng.integers(len(types)))])
    if kind == 4:
        return array[None] if rng.random() < 0.5 else array.T[..., None]
    if kind == 5:
        return array[::-1].copy()
    return rng.permutation(array.reshape(-1)).reshape(array.shape)


def mutate_record(record: Record, rng: np.random.Generator) -> None:
    """Change a record's header or arrays in place, once or twice."""
    for _ in range(int(rng.integers(1, 3))):
        if rng.random() < 0.5 or not record.arrays:
            if record.header:
                mutate_tree(record.header, rng)
            continue
        names = sorted(record.arrays)
        name = names[int(rng.integers(len(names)))]
        if rng.random() < 0.05:
            del record.arrays[name]
        else:
            record.arrays[name] = mutate_array(np.asarray(record.arrays[name]), rng)


def mutate_text(text: str, rng: np.random.Generator, words: tuple[str, ...]) -> str:
    """Drop, repeat or swap lines, or put a word in place of some characters."""
    lines = text.split("\n")
    kind, at = rng.integers(6), int(rng.integers(len(lines)))
    if kind == 0:
        del lines[at]
    elif kind == 1:
        lines.insert(at, lines[int(rng.integers(len(lines)))])
    elif kind == 2:
        other = int(rng.integers(len(lines)))
        lines[at], lines[other] = lines[other], lines[at]
    else:
        line, word = lines[at], words[int(rng.integers(len(words)))]
        start = int(rng.integers(len(line) + 1))
        end = min(len(line), start + int(rng.integers(0, 8)))
        lines[at] = line[:start] + word + line[end:]
    return "\n".join(lines)

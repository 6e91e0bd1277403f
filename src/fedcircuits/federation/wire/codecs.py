"""Values of typed fields as JSON values and arrays, and back.

One codec for each type a field may have: numbers, strings, enumerations, arrays, lists, tuples and
mappings of these, frozen dataclasses of these, or None. A codec is found by the field's real type.
Whatever does not fit the type is a `StorageError` that names the field.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any, Union, get_args, get_origin, get_type_hints

import numpy as np

from fedcircuits.arrays import Arrays
from fedcircuits.errors import StorageError

ABSENT = object()  # what stands in a header for an array: nothing


@dataclass(frozen=True)
class Codec:
    """How values of one type travel.

    Attributes:
        encode: value, its path and the arrays (added to) to a JSON value, or ABSENT.
        decode: JSON value (ABSENT where there is none), path and arrays to the value.
    """

    encode: Callable[[Any, str, Arrays], Any]
    decode: Callable[[Any, str, Arrays], Any]


def encode_fields(value: Any, path: str, arrays: Arrays) -> dict[str, Any]:
    """Return the fields of a dataclass as JSON values; arrays are added to `arrays`."""
    found = {}
    kind: Any = type(value)
    for name, codec in _fields(kind).items():
        plain = codec.encode(getattr(value, name), path + name, arrays)
        if plain is not ABSENT:
            found[name] = plain
    return found


def decode_fields(kind: Any, found: Any, path: str, arrays: Arrays) -> Any:
    """Return the dataclass whose fields are in a JSON mapping and in arrays."""
    if not isinstance(found, dict):
        raise StorageError(f"{path or kind.__name__} is not a mapping of fields")
    values = {
        name: codec.decode(found.get(name, ABSENT), path + name, arrays)
        for name, codec in _fields(kind).items()
    }
    return kind(**values)


@cache
def _fields(kind: Any) -> dict[str, Codec]:
    hints = get_type_hints(kind)
    return {entry.name: codec_of(hints[entry.name]) for entry in fields(kind)}


@cache
def codec_of(kind: Any) -> Codec:
    """Return the codec of a type; a type that no message may have is a TypeError."""
    origin, inner = get_origin(kind), get_args(kind)
    if hasattr(origin, "__value__"):  # an alias with parameters, as NumPy 2.5 has NDArray
        origin = get_origin(origin.__value__)
    if kind is Any:
        return Codec(lambda value, *_: value, lambda found, path, _: _present(found, path))
    if origin is np.ndarray:
        return _ARRAY
    if origin in (list, tuple):
        return _sequence(origin, codec_of(inner[0]))
    if origin is dict:
        return _mapping(codec_of(inner[1]))
    if origin in (Union, types.UnionType) and type(None) in inner:
        (given,) = (each for each in inner if each is not type(None))
        return _optional(codec_of(given))
    if isinstance(kind, type) and kind in _PLAIN:
        return _plain(*_PLAIN[kind])
    if isinstance(kind, type) and issubclass(kind, Enum):
        return _enumeration(kind)
    if is_dataclass(kind):
        return Codec(
            lambda value, path, arrays: encode_fields(value, f"{path}/", arrays),
            lambda found, path, arrays: decode_fields(
                kind, _present(found, path), f"{path}/", arrays
            ),
        )
    raise TypeError(f"no codec for fields of type {kind}")


_PLAIN: dict[type, tuple[tuple[type, ...], str]] = {
    int: ((int,), "a whole number"),
    float: ((int, float), "a number"),
    str: ((str,), "a string"),
    bool: ((bool,), "true or false"),
}


def _present(found: Any, path: str) -> Any:
    if found is ABSENT:
        raise StorageError(f"a message lacks {path!r}")
    return found


def _plain(kinds: tuple[type, ...], words: str) -> Codec:
    def decode(found: Any, path: str, _: Arrays) -> Any:
        _present(found, path)
        if not isinstance(found, kinds) or (isinstance(found, bool) and bool not in kinds):
            raise StorageError(f"{path} of a message is {type(found).__name__}, expected {words}")
        return found

    return Codec(lambda value, *_: value, decode)


def _enumeration(kind: type[Enum]) -> Codec:
    def decode(found: Any, path: str, _: Arrays) -> Any:
        _present(found, path)
        try:
            return kind(found)
        except (ValueError, TypeError):
            raise StorageError(f"{path} of a message is no {kind.__name__}: {found!r}") from None

    return Codec(lambda value, *_: value.value, decode)


def _optional(given: Codec) -> Codec:
    return Codec(
        lambda value, path, arrays: None if value is None else given.encode(value, path, arrays),
        lambda found, path, arrays: (
            None if _present(found, path) is None else given.decode(found, path, arrays)
        ),
    )


def _sequence(kind: type[Any], item: Codec) -> Codec:
    def encode(value: Any, path: str, arrays: Arrays) -> Any:
        plain = [item.encode(each, f"{path}/{at}", arrays) for at, each in enumerate(value)]
        return [None if each is ABSENT else each for each in plain]

    def decode(found: Any, path: str, arrays: Arrays) -> Any:
        if not isinstance(_present(found, path), list):
            raise StorageError(f"{path} of a message is {type(found).__name__}, expected a list")
        return kind(item.decode(each, f"{path}/{at}", arrays) for at, each in enumerate(found))

    return Codec(encode, decode)


def _mapping(item: Codec) -> Codec:
    def encode(value: Any, path: str, arrays: Arrays) -> Any:
        plain = {key: item.encode(each, f"{path}/{key}", arrays) for key, each in value.items()}
        return {key: None if each is ABSENT else each for key, each in sorted(plain.items())}

    def decode(found: Any, path: str, arrays: Arrays) -> Any:
        if not isinstance(_present(found, path), dict):
            raise StorageError(f"{path} of a message is {type(found).__name__}, expected a mapping")
        return {key: item.decode(each, f"{path}/{key}", arrays) for key, each in found.items()}

    return Codec(encode, decode)


def _encode_array(value: Any, path: str, arrays: Arrays) -> Any:
    arrays[path] = np.asarray(value)
    return ABSENT


def _decode_array(_: Any, path: str, arrays: Arrays) -> Any:
    if path not in arrays:
        raise StorageError(f"a message lacks the array {path!r}")
    return arrays[path]


_ARRAY = Codec(_encode_array, _decode_array)

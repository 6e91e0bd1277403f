"""Example messages: every field filled by its type, some fields as a test wants them."""

from __future__ import annotations

import types
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any, Union, get_args, get_origin, get_type_hints

import numpy as np

PLAIN: dict[Any, Any] = {int: 3, float: 2.5, str: "ä", bool: True, Any: [1, "x", [2.0]]}


def example(kind: Any, **given: Any) -> Any:
    """A dataclass with plain values in the fields that are not given."""
    hints = get_type_hints(kind)
    names = [entry.name for entry in fields(kind)]
    return kind(**{name: given.get(name, value_of(hints[name])) for name in names})


def value_of(kind: Any) -> Any:
    """Some value of a type."""
    origin, inner = get_origin(kind), get_args(kind)
    if kind in PLAIN:
        return PLAIN[kind]
    if origin is np.ndarray or get_origin(getattr(origin, "__value__", None)) is np.ndarray:
        return np.arange(6, dtype=np.int32).reshape(2, 3)
    if origin is dict:
        return {"b": value_of(inner[1]), "a\x1f1": value_of(inner[1])}
    if origin in (list, tuple):
        return origin([value_of(inner[0])])
    if origin in (Union, types.UnionType):
        return value_of(next(each for each in inner if each is not type(None)))
    if isinstance(kind, type) and issubclass(kind, Enum):
        return next(iter(kind))
    assert is_dataclass(kind), kind
    return example(kind)


def same(a: Any, b: Any) -> bool:
    """Whether two values are the same, arrays by dtype and elements."""
    if isinstance(a, np.ndarray):
        return isinstance(b, np.ndarray) and a.dtype == b.dtype and np.array_equal(a, b)
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    if is_dataclass(a):
        return all(same(getattr(a, f.name), getattr(b, f.name)) for f in fields(a))
    return bool(a == b)

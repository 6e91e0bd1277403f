"""Fields of messages as JSON and arrays: what comes back, and what is no field of that type."""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
import pytest

from fedcircuits.arrays import Array, Arrays
from fedcircuits.errors import StorageError
from fedcircuits.federation.wire.codecs import codec_of, decode_fields, encode_fields
from fedcircuits.federation.wire.envelope import unwrap, wrap
from fedcircuits.federation.wire.noise import KeyedNoise, laplace


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True)
class Inner:
    size: int
    cells: Array


@dataclass(frozen=True)
class Outer:
    name: str
    share: float
    is_on: bool
    colour: Colour
    maybe: int | None
    parts: tuple[Inner, ...]
    named: dict[str, Inner]
    numbers: list[float]
    arrays: Arrays
    plain: Any


def example() -> Outer:
    parts = (Inner(1, np.arange(3)), Inner(2, np.zeros((2, 0))))
    return Outer(
        "a", 0.5, True, Colour.BLUE, None, parts, {"z": parts[0], "b": parts[1]}, [1.0, 2.0],
        {"x": np.eye(2)}, {"k": [1, None]},
    )  # fmt: skip


def sent(value: Outer) -> tuple[dict[str, Any], Arrays]:
    arrays: Arrays = {}
    return json.loads(json.dumps(encode_fields(value, "", arrays))), arrays


def test_every_kind_of_field_comes_back() -> None:
    found, arrays = sent(example())
    assert found == {
        "name": "a", "share": 0.5, "is_on": True, "colour": "blue", "maybe": None,
        "parts": [{"size": 1}, {"size": 2}], "named": {"b": {"size": 2}, "z": {"size": 1}},
        "numbers": [1.0, 2.0], "arrays": {"x": None}, "plain": {"k": [1, None]},
    }  # fmt: skip
    assert sorted(arrays) == [
        "arrays/x", "named/b/cells", "named/z/cells", "parts/0/cells", "parts/1/cells",
    ]  # fmt: skip
    back = decode_fields(Outer, found, "", arrays)
    assert isinstance(back, Outer)
    assert isinstance(back.parts, tuple)
    assert back.colour is Colour.BLUE
    assert back.maybe is None
    assert [part.size for part in back.parts] == [1, 2]
    np.testing.assert_array_equal(back.parts[0].cells, np.arange(3))
    np.testing.assert_array_equal(back.named["b"].cells, np.zeros((2, 0)))
    np.testing.assert_array_equal(back.arrays["x"], np.eye(2))
    assert back.numbers == [1.0, 2.0]
    assert back.plain == {"k": [1, None]}
    found["maybe"], found["share"] = 7, 2  # a whole number is a number
    again = decode_fields(Outer, found, "", arrays)
    assert (again.maybe, again.share) == (7, 2)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("name", 3, "name of a message is int, expected a string"),
        ("share", "x", "share of a message is str, expected a number"),
        ("share", True, "share of a message is bool, expected a number"),
        ("is_on", 1, "is_on of a message is int, expected true or false"),
        ("colour", "green", "colour of a message is no Colour: 'green'"),
        ("colour", [], "colour of a message is no Colour"),
        ("maybe", "x", "maybe of a message is str, expected a whole number"),
        ("maybe", 1.0, "maybe of a message is float, expected a whole number"),
        ("maybe", True, "maybe of a message is bool, expected a whole number"),
        ("parts", {}, "parts of a message is dict, expected a list"),
        ("parts", [3], "parts/0/ is not a mapping of fields"),
        ("parts", [{"size": 1}] * 3, "a message lacks the array 'parts/2/cells'"),
        ("parts", [{}], "a message lacks 'parts/0/size'"),
        ("named", [], "named of a message is list, expected a mapping"),
        ("named", {"c": {"size": 1}}, "a message lacks the array 'named/c/cells'"),
        ("numbers", [1, "x"], "numbers/1 of a message is str, expected a number"),
    ],
)
def test_what_does_not_fit_its_type_is_named(name: str, value: Any, said: str) -> None:
    found, arrays = sent(example())
    with pytest.raises(StorageError, match=said):
        decode_fields(Outer, {**found, name: value}, "", arrays)


@pytest.mark.parametrize("name", ["name", "share", "colour", "maybe", "parts", "named", "plain"])
def test_a_field_that_is_not_there_is_named(name: str) -> None:
    found, arrays = sent(example())
    del found[name]
    with pytest.raises(StorageError, match=f"a message lacks '{name}'"):
        decode_fields(Outer, found, "", arrays)
    with pytest.raises(StorageError, match="Outer is not a mapping of fields"):
        decode_fields(Outer, None, "", arrays)


def test_a_type_that_no_message_may_have() -> None:
    for kind in (set, bytes, object, complex):
        with pytest.raises(TypeError, match="no codec"):
            codec_of(kind)


# --- parcels --------------------------------------------------------------------------------------


def test_a_parcel_comes_back_and_a_damaged_one_is_refused() -> None:
    data = wrap({"verb": "fit", "at": 3}, b"one", b"", b"three")
    assert data[:4] == b"FCP1"
    header, bodies = unwrap(data)
    assert {k: v for k, v in header.items() if k != "sizes"} == {"verb": "fit", "at": 3}
    assert bodies == [b"one", b"", b"three"]
    assert unwrap(wrap({})) == ({"sizes": []}, [])
    for wrong in (data[:-1], data + b"x", b"XCP1" + data[4:], data[:5], b"", data[:12] + b"{"):
        with pytest.raises(StorageError, match="not a parcel"):
            unwrap(wrong)
    for text in (b"[]", b"{}", b'{"sizes": 3}', b'{"sizes": ["x"]}', b'{"sizes": [4]}'):
        with pytest.raises(StorageError, match="not a parcel"):
            unwrap(struct.pack("<4sQ", b"FCP1", len(text)) + text)


# --- noise ----------------------------------------------------------------------------------------


def test_noise_has_the_scale_that_is_asked_for() -> None:
    drawn = laplace(3.0, 200_000)
    assert drawn.shape == (200_000,)
    assert abs(np.median(drawn)) < 0.05
    assert np.abs(drawn).mean() == pytest.approx(3.0, rel=0.02)  # its mean distance from 0
    assert (drawn**2).mean() == pytest.approx(18.0, rel=0.05)
    assert (drawn[:100] != laplace(3.0, 100)).all()


def test_keyed_numbers_are_a_function_of_key_and_subject() -> None:
    mine, other = KeyedNoise(b"k" * 32), KeyedNoise(b"l" * 32)
    drawn = mine.uniforms((2, 5000), b"a", b"bc")
    assert drawn.shape == (2, 5000)
    assert 0 < drawn.min() < 0.001
    assert 0.999 < drawn.max() < 1
    assert drawn.mean() == pytest.approx(0.5, abs=0.02)
    assert (drawn == KeyedNoise(b"k" * 32).uniforms((2, 5000), b"a", b"bc")).all()
    for others in (other.uniforms((2, 5000), b"a", b"bc"), mine.uniforms((2, 5000), b"ab", b"c")):
        assert (drawn != others).all()
    assert KeyedNoise().uniforms((1,)) != KeyedNoise().uniforms((1,))

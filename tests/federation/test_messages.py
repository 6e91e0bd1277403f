"""Messages: what goes in comes out, and what is not a message is refused."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
import pytest

from fedcircuits import encoding
from fedcircuits.errors import StorageError
from fedcircuits.federation.client.client import VERBS, Client
from fedcircuits.federation.wire import message
from fedcircuits.federation.wire import messages as m

EXAMPLES: dict[str, Any] = {
    "int": 3, "float": 2.5, "str": "ä", "bool": True, "str | None": None,
    "Array": np.arange(6, dtype=np.int32).reshape(2, 3),
    "Arrays": {"b": np.zeros(2), "a\x1f1": np.ones((0, 3), np.uint8)},
    "list": [1, "x", [2.0]], "dict": {"k": 1},
}  # fmt: skip

KINDS = [
    kind
    for kind in vars(m).values()
    if isinstance(kind, type) and issubclass(kind, m.Message) and kind is not m.Message
]


def example(kind: type[m.Message]) -> m.Message:
    return kind(**{f.name: EXAMPLES[str(f.type).split("[")[0]] for f in fields(kind)})


def same(a: m.Message, b: m.Message) -> bool:
    for f in fields(a):
        one, two = getattr(a, f.name), getattr(b, f.name)
        if f.type == "Array":
            if one.dtype != two.dtype or not np.array_equal(one, two):
                return False
        elif f.type == "Arrays":
            if one.keys() != two.keys() or any(not np.array_equal(one[k], two[k]) for k in one):
                return False
        elif one != two:
            return False
    return True


@pytest.mark.parametrize("kind", KINDS)
def test_round_trip(kind: type[m.Message]) -> None:
    message = example(kind)
    data = message.to_bytes()
    assert same(kind.from_bytes(data), message)
    assert message.to_bytes() == data  # the same bytes each time


@pytest.mark.parametrize("kind", KINDS)
def test_a_field_that_is_missing_or_of_another_type_is_refused(kind: type[m.Message]) -> None:
    record = encoding.unpack(example(kind).to_bytes())
    for entry in fields(kind):
        plain = entry.type != "Array"
        if not plain:
            continue
        less = {k: v for k, v in record.header.items() if k != entry.name}
        with pytest.raises(StorageError, match=entry.name):
            kind.from_bytes(encoding.pack(encoding.Record(record.kind, less, record.arrays)))
        other = {**record.header, entry.name: {"not": "it"} if entry.type != "dict" else 1}
        if str(entry.type).startswith("dict"):
            other[entry.name] = 1
        with pytest.raises(StorageError):
            kind.from_bytes(encoding.pack(encoding.Record(record.kind, other, record.arrays)))


@pytest.mark.parametrize("kind", KINDS)
def test_any_other_message_is_refused(kind: type[m.Message]) -> None:
    other = m.Failed("no") if kind is not m.Failed else m.AskLabel()
    with pytest.raises(StorageError, match="expected"):
        kind.from_bytes(other.to_bytes())


@pytest.mark.parametrize("verb", list(VERBS))
def test_every_verb_has_a_handler(verb: str) -> None:
    assert callable(getattr(Client, f"_{verb}"))


def test_one_flipped_bit_anywhere_is_noticed() -> None:
    data = m.Align(np.arange(4, dtype=np.int32)).to_bytes()
    for at in range(0, len(data), 7):
        spoilt = bytearray(data)
        spoilt[at] ^= 16
        with pytest.raises(StorageError):
            m.Align.from_bytes(bytes(spoilt))


@pytest.mark.parametrize("limit", [0, 10**6])
def test_a_model_comes_out_of_a_message_as_it_went_in(
    limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(message, "PACKED_UP_TO", limit)
    data = bytes(range(256)) * 40
    sent = message.model_array(data)
    assert message.model_bytes(sent) == data
    assert (sent.size < len(data)) == (limit > 0)


@pytest.mark.parametrize("data", [b"", b"x", b"zzz"])
def test_a_model_in_no_known_form_is_an_error(data: bytes) -> None:
    with pytest.raises(StorageError, match="cannot be read"):
        message.model_bytes(np.frombuffer(data, dtype=np.uint8))

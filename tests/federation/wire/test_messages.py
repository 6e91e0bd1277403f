"""Messages: what goes in comes out, and what is not a message is refused."""

from __future__ import annotations

import json
import zlib
from dataclasses import fields, replace
from typing import Any, TypeVar, get_origin, get_type_hints

import numpy as np
import pandas as pd
import pytest

from contracts.messages import example, same
from fedcircuits import encoding
from fedcircuits.api.load import from_bytes
from fedcircuits.density.fit_report import FitReport
from fedcircuits.errors import StorageError
from fedcircuits.federation.client import client  # noqa: F401 - registers the handlers
from fedcircuits.federation.client.dispatch import HANDLERS
from fedcircuits.federation.wire import codecs, message
from fedcircuits.federation.wire import requests as m
from fedcircuits.federation.wire.names import JobId, JobKind, ModelKey, ModelName
from fedcircuits.federation.wire.verbs import Verb
from fedcircuits.learners.factorised import Factorised
from fedcircuits.schema import Schema

KINDS = [
    kind
    for kind in vars(m).values()
    if isinstance(kind, type) and issubclass(kind, m.Message) and kind is not m.Message
]


@pytest.mark.parametrize("kind", KINDS)
def test_round_trip(kind: type[m.Message]) -> None:
    message = example(kind)
    data = message.to_bytes()
    assert same(kind.from_bytes(data), message)
    assert message.to_bytes() == data  # the same bytes each time


def test_an_alias_of_arrays_is_an_array() -> None:
    """NumPy 2.5 has NDArray as an alias with parameters, not as the type that it stands for."""
    extensions = pytest.importorskip("typing_extensions")
    kind = TypeVar("kind", bound=np.generic)
    alias: Any = extensions.TypeAliasType(
        "alias", np.ndarray[Any, np.dtype[kind]], type_params=(kind,)
    )
    assert get_origin(alias[np.float64]) is not np.ndarray
    value = np.arange(3.0)
    arrays: dict[str, Any] = {}
    codec = codecs.codec_of(alias[np.float64])
    plain = codec.encode(value, "field", arrays)
    assert np.array_equal(codec.decode(plain, "field", arrays), value)


@pytest.mark.parametrize("kind", KINDS)
def test_a_field_that_is_missing_or_of_another_type_is_refused(kind: type[m.Message]) -> None:
    record = encoding.unpack(example(kind).to_bytes())
    if kind.packs_header:
        header = json.loads(message.model_bytes(record.arrays.pop(message.HEADER)))
        header |= record.header
        record = encoding.Record(record.kind, header, record.arrays)
    hints = get_type_hints(kind)
    for entry in fields(kind):
        if entry.name not in record.header:
            less = {key: array for key, array in record.arrays.items() if key != entry.name}
            with pytest.raises(StorageError, match=entry.name):
                kind.from_bytes(encoding.pack(encoding.Record(record.kind, record.header, less)))
            continue
        without = {k: v for k, v in record.header.items() if k != entry.name}
        with pytest.raises(StorageError, match=entry.name):
            kind.from_bytes(encoding.pack(encoding.Record(record.kind, without, record.arrays)))
        wrong = 1 if get_origin(hints[entry.name]) is dict else {"not": "it"}
        other = {**record.header, entry.name: wrong}
        with pytest.raises(StorageError):
            kind.from_bytes(encoding.pack(encoding.Record(record.kind, other, record.arrays)))


@pytest.mark.parametrize(
    "jobs",
    [
        [{}],
        [1],
        [{"id": "S0", "columns": ["x"]}],
        [{"id": {"kind": "?", "space": 0, "part": -1, "attempt": 0}, "columns": ["x"]}],
        [{"id": {"kind": "S", "space": True, "part": -1, "attempt": 0}, "columns": ["x"]}],
        [{"id": {"kind": "S", "space": 0, "part": -1, "attempt": 0}, "columns": [1]}],
    ],
)
def test_a_job_that_is_none_is_refused(jobs: list[Any]) -> None:
    data = encoding.pack(encoding.Record("Fit", {"jobs": jobs, "keep": False}, {}))
    with pytest.raises(StorageError, match="a Fit message"):
        m.Fit.from_bytes(data)


def test_names_write_the_text_that_seeds_and_orders_fits() -> None:
    kind = JobKind
    texts = {
        "S0": JobId(kind.SUBSPACE, 0), "P0.1": JobId(kind.CLUSTER, 0, 1),
        "P4": JobId(kind.CLUSTER, part=4), "L3": JobId(kind.CLASSES, 3),
        "A0.10": JobId(kind.ANCHOR, 0, 10), "R": JobId(kind.ALL_ROWS),
        "R@1": JobId(kind.ALL_ROWS, attempt=1), "B2": JobId(kind.BRANCH, 2),
    }  # fmt: skip
    for text, job in texts.items():
        assert str(job) == text
    assert str(ModelName(texts["S0"], 2)) == "S0|2"
    assert str(ModelName(texts["B2"], state=1)) == "B2#1"
    keys = [ModelKey("a", JobId(kind.SUBSPACE, at)) for at in (2, 10, 1)]
    assert [str(key.job) for key in sorted(keys)] == ["S1", "S10", "S2"]


@pytest.mark.parametrize("kind", KINDS)
def test_any_other_message_is_refused(kind: type[m.Message]) -> None:
    other = m.Failed("no") if kind is not m.Failed else m.AskKey()
    with pytest.raises(StorageError, match="expected"):
        kind.from_bytes(other.to_bytes())


@pytest.mark.parametrize("verb", list(m.VERBS.values()))
def test_every_verb_has_a_handler_that_gives_its_reply(verb: Verb[Any, Any]) -> None:
    assert get_type_hints(HANDLERS[verb.name])["return"] is verb.reply


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


def test_a_model_that_unpacks_to_more_than_a_sender_packs_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bomb = np.frombuffer(b"z" + zlib.compress(bytes(200_000)), dtype=np.uint8)
    monkeypatch.setattr(message, "PACKED_UP_TO", 100_000)
    with pytest.raises(StorageError, match="more than 100000 bytes"):
        message.model_bytes(bomb)
    with pytest.raises(StorageError, match="cut short"):
        message.model_bytes(np.frombuffer(b"z" + zlib.compress(b"model")[:-2], dtype=np.uint8))


def test_up_to_16_mebibytes_are_packed() -> None:
    assert message.PACKED_UP_TO == 16 * 2**20


@pytest.mark.parametrize(("more", "first"), [(0, b"z"), (1, b"=")])
def test_a_model_of_the_largest_packed_size_is_packed_and_read(
    more: int, first: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(message, "PACKED_UP_TO", 1000)
    data = bytes(1000 + more)
    sent = message.model_array(data)
    assert sent[:1].tobytes() == first
    assert message.model_bytes(sent) == data


def test_one_byte_more_than_a_sender_packs_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message, "PACKED_UP_TO", 1000)
    packed = np.frombuffer(b"z" + zlib.compress(bytes(1001)), dtype=np.uint8)
    with pytest.raises(StorageError, match="more than 1000 bytes"):
        message.model_bytes(packed)


def test_a_request_is_about_nothing_in_particular_unless_it_says_so() -> None:
    assert m.Failed("no").series == ""
    assert m.Failed("no").fault(m.AskKey()) is None


def test_a_request_is_named_by_client_verb_and_payload() -> None:
    asked = ("a", "fit", b"x")
    name = message.request_name(*asked)
    assert len(name) == 16
    assert name == message.request_name(*asked)
    others = [("b", "fit", b"x"), ("a", "fix", b"x"), ("a", "fit", b"y")]
    assert name not in [message.request_name(*other) for other in others]


def test_the_report_of_a_fit_says_all_but_its_time() -> None:
    rows = pd.DataFrame({"x": list("uvuv"), "y": [0, 1, 0, 1]})
    table = Schema.infer(rows).encode(rows)
    model = Factorised().fit(table, np.random.default_rng(0))
    assert model.fit_report is not None
    (sent,) = message.report_of(model)
    found = FitReport.from_json(sent)
    assert np.isnan(found.seconds)
    assert replace(found, seconds=0.0) == replace(model.fit_report, seconds=0.0)
    bare = from_bytes(message.model_bytes(message.encoded(model)))
    assert bare.fit_report is None
    assert message.report_of(bare) == []


def test_a_long_header_travels_compressed() -> None:
    names = tuple(ModelName(JobId(JobKind.CLASSES, 0), cls) for cls in range(200))
    asked = m.AskSealed(names, "rows", 12, "key", "step")
    data = asked.to_bytes()
    assert len(data) < 4000
    assert same(m.AskSealed.from_bytes(data), asked)
    record = encoding.unpack(data)
    packed = record.arrays[message.HEADER]
    for wrong in (packed[:-9], message.model_array(b"[1]"), message.model_array(b"{" * 100_000)):
        broken = encoding.Record(record.kind, record.header, {message.HEADER: wrong})
        with pytest.raises(StorageError, match="AskSealed message"):
            m.AskSealed.from_bytes(encoding.pack(broken))

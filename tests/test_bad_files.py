"""Files that are damaged or tampered with give one clear error and nothing else."""

from __future__ import annotations

import copy
import json
import resource
import struct
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import fedcircuits as fc
from contracts.by_hand import assert_same_answers, stored_circuit
from contracts.mutations import (
    joined,
    mutate_bytes,
    mutate_outer,
    mutate_record,
    nested,
    parts,
    put,
)
from fedcircuits import Circuit, encoding
from fedcircuits.api.load import from_bytes, from_file_bytes
from fedcircuits.encoding import Record
from fedcircuits.errors import StorageError

N_MUTATIONS = 5_000
MOST_BYTES = 2_000_000  # the file itself has about 6,000
MOST_SECONDS = 20.0


@pytest.fixture(scope="module")
def circuit() -> Circuit:
    return stored_circuit()


@pytest.fixture(scope="module")
def saved(circuit: Circuit) -> bytes:
    return encoding.pack(circuit.to_record())


# --- bad files, one by one ------------------------------------------------------------------------


def with_entry(saved: bytes, name: str, **changes: Any) -> bytes:
    head, body = parts(saved)
    head[name].update(changes)
    return joined(head, body)


def with_text(saved: bytes, change: Callable[[dict[str, Any]], Any]) -> bytes:
    head, body = parts(saved)
    inner = json.loads(head["__metadata__"]["fedcircuits"])
    change(inner)
    head["__metadata__"]["fedcircuits"] = json.dumps(inner)
    return joined(head, body)


HUGE = 2**62
BAD_FILES: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "nothing": (lambda _: b"", "only 0 bytes"),
    "a few bytes": (lambda b: b[:9], "only 9 bytes"),
    "text": (lambda _: b"age,income\n40,1000\n" * 9, "not a fedcircuits file"),
    "cut short": (lambda b: b[:-1], "cut short"),
    "cut in the header": (lambda b: b[:200], "cut short"),
    "a byte too many": (lambda b: b + b"\0", "bytes too many"),
    "huge header length": (lambda b: struct.pack("<Q", 2**63) + b[8:], "cut short"),
    "a flipped bit": (lambda b: b[:-5] + bytes([b[-5] ^ 4]) + b[-4:], "SHA-256"),
    "huge shape": (lambda b: with_entry(b, "child", shape=[HUGE, HUGE]), "header is damaged"),
    "negative shape": (lambda b: with_entry(b, "child", shape=[-3, -3]), "header is damaged"),
    "infinite shape": (lambda b: with_entry(b, "child", shape=[float("inf")]), "header is damaged"),
    "many dimensions": (lambda b: with_entry(b, "child", shape=[1] * 99), "header is damaged"),
    "many huge dimensions": (
        lambda b: with_entry(b, "child", shape=[10**999] * 20_000),
        "header is damaged",
    ),
    "shape of words": (lambda b: with_entry(b, "child", shape=["3"]), "header is damaged"),
    "no shape": (lambda b: with_entry(b, "child", shape=None), "header is damaged"),
    "offsets beyond": (lambda b: with_entry(b, "child", data_offsets=[0, HUGE]), "damaged|cut"),
    "offsets backwards": (lambda b: with_entry(b, "child", data_offsets=[8, 0]), "damaged"),
    "offsets of three": (lambda b: with_entry(b, "child", data_offsets=[0, 1, 2]), "damaged"),
    "unknown dtype": (lambda b: with_entry(b, "child", dtype="F17"), "header is damaged"),
    "another dtype": (lambda b: with_entry(b, "child", dtype="F64"), "SHA-256"),
    "deep JSON": (lambda b: joined(b"[" * 100_000, b), "header is damaged"),
    "deep metadata": (
        lambda _: joined(b'{"__metadata__":' + b"[" * 50_000 + b"]" * 50_000 + b"}", b""),
        "header is damaged",
    ),
    "no metadata": (lambda _: joined({"a": 1}, b""), "header is damaged"),
    "metadata of another sort": (lambda _: joined({"__metadata__": []}, b""), "damaged"),
    "a list": (lambda _: joined([1, 2], b""), "header is damaged"),
    "not UTF-8": (lambda _: joined(b"\xff\xfe" * 20, b""), "header is damaged"),
    "someone else's": (
        lambda _: joined({"__metadata__": {"format": "pt"}}, b""),
        "not one of fedcircuits",
    ),
    "future version": (lambda b: with_text(b, lambda h: h.update(version=3)), "version 3.*upgrade"),
    "old version": (lambda b: with_text(b, lambda h: h.update(version=0)), "version 0.*older"),
    "version of words": (lambda b: with_text(b, lambda h: h.update(version="1")), "not one of"),
    "another format": (lambda b: with_text(b, lambda h: h.update(format="x")), "not one of"),
    "no header": (lambda b: with_text(b, lambda h: h.pop("header")), "not one of"),
    "edited header": (lambda b: with_text(b, lambda h: h["header"].update(n_leaves=4)), "SHA-256"),
    "another kind": (lambda b: with_text(b, lambda h: h.update(kind="cat")), "SHA-256"),
    "a kind that is none": (lambda b: with_text(b, lambda h: h.update(kind=3)), "holds 3"),
}


def load_bounded(data: bytes) -> fc.Density:
    """Load with a watch on memory and time; the bounds hold whatever comes out."""
    if tracemalloc.is_tracing():
        tracemalloc.reset_peak()
    before, start = tracemalloc.get_traced_memory()[0], time.process_time()
    try:
        return from_bytes(data)
    finally:
        peak = tracemalloc.get_traced_memory()[1] - before  # 0 where nothing is traced
        assert peak < MOST_BYTES + 60 * len(data), f"{peak} bytes for a file of {len(data)}"
        assert time.process_time() - start < MOST_SECONDS


@pytest.fixture
def traced() -> Any:
    tracemalloc.start()
    yield
    tracemalloc.stop()


@pytest.mark.parametrize("what", BAD_FILES)
@pytest.mark.usefixtures("traced")
def test_a_bad_file_gives_one_clear_error(saved: bytes, what: str) -> None:
    spoil, words = BAD_FILES[what]
    data = spoil(saved)
    with pytest.raises(StorageError, match=words):
        load_bounded(data)


def change_header(*path: Any, to: Any) -> Callable[[Record], None]:
    def change(record: Record) -> None:
        at: Any = record.header
        for key in path[:-1]:
            at = at[key]
        at[path[-1]] = to

    return change


def change_array(name: str, change: Callable[[np.ndarray], np.ndarray]) -> Callable[[Record], None]:
    def changed(record: Record) -> None:
        record.arrays[name] = change(record.arrays[name])

    return changed


# Records with a right SHA-256 whose circuit is wrong: what a hostile sender would send.
WRAPS = np.array([0, 2**63 - 1, -2, 6, 21], dtype=np.int64)
TAMPERED: dict[str, Callable[[Record], None]] = {
    "no schema": change_header("schema", to=[]),
    "schema of words": change_header("schema", to="abc"),
    "a name that is none": change_header("schema", 0, "name", to=None),
    "the same name twice": change_header("schema", 0, "name", to="age"),
    "a kind that is none": change_header("schema", 0, "kind", to="integer"),
    "a domain the wrong way round": change_header("schema", 3, "domain", to=[5, 1]),
    "a domain of one": change_header("schema", 3, "domain", to=[5]),
    "categories too few": change_header("schema", 4, "categories", to=["clerk"]),
    "categories that nest": change_header("schema", 4, "categories", to=nested(400)),
    "a grid of words": change_header("schema", 0, "grid", to={"atoms": "x"}),
    "a grid that falls": change_header("schema", 0, "grid", "edges", to=[3.0, 1.0]),
    "tails that are none": change_header("schema", 0, "grid", "tails", to=[-1.0, 1.0]),
    "three tails": change_header("schema", 0, "grid", "tails", to=[1.0, 1.0, 1.0]),
    "column beyond": change_header("groups", 0, "column", to=6),
    "column -1": change_header("groups", 0, "column", to=-1),
    "column of words": change_header("groups", 0, "column", to="0"),
    "another column": change_header("groups", 0, "column", to=3),
    "an unknown family": change_header("groups", 0, "family", to="cauchy"),
    "a family that is none": change_header("groups", 0, "family", to=["gaussian"]),
    "another family": change_header("groups", 0, "family", to="gaussian"),
    "no groups": change_header("groups", to=[]),
    "no group grid": change_header("groups", 0, "grid", to=None),
    "more leaves": change_header("n_leaves", to=999),
    "leaves in halves": change_header("n_leaves", to=16.0),
    "a report of words": change_header("fit_report", to="fine"),
    "a report without a curve": change_header("fit_report", to={"learner": "x"}),
    "a NaN weight": change_array("log_weight", put(-1, np.nan)),
    "an infinite weight": change_array("log_weight", put(-1, np.inf)),
    "a huge weight": change_array("log_weight", put(-1, 5000.0)),
    "weights that do not add up": change_array("log_weight", put(-1, -3.0)),
    "a child beyond": change_array("child", put(0, 10**12)),
    "a child below": change_array("child", put(0, -1)),
    "a cycle": change_array("child", put(0, 18)),
    "another child": change_array("child", put(0, 3)),
    "children in float": change_array("child", lambda a: a.astype(np.float64)),
    "children in int32": change_array("child", lambda a: a.astype(np.int32)),
    "children in rows": change_array("child", lambda a: a[None]),
    "one edge less": change_array("child", lambda a: a[:-1]),
    "edges that fall": change_array("first_edge", put(1, 99)),
    "edges below zero": change_array("first_edge", put(0, -5)),
    "edges whose differences wrap around": change_array("first_edge", lambda _: WRAPS),
    "sums in float": change_array("is_sum", lambda a: a.astype(np.float64)),
    "truth values of 7": change_array(
        "is_sum", lambda a: np.full(a.size, 7, np.uint8).view(np.bool_)
    ),
    "products for sums": change_array("is_sum", lambda a: ~a),
    "no inner node": change_array("is_sum", lambda a: a[:0]),
    "a leaf in float32": change_array("leaf.0.masses", lambda a: a.astype(np.float32)),
    "a leaf less": change_array("leaf.0.masses", lambda a: a[:1]),
    "no leaf": change_array("leaf.0.masses", lambda a: a[:0]),
    "a NaN mass": change_array("leaf.0.masses", put(0, np.nan)),
    "masses that do not add up": change_array("leaf.0.masses", put(0, 0.9)),
    "a negative mass": change_array("leaf.0.masses", put(0, -0.1)),
    "masses of no shape": change_array("leaf.0.masses", lambda a: a.sum()),
    "masses in three axes": change_array("leaf.0.masses", lambda a: a[..., None]),
    "arrays gone": lambda record: record.arrays.clear(),
}


def tampered(circuit: Circuit, change: Callable[[Record], None]) -> bytes:
    record = circuit.to_record()
    fresh = Record(record.kind, copy.deepcopy(record.header), dict(record.arrays))
    change(fresh)
    fresh.arrays.update({k: np.asarray(v) for k, v in fresh.arrays.items()})
    return encoding.pack(fresh)


@pytest.mark.parametrize("what", TAMPERED)
@pytest.mark.usefixtures("traced")
def test_a_right_digest_does_not_make_a_wrong_circuit_right(circuit: Circuit, what: str) -> None:
    data = tampered(circuit, TAMPERED[what])
    with pytest.raises(StorageError, match=r"circuit|leaf|leaves|array"):
        load_bounded(data)


def test_an_unknown_kind_is_named() -> None:
    data = encoding.pack(Record("teapot", {}, {"a": np.zeros(1)}))
    with pytest.raises(StorageError, match="holds 'teapot', which this fedcircuits does not know"):
        from_bytes(data)
    with pytest.raises(StorageError, match="holds 'teapot', expected 'circuit'"):
        encoding.unpack(data, kind="circuit")


def test_padding_of_the_header_is_not_part_of_the_contents(circuit: Circuit, saved: bytes) -> None:
    head, body = parts(saved)
    text = json.dumps(head, indent=3).encode()
    assert_same_answers(from_bytes(joined(text, body)), circuit)


# --- bad files by the thousand --------------------------------------------------------------------


@pytest.mark.parametrize("part", [pytest.param(0, marks=pytest.mark.slow), 1, 2, 3, 4])
def test_thousands_of_mutations_give_only_clean_errors(
    circuit: Circuit, saved: bytes, part: int, request: pytest.FixtureRequest
) -> None:
    """Flipped, cut and edited files are refused, or hit nothing and load as they were.

    A tampered record with a right digest may also be another valid circuit (a renamed variable,
    say); then it has mass one. The first part counts every allocation, which is slow; the others
    watch the memory of the process.
    """
    rng = np.random.default_rng(part)
    if part == 0:
        request.getfixturevalue("traced")

    def changed(rng: np.random.Generator) -> bytes:
        return tampered(circuit, lambda record: mutate_record(record, rng))

    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    refused = 0
    for i in range(N_MUTATIONS // 5):
        how = ("bytes", "outer", "record")[i % 3]
        if how == "bytes":
            data = mutate_bytes(saved, rng)
        else:
            data = mutate_outer(saved, rng) if how == "outer" else changed(rng)
        try:
            found = load_bounded(data)
        except StorageError as error:
            assert 5 < len(str(error)) < 5_000  # noqa: PT017
            refused += 1
            continue
        if how == "record":
            assert found.log_prob(pd.DataFrame(index=[0])).iloc[0] == pytest.approx(0.0, abs=1e-8)
        else:
            assert_same_answers(found, circuit)
    assert refused > 0.8 * N_MUTATIONS / 5
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - resident < 100_000  # KiB


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_a_header_has_finite_numbers(number: str) -> None:
    def packed(value: str) -> bytes:
        head = {"format": encoding.FORMAT, "version": encoding.VERSION, "kind": "x"}
        text = json.dumps({**head, "header": {"epsilon": "?"}}).replace('"?"', value)
        metadata = {"fedcircuits": text, "sha256": encoding._digest(text, {})}
        return joined({"__metadata__": metadata}, b"")

    assert encoding.unpack(packed("1e99")).header == {"epsilon": 1e99}
    with pytest.raises(StorageError, match="not one of fedcircuits"):
        encoding.unpack(packed(number))


def saved_federation(folder: Path, **how: Any) -> Record:
    rows = pd.DataFrame({"x": np.arange(40) % 3, "y": np.arange(40) // 20})
    halves = {"a": rows.iloc[::2], "b": rows.iloc[1::2]}
    fc.federate(halves, label="y", learner="factorised", **how).save(folder / "model.fc")
    return encoding.unpack((folder / "model.fc").read_bytes())


@pytest.mark.parametrize("odd", [None, 3, "x", ["left"], {"left": 3}, {"left": [3]}])
def test_a_federation_that_is_described_by_something_else_is_refused(
    odd: Any, tmp_path: Path
) -> None:
    record = saved_federation(tmp_path, agreement="product")
    record.header["federation"] = odd
    with pytest.raises(StorageError, match="the federation in the file is not valid"):
        from_bytes(encoding.pack(record))


@pytest.mark.parametrize("odd", [3, [], ["customer"], {}, True])
def test_an_id_that_is_no_name_is_refused(odd: Any, tmp_path: Path) -> None:
    federation = saved_federation(tmp_path, agreement="product")
    federation.header["federation"]["id"] = odd
    ensemble = saved_federation(tmp_path, operation="vote")
    ensemble.header["id"] = odd
    for record in (federation, ensemble):
        with pytest.raises(StorageError, match="the id in the file is not valid"):
            from_file_bytes(encoding.pack(record), "model.fc")

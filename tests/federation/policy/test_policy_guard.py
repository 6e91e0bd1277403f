"""The guard of a client: odd requests, large replies, the audit file, texts of errors."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedcircuits as fc
from contracts.engine import table
from contracts.federations import ID, LABEL
from contracts.guarded import client, engine, error_of, filled, guarded, ready
from fedcircuits import encoding
from fedcircuits.federation.policy.guard import Guarded
from fedcircuits.federation.policy.policy import Policy, PolicyError
from fedcircuits.federation.wire import requests as m
from fedcircuits.federation.wire.names import Job, JobId, JobKind


class Untouched:
    """A client that must not be reached."""

    name = "a"

    def handle(self, verb: str, payload: bytes) -> bytes:
        raise AssertionError(f"{verb} of {len(payload)} bytes reached the client")


def test_what_is_refused_never_reaches_the_client() -> None:
    member = Guarded(Untouched(), Policy(max_message_bytes=1000, requests=("describe", "agree")))
    # Not a message at all, so an answer about bytes says that it was not decoded.
    assert "a message of 1001 bytes" in error_of(member.handle("describe", b"x" * 1001))
    assert "cannot be read" in error_of(member.handle("describe", b"x" * 1000))
    for verb in ("rows", "table", "_frame", "handle", "", "fit", "hello"):
        assert "no such request; answered are" in error_of(member.handle(verb, b""))
    asked = m.Describe(5).to_bytes()
    assert "'south' asks; only 'server'" in error_of(member.handle("describe", asked, "south"))


ODD: list[Any] = [None, True, -1, 10**30, "x", [], [[1]], [{"name": ["a"]}], {"a": 1}, [3, None]]


def test_no_message_however_odd_brings_the_guard_down() -> None:
    member = ready(Policy(columns=("height", "visits", "size", LABEL), rows_by_id=True))
    arrays = [np.zeros(0), np.full((2, 3), -1), np.array(7.5), np.zeros((1, 12), dtype=np.uint8)]
    answered = 0
    for verb, declared in m.VERBS.items():
        whole = encoding.unpack(filled(verb, {}))
        for at, odd in enumerate(ODD * 2):
            header = dict(whole.header)
            if header:
                header[sorted(header)[at % len(header)]] = odd
            other = {
                name: arrays[(at + place) % len(arrays)] for place, name in enumerate(whole.arrays)
            }
            payload = encoding.pack(encoding.Record(whole.kind, header, other))
            reply = encoding.unpack(member.handle(verb, payload))
            assert reply.kind in ("Failed", declared.reply.__name__)
            answered += reply.kind != "Failed"
    assert answered >= 3
    assert m.Description.from_bytes(member.handle("describe", m.Describe(5).to_bytes())).n_rows


def test_a_reply_that_is_too_large_is_refused() -> None:
    member = ready(Policy(max_message_bytes=6000))
    jobs = tuple(Job(JobId(JobKind.SUBSPACE, at), ("size",)) for at in range(10))
    assert "the reply has" in error_of(member.handle("fit", m.Fit(jobs, False).to_bytes()))
    kept = m.Fitted.from_bytes(member.handle("fit", m.Fit(jobs, True).to_bytes()))
    assert [each.rows for each in kept.models] == [160.0] * 10


def test_everything_is_noted_and_the_federation_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    audit = tmp_path / "audit.jsonl"
    members = guarded("horizontal", Policy(), audit=audit)
    with caplog.at_level(logging.WARNING):
        members["a"].handle("rows", b"", "server")
    assert "client 'a' refused 'rows' from 'server': there is no such request" in caplog.text
    fed = fc.federate(id=ID, engine=engine(members), agreement="independent")
    assert sorted(fed.clients) == ["a", "b", "c"]
    lines = [json.loads(line) for line in audit.read_text().splitlines()]
    refused = [line for line in lines if not line["allowed"]]
    assert [(x["client"], x["verb"], x["bytes"]) for x in refused] == [("a", "rows", 0)]
    allowed = [x["verb"] for x in lines if x["client"] == "b"]
    assert allowed == ["start", "describe", "propose", "agree", "fit"]


def test_what_cannot_be_noted_is_not_answered(tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match="audit file cannot be written"):
        client("a", table(), Policy(), audit=tmp_path / "nowhere" / "audit.jsonl")
    audit = tmp_path / "audit.jsonl"
    member = client("a", table(), Policy(), audit=audit)
    audit.unlink()
    audit.mkdir()
    told = error_of(member.handle("describe", m.Describe(5).to_bytes()))
    assert "audit file cannot be written" in told


def test_an_error_tells_its_kind_and_keeps_its_text(caplog: pytest.LogCaptureFixture) -> None:
    class Quoting:
        name = "a"

        def handle(self, verb: str, payload: bytes) -> bytes:
            return m.Failed(f"DomainError: {verb} found 71.23 ({len(payload)})").to_bytes()

    asked = m.Describe(5).to_bytes()
    with caplog.at_level(logging.WARNING):
        hushed = error_of(Guarded(Quoting(), Policy()).handle("describe", asked))
    assert "71.23" not in hushed
    assert hushed.startswith("ClientError: client 'a' failed at 'describe'")
    assert "71.23" in caplog.text
    told = error_of(Guarded(Quoting(), Policy(errors="sent")).handle("describe", asked))
    assert "71.23" in told

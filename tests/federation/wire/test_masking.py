"""Masked sums: the same sums, and terms that say nothing to who does not know the secret."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest

import fedcircuits as fc
from contracts.engine import table
from contracts.federations import LABEL, Breaking, local, split
from fedcircuits.arrays import Arrays
from fedcircuits.errors import FedcircuitsError, FedcircuitsWarning, FederationError
from fedcircuits.federation.server.server import Server
from fedcircuits.federation.server.settings import ServerSettings
from fedcircuits.federation.wire import requests as m
from fedcircuits.federation.wire.masking import UNIT, add_masked, masked
from fedcircuits.federation.wire.names import JobId, JobKind
from recorder import Recorder

EVERYONE = ["a", "b", "c"]


def terms(seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return {"cells": rng.gamma(1.0, 1000.0, size=(3, 4)), "loss": np.array([-1.5e6, 0.0])}


def pairs(client: str, salt: str = "s") -> dict[str, bytes]:
    """What a client shares with each of the others."""
    return {
        other: f"{salt} {min(client, other)} {max(client, other)}".encode()
        for other in EVERYONE
        if other != client
    }


def sent(client: str, seed: int, secret: str = "s", place: str = "r 0") -> Any:
    return masked(terms(seed), client, pairs(client, secret), place)


def test_masks_cancel_in_the_sum() -> None:
    found = add_masked({c: sent(c, seed) for seed, c in enumerate(EVERYONE)})
    for name in found:
        wanted = sum(terms(seed)[name] for seed in range(3))
        np.testing.assert_allclose(found[name], wanted, rtol=4e-16, atol=1e-22)


def test_without_one_client_nothing_can_be_read() -> None:
    with pytest.raises(FederationError, match="masks do not cancel"):
        add_masked({"a": sent("a", 0), "b": sent("b", 1)})
    two = (sent("a", 0)["cells"] + sent("b", 1)["cells"]) * UNIT
    wanted = terms(0)["cells"] + terms(1)["cells"]
    assert np.abs(two - wanted).min() > 1e6


def test_a_term_looks_the_same_whatever_it_is() -> None:
    """Bits of masked terms are even, and those of two different terms have nothing in common."""
    many = {"x": np.zeros(4000)}
    zeros = masked(many, "a", pairs("a"), "p")["x"]
    ones = masked({"x": np.ones(4000)}, "a", pairs("a"), "another place")["x"]
    bits = np.unpackbits(zeros.view(np.uint8))
    assert bits.mean() == pytest.approx(0.5, abs=0.01)
    same = bits == np.unpackbits(ones.view(np.uint8))
    assert same.mean() == pytest.approx(0.5, abs=0.01)


@pytest.mark.parametrize("changed", [{"secret": "t"}, {"place": "r 1"}])
def test_masks_depend_on_secret_and_place(changed: dict[str, str]) -> None:
    assert (sent("a", 0)["cells"] != sent("a", 0, **changed)["cells"]).all()


def test_clients_with_different_secrets_are_found_out() -> None:
    told = {"a": sent("a", 0), "b": sent("b", 1), "c": sent("c", 2, secret="another")}
    with pytest.raises(FederationError, match="masked it for other clients"):
        add_masked(told)
    with pytest.raises(FederationError, match="did not mask"):
        add_masked({"a": {"x": np.ones(2, dtype=np.int64)}})


def test_no_two_different_questions_share_a_mask() -> None:
    """A server that names other clients, or sends other sums, must not get the masks to cancel."""
    member = local(split("horizontal"), "mixture")

    def terms_of(others: list[str], sums: Arrays, number: int) -> Any:
        asked = m.Round(JobId(JobKind.ALL_ROWS), ["height"], number, False, others, "n", sums)
        told = member.call("round", {"a": asked.to_bytes()})["a"]
        return m.RoundDone.from_bytes(told).sums  # type: ignore[arg-type]

    server = Server.start(member, ServerSettings(label=LABEL))
    server.share_keys()
    asked = [terms_of(others, {}, 0) for others in (["a", "b"], ["a", "c"], ["a", "b", "c"])]
    for name in asked[0]:
        plain = (asked[0][name] + asked[1][name] - asked[2][name]) * 2.0**-24
        assert np.abs(plain).max() > 1e6, name  # noise: as they are, terms are counts of 160 rows


def test_what_cannot_be_masked_is_said() -> None:
    for few in ({}, {"a": b"s"}):
        with pytest.raises(FedcircuitsError, match="two clients or more"):
            masked(terms(0), "a", few, "p")
    for bad in (np.inf, np.nan, 1e12):
        with pytest.raises(FedcircuitsError, match="'x' has numbers too large"):
            masked({"x": np.array([bad])}, "a", pairs("a"), "p")


@pytest.mark.slow
def test_no_count_of_a_client_is_on_the_wire() -> None:
    """Terms of the first round are counts, which as plain numbers would be found."""
    engine = Recorder(local(split("horizontal"), "mixture"))
    fc.federate(engine=engine, label=LABEL, agreement="joint")
    replies = [
        m.RoundDone.from_bytes(x.data).sums
        for x in engine.messages
        if x.verb == "round" and not x.to_client and x.client == "a"
    ]
    rows = len(split("horizontal")["a"])
    for sums in replies:
        for array in sums.values():
            assert array.dtype == np.int64
    assert struct.pack("<d", rows) not in replies[0]["rows"].tobytes()
    assert not np.isclose(replies[0]["rows"] * UNIT, rows).any()
    first = [x for x in engine.messages if x.verb == "round" and not x.to_client][:3]
    total = add_masked({x.client: m.RoundDone.from_bytes(x.data).sums for x in first})
    assert (total["rows"] == len(table())).all()


def test_a_client_that_leaves_takes_its_masks_along() -> None:
    """The rest begin again, masked among themselves."""

    def spoil(verb: str, client: str, reply: bytes) -> bytes | Exception:
        seen.append((verb, client))
        late = verb == "round" and client == "b" and seen.count(("round", "b")) > 2
        return RuntimeError("power cut") if late else reply

    seen: list[tuple[str, str]] = []
    with pytest.warns(FedcircuitsWarning, match="made without the client 'b'"):
        fed = fc.federate(
            engine=Breaking(local(split("horizontal"), "mixture"), spoil), agreement="joint"
        )
    assert sorted(fed.clients) == ["a", "c"]
    levels = fed.ledger.table(["verb", "direction"]).set_index(["verb", "direction"])["level"]
    assert levels["round", "to server"] == "masked sums"

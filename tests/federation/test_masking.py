"""Masked sums: the same sums, and terms that say nothing to who does not know the secret."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest

import fedcircuits as fc
from contracts.federations import LABEL, local, split
from contracts.rule import columns_split, rows_split, small_table
from fedcircuits.arrays import Arrays
from fedcircuits.errors import FedcircuitsError, FederationError
from fedcircuits.federation.server.server import Server
from fedcircuits.federation.server.settings import ServerSettings
from fedcircuits.federation.wire import requests as m
from fedcircuits.federation.wire.masking import add_masked, masked
from fedcircuits.federation.wire.names import JobId, JobKind
from fedcircuits.learners.hclt.learner import Mixture
from recorder import Recorder

EVERYONE = ["a", "b", "c"]


def terms(seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return {"cells": rng.gamma(1.0, 1000.0, size=(3, 4)), "loss": np.array([-1.5e6, 0.0])}


def sent(client: str, seed: int, secret: str = "s", place: str = "r 0") -> Any:
    return masked(terms(seed), client, EVERYONE, secret, place)


def test_masks_cancel_in_the_sum() -> None:
    found = add_masked([sent(c, seed) for seed, c in enumerate(EVERYONE)])
    for name in found:
        wanted = sum(terms(seed)[name] for seed in range(3))
        np.testing.assert_allclose(found[name], wanted, rtol=0, atol=2e-7)


def test_without_one_client_nothing_can_be_read() -> None:
    with pytest.raises(FederationError, match="masks do not cancel"):
        add_masked([sent("a", 0), sent("b", 1)])
    two = (sent("a", 0)["cells"] + sent("b", 1)["cells"]) * 2.0**-24
    wanted = terms(0)["cells"] + terms(1)["cells"]
    assert np.abs(two - wanted).min() > 1e6


def test_a_term_looks_the_same_whatever_it_is() -> None:
    """Bits of masked terms are even, and those of two different terms have nothing in common."""
    many = {"x": np.zeros(4000)}
    zeros = masked(many, "a", EVERYONE, "s", "p")["x"]
    ones = masked({"x": np.ones(4000)}, "a", EVERYONE, "s", "another place")["x"]
    bits = np.unpackbits(zeros.view(np.uint8))
    assert bits.mean() == pytest.approx(0.5, abs=0.01)
    same = bits == np.unpackbits(ones.view(np.uint8))
    assert same.mean() == pytest.approx(0.5, abs=0.01)


@pytest.mark.parametrize("changed", [{"secret": "t"}, {"place": "r 1"}])
def test_masks_depend_on_secret_and_place(changed: dict[str, str]) -> None:
    assert (sent("a", 0)["cells"] != sent("a", 0, **changed)["cells"]).all()


def test_clients_with_different_secrets_are_found_out() -> None:
    told = [sent("a", 0), sent("b", 1), sent("c", 2, secret="another")]
    with pytest.raises(FederationError, match="do not have the same id_secret"):
        add_masked(told)
    with pytest.raises(FederationError, match="did not mask"):
        add_masked([{"x": np.ones(2, dtype=np.int64)}])


def test_no_two_different_questions_share_a_mask() -> None:
    """A server that names other clients, or sends other sums, must not get the masks to cancel."""
    member = local(split("horizontal"), "mixture", id_secret="only clients know")

    def terms_of(others: list[str], sums: Arrays, number: int) -> Any:
        asked = m.Round(JobId(JobKind.ALL_ROWS), ["height"], number, False, others, "n", sums)
        told = member.call("round", {"a": asked.to_bytes()})["a"]
        return m.RoundDone.from_bytes(told).sums  # type: ignore[arg-type]

    server = Server.start(member, ServerSettings(label=LABEL))
    assert server.clients == ["a", "b", "c"]
    asked = [terms_of(others, {}, 0) for others in (["a", "b"], ["a", "c"], ["a", "b", "c"])]
    for name in asked[0]:
        plain = (asked[0][name] + asked[1][name] - asked[2][name]) * 2.0**-24
        assert np.abs(plain).max() > 1e6, name  # noise: as they are, terms are counts of 160 rows


def test_what_cannot_be_masked_is_said() -> None:
    with pytest.raises(FedcircuitsError, match="id_secret"):
        masked(terms(0), "a", EVERYONE, "", "p")
    with pytest.raises(FedcircuitsError, match="two clients or more"):
        masked(terms(0), "a", ["a"], "s", "p")
    with pytest.raises(FedcircuitsError, match="two clients or more"):
        masked(terms(0), "a", ["b", "c"], "s", "p")
    for bad in (np.inf, np.nan, 1e12):
        with pytest.raises(FedcircuitsError, match="'x' has numbers too large"):
            masked({"x": np.array([bad])}, "a", EVERYONE, "s", "p")


@pytest.mark.slow
@pytest.mark.parametrize(("label", "apart"), [(None, 1e-5), ("y", 1e-3)])
def test_the_model_is_that_of_plain_sums(label: str | None, apart: float) -> None:
    """To rounding by EM; the steps of L-BFGS, which search along a line, amplify it."""
    options: dict[str, Any] = {"label": label, "agreement": "joint", "learner": Mixture(n_states=4)}
    plain = fc.federate(rows_split(), **options)
    hidden = fc.federate(rows_split(), masked=True, id_secret="only clients know", **options)
    test = small_table(200, seed=1).drop(columns="id")
    assert hidden.mean_log_prob(test) == pytest.approx(plain.mean_log_prob(test), abs=apart)
    np.testing.assert_allclose(hidden.log_prob(test), plain.log_prob(test), rtol=0, atol=10 * apart)


@pytest.mark.slow
def test_no_count_of_a_client_is_on_the_wire() -> None:
    """Terms of the first round are counts, which as plain numbers would be found."""
    found = {}
    for option in ({}, {"masked": True}):
        engine = Recorder(local(split("horizontal"), "mixture", id_secret="only clients know"))
        options: dict[str, Any] = {"label": LABEL, "agreement": "joint", **option}
        fc.federate(engine=engine, **options)
        first = next(
            x for x in engine.messages if x.verb == "round" and not x.to_client and x.client == "a"
        )
        found[bool(option)] = m.RoundDone.from_bytes(first.data).sums
    for name, array in found[False].items():
        assert found[True][name].dtype == np.int64
        assert not np.isclose(found[True][name] * 2.0**-24, array).any(), name
    rows = struct.pack("<d", len(split("horizontal")["a"]))
    assert rows in found[False]["rows"].tobytes()
    assert rows not in found[True]["rows"].tobytes()


def test_masks_are_for_sums_over_rows() -> None:
    with pytest.raises(FederationError, match="masked is for sums over rows"):
        fc.federate(
            columns_split(),
            id="id",
            label="y",
            agreement="joint",
            masked=True,
            id_secret="only clients know",
        )
    with pytest.raises(FederationError, match="id_secret"):
        fc.federate(rows_split(), label="y", agreement="joint", masked=True, learner="mixture")

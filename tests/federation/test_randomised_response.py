"""Randomised response: what is told, what can be estimated from it, and what it costs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fedcircuits as fc
from contracts.federations import ID, local, split
from contracts.rule import LEARNER, RuleContract, columns_split, small_table
from fedcircuits.errors import FederationError
from fedcircuits.federation.agreement import Latent
from fedcircuits.federation.model.federated_circuit import FederatedCircuit
from fedcircuits.federation.wire import requests as m
from fedcircuits.federation.wire.packing import unpack_codes
from fedcircuits.federation.wire.randomised_response import (
    estimated_table,
    randomise,
    truth_probability,
)
from recorder import Recorder

RULE = Latent(n_classes=6, n_clusters=4, table=True, epsilon=3.0, mechanism="randomised-response")


class TestRandomisedResponse(RuleContract):
    """The contract, with a secret of the clients that makes the noise theirs."""

    rule, clients = RULE, staticmethod(columns_split)

    @classmethod
    def federate(cls, **options: Any) -> FederatedCircuit:
        made: FederatedCircuit = super().federate(**{"id_secret": "s", **options})
        return made


@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_no_index_is_told_much_more_often_under_one_truth_than_under_another(
    epsilon: float,
) -> None:
    n, k = 400_000, 5
    rng = np.random.default_rng(0)
    shares = []
    for truth in range(k):
        told = randomise(np.full(n, truth), k, epsilon, rng)
        shares.append(np.bincount(told, minlength=k) / n)
        assert shares[-1][truth] == pytest.approx(truth_probability(epsilon, k), abs=0.005)
    ratio = np.max(shares, axis=0) / np.min(shares, axis=0)
    np.testing.assert_allclose(ratio, np.exp(epsilon), rtol=0.05)


def test_the_table_is_found_again() -> None:
    rng = np.random.default_rng(1)
    first = rng.integers(4, size=200_000)
    second = np.where(rng.random(first.size) < 0.6, first, rng.integers(3, size=first.size)) % 3
    true = np.zeros((4, 3))
    np.add.at(true, (first, second), 1.0)
    told = np.stack([randomise(first, 4, 2.0, rng), randomise(second, 3, 2.0, rng)], axis=1)
    marginals = [true.sum(axis=1) / true.sum(), true.sum(axis=0) / true.sum()]
    found = estimated_table(told, [4, 3], marginals, 2.0)
    assert np.abs(found - true).max() < 0.02 * true.sum()
    raw = np.zeros((4, 3))
    np.add.at(raw, tuple(told.T), 1.0)
    assert np.abs(found - true).sum() < 0.2 * np.abs(raw - true).sum()


def test_where_noise_is_all_there_is_the_estimate_is_independence() -> None:
    rng = np.random.default_rng(2)
    truth = rng.integers(16, size=(2000, 2))
    told = np.stack([randomise(truth[:, c], 16, 0.3, rng) for c in (0, 1)], axis=1)
    even = np.full(16, 1 / 16)
    found = estimated_table(told, [16, 16], [even, even], 0.3)
    np.testing.assert_allclose(found, 2000 / 256, rtol=0.7)


def test_the_server_receives_other_indices_than_the_clients_have() -> None:
    def indices(mechanism: str, secret: str) -> Any:
        engine = Recorder(local(split("vertical")))
        for client in engine.inner._clients.values():  # type: ignore[attr-defined]
            client._secret = secret
        fc.federate(
            id=ID, engine=engine, agreement="latent", table=True, n_clusters=4, epsilon=1.0,
            mechanism=mechanism, id_secret=secret,
        )  # fmt: skip
        reply = next(
            x.data
            for x in engine.messages
            if x.verb == "cluster" and x.client == "a" and not x.to_client
        )
        told = m.Clustered.from_bytes(reply)
        return unpack_codes(told.indices, 120, told.rows.size)

    true, one = indices("trusted", "s"), indices("randomised-response", "s")
    assert 0.2 < (true != one).mean() < 0.8
    other = indices("randomised-response", "t")
    assert (one != other).any()  # the noise is the clients' own


def test_noise_that_the_server_could_predict_is_refused() -> None:
    with pytest.raises(FederationError, match="id_secret"):
        fc.federate(columns_split(), id="id", learner=LEARNER, agreement=RULE)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"mechanism": "homomorphic"}, "trusted or randomised-response"),
        ({"mechanism": "randomised-response"}, "epsilon must be positive"),
        ({"epsilon": -1.0}, "epsilon must be positive"),
    ],
)
def test_mechanisms_and_epsilons_that_make_no_sense(options: dict[str, Any], words: str) -> None:
    with pytest.raises(FederationError, match=words):
        fc.federate(
            columns_split(), id="id", learner=LEARNER, agreement="latent", table=True,
            id_secret="s",
            **options,
        )  # fmt: skip


def test_little_noise_costs_little_and_much_costs_the_gain() -> None:
    table, test = small_table(3000), small_table(2000, seed=9)
    frames = {"a": table[["id", "x0", "x1", "x2", "y"]], "b": table[["id", "x3", "x4"]]}
    options: dict[str, Any] = {"id": "id", "label": "y", "learner": LEARNER, "id_secret": "s"}

    def score(**more: Any) -> float:
        fed = fc.federate(frames, agreement="latent", table=True, n_clusters=6, **options, **more)
        return float(fed.mean_log_prob(test))

    plain = fc.federate(
        frames, agreement="independent", n_clusters=1, glueing="naive", **options
    ).mean_log_prob(test)
    exact = score()
    little, much = (score(epsilon=e, mechanism="randomised-response") for e in (4.0, 0.1))
    assert little > plain + 0.7 * (exact - plain)
    assert much < plain + 0.5 * (exact - plain)

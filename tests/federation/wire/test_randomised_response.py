"""Randomised response: what is told, what can be estimated from it, and what it costs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import fedcircuits as fc
from contracts.federations import ID, local, same_noise, split
from contracts.rule import LEARNER, RuleContract, columns_split, small_table
from fedcircuits.errors import FederationError
from fedcircuits.federation.agreement import Latent
from fedcircuits.federation.agreement.latent_table import _counted
from fedcircuits.federation.wire import requests as m
from fedcircuits.federation.wire.noise import KeyedNoise, laplace
from fedcircuits.federation.wire.packing import unpack_codes
from fedcircuits.federation.wire.randomised_response import (
    estimated_table,
    randomise,
    truth_probability,
)
from recorder import Recorder

RULE = Latent(n_classes=6, n_clusters=4, table=True, epsilon=3.0, mechanism="randomised-response")


class TestRandomisedResponse(RuleContract):
    """The contract, with noise that is the same in every run, so that models can be compared."""

    rule, clients = RULE, staticmethod(columns_split)

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def _same_noise(cls) -> Iterator[None]:
        with same_noise():
            yield


@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_no_index_is_told_much_more_often_under_one_truth_than_under_another(
    epsilon: float,
) -> None:
    n, k = 400_000, 5
    rng = np.random.default_rng(0)
    shares = []
    for truth in range(k):
        told = randomise(np.full(n, truth), k, epsilon, rng.random((2, n)))
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
    draws = rng.random((2, 2, first.size))
    told = np.stack(
        [randomise(first, 4, 2.0, draws[0]), randomise(second, 3, 2.0, draws[1])], axis=1
    )
    marginals = [true.sum(axis=1) / true.sum(), true.sum(axis=0) / true.sum()]
    found = estimated_table(told, [4, 3], marginals, 2.0)
    assert np.abs(found - true).max() < 0.02 * true.sum()
    raw = np.zeros((4, 3))
    np.add.at(raw, tuple(told.T), 1.0)
    assert np.abs(found - true).sum() < 0.2 * np.abs(raw - true).sum()


def test_where_noise_is_all_there_is_the_estimate_is_independence() -> None:
    rng = np.random.default_rng(2)
    truth = rng.integers(16, size=(2000, 2))
    draws = rng.random((2, 2, 2000))
    told = np.stack([randomise(truth[:, c], 16, 0.3, draws[c]) for c in (0, 1)], axis=1)
    even = np.full(16, 1 / 16)
    found = estimated_table(told, [16, 16], [even, even], 0.3)
    np.testing.assert_allclose(found, 2000 / 256, rtol=0.7)


def indices_sent(mechanism: str, seed: int = 0) -> Any:
    """The indices (n,) of client "a" as the server receives them."""
    engine = Recorder(local(split("vertical"), id_secret="known to the server too"))
    fc.federate(
        id=ID, engine=engine, agreement="latent", table=True, n_clusters=4, epsilon=1.0,
        mechanism=mechanism, seed=seed,
    )  # fmt: skip
    replies = [x for x in engine.messages if x.verb == "cluster" and not x.to_client]
    sent = m.Clustered.from_bytes(next(x.data for x in replies if x.client == "a"))
    return unpack_codes(sent.indices, 120, sent.rows.size)


def test_nobody_who_knows_seed_and_secret_can_draw_the_noise_of_indices() -> None:
    """True indices depend on the seed alone; what is sent differs from run to run."""
    true = indices_sent("trusted")
    assert (indices_sent("trusted") == true).all()
    one, other = indices_sent("randomised-response"), indices_sent("randomised-response")
    assert 0.2 < (true != one).mean() < 0.8
    assert 0.2 < (one != other).mean() < 0.9


def test_asking_again_gives_the_same_noise_whatever_the_request_is_called() -> None:
    noise = KeyedNoise()
    values = np.arange(50).tobytes()
    first = noise.uniforms((2, 50), values)
    assert (noise.uniforms((2, 50), values) == first).all()
    assert (noise.uniforms((2, 50), values + b"x") != first).all()
    assert (KeyedNoise().uniforms((2, 50), values) != first).all()


def test_laplace_noise_has_its_scale_and_no_seed() -> None:
    drawn = laplace(2.0 / 0.1, 200_000)
    assert np.abs(drawn).mean() == pytest.approx(20.0, rel=0.03)
    assert np.median(drawn) == pytest.approx(0.0, abs=0.5)
    before = laplace(1.0, 100)
    assert (laplace(1.0, 100) != before).all()


def test_noise_of_the_table_differs_between_runs_of_one_seed() -> None:
    indices = np.zeros((40, 2), dtype=np.int64)
    first, second = (_counted(indices, [1, 1], 1.0)[1] for _ in range(2))
    assert first != second
    assert abs(float(first[0]) - 40.0) < 60.0


def test_noise_of_the_table_has_the_scale_of_one_row_moved() -> None:
    """A row that moves changes two cells by one: the scale is 2 / epsilon.

    The mean of 20,000 absolute values is within 5 % of it but for one case in 10^12.
    """
    indices = np.full((1_000_000, 2), 99, dtype=np.int64)
    drawn = []
    for _ in range(2):
        cells, counts = _counted(indices, [100, 100], 0.001)
        empty = (cells != 99).any(axis=1)  # cells without a row keep noise above zero alone
        drawn.append(counts[empty])
    assert np.concatenate(drawn).mean() == pytest.approx(2.0 / 0.001, rel=0.06)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"mechanism": "homomorphic"}, "trusted or randomised-response"),
        ({"mechanism": "randomised-response"}, "epsilon must be positive"),
        ({"epsilon": -1.0}, "a number >= 0"),
        ({"epsilon": 0.0}, "epsilon must be positive"),
    ],
)
def test_mechanisms_and_epsilons_that_make_no_sense(options: dict[str, Any], words: str) -> None:
    with pytest.raises(FederationError, match=words):
        fc.federate(
            columns_split(), id="id", learner=LEARNER, agreement="latent", table=True,
            **options,
        )  # fmt: skip


def test_little_noise_costs_little_and_much_costs_the_gain() -> None:
    table, test = small_table(3000), small_table(2000, seed=9)
    frames = {"a": table[["id", "x0", "x1", "x2", "y"]], "b": table[["id", "x3", "x4"]]}
    options: dict[str, Any] = {"id": "id", "label": "y", "learner": LEARNER}

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

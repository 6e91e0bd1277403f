"""Circuits keep the contract of a Density, and samplers the laws of enumeration."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from contracts.density import DensityContract, assert_sample_follows
from fedcircuits import Circuit, Schema, Variable, build
from oracles.enumeration import Points, Worlds
from oracles.random_circuits import Case, seeded_case


class TestCircuitContract(DensityContract):
    """Random circuits over mixed variables, one of them larger."""

    @pytest.fixture(
        scope="class",
        params=[
            (3, ("dial", "flag", "count"), 3),
            (8, ("hist", "colour", "flag"), 4),
            (5, ("real", "dial"), 3),
            (6, ("real", "hist", "flag"), 2),
            (9, ("dial",), 2),
        ],
        ids=lambda p: "-".join(p[1]),
    )
    @classmethod
    def case(cls, request: pytest.FixtureRequest) -> Case:
        return seeded_case(*request.param)

    @pytest.fixture(scope="class")
    @classmethod
    def density(cls, case: Case) -> Circuit:
        return case.circuit

    @pytest.fixture(scope="class")
    @classmethod
    def worlds(cls, case: Case) -> Worlds:
        return case.worlds


def colours(p: list[float]) -> build.Leaf:
    return build.categorical("colour", p)


@pytest.fixture
def three() -> Circuit:
    """A sum of three unequal children; the left child is the least likely."""
    schema = Schema(
        (Variable("flag", "binary", (0, 1)), Variable("colour", "categorical", ("r", "g", "b")))
    )
    children = [
        build.product([colours([0.7, 0.2, 0.1]), build.bernoulli("flag", 0.9)]),
        build.product([colours([0.1, 0.3, 0.6]), build.bernoulli("flag", 0.2)]),
        build.product([colours([0.0, 0.8, 0.2]), build.bernoulli("flag", 0.55)]),
    ]
    return build.circuit(schema, build.sum(children, [0.11, 0.27, 0.62]))


def joint_of_three() -> dict[tuple[int, str], float]:
    """The same numbers by hand."""
    rows = [
        (0.11, 0.9, (0.7, 0.2, 0.1)),
        (0.27, 0.2, (0.1, 0.3, 0.6)),
        (0.62, 0.55, (0.0, 0.8, 0.2)),
    ]
    return {
        (flag, name): sum(w * (p if flag else 1 - p) * probs[at] for w, p, probs in rows)
        for flag in (0, 1)
        for at, name in enumerate("rgb")
    }


def test_frequencies_of_a_three_way_sum_match_enumeration(three: Circuit) -> None:
    """Chi-square with 5 degrees of freedom; false-alarm rate 1e-6 (fixed seed)."""
    expected = joint_of_three()
    n = 200_000
    drawn = three.sample(n, seed=1)
    counts = drawn.groupby(["flag", "colour"]).size()
    observed = np.array([counts[key] for key in expected])
    chance = stats.chisquare(observed, n * np.array(list(expected.values()))).pvalue
    assert chance > 1e-6


def test_each_row_is_sampled_given_its_own_evidence(three: Circuit) -> None:
    """Rows alternate; each conditional is tested by itself, false-alarm rate 1e-7."""
    joint = joint_of_three()
    rows = pd.DataFrame({"flag": [1, None, 0], "colour": [None, "r", None]}, index=["x", "y", "z"])
    drawn = three.sample(30_000, rows, seed=4)
    for label, known in (("x", {"flag": 1}), ("z", {"flag": 0}), ("y", {"colour": "r"})):
        mine = drawn.loc[label]
        name = "colour" if "flag" in known else "flag"
        worlds = Worlds({name: points_of(name)})
        mass = np.array(
            [
                joint[(known.get("flag", v), known.get("colour", v))]
                for v in worlds.points[name].values
            ]
        )
        assert_sample_follows(mine, worlds, mass / mass.sum())
        assert (mine[next(iter(known))] == next(iter(known.values()))).all()


def points_of(name: str) -> Points:
    return Points.of_values((0, 1) if name == "flag" else ("r", "g", "b"))


def test_the_sample_test_catches_a_bias_of_one_percent(three: Circuit) -> None:
    """The oracle itself: a sampler with one weight off by 0.02 must fail."""
    joint = joint_of_three()
    worlds = Worlds({"flag": points_of("flag"), "colour": points_of("colour")})
    mass = np.array([joint[key] for key in zip(*worlds.frame.to_numpy().T, strict=True)])
    off = mass.copy()
    off[0], off[1] = off[0] + 0.02, off[1] - 0.02
    drawn = three.sample(40_000, seed=2)
    assert_sample_follows(drawn, worlds, mass)
    with pytest.raises(AssertionError, match="feature"):
        assert_sample_follows(drawn, worlds, off)


def test_sample_moments_match_exact_ones() -> None:
    """Mean and covariance of 200,000 draws within five standard errors (rate about 1e-5)."""
    case = seeded_case(6, ("real", "hist", "flag"), 2)
    circuit, n = case.circuit, 200_000
    names = list(circuit.schema.names)
    drawn = circuit.sample(n, seed=12)[names].to_numpy(dtype=float)
    exact = circuit.covariance(names).to_numpy()
    mean = np.array([circuit.expectation(name) for name in names])
    assert np.abs(drawn.mean(axis=0) - mean) == pytest.approx(
        0, abs=5 * np.sqrt(exact.diagonal().max() / n)
    )
    centred = np.clip(drawn - mean, -30, 30)  # a Lomax tail has no fourth moment
    products = centred[:, :, None] * centred[:, None, :]
    error = 5 * products.std(axis=0) / np.sqrt(n) + 0.01
    assert (np.abs(products.mean(axis=0) - exact) <= error).all()

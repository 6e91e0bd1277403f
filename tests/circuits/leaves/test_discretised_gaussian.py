"""The discretised Gaussian leaf: masses of pixel levels, right in both tails."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import log_ndtr, logsumexp

from contracts.leaf import LeafContract
from fedcircuits.circuits import FAMILIES, build
from fedcircuits.errors import LearningError, StructureError
from fedcircuits.schema import Schema, Variable
from oracles.quadrature import Piece, log_normal_mass

FAMILY = FAMILIES["discretised_gaussian"]
PIXEL = Variable("pixel", "count", domain=(0.0, 255.0), closed=True)


def params(mean: float, sd: float, top: float = 255.0) -> dict[str, np.ndarray]:
    return {"mean": np.array([mean]), "sd": np.array([sd]), "top": np.array([top])}


class TestDiscretisedGaussian(LeafContract):
    family_name = "discretised_gaussian"
    variable = PIXEL
    leaves = [  # noqa: RUF012
        {"mean": 0.31, "sd": 0.12, "top": 255.0},
        {"mean": 0.97, "sd": 0.2, "top": 255.0},
        {"mean": 0.04, "sd": 0.008, "top": 255.0},
    ]
    recovery = 0.01

    def atoms(self, leaf: dict[str, Any]) -> np.ndarray:
        return np.arange(leaf["top"] + 1)

    def pieces(self, leaf: dict[str, Any]) -> list[Piece]:
        del leaf
        return []


@given(mean=st.floats(-3, 4), sd=st.floats(1e-3, 10), top=st.sampled_from([1.0, 7.0, 255.0]))
def test_masses_sum_to_one_at_any_mean_and_deviation(mean: float, sd: float, top: float) -> None:
    log_mass = FAMILY.log_prob(params(mean, sd, top), None, np.arange(top + 1))[0]
    assert logsumexp(log_mass) == pytest.approx(0.0, abs=1e-10)


@pytest.mark.parametrize("sigmas", [-30.0, -9.0, 9.0, 30.0])
def test_masses_sum_to_one_with_the_mean_far_outside(sigmas: float) -> None:
    sd = 0.0316  # the paper's least variance, 1e-3
    mean = sigmas * sd + (1.0 if sigmas > 0 else 0.0)
    log_mass = FAMILY.log_prob(params(mean, sd), None, np.arange(256.0))[0]
    assert np.isfinite(log_mass).all()
    assert logsumexp(log_mass) == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize("level", [1, 40, 254])
@pytest.mark.parametrize("sigmas", [-30.0, -9.0, 0.0, 9.0, 30.0])
def test_an_inner_level_has_the_mass_of_its_bin(level: int, sigmas: float) -> None:
    sd = 0.0316
    mean = level / 255 + sigmas * sd
    a, b = ((level - 0.5) / 255 - mean) / sd, ((level + 0.5) / 255 - mean) / sd
    found = FAMILY.log_prob(params(mean, sd), None, np.array([float(level)]))[0, 0]
    assert found == pytest.approx(log_normal_mass(a, b), rel=1e-11)


def test_outer_levels_own_the_tails() -> None:
    found = FAMILY.log_prob(params(0.6, 0.02), None, np.array([0.0, 255.0]))[0]
    low, high = (0.5 / 255 - 0.6) / 0.02, (254.5 / 255 - 0.6) / 0.02
    np.testing.assert_allclose(found, [log_ndtr(low), log_ndtr(-high)], rtol=1e-12)


def test_what_is_no_level_is_impossible() -> None:
    found = FAMILY.log_prob(params(0.5, 0.1), None, np.array([-1.0, 3.5, 256.0, np.inf]))[0]
    assert (found == -np.inf).all()


def test_constant_column_gets_the_floor_and_stays_on_its_level() -> None:
    leaf = FAMILY.fit(PIXEL, np.full(20, 77.0))
    found = FAMILY.log_prob(params(leaf.params["mean"], leaf.params["sd"]), None, np.array([77.0]))
    assert found[0, 0] > np.log(0.99)
    assert leaf.params["sd"] >= 0.1 / 255 * (1 - 1e-9)


def test_levels_above_the_top_are_refused_by_name() -> None:
    with pytest.raises(LearningError, match=r"'pixel': levels are 0\.\.7, found 2 to 9"):
        FAMILY.fit(Variable("pixel", "count"), np.array([2.0, 9.0]), top=7)


@pytest.mark.parametrize(
    ("sd", "top", "message"),
    [
        (0.0, 255, "sd must be positive"),
        (0.1, 0, "top must be a whole number from 1 to 65535"),
        (0.1, 1e9, "top must be a whole number from 1 to 65535"),
        (0.1, 15, "are not the declared domain"),
        (np.inf, 255, "sd must be finite"),
    ],
)
def test_bad_parameters_are_named(sd: float, top: int, message: str) -> None:
    with pytest.raises(StructureError, match=message):
        build.circuit(Schema((PIXEL,)), build.discretised_gaussian("pixel", 0.5, sd, top))


def test_leaves_of_one_variable_share_their_top() -> None:
    two = {"mean": np.zeros(2), "sd": np.ones(2), "top": np.array([7.0, 15.0])}
    faults = FAMILY.check(two, Variable("pixel", "count"), None)
    assert faults == ["top must be the same in all leaves of a variable"]

"""The Gaussian leaf."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

from contracts.leaf import ScipyTwin
from fedcircuits.circuits import FAMILIES, build
from fedcircuits.errors import StructureError
from fedcircuits.schema import Schema, Variable
from oracles.quadrature import Piece
from tolerances import TWIN

FAMILY = FAMILIES["gaussian"]
LINE = Variable("x", "continuous")


def params(mean: float, sd: float) -> dict[str, np.ndarray]:
    return {"mean": np.array([mean]), "sd": np.array([sd])}


class TestGaussian(ScipyTwin):
    family_name = "gaussian"
    variable = LINE
    leaves = [  # noqa: RUF012
        {"mean": 0.3, "sd": 1.7},
        {"mean": -12.5, "sd": 0.02},
        {"mean": 410.0, "sd": 3.25},
        {"mean": 0.0, "sd": 1.0},
    ]

    def atoms(self, leaf: dict[str, Any]) -> np.ndarray:
        del leaf
        return np.zeros(0)

    def pieces(self, leaf: dict[str, Any]) -> list[Piece]:
        ends = leaf["mean"] + leaf["sd"] * np.array([-12.0, -2.5, -1.0, -0.3, 0.4, 1.3, 2.6, 12.0])
        return [Piece(float(a), float(b)) for a, b in itertools.pairwise(ends)]

    def twin(self, leaf: dict[str, Any]) -> Any:
        return norm(leaf["mean"], leaf["sd"])


@pytest.mark.parametrize("sigmas", [-30.0, -9.0, 9.0, 30.0, 1e4])
def test_far_tail_is_finite_and_right(sigmas: float) -> None:
    found = FAMILY.log_prob(params(1.5, 0.03), None, np.array([1.5 + 0.03 * sigmas]))[0, 0]
    assert found == pytest.approx(norm.logpdf(sigmas) - np.log(0.03), rel=1e-9)


@given(mean=st.floats(-1e6, 1e6), sd=st.floats(1e-6, 1e6), z=st.floats(-40, 40))
def test_log_density_equals_scipy(mean: float, sd: float, z: float) -> None:
    x = np.array([mean + sd * z])
    found = FAMILY.log_prob(params(mean, sd), None, x)[0, 0]
    assert found == pytest.approx(norm.logpdf(x[0], mean, sd), rel=TWIN, abs=1e-9)


def test_fourth_moment_has_the_double_factorial() -> None:
    # E[(m + s z)^4] = m^4 + 6 m^2 s^2 + 3 s^4
    found = FAMILY.moment(params(2.0, 3.0), None, LINE, 4)[0]
    assert found == pytest.approx(16 + 6 * 4 * 9 + 3 * 81)


def test_constant_column_gets_the_floor() -> None:
    leaf = FAMILY.fit(LINE, np.full(9, 40.0))
    assert leaf.params["mean"] == 40.0
    assert leaf.params["sd"] == pytest.approx(0.04)  # a thousandth of its magnitude


def test_floor_is_a_parameter() -> None:
    assert FAMILY.fit(LINE, np.array([1.0, 1.0]), min_sd=0.25).params["sd"] == 0.25


def test_a_row_of_weight_zero_moves_no_floor() -> None:
    leaf = FAMILY.fit(LINE, np.array([5.0, 5.0, 5e6]), np.array([1.0, 2.0, 0.0]))
    assert leaf.params["sd"] == pytest.approx(0.005)


def test_variance_does_not_cancel_far_from_zero() -> None:
    x = 1e9 + np.array([-1.0, 0.0, 2.0])
    leaf = FAMILY.fit(LINE, x, min_sd=1e-9)
    assert leaf.params["sd"] == pytest.approx(np.std([-1.0, 0.0, 2.0]), rel=1e-7)


@pytest.mark.parametrize(
    ("mean", "sd", "message"),
    [
        (0.0, 0.0, "sd must be positive"),
        (0.0, -2.0, "sd must be positive, found -2"),
        (np.nan, 1.0, "mean must be finite"),
        (0.0, np.inf, "sd must be finite"),
    ],
)
def test_bad_parameters_are_named(mean: float, sd: float, message: str) -> None:
    with pytest.raises(StructureError, match=message):
        build.circuit(Schema((LINE,)), build.gaussian("x", mean, sd))


def test_declared_domain_is_not_leaked() -> None:
    closed = Variable("x", "continuous", domain=(0.0, 5.0), closed=True)
    with pytest.raises(StructureError, match="leaks mass out of the declared domain"):
        build.circuit(Schema((closed,)), build.gaussian("x", 1.0, 1.0))


def test_a_missing_parameter_is_named() -> None:
    assert FAMILY.check({"mean": np.zeros(2)}, LINE, None) == ["lacks the parameter(s) sd"]


def test_ragged_parameters_are_named() -> None:
    faults = FAMILY.check({"mean": np.zeros(2), "sd": np.ones(3)}, LINE, None)
    assert faults == ["sd must be one number a leaf, found shape (3,)"]

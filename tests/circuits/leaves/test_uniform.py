"""The uniform leaf."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.stats import uniform

from contracts.leaf import ScipyTwin
from fedcircuits.circuits import FAMILIES, build
from fedcircuits.errors import StructureError
from fedcircuits.schema import Schema, Variable
from oracles.quadrature import Piece

FAMILY = FAMILIES["uniform"]
LINE = Variable("x", "continuous")


class TestUniform(ScipyTwin):
    family_name = "uniform"
    variable = LINE
    leaves = [  # noqa: RUF012
        {"low": -0.5, "high": 2.25},
        {"low": 30.0, "high": 30.1},
        {"low": -1000.0, "high": -900.0},
    ]
    recovery = 0.1  # 20,000 rows reach within about width / 20,000 of an end; ten times that

    def atoms(self, leaf: dict[str, Any]) -> np.ndarray:
        del leaf
        return np.zeros(0)

    def pieces(self, leaf: dict[str, Any]) -> list[Piece]:
        return [Piece(leaf["low"], leaf["high"])]

    def twin(self, leaf: dict[str, Any]) -> Any:
        return uniform(leaf["low"], leaf["high"] - leaf["low"])


def test_density_is_zero_outside_and_not_at_the_ends() -> None:
    params = {"low": np.array([2.0]), "high": np.array([6.0])}
    found = FAMILY.log_prob(params, None, np.array([1.999, 2.0, 6.0, 6.001]))[0]
    np.testing.assert_allclose(found, [-np.inf, -np.log(4), -np.log(4), -np.inf])


def test_constant_column_gets_a_floor_around_it() -> None:
    leaf = FAMILY.fit(LINE, np.full(4, 50.0))
    assert leaf.params["low"] == pytest.approx(49.975)
    assert leaf.params["high"] == pytest.approx(50.025)


def test_floor_stays_in_the_declared_domain() -> None:
    closed = Variable("x", "continuous", domain=(0.0, 10.0), closed=True)
    leaf = FAMILY.fit(closed, np.zeros(4))
    assert leaf.params["low"] == 0.0
    assert 0.0 < leaf.params["high"] <= 0.01
    build.circuit(Schema((closed,)), leaf)


@pytest.mark.parametrize(
    ("low", "high", "message"),
    [
        (3.0, 3.0, "low must be below high"),
        (5.0, -5.0, "low must be below high"),
        (-np.inf, 1.0, "low must be finite"),
        (-1.0, 1.0, "leaves the declared domain"),
    ],
)
def test_bad_parameters_are_named(low: float, high: float, message: str) -> None:
    closed = Variable("x", "continuous", domain=(0.0, 10.0), closed=True)
    with pytest.raises(StructureError, match=message):
        build.circuit(Schema((closed,)), build.uniform("x", low, high))

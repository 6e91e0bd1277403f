"""The Poisson leaf."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.stats import poisson

from contracts.leaf import ScipyTwin
from fedcircuits.circuits import FAMILIES, build
from fedcircuits.errors import LearningError, StructureError
from fedcircuits.schema import Schema, Variable
from oracles.quadrature import Piece

FAMILY = FAMILIES["poisson"]
COUNT = Variable("n", "count")


class TestPoisson(ScipyTwin):
    family_name = "poisson"
    variable = COUNT
    leaves = [{"rate": 0.15}, {"rate": 3.7}, {"rate": 61.0}]  # noqa: RUF012
    recovery = 0.3  # about five standard errors of the largest rate

    def atoms(self, leaf: dict[str, Any]) -> np.ndarray:
        del leaf
        return np.arange(400.0)

    def pieces(self, leaf: dict[str, Any]) -> list[Piece]:
        del leaf
        return []

    def twin(self, leaf: dict[str, Any]) -> Any:
        return poisson(leaf["rate"])


def test_only_whole_numbers_from_zero_are_possible() -> None:
    x = np.array([-1.0, 0.0, 0.5, 2.0, np.inf])
    found = FAMILY.log_prob({"rate": np.array([2.0])}, None, x)[0]
    np.testing.assert_allclose(found, [-np.inf, -2.0, -np.inf, np.log(2) - 2, -np.inf])


def test_far_tail_is_finite_and_right() -> None:
    # rate + 30 standard deviations
    found = FAMILY.log_prob({"rate": np.array([100.0])}, None, np.array([400.0, 1e6]))[0]
    np.testing.assert_allclose(found, poisson.logpmf([400, 1e6], 100.0), rtol=1e-12)


def test_column_of_zeros_gets_the_floor() -> None:
    assert FAMILY.fit(COUNT, np.zeros(5)).params["rate"] == 1e-3
    assert FAMILY.fit(COUNT, np.zeros(5), min_rate=0.2).params["rate"] == 0.2


def test_negative_counts_are_refused_by_name() -> None:
    with pytest.raises(LearningError, match="'n': a Poisson has no negative counts, found -3"):
        FAMILY.fit(COUNT, np.array([4.0, -3.0]))


@pytest.mark.parametrize(
    ("rate", "message"),
    [(0.0, "rate must be positive"), (-1.0, "rate must be positive"), (np.nan, "must be finite")],
)
def test_bad_parameters_are_named(rate: float, message: str) -> None:
    with pytest.raises(StructureError, match=message):
        build.circuit(Schema((COUNT,)), build.poisson("n", rate))


def test_declared_domain_is_not_leaked() -> None:
    closed = Variable("n", "count", domain=(0.0, 9.0), closed=True)
    with pytest.raises(StructureError, match="leaks mass out of the declared domain"):
        build.circuit(Schema((closed,)), build.poisson("n", 3.0))
    half = Variable("n", "count", domain=(0.0, np.inf), closed=True)
    assert build.circuit(Schema((half,)), build.poisson("n", 3.0)).n_parameters == 1


def test_a_continuous_variable_is_refused() -> None:
    line = Variable("n", "continuous")
    with pytest.raises(StructureError, match="does not fit a continuous variable"):
        build.circuit(Schema((line,)), build.poisson("n", 3.0))

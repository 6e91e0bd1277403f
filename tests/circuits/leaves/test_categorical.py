"""The categorical leaf; with two categories, the Bernoulli leaf."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.stats import bernoulli, rv_discrete

from contracts.leaf import LeafContract, ScipyTwin
from fedcircuits.circuits import FAMILIES, build
from fedcircuits.errors import StructureError
from fedcircuits.schema import Schema, Variable
from oracles.quadrature import Piece

FAMILY = FAMILIES["categorical"]


class _Codes(LeafContract):
    family_name = "categorical"
    fit_options = {"smoothing": 0.0}  # noqa: RUF012
    recovery = 0.02

    def atoms(self, leaf: dict[str, Any]) -> np.ndarray:
        return np.arange(float(len(leaf["probs"])))

    def pieces(self, leaf: dict[str, Any]) -> list[Piece]:
        del leaf
        return []


class TestNumberCategories(_Codes, ScipyTwin):
    variable = Variable("c", "categorical", (-2, 3, 7.5, 40))
    leaves = [  # noqa: RUF012
        {"probs": [0.1, 0.25, 0.6, 0.05]},
        {"probs": [0.0, 0.0, 0.7, 0.3]},
        {"probs": [0.97, 0.01, 0.015, 0.005]},
    ]

    def numbers(self, x: np.ndarray) -> np.ndarray:
        return np.array([-2, 3, 7.5, 40])[x.astype(int)]

    def twin(self, leaf: dict[str, Any]) -> Any:
        return rv_discrete(values=(range(4), leaf["probs"]))


class TestMissingState(_Codes):
    """The last code says 'observed to be missing'."""

    variable = Variable("c", "categorical", (-2, 3, 7.5), missing_state=True)
    leaves = [  # noqa: RUF012
        {"probs": [0.1, 0.25, 0.35, 0.3]},
        {"probs": [0.2, 0.1, 0.7, 0.0]},
        {"probs": [0.05, 0.05, 0.1, 0.8]},
    ]

    def numbers(self, x: np.ndarray) -> np.ndarray:
        return np.array([-2, 3, 7.5])[x.astype(int)]


class TestBernoulli(_Codes, ScipyTwin):
    variable = Variable("c", "binary", (0, 1))
    leaves = [{"probs": [1 - p, p]} for p in (0.03, 0.4, 0.85)]  # noqa: RUF012

    def twin(self, leaf: dict[str, Any]) -> Any:
        return bernoulli(leaf["probs"][1])


COLOURS = Variable("c", "categorical", ("blue", "green", "red"))


def test_a_code_that_is_none_has_no_mass() -> None:
    params = {"probs": np.array([[0.2, 0.3, 0.5]])}
    found = FAMILY.log_prob(params, None, np.array([-1.0, 2.0, 3.0, 99.0]))[0]
    np.testing.assert_allclose(found, [-np.inf, np.log(0.5), -np.inf, -np.inf])


def test_a_category_of_mass_zero_is_never_drawn() -> None:
    params = {"probs": np.array([[0.0, 0.4, 0.0, 0.6, 0.0]])}
    which = np.zeros(20_000, dtype=np.int64)
    drawn = FAMILY.sample(params, None, which, np.random.default_rng(3))
    assert set(drawn) == {1.0, 3.0}


class Fixed:
    """A generator that draws the same number again and again."""

    def __init__(self, u: float) -> None:
        self.u = u

    def random(self, n: int) -> np.ndarray:
        return np.full(n, self.u)


@pytest.mark.parametrize("u", [0.0, np.nextafter(1.0, 0.0), np.nextafter(1.0, 2.0)])
def test_ends_of_the_unit_interval_fall_on_states_with_mass(u: float) -> None:
    """Zero can be drawn, and rounding can make u times the sum of masses reach that sum."""
    params = {"probs": np.array([[0.0, 0.3, 0.7, 0.0]])}
    rng: Any = Fixed(u)
    drawn = FAMILY.sample(params, None, np.zeros(2, dtype=np.int64), rng)
    np.testing.assert_array_equal(drawn, [1.0, 1.0] if u == 0.0 else [2.0, 2.0])


def test_smoothing_is_a_pseudo_count() -> None:
    leaf = FAMILY.fit(COLOURS, np.array([0.0, 2.0, 2.0]), smoothing=0.5)
    np.testing.assert_allclose(leaf.params["probs"], np.array([1.5, 0.5, 2.5]) / 4.5)


def test_default_smoothing_leaves_no_category_impossible() -> None:
    leaf = FAMILY.fit(COLOURS, np.array([0.0, 0.0]))
    np.testing.assert_allclose(leaf.params["probs"], np.array([2.1, 0.1, 0.1]) / 2.3)


def test_strings_have_no_moment() -> None:
    assert FAMILY.moment({"probs": np.array([[0.2, 0.3, 0.5]])}, None, COLOURS, 1)[0] == 0.0


@pytest.mark.parametrize(
    ("probs", "message"),
    [
        ([0.5, 0.5], "must give 3 numbers a leaf"),
        ([0.5, 0.6, 0.2], "must sum to one, found 1.3"),
        ([1.2, -0.2, 0.0], "must be finite and not negative"),
        ([np.nan, 0.5, 0.5], "must be finite and not negative"),
    ],
)
def test_bad_parameters_are_named(probs: list[float], message: str) -> None:
    with pytest.raises(StructureError, match=message):
        build.circuit(Schema((COLOURS,)), build.categorical("c", probs))

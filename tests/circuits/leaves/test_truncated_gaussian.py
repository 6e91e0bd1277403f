"""The truncated Gaussian leaf, far outside its interval included."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import truncnorm

from contracts.leaf import ScipyTwin
from fedcircuits.circuits import FAMILIES, build
from fedcircuits.circuits.leaves.normal import log_interval_mass
from fedcircuits.errors import LearningError, StructureError
from fedcircuits.schema import Schema, Variable
from oracles.quadrature import Piece, integrate, log_normal_mass

FAMILY = FAMILIES["truncated_gaussian"]
INTERVAL = Variable("x", "continuous", domain=(-1.0, 2.5), closed=True)
LINE = Variable("x", "continuous")


def params(mean: float, sd: float, low: float, high: float) -> dict[str, np.ndarray]:
    values = {"mean": mean, "sd": sd, "low": low, "high": high}
    return {name: np.array([float(value)]) for name, value in values.items()}


class TestTruncatedGaussian(ScipyTwin):
    family_name = "truncated_gaussian"
    variable = INTERVAL
    leaves = [  # noqa: RUF012
        {"mean": 0.7, "sd": 0.9, "low": -1.0, "high": 2.5},
        {"mean": -1.3, "sd": 0.8, "low": -1.0, "high": 2.5},
        {"mean": 2.2, "sd": 0.35, "low": -1.0, "high": 2.5},
    ]
    recovery = 0.15  # an interval that cuts off the mean leaves it less certain

    def atoms(self, leaf: dict[str, Any]) -> np.ndarray:
        del leaf
        return np.zeros(0)

    def pieces(self, leaf: dict[str, Any]) -> list[Piece]:
        return [Piece(leaf["low"], 0.3), Piece(0.3, 1.6), Piece(1.6, leaf["high"])]

    def twin(self, leaf: dict[str, Any]) -> Any:
        m, s = leaf["mean"], leaf["sd"]
        return truncnorm((leaf["low"] - m) / s, (leaf["high"] - m) / s, loc=m, scale=s)


@pytest.mark.parametrize("sigmas", [9.0, 30.0, 300.0])
@pytest.mark.parametrize("side", [-1.0, 1.0])
def test_far_tail_is_normalised(sigmas: float, side: float) -> None:
    p = params(side * sigmas * 0.5, 0.5, -0.02, 0.03)
    mass = integrate(lambda x: np.exp(FAMILY.log_prob(p, None, x)[0]), Piece(-0.02, 0.03))
    assert mass == pytest.approx(1.0, abs=1e-9)


@pytest.mark.parametrize(
    ("mean", "sd", "low", "high"),
    [
        (-30.0, 1.0, 0.0, 1.0),  # 30 standard deviations below
        (41.0, 1.0, 0.5, 10.0),
        (0.5, 1e6, 0.0, 1.0),  # all but uniform
        (1000.5, 0.3, 1000.0, 1001.0),
        (-5.0, 0.4, 0.0, 1.0),
        (3.0, 0.01, -50.0, 70.0),  # all but a point
    ],
)
@pytest.mark.parametrize("order", [1, 2, 3])
def test_moments_hold_far_outside_the_interval(
    mean: float, sd: float, low: float, high: float, order: int
) -> None:
    mode = min(max(mean, low), high)
    z = abs(mode - mean) / sd
    reach = sd * 120 / (z + np.sqrt(z * z + 120))  # 60 nats below the mode
    piece = Piece(max(low, mode - reach), min(high, mode + reach))

    def relative(x: np.ndarray) -> np.ndarray:
        return np.exp(-0.5 * (x - mode) * (x + mode - 2 * mean) / sd**2)

    expected = integrate(lambda x: relative(x) * x**order, piece) / integrate(relative, piece)
    found = FAMILY.moment(params(mean, sd, low, high), None, LINE, order)[0]
    assert found == pytest.approx(expected, rel=1e-10)


@given(
    start=st.floats(-40, 40),
    log_width=st.floats(-8, 1),
)
def test_interval_mass_equals_quadrature(start: float, log_width: float) -> None:
    a, b = start, start + 10.0**log_width
    found = float(log_interval_mass(np.array(a), np.array(b)))
    assert found == pytest.approx(log_normal_mass(a, b), rel=1e-12, abs=1e-9)


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        (-np.inf, np.inf, 0.0),
        (-np.inf, 0.0, np.log(0.5)),
        (0.0, np.inf, np.log(0.5)),
        (1.0, 1.0, -np.inf),
        (2.0, 1.0, -np.inf),
        (1e200, 2e200, -np.inf),
    ],
)
def test_interval_mass_at_its_limits(a: float, b: float, expected: float) -> None:
    assert float(log_interval_mass(np.array(a), np.array(b))) == pytest.approx(expected)


def test_interval_mass_at_nine_and_thirty_sigmas() -> None:
    # The figures of STYLE 4.2, where a difference of CDFs is exactly zero.
    for a in (9.0, 30.0):
        b = a + 1 / 255
        assert float(log_interval_mass(np.array(a), np.array(b))) == pytest.approx(
            log_normal_mass(a, b), rel=1e-12
        )


def test_density_is_zero_outside() -> None:
    p = params(0.7, 0.9, -1.0, 2.5)
    found = FAMILY.log_prob(p, None, np.array([-1.0000001, -1.0, 2.5, 2.5000001, np.inf]))[0]
    assert (found == -np.inf).tolist() == [True, False, False, True, True]


def test_constant_column_gets_an_interval_of_its_magnitude() -> None:
    for value in (0.0, 3e-7, 4e9, 1e20):
        leaf = FAMILY.fit(LINE, np.full(7, value))
        assert leaf.params["low"] < value < leaf.params["high"]
        circuit = build.circuit(Schema((LINE,)), leaf)
        log_density = circuit.log_prob({"x": [value]}).iloc[0]
        assert np.isfinite(log_density)
        width = float(leaf.params["high"] - leaf.params["low"])
        assert width <= 2.1e-3 * (abs(value) or 1.0)


def test_open_end_of_the_domain_is_closed_at_the_data(rng: np.random.Generator) -> None:
    half = Variable("x", "continuous", domain=(0.0, np.inf), closed=True)
    x = rng.exponential(2.0, 300)
    leaf = FAMILY.fit(half, x)
    assert (leaf.params["low"], leaf.params["high"]) == (0.0, x.max())
    assert FAMILY.check({k: np.array([v]) for k, v in leaf.params.items()}, half, None) == []


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"sd": 0.0}, "sd must be positive"),
        ({"low": 2.5}, "low must be below high"),
        ({"high": np.inf}, "high must be finite"),
        ({"mean": 1e200}, "no mass: its ends are too far"),
        ({"low": -3.0}, "leaves the declared domain"),
    ],
)
def test_bad_parameters_are_named(bad: dict[str, float], message: str) -> None:
    values = {"mean": 0.0, "sd": 1.0, "low": -1.0, "high": 2.5, **bad}
    with pytest.raises(StructureError, match=message):
        build.circuit(Schema((INTERVAL,)), build.truncated_gaussian("x", **values))


@pytest.mark.parametrize(
    ("mean", "sd", "low", "high"),
    [(-30.0, 1.0, 0.0, 1.0), (41.0, 1.0, 0.5, 10.0), (0.5, 1e6, 0.0, 1.0), (0.2, 0.01, -9.0, 9.0)],
)
def test_samples_follow_the_density_far_outside(
    mean: float, sd: float, low: float, high: float
) -> None:
    p = params(mean, sd, low, high)
    which = np.zeros(20_000, dtype=np.int64)
    x = FAMILY.sample(p, None, which, np.random.default_rng(11))
    assert low <= x.min()
    assert x.max() <= high
    # Under the CDF, by quadrature, the samples are uniform.
    probe = np.quantile(x, [0.01, 0.2, 0.5, 0.8, 0.99])
    total = log_normal_mass((low - mean) / sd, (high - mean) / sd)
    share = [np.exp(log_normal_mass((low - mean) / sd, (q - mean) / sd) - total) for q in probe]
    # Binomial standard error at one half is .0035; false alarm below 1e-4 at four of them.
    np.testing.assert_allclose(share, [0.01, 0.2, 0.5, 0.8, 0.99], atol=0.0141)


def test_a_range_only_seen_gives_way_to_the_data() -> None:
    seen = Variable("x", "continuous", domain=(0.0, 1.0))
    leaf = FAMILY.fit(seen, np.array([0.2, 0.9, 4.0]))
    assert (leaf.params["low"], leaf.params["high"]) == (0.0, 4.0)


def test_values_outside_the_interval_are_refused_by_name() -> None:
    with pytest.raises(
        LearningError, match=r"'x': values from 0.2 to 4 leave the interval \[0, 1\]"
    ):
        FAMILY.fit(LINE, np.array([0.2, 4.0]), low=0.0, high=1.0)

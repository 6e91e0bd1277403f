"""Times in seconds, identifiers, 1e200: large numbers cost no digits and raise no warning."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest

import fedcircuits as fc
from fedcircuits import build as b
from fedcircuits.circuits import Composite
from fedcircuits.circuits.composite import compose
from fedcircuits.circuits.nodes import Leaf
from fedcircuits.circuits.structure_builder import StructureBuilder
from fedcircuits.schema import Grid

NOW = 1.7e9
LINE = fc.Schema((fc.Variable("t", "continuous"),))
BOTH = fc.Schema((fc.Variable("t", "continuous"), fc.Variable("y", "binary", (0, 1))))
COUNT = fc.Schema((fc.Variable("t", "count"),))

pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning")


def close(found: object, expected: object) -> None:
    np.testing.assert_allclose(np.asarray(found, float), np.asarray(expected, float), rtol=1e-9)


def mixture() -> fc.Circuit:
    """p(y) = 0.3 y + ...; t has mean NOW or NOW + 300 and sd 100 given a latent branch."""
    root = b.sum(
        [
            b.product([b.gaussian("t", NOW, 100), b.bernoulli("y", 0.2)]),
            b.product([b.gaussian("t", NOW + 300, 100), b.bernoulli("y", 0.9)]),
        ],
        [0.4, 0.6],
    )
    return b.circuit(BOTH, root)


@pytest.mark.parametrize(
    ("leaf", "variance"),
    [
        (b.gaussian("t", NOW, 100), 1e4),
        (b.uniform("t", NOW, NOW + 12), 12.0),
        (b.truncated_gaussian("t", NOW, 100, NOW - 5000, NOW + 5000), 1e4),
        (b.truncated_gaussian("t", NOW, 1, NOW, NOW + 50), 1 - 2 / math.pi),
        (b.histogram("t", Grid(np.zeros(0), np.array([NOW, NOW + 12]), (0, 0)), [1.0]), 12.0),
        (
            b.histogram(
                "t", Grid(np.array([NOW, NOW + 6]), np.array([NOW, NOW + 6]), (0, 0)), [0.5, 0, 0.5]
            ),
            9.0,
        ),
    ],
)
def test_the_variance_of_a_leaf_far_from_zero_is_exact(leaf: Leaf, variance: float) -> None:
    circuit = b.circuit(LINE, leaf)
    close(circuit.variance("t"), variance)
    close(circuit.covariance(), [[variance]])


def test_the_variance_of_counts_far_from_zero_is_exact() -> None:
    grid = Grid(np.array([NOW + 3]), np.array([NOW, NOW + 8]), (0, 0), integer=True)
    circuit = b.circuit(COUNT, b.histogram("t", grid, [0.75, 0.25]))
    values = np.array([0.0, 1, 2, 4, 5, 6, 7, 8, 3])
    mass = np.array([0.75 / 8] * 8 + [0.25])
    close(circuit.variance("t"), mass @ (values - mass @ values) ** 2)
    assert circuit.covariance().iloc[0, 0] == pytest.approx(circuit.variance("t"), rel=1e-12)
    poisson = b.circuit(COUNT, b.poisson("t", NOW))
    close(poisson.variance("t"), NOW)


def test_categories_far_from_zero_have_an_exact_variance() -> None:
    schema = fc.Schema((fc.Variable("t", "categorical", (int(NOW), int(NOW) + 10)),))
    circuit = b.circuit(schema, b.categorical("t", [0.5, 0.5]))
    close(circuit.variance("t"), 25.0)


def test_variance_and_covariance_of_a_mixture_far_from_zero_are_exact() -> None:
    circuit = mixture()
    spread = 1e4 + 0.4 * 0.6 * 300**2
    p = 0.4 * 0.2 + 0.6 * 0.9
    together = 0.4 * 0.6 * 300 * 0.7
    expected = [[spread, together], [together, p * (1 - p)]]
    close(circuit.variance("t"), spread)
    close(circuit.covariance(), expected)
    share = 0.6 * 0.9 / p  # of the second branch given y = 1
    rows = pd.DataFrame({"y": [1, None]})
    close(circuit.variance("t", rows), [1e4 + share * (1 - share) * 300**2, spread])
    assert circuit.variance("t", {"t": NOW}) == 0.0
    close(circuit.condition(y=1).variance("t"), 1e4 + share * (1 - share) * 300**2)


def test_a_composite_keeps_the_digits() -> None:
    parts = [
        b.circuit(LINE, b.gaussian("t", NOW, 100)),
        b.circuit(LINE, b.gaussian("t", NOW + 300, 100)),
        b.circuit(BOTH.select(["y"]), b.bernoulli("y", 0.2)),
        b.circuit(BOTH.select(["y"]), b.bernoulli("y", 0.9)),
    ]
    graph = StructureBuilder()
    graph.number(4)
    root = graph.sum([graph.product([0, 2]), graph.product([1, 3])], np.log([0.4, 0.6]))
    composite = compose(BOTH, list(parts), graph, root)
    assert isinstance(composite, Composite)
    circuit = mixture()
    rows = pd.DataFrame({"y": [1, 0, None]})
    close(composite.variance("t", rows), circuit.variance("t", rows))
    close(composite.variance("y"), circuit.variance("y"))
    close(composite.covariance(), circuit.covariance())


def test_numbers_beyond_the_square_root_of_the_largest_float_warn_of_nothing() -> None:
    circuit = b.circuit(LINE, b.gaussian("t", 1e200, 1.0))
    assert circuit.moment("t", 2) == math.inf
    assert circuit.moment("t", 1) == 1e200
    assert circuit.variance("t") == 1.0
    assert circuit.covariance().iloc[0, 0] == 1.0
    found = circuit.log_prob(pd.DataFrame({"t": [1e200, 0.0]}))
    assert found.tolist() == [pytest.approx(-0.5 * math.log(2 * math.pi)), -math.inf]
    wide = b.circuit(LINE, b.gaussian("t", 0.0, 1e200))
    assert (wide.moment("t", 3), wide.variance("t")) == (0.0, math.inf)
    flat = b.circuit(LINE, b.uniform("t", -1e200, 1e200))
    assert (flat.moment("t", 2), flat.moment("t", 3)) == (math.inf, 0.0)


def test_an_odd_moment_that_is_infinite_to_both_sides_is_not_a_number() -> None:
    grid = Grid(np.zeros(0), np.array([-1.0, 1.0]), tails=(1.0, 1.0))
    circuit = b.circuit(LINE, b.histogram("t", grid, [0.25, 0.5, 0.25]))
    assert circuit.moment("t", 4) == math.inf
    assert math.isnan(circuit.moment("t", 5))
    left = b.circuit(LINE, b.histogram("t", grid, [0.5, 0.5, 0.0]))
    right = b.circuit(LINE, b.histogram("t", grid, [0.0, 0.5, 0.5]))
    graph = StructureBuilder()
    graph.number(2)
    both = compose(LINE, [left, right], graph, graph.sum([0, 1], np.log([0.5, 0.5])))
    assert math.isnan(both.moment("t", 5))
    assert math.isnan(both.merged().moment("t", 5))  # type: ignore[attr-defined]

"""The histogram leaf: atoms, bins and tails on the line."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from contracts.leaf import LeafContract
from fedcircuits.circuits import FAMILIES, build
from fedcircuits.errors import LearningError, StructureError
from fedcircuits.schema import Grid, Schema, Variable
from oracles.quadrature import Piece

FAMILY = FAMILIES["histogram"]


def grid_pieces(grid: Grid) -> list[Piece]:
    """Bins and open tails, from the definition of a grid."""
    edges = grid.edges.tolist()
    pieces = [Piece(a, b) for a, b in itertools.pairwise(edges)]
    if grid.tails[0] > 0:
        pieces.insert(0, Piece(-np.inf, edges[0], grid.tails[0]))
    if grid.tails[1] > 0:
        pieces.append(Piece(edges[-1], np.inf, grid.tails[1]))
    return pieces


class _OnGrid(LeafContract):
    family_name = "histogram"
    recovery = 0.02

    @property
    def fit_options(self) -> dict[str, Any]:  # type: ignore[override]
        return {"smoothing": 0.0, "grid": self.grid}

    def atoms(self, leaf: dict[str, Any]) -> np.ndarray:
        del leaf
        assert self.grid is not None
        return np.append(self.grid.atoms, [np.inf] * self.grid.missing)

    def pieces(self, leaf: dict[str, Any]) -> list[Piece]:
        del leaf
        assert self.grid is not None
        return grid_pieces(self.grid)


class TestHistogram(_OnGrid):
    """Two tails, three bins, atoms inside a bin and on both outer edges: 9 states."""

    variable = Variable("x", "continuous")
    grid = Grid(np.array([-2.0, 0.35, 7.0]), np.array([-2.0, 0.0, 1.25, 7.0]), tails=(0.5, 3.0))
    leaves = [  # noqa: RUF012
        {"masses": [0.02, 0.1, 0.2, 0.15, 0.3, 0.13, 0.05, 0.05]},
        {"masses": [0.3, 0.0, 0.1, 0.0, 0.05, 0.05, 0.1, 0.4]},
        {"masses": [0.0, 0.25, 0.0, 0.5, 0.0, 0.0, 0.25, 0.0]},
    ]


class TestHistogramWithMissingState(_OnGrid):
    """One tail closed, and a last state for 'observed to be missing'."""

    variable = Variable("x", "continuous", missing_state=True)
    grid = Grid(np.array([3.0]), np.array([0.0, 3.0, 11.0]), tails=(0.0, 0.8), missing=True)
    leaves = [  # noqa: RUF012
        {"masses": [0.2, 0.1, 0.3, 0.15, 0.25]},
        {"masses": [0.5, 0.05, 0.4, 0.05, 0.0]},
        {"masses": [0.02, 0.0, 0.01, 0.02, 0.95]},
    ]


class TestHistogramOfDeclaredDomain(_OnGrid):
    """Both tails closed: no mass outside the domain."""

    variable = Variable("x", "continuous", domain=(-1.0, 4.0), closed=True)
    grid = Grid(np.array([0.0]), np.array([-1.0, 0.5, 4.0]), tails=(0.0, 0.0))
    leaves = [  # noqa: RUF012
        {"masses": [0.2, 0.3, 0.5]},
        {"masses": [0.7, 0.0, 0.3]},
        {"masses": [0.05, 0.9, 0.05]},
    ]

    def test_nothing_lies_outside(self) -> None:
        found = self.density(self.leaves[0])(np.array([-1.001, -1.0, 4.0, 4.001]))
        np.testing.assert_allclose(found, [0.0, 0.2 / 1.5, 0.5 / 3.5, 0.0])


LINE = Variable("x", "continuous")


def test_density_of_a_hand_made_histogram() -> None:
    """p = mass * 1 at an atom, mass / length in a bin, mass * Lomax in a tail."""
    grid, masses = TestHistogram.grid, TestHistogram.leaves[0]["masses"]
    x = np.array([-3.0, -2.0, -1.0, 0.35, 0.3, 2.0, 7.0, 10.0, 0.0, 1.25])
    expected = [
        0.02 * 4 / 0.5 * (1 + 1.0 / 0.5) ** -5,
        0.1,
        0.2 / 2.0,
        0.3,
        0.15 / 1.25,
        0.13 / 5.75,
        0.05,
        0.05 * 4 / 3.0 * (1 + 3.0 / 3.0) ** -5,
        0.15 / 1.25,  # an edge belongs to the bin above it
        0.13 / 5.75,
    ]
    found = FAMILY.log_prob({"masses": np.array([masses])}, grid, x)[0]
    np.testing.assert_allclose(np.exp(found), expected, rtol=1e-12)


@pytest.mark.parametrize("x", [1e6, -1e6, 1e150, -1e300, 1.7e308])
def test_a_value_far_outside_has_positive_density(x: float) -> None:
    masses = {"masses": np.array([TestHistogram.leaves[0]["masses"]])}
    found = FAMILY.log_prob(masses, TestHistogram.grid, np.array([x]))[0, 0]
    side = 0 if x < 0 else 1
    scale, edge = (0.5, 3.0)[side], (-2.0, 7.0)[side]
    log_ratio = np.log(abs(x - edge) + scale) - np.log(scale)
    expected = np.log((0.02, 0.05)[side] * 4) - np.log(scale) - 5 * log_ratio
    assert found == pytest.approx(expected, rel=1e-12)


def test_moments_beyond_the_third_are_infinite_in_an_open_tail() -> None:
    masses = {"masses": np.array([TestHistogram.leaves[0]["masses"]])}
    assert FAMILY.moment(masses, TestHistogram.grid, LINE, 4)[0] == np.inf


def test_a_tail_of_mass_zero_makes_no_infinite_moment() -> None:
    masses = {"masses": np.array([TestHistogram.leaves[2]["masses"]])}
    found = FAMILY.moment(masses, TestHistogram.grid, LINE, 4)[0]
    uniform = (1.25**4) / 5  # the bin from 0 to 1.25
    assert found == pytest.approx(0.25 * 16 + 0.5 * uniform + 0.25 * 7.0**4)


def test_fit_makes_a_grid_of_the_values(rng: np.random.Generator) -> None:
    x = np.concatenate([np.zeros(300), rng.normal(5, 1, 700)])
    leaf = FAMILY.fit(LINE, x, smoothing=0.0)
    assert leaf.grid is not None
    np.testing.assert_array_equal(leaf.grid.atoms, [0.0])
    found = FAMILY.log_prob(
        {"masses": np.asarray(leaf.params["masses"])[None]}, leaf.grid, np.zeros(1)
    )
    assert np.exp(found[0, 0]) == pytest.approx(0.3)


def test_a_short_column_of_distinct_values_has_no_atom(rng: np.random.Generator) -> None:
    leaf = FAMILY.fit(LINE, rng.normal(0, 1, 60))
    assert leaf.grid is not None
    assert leaf.grid.atoms.size == 0
    assert not leaf.grid.is_discrete


def test_smoothing_leaves_no_state_impossible() -> None:
    grid = Grid(np.array([1.0]), np.array([0.0, 2.0]), tails=(1.0, 1.0))
    leaf = FAMILY.fit(LINE, np.array([1.0, 1.0, 0.5]), grid=grid, smoothing=0.25)
    np.testing.assert_allclose(leaf.params["masses"], np.array([0.25, 1.25, 2.25, 0.25]) / 4)


def test_a_value_without_a_state_is_refused_by_name() -> None:
    grid = Grid(np.array([]), np.array([0.0, 2.0]), tails=(0.0, 0.0))
    with pytest.raises(LearningError, match="'x': its grid has no state for 5"):
        FAMILY.fit(LINE, np.array([1.0, 5.0]), grid=grid)


CLOSED = Variable("x", "continuous", domain=(0.0, 2.0), closed=True)
OPEN_GRID = Grid(np.array([]), np.array([0.0, 2.0]), tails=(1.0, 1.0))
WIDE_GRID = Grid(np.array([]), np.array([-1.0, 2.0]), tails=(0.0, 0.0))
MISSING_GRID = Grid(np.array([]), np.array([0.0, 2.0]), tails=(1.0, 1.0), missing=True)
INTEGER_GRID = Grid(np.array([]), np.array([0.0, 2.0]), tails=(1.0, 1.0), integer=True)


@pytest.mark.parametrize(
    ("variable", "grid", "masses", "message"),
    [
        (LINE, OPEN_GRID, [0.5, 0.5], "must give 3 numbers a leaf"),
        (LINE, OPEN_GRID, [0.5, 0.4, 0.2], "must sum to one, found 1.1"),
        (LINE, OPEN_GRID, [0.5, 0.7, -0.2], "must be finite and not negative"),
        (LINE, MISSING_GRID, [0.1, 0.2, 0.3, 0.4], "disagree on whether missing is a state"),
        (CLOSED, OPEN_GRID, [0.1, 0.2, 0.7], "its grid leaves the declared domain"),
        (CLOSED, WIDE_GRID, [1.0], "its grid leaves the declared domain"),
    ],
)
def test_bad_parameters_are_named(
    variable: Variable, grid: Grid, masses: list[float], message: str
) -> None:
    with pytest.raises(StructureError, match=message):
        build.circuit(Schema((variable,)), build.histogram("x", grid, masses))


def test_a_grid_of_the_other_kind_is_refused() -> None:
    with pytest.raises(StructureError, match="does not fit a continuous variable"):
        build.circuit(Schema((LINE,)), build.histogram("x", INTEGER_GRID, [0.1, 0.2, 0.7]))
    faults = FAMILY.check({"masses": np.array([[0.1, 0.2, 0.7]])}, LINE, INTEGER_GRID)
    assert faults == ["its grid is over integers, not what a continuous variable needs"]


def test_a_histogram_needs_a_grid() -> None:
    assert FAMILY.check({"masses": np.ones((1, 1))}, LINE, None) == ["needs a grid"]

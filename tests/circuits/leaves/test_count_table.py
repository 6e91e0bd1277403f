"""The count table leaf: an integer grid with gaps and open tails."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from contracts.leaf import LeafContract
from fedcircuits.circuits import FAMILIES, build
from fedcircuits.errors import StructureError
from fedcircuits.schema import Grid, Schema, Variable
from oracles.quadrature import Piece, integrate

FAMILY = FAMILIES["count_table"]
REACH = 3000  # integers of each tail that are enumerated


def far_tail(edge: float, sign: float, scale: float, order: int) -> float:
    """Sum of (edge + sign d)**order P(d) over d > REACH, P(d) = S(d - 1) - S(d).

    By parts: h(N + 1) S(N) + sum over d > N of (h(d + 1) - h(d)) S(d), the sum by the midpoint
    rule turned round, whose error is a derivative at N over 24.
    """

    def survival(d: np.ndarray) -> np.ndarray:
        return (1 + d / scale) ** -4.0

    def h(d: np.ndarray) -> np.ndarray:
        return (edge + sign * d) ** order

    rest = integrate(
        lambda d: (h(d + 1) - h(d)) * survival(d), Piece(REACH + 0.5, np.inf, float(REACH))
    )
    return float(h(np.float64(REACH + 1)) * survival(np.float64(REACH)) + rest)


class _OnIntegers(LeafContract):
    family_name = "count_table"
    recovery = 0.02

    @property
    def fit_options(self) -> dict[str, Any]:  # type: ignore[override]
        return {"smoothing": 0.0, "grid": self.grid}

    def atoms(self, leaf: dict[str, Any]) -> np.ndarray:
        """Here every integer carries mass, atom of the grid or not."""
        del leaf
        grid = self.grid
        assert grid is not None
        low = grid.edges[0] - (REACH if grid.tails[0] > 0 else 0)
        high = grid.edges[-1] + (REACH if grid.tails[1] > 0 else 0)
        return np.append(np.arange(low, high + 1), [np.inf] * grid.missing)

    def pieces(self, leaf: dict[str, Any]) -> list[Piece]:
        del leaf
        return []

    def far_moment(self, leaf: dict[str, Any], order: int) -> float:
        grid = self.grid
        assert grid is not None
        total = 0.0
        if grid.tails[0] > 0:
            total += leaf["masses"][0] * far_tail(grid.edges[0], -1.0, grid.tails[0], order)
        if grid.tails[1] > 0:
            right = leaf["masses"][-2 if grid.missing else -1]
            total += right * far_tail(grid.edges[-1], 1.0, grid.tails[1], order)
        return total


class TestCountTable(_OnIntegers):
    """Atoms 0, 1, 5, 9; bins [0, 4) and [4, 9] less the atoms; two tails: 8 states."""

    variable = Variable("n", "count")
    grid = Grid(
        np.array([0.0, 1.0, 5.0, 9.0]), np.array([0.0, 4.0, 9.0]), tails=(0.7, 2.5), integer=True
    )
    leaves = [  # noqa: RUF012
        {"masses": [0.02, 0.3, 0.1, 0.2, 0.1, 0.15, 0.08, 0.05]},
        {"masses": [0.4, 0.0, 0.05, 0.05, 0.1, 0.1, 0.1, 0.2]},
        {"masses": [0.0, 0.5, 0.0, 0.0, 0.25, 0.25, 0.0, 0.0]},
    ]

    @pytest.mark.parametrize("order", [1, 2, 3])
    def test_left_tail_state_is_the_first(self, order: int) -> None:
        only = {"masses": [1.0, 0, 0, 0, 0, 0, 0, 0]}
        found = FAMILY.moment(self.params(only), self.grid, self.variable, order)[0]
        d = np.arange(1.0, REACH + 1)
        mass = (1 + (d - 1) / 0.7) ** -4.0 - (1 + d / 0.7) ** -4.0
        expected = np.sum((0 - d) ** order * mass) + far_tail(0.0, -1.0, 0.7, order)
        assert found == pytest.approx(expected, rel=1e-9)


class TestContiguousAtoms(_OnIntegers):
    """Every integer between the edges is an atom: no state is empty, only tails lie outside."""

    variable = Variable("n", "count")
    grid = Grid(np.arange(3.0, 7.0), np.array([3.0, 6.0]), tails=(1.0, 1.0), integer=True)
    leaves = [  # noqa: RUF012
        {"masses": [0.05, 0.3, 0.25, 0.2, 0.15, 0.05]},
        {"masses": [0.0, 0.1, 0.2, 0.3, 0.4, 0.0]},
        {"masses": [0.3, 0.1, 0.1, 0.1, 0.1, 0.3]},
    ]

    def test_no_state_is_empty(self) -> None:
        assert self.grid.n_states == 6


class TestCountsWithMissingState(_OnIntegers):
    variable = Variable("n", "count", domain=(0.0, 20.0), closed=True, missing_state=True)
    grid = Grid(
        np.array([0.0]), np.array([0.0, 6.0, 20.0]), tails=(0, 0), integer=True, missing=True
    )
    leaves = [  # noqa: RUF012
        {"masses": [0.4, 0.2, 0.3, 0.1]},
        {"masses": [0.1, 0.1, 0.8, 0.0]},
        {"masses": [0.05, 0.1, 0.05, 0.8]},
    ]


COUNT = Variable("n", "count")


def test_what_is_not_whole_is_impossible() -> None:
    masses = {"masses": np.array([TestCountTable.leaves[0]["masses"]])}
    found = FAMILY.log_prob(masses, TestCountTable.grid, np.array([0.5, 2.25, -1.5, 40.1]))[0]
    assert (found == -np.inf).all()


def test_masses_of_a_hand_made_table() -> None:
    masses = {"masses": np.array([TestCountTable.leaves[0]["masses"]])}
    x = np.array([0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 9.0, 10.0, -1.0])
    free_low, free_high = 0.1 / 2, 0.1 / 4  # 2, 3 and 4, 6, 7, 8; states go by lower end
    right, left = 1 - (1 + 1 / 2.5) ** -4, 1 - (1 + 1 / 0.7) ** -4
    expected = [0.3, 0.2, free_low, free_low, free_high, 0.15, free_high, free_high, 0.08,
                0.05 * right, 0.02 * left]  # fmt: skip
    found = np.exp(FAMILY.log_prob(masses, TestCountTable.grid, x)[0])
    np.testing.assert_allclose(found, expected, rtol=1e-12)


@pytest.mark.parametrize("x", [1e9, -1e9, 1e17, 1e300])
def test_a_count_far_outside_has_positive_mass(x: float) -> None:
    masses = {"masses": np.array([TestCountTable.leaves[0]["masses"]])}
    found = FAMILY.log_prob(masses, TestCountTable.grid, np.array([x]))[0, 0]
    mass, scale, edge = (0.02, 0.7, 0.0) if x < 0 else (0.05, 2.5, 9.0)
    # Far out P(d) is the density 4 s^4 (s + d - 1/2)^-5 of the tail, to second order in 1/d.
    expected = np.log(mass * 4) + 4 * np.log(scale) - 5 * np.log(scale + abs(x - edge) - 0.5)
    assert found == pytest.approx(expected, rel=1e-12)


def test_a_bin_of_a_billion_counts_is_not_listed() -> None:
    """Mode, moments and samples must not cost memory in proportion to the counts."""
    grid = Grid(np.array([0.0, 7.0, 2e12]), np.array([0.0, 2e12]), tails=(1, 1), integer=True)
    masses = {"masses": np.array([[0.0, 0.1, 0.8, 0.05, 0.05, 0.0]])}
    assert grid.n_states == 6
    assert FAMILY.mode(masses, grid)[0][0] == 0.0
    mean = FAMILY.moment(masses, grid, COUNT, 1)[0]
    assert mean == pytest.approx(0.8 * 1e12 + 0.05 * 7 + 0.05 * 2e12, rel=1e-9)
    which = np.zeros(4000, dtype=np.int64)
    x = FAMILY.sample(masses, grid, which, np.random.default_rng(5))
    inside = x[~np.isin(x, grid.atoms)]
    assert inside.min() > 0
    assert inside.max() < 2e12
    assert inside.mean() == pytest.approx(1e12, rel=0.05)  # 5.7 sigma of the mean: 0.05 / 0.01


def test_the_mean_of_enormous_counts_is_a_float() -> None:
    grid = Grid(np.array([]), np.array([0.0, 1e300]), tails=(0, 0), integer=True)
    masses = {"masses": np.array([[1.0]])}
    assert FAMILY.moment(masses, grid, COUNT, 1)[0] == pytest.approx(5e299)
    assert FAMILY.moment(masses, grid, COUNT, 2)[0] == np.inf


def test_the_gap_between_atoms_is_drawn_evenly() -> None:
    grid = Grid(np.array([2.0, 3.0, 6.0]), np.array([2.0, 9.0]), tails=(0, 0), integer=True)
    masses = {"masses": np.array([[0.0, 1.0, 0.0, 0.0]])}
    assert grid.encode(np.array([2.0, 3.0, 4.0, 6.0, 9.0])).tolist() == [0, 2, 1, 3, 1]
    x = FAMILY.sample(masses, grid, np.zeros(50_000, dtype=np.int64), np.random.default_rng(1))
    values, counts = np.unique(x, return_counts=True)
    assert values.tolist() == [4.0, 5.0, 7.0, 8.0, 9.0]
    np.testing.assert_allclose(counts / 50_000, 0.2, atol=0.008)  # 4.5 sigma


def test_one_row_makes_a_table(rng: np.random.Generator) -> None:
    del rng
    leaf = FAMILY.fit(COUNT, np.array([12.0]), smoothing=0.0)
    assert leaf.grid is not None
    found = FAMILY.log_prob(
        {"masses": np.asarray(leaf.params["masses"])[None]}, leaf.grid, np.arange(-500.0, 500.0)
    )
    assert np.exp(found).sum() == pytest.approx(1.0, abs=1e-6)


def test_a_grid_over_the_line_is_refused() -> None:
    line = Grid(np.array([]), np.array([0.0, 2.0]), tails=(1.0, 1.0))
    faults = FAMILY.check({"masses": np.array([[0.1, 0.2, 0.7]])}, COUNT, line)
    assert faults == ["its grid is over the line, not what a count variable needs"]


def test_declared_domain_is_not_leaked() -> None:
    closed = Variable("n", "count", domain=(0.0, 9.0), closed=True)
    leaf = build.histogram("n", TestCountTable.grid, TestCountTable.leaves[0]["masses"])
    with pytest.raises(StructureError, match="its grid leaves the declared domain"):
        build.circuit(Schema((closed,)), leaf)

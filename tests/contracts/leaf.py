"""The contract of a leaf family. A family's tests inherit it and say what its leaves are.

Every law is checked against the density itself (summed over atoms, integrated over pieces on which
it is smooth), never against another method of the family.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import pytest
from scipy.stats import chi2

import fedcircuits as fc
from fedcircuits.circuits import FAMILIES, LeafFamily, build
from fedcircuits.circuits.nodes import Leaf
from fedcircuits.errors import FedcircuitsError
from fedcircuits.schema import Grid, Schema, Table, Variable
from oracles.quadrature import Piece, integrate_all
from tolerances import FALSE_ALARM, LOG, MASS, MOMENT, REPEATED, TWIN

Params = dict[str, np.ndarray]


class LeafContract:
    """Inherit, fill in the first block, and override the second where the family has more."""

    family_name: ClassVar[str]
    variable: ClassVar[Variable]
    grid: ClassVar[Grid | None] = None
    leaves: ClassVar[list[dict[str, Any]]]  # parameters of at least three different leaves

    fit_options: ClassVar[dict[str, Any]] = {}  # without smoothing, so that fits are likeliest
    recovery: ClassVar[float] = 0.05  # how near a parameter is fitted from 20,000 rows
    n_samples: ClassVar[int] = 20_000

    def atoms(self, leaf: dict[str, Any]) -> np.ndarray:
        """Encoded values that carry a point mass, the missing one included."""
        raise NotImplementedError

    def pieces(self, leaf: dict[str, Any]) -> list[Piece]:
        """Intervals on which the density is smooth; none for a discrete family."""
        raise NotImplementedError

    def fine_grid(self, leaf: dict[str, Any]) -> np.ndarray:
        """Values among which the mode must be highest."""
        parts = [np.linspace(p.low, p.high, 401) for p in self.finite_pieces(leaf)]
        return np.concatenate([self.atoms(leaf), *parts])

    def finite_pieces(self, leaf: dict[str, Any]) -> list[Piece]:
        """Pieces cut off where they go to infinity."""
        return [
            Piece(
                p.low if np.isfinite(p.low) else p.high - 20 * p.scale,
                p.high if np.isfinite(p.high) else p.low + 20 * p.scale,
            )
            for p in self.pieces(leaf)
        ]

    def numbers(self, x: np.ndarray) -> np.ndarray:
        """Encoded values as the numbers whose moments are meant."""
        return x

    def far_moment(self, leaf: dict[str, Any], order: int) -> float:
        """Part of E[x**order] that lies beyond `atoms` and `pieces`."""
        del leaf, order
        return 0.0

    # --- helpers ----------------------------------------------------------------------------------

    @property
    def family(self) -> LeafFamily:
        return FAMILIES[self.family_name]

    def params(self, *leaves: dict[str, Any]) -> Params:
        """Parameters as the family takes them, first axis over the leaves."""
        return {
            name: np.array([leaf[name] for leaf in leaves], dtype=float)
            for name in self.family.parameters
        }

    def density(self, leaf: dict[str, Any]) -> Callable[[np.ndarray], np.ndarray]:
        params = self.params(leaf)
        return lambda x: np.exp(self.family.log_prob(params, self.grid, np.asarray(x))[0])

    def expected(self, leaf: dict[str, Any], f: Callable[[np.ndarray], np.ndarray]) -> float:
        """Sum and integral of f times the density."""
        p, atoms = self.density(leaf), self.atoms(leaf)
        total = float(np.sum(f(atoms) * p(atoms))) if atoms.size else 0.0
        # An atom has no length: the bin around it is smooth up to one point.
        return total + integrate_all(lambda x: f(x) * p(x), self.pieces(leaf))

    def draw(self, at: int, n: int, seed: int) -> np.ndarray:
        params = self.params(*self.leaves)
        which = np.full(n, at, dtype=np.int64)
        return self.family.sample(params, self.grid, which, np.random.default_rng(seed))

    def circuit(self, leaf: dict[str, Any]) -> fc.Circuit:
        return build.circuit(
            Schema((self.variable,)),
            Leaf(self.variable.name, self.family_name, leaf, self.grid),
        )

    def each(self) -> list[tuple[int, dict[str, Any]]]:
        assert len(self.leaves) >= 3, "three leaves or more, with different parameters"
        return list(enumerate(self.leaves))

    # --- the laws ---------------------------------------------------------------------------------

    def test_parameters_are_accepted(self) -> None:
        assert self.family.check(self.params(*self.leaves), self.variable, self.grid) == []

    def test_mass_is_one(self) -> None:
        for _, leaf in self.each():
            mass = self.expected(leaf, np.ones_like) + self.far_moment(leaf, 0)
            assert mass == pytest.approx(1.0, abs=MASS), leaf

    def test_moment_of_order_zero_is_the_probability_of_a_value(self) -> None:
        found = self.family.moment(self.params(*self.leaves), self.grid, self.variable, 0)
        for at, leaf in self.each():
            gone = float(self.density(leaf)(np.array([self.variable.missing_code]))[0])
            expected = 1.0 - gone if self.variable.missing_state else 1.0
            assert found[at] == pytest.approx(expected, abs=MASS), leaf

    @pytest.mark.parametrize("order", [1, 2, 3])
    def test_raw_moments_equal_the_integral(self, order: int) -> None:
        found = self.family.moment(self.params(*self.leaves), self.grid, self.variable, order)
        gone = self.variable.missing_code if self.variable.missing_state else None

        def power(x: np.ndarray) -> np.ndarray:
            there = np.ones(x.shape, dtype=bool) if gone is None else x != gone
            return np.where(there, self.numbers(np.where(there, x, 0.0)) ** order, 0.0)

        for at, leaf in self.each():
            expected = self.expected(leaf, power) + self.far_moment(leaf, order)
            size = self.expected(leaf, lambda x: np.abs(power(x)))
            assert found[at] == pytest.approx(expected, abs=MOMENT * size), leaf

    def test_variance_equals_the_integral_about_the_mean(self) -> None:
        params = self.params(*self.leaves)
        found = self.family.variance(params, self.grid, self.variable)
        there, first = (
            self.family.moment(params, self.grid, self.variable, order) for order in (0, 1)
        )
        gone = self.variable.missing_code if self.variable.missing_state else None
        for at, leaf in self.each():
            mean = first[at] / there[at]

            def square(x: np.ndarray, mean: float = mean) -> np.ndarray:
                value = np.ones(x.shape, dtype=bool) if gone is None else x != gone
                return np.where(value, (self.numbers(np.where(value, x, 0.0)) - mean) ** 2, 0.0)

            far = [self.far_moment(leaf, order) for order in range(3)]
            expected = self.expected(leaf, square) + far[2] - 2 * mean * far[1] + mean**2 * far[0]
            assert found[at] == pytest.approx(expected / there[at], rel=MOMENT, abs=1e-12), leaf

    def test_mode_is_the_highest_point(self) -> None:
        params = self.params(*self.leaves)
        value, log_density = self.family.mode(params, self.grid)
        for at, leaf in self.each():
            there = self.family.log_prob(self.params(leaf), self.grid, value[at : at + 1])[0, 0]
            assert log_density[at] == pytest.approx(there, abs=LOG), leaf
            around = self.family.log_prob(self.params(leaf), self.grid, self.fine_grid(leaf))[0]
            assert around.max() <= log_density[at] + 1e-9, leaf

    def test_samples_follow_the_density(self) -> None:
        for at, leaf in self.each():
            x = self.draw(at, self.n_samples, seed=100 + at)
            p_value = self.goodness_of_fit(leaf, x)
            assert p_value > FALSE_ALARM, (leaf, p_value)

    def goodness_of_fit(self, leaf: dict[str, Any], x: np.ndarray) -> float:
        """p-value of a chi-square test on the atoms and on parts of the pieces."""
        p, atoms = self.density(leaf), self.atoms(leaf)
        cells = [part for piece in self.pieces(leaf) for part in piece.cut(6)]
        expected = np.concatenate(
            [p(atoms) if atoms.size else [], [integrate_all(p, [c]) for c in cells]]
        )
        at_atom = np.isin(x, atoms)
        found = [np.sum(x == a) for a in atoms]
        found += [np.sum(~at_atom & (x > c.low) & (x <= c.high)) for c in cells]
        seen = np.array(found, dtype=float)
        assert seen[expected == 0].sum() == 0, "a sample where the density is zero"
        # Cells in which fewer than five are expected go into one, with whatever lies beyond.
        small = expected * x.size < 5
        rest_expected = max(1.0 - expected[~small].sum(), 0.0) * x.size
        rest_seen = x.size - seen[~small].sum()
        terms = (seen[~small] - expected[~small] * x.size) ** 2 / (expected[~small] * x.size)
        statistic, freedom = terms.sum(), int((~small).sum()) - 1
        if rest_expected > 1:
            statistic += (rest_seen - rest_expected) ** 2 / rest_expected
            freedom += 1
        else:
            assert rest_seen <= 12, "samples where almost none are expected"
        return float(chi2.sf(statistic, freedom)) if freedom > 0 else 1.0

    def test_one_call_draws_from_each_leaf_it_is_asked_for(self) -> None:
        params = self.params(*self.leaves)
        which = np.tile(np.arange(len(self.leaves)), self.n_samples // 2)
        x = self.family.sample(params, self.grid, which, np.random.default_rng(7))
        for at, leaf in self.each():
            assert self.goodness_of_fit(leaf, x[which == at]) > FALSE_ALARM, leaf

    def test_samples_have_positive_density(self) -> None:
        for at, leaf in self.each():
            x = self.draw(at, 2000, seed=300 + at)
            assert (self.density(leaf)(x) > 0).all(), leaf

    def test_fit_recovers_parameters(self) -> None:
        for at, leaf in self.each():
            x = self.draw(at, self.n_samples, seed=200 + at)
            fitted = self.family.fit(self.variable, x, **self.fit_options)
            for name in self.family.parameters:
                gap = np.abs(np.asarray(fitted.params[name]) - np.asarray(leaf[name])).max()
                assert gap < self.recovery, (leaf, name, fitted.params[name])

    def test_fit_is_likelier_than_the_truth(self) -> None:
        for at, leaf in self.each():
            x = self.draw(at, self.n_samples, seed=200 + at)
            fitted = self.family.fit(self.variable, x, **self.fit_options)
            best = {name: fitted.params[name] for name in self.family.parameters}
            log_fitted = self.family.log_prob(self.params(best), fitted.grid, x)[0].mean()
            log_truth = self.family.log_prob(self.params(leaf), self.grid, x)[0].mean()
            assert log_fitted >= log_truth - 1e-9, (leaf, best)
            assert log_fitted - log_truth < 0.01, (leaf, best)  # chi-square / 2n, far below

    def test_weighted_fit_is_the_fit_to_repeated_rows(self) -> None:
        for at, _ in self.each():
            x = self.draw(at, 400, seed=400 + at)
            times = np.random.default_rng(at).integers(0, 4, x.size)
            times[[x.argmin(), x.argmax()]] = 0, 2  # a row of weight zero is not there at all
            weighted = self.family.fit(self.variable, x, times.astype(float), **self.fit_options)
            repeated = self.family.fit(self.variable, np.repeat(x, times), **self.fit_options)
            assert weighted.grid == repeated.grid
            for name in self.family.parameters:
                np.testing.assert_allclose(
                    weighted.params[name], repeated.params[name], rtol=REPEATED,
                    atol=REPEATED, err_msg=name,
                )  # fmt: skip

    def test_fit_to_no_rows_is_refused(self) -> None:
        x = self.draw(0, 5, seed=1)
        with pytest.raises(FedcircuitsError, match="cannot be fitted to no rows"):
            self.family.fit(self.variable, x, np.zeros(5), **self.fit_options)

    def test_negative_weights_are_refused(self) -> None:
        x = self.draw(0, 3, seed=1)
        with pytest.raises(FedcircuitsError, match="weights must be finite numbers >= 0"):
            self.family.fit(self.variable, x, np.array([1.0, -2.0, 3.0]), **self.fit_options)

    def test_leaves_of_a_group_answer_as_each_alone(self) -> None:
        params = self.params(*self.leaves)
        x = np.unique(np.concatenate([self.draw(at, 50, seed=at) for at, _ in self.each()]))
        together = self.family.log_prob(params, self.grid, x)
        value, log_density = self.family.mode(params, self.grid)
        moments = self.family.moment(params, self.grid, self.variable, 2)
        support = self.family.support(params, self.grid)
        assert together.shape == (len(self.leaves), x.size)
        for at, leaf in self.each():
            alone = self.params(leaf)
            np.testing.assert_array_equal(
                together[at], self.family.log_prob(alone, self.grid, x)[0]
            )
            one_value, one_density = self.family.mode(alone, self.grid)
            assert (value[at], log_density[at]) == (one_value[0], one_density[0])
            one_moment = self.family.moment(alone, self.grid, self.variable, 2)[0]
            assert moments[at] == pytest.approx(one_moment, rel=1e-14)
            np.testing.assert_array_equal(support[at], self.family.support(alone, self.grid)[0])

    def test_values_one_by_one_answer_as_all_at_once(self) -> None:
        params = self.params(*self.leaves)
        x = np.unique(np.concatenate([self.draw(at, 5, seed=at) for at, _ in self.each()]))
        together = self.family.log_prob(params, self.grid, x)
        alone = [self.family.log_prob(params, self.grid, x[i : i + 1])[:, 0] for i in range(x.size)]
        np.testing.assert_array_equal(together, np.stack(alone, axis=1))

    def test_save_and_load_is_exact(self, tmp_path: Path) -> None:
        for at, leaf in self.each():
            circuit = self.circuit(leaf)
            circuit.save(tmp_path / f"{at}.fc")
            again = fc.load(tmp_path / f"{at}.fc")
            assert isinstance(again, fc.Circuit)
            assert again.schema == circuit.schema
            assert again.groups[0].grid == circuit.groups[0].grid
            for name in self.family.parameters:
                np.testing.assert_array_equal(
                    again.groups[0].params[name], circuit.groups[0].params[name]
                )
            x = self.draw(at, 200, seed=at)
            table = Table(
                circuit.schema, x[:, None], np.ones((x.size, 1), bool), pd.RangeIndex(x.size)
            )
            np.testing.assert_array_equal(
                again.log_prob_table(table), circuit.log_prob_table(table)
            )


class ScipyTwin(LeafContract):
    """For families of which scipy has the same distribution."""

    def twin(self, leaf: dict[str, Any]) -> Any:
        """The frozen scipy distribution that is the same."""
        raise NotImplementedError

    def test_scipy_twin_agrees(self) -> None:
        for _, leaf in self.each():
            twin, x = self.twin(leaf), self.fine_grid(leaf)
            log_p = twin.logpmf if hasattr(twin, "pmf") else twin.logpdf
            with np.errstate(divide="ignore"):  # scipy takes the logarithm of zero masses
                expected = log_p(x)
            found = self.family.log_prob(self.params(leaf), self.grid, x)[0]
            np.testing.assert_allclose(found, expected, rtol=TWIN, atol=TWIN)

"""The contract of a Density: subclass `DensityContract` and give two fixtures.

```python
class TestMyDensity(DensityContract):
    @pytest.fixture(scope="class")
    @classmethod
    def density(cls): ...          # over a small schema
    @pytest.fixture(scope="class")
    @classmethod
    def worlds(cls, density): ...  # oracles.enumeration.Worlds of its schema, all points
```

`worlds` must hold every value with positive probability (or quadrature nodes fine enough for
`rtol`); `worlds_of(schema)` makes them for coded variables and for numeric ones on a grid. Laws are
asked on the worlds: mass one, marginals, conditionals, predictions, moments, completions, samples,
storage. A float32 density widens `rtol` and `atol`.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import pytest
from scipy import stats

import fedcircuits as fc
from contracts.events import check_events
from fedcircuits.density import Density
from fedcircuits.errors import QueryError
from oracles.enumeration import Points, Worlds, matches


def worlds_of(schema: fc.Schema) -> Worlds:
    """Worlds of coded variables and of numeric ones on a grid without an unbounded integer tail."""
    points = {}
    for variable in schema:
        if variable.is_coded:
            points[variable.name] = Points.of_values(variable.categories)
            continue
        grid = variable.grid
        if grid is None or (grid.integer and max(grid.tails) > 0):
            raise ValueError(f"give the worlds of {variable.name!r} by hand")
        if grid.integer:
            low, high = int(grid.edges[0]), int(grid.edges[-1])
            points[variable.name] = Points.of_values(range(low, high + 1))
        else:
            points[variable.name] = Points.of_grid(grid.atoms, grid.edges, grid.tails)
    return Worlds(points)


def features(frame: pd.DataFrame, worlds: Worlds, centre: dict[str, tuple[float, float]]) -> Any:
    """(n, m) bounded functions of each variable and of each pair, whose means pin a distribution.

    Indicators of all categories, counts and atoms but the last; for a continuum also tanh of the
    standardised value and its square; all products of two variables' functions.
    """
    single = []
    for name, points in worlds.points.items():
        column = frame[name]
        atoms = [v for v, point in zip(points.values, points.is_point, strict=True) if point]
        mine = [(column == v).to_numpy(dtype=float) for v in atoms[:12]]
        if not points.is_point.all():
            mean, sd = centre[name]
            bent = np.tanh((column.to_numpy(dtype=float) - mean) / sd)
            mine += [bent, bent**2]
        single.append(np.stack(mine))
    pairs = [
        (a[:, None, :] * b[None, :, :]).reshape(-1, len(frame))
        for a, b in itertools.combinations(single, 2)
    ]
    return np.concatenate([*single, *pairs]).T


def assert_sample_follows(
    sample: pd.DataFrame, worlds: Worlds, probability: np.ndarray, alarm: float = 1e-7
) -> None:
    """Each feature's sample mean lies within its normal band; false-alarm rate `alarm` in all.

    Args:
        sample: rows drawn.
        worlds: the support.
        probability: (n_worlds,) density times weight; sums to one.
        alarm: chance that a right sampler fails, split over the features (Bonferroni). A feature
            of probability zero (or one) must never (always) occur; rare ones are held to the exact
            binomial tail instead of the normal one.
    """
    centre = {}
    for name, points in worlds.points.items():
        if not points.is_point.all():
            x = worlds.frame[name].to_numpy(dtype=float)
            mean = probability @ x
            centre[name] = (mean, max(np.sqrt(probability @ (x - mean) ** 2), 1e-6))
    expected_rows = features(worlds.frame, worlds, centre)
    found = features(sample, worlds, centre).mean(axis=0)
    mean = probability @ expected_rows
    spread = np.sqrt(np.maximum(probability @ expected_rows**2 - mean**2, 0.0) / len(sample))
    split = alarm / mean.size
    is_indicator = np.isin(expected_rows, (0.0, 1.0)).all(axis=0)
    for at in range(mean.size):
        if is_indicator[at]:
            hits, p = round(found[at] * len(sample)), float(np.clip(mean[at], 0, 1))
            p = 0.0 if p < 1e-14 else p
            chance = stats.binomtest(hits, len(sample), p).pvalue
            assert chance > split, f"feature {at}: {hits} of {len(sample)}, expected {p:.5f}"
        else:
            band = stats.norm.isf(split / 2) * spread[at] + 1e-6
            assert abs(found[at] - mean[at]) <= band, (
                f"feature {at}: mean {found[at]:.5f}, expected {mean[at]:.5f} +- {band:.5f}"
            )


class DensityContract:
    """What every Density keeps; see the module's docstring."""

    rtol: ClassVar[float] = 1e-8
    atol: ClassVar[float] = 1e-10
    n_samples: ClassVar[int] = 20_000

    @pytest.fixture(scope="class")
    @classmethod
    def density(cls) -> Density:
        """The density on trial."""
        raise NotImplementedError

    @pytest.fixture(scope="class")
    @classmethod
    def worlds(cls, density: Density) -> Worlds:
        """Its support."""
        return worlds_of(density.schema)

    @pytest.fixture(scope="class")
    @classmethod
    def p(cls, density: Density, worlds: Worlds) -> np.ndarray:
        """(n,) density of every world."""
        return np.exp(density.log_prob(worlds.frame).to_numpy())

    def close(self, found: Any, expected: Any, slack: float = 1.0) -> None:
        """Equal within the density's tolerance."""
        np.testing.assert_allclose(
            np.asarray(found, float), np.asarray(expected, float),
            self.rtol * slack, self.atol * slack,
        )  # fmt: skip

    def splits(self, worlds: Worlds, p: np.ndarray) -> list[tuple[dict[str, Any], Worlds, Any]]:
        """Evidence on each variable in turn at a likely world, the rest, and its conditional."""
        answer = []
        cube = p.reshape(worlds.shape)
        likely = np.unravel_index(int((p * worlds.weights).argmax()), worlds.shape)
        for axis, name in enumerate(worlds.names):
            if len(worlds.names) == 1:
                break
            rest = worlds.only([n for n in worlds.names if n != name])
            slice_ = np.take(cube, likely[axis], axis=axis).reshape(-1)
            value = worlds.points[name].values[likely[axis]]
            answer.append(({name: value}, rest, slice_))
        return answer

    def test_mass_is_one(self, worlds: Worlds, p: np.ndarray) -> None:
        self.close(worlds.weights @ p, 1.0)

    def test_marginals_are_sums_over_the_missing(
        self, density: Density, worlds: Worlds, p: np.ndarray
    ) -> None:
        names = worlds.names
        for keep in [[name] for name in names] + [list(reversed(names[:2]))]:
            left = worlds.only(keep)
            summed = worlds.sum_out(p, keep)
            self.close(np.exp(density.log_prob(left.frame)), summed)
            self.close(np.exp(density.marginal(keep).log_prob(left.frame)), summed)

    def test_conditional_times_evidence_is_the_joint(
        self, density: Density, worlds: Worlds, p: np.ndarray
    ) -> None:
        for evidence, rest, joint in self.splits(worlds, p):
            p_evidence = float(np.exp(density.log_prob(pd.DataFrame([evidence])).iloc[0]))
            conditional = density.condition(evidence)
            assert list(conditional.schema.names) == rest.names
            found = np.exp(conditional.log_prob(rest.frame))
            self.close(rest.weights @ found, 1.0)
            self.close(found * p_evidence, joint)

    def test_predictions_are_the_normalised_joint(
        self, density: Density, worlds: Worlds, p: np.ndarray
    ) -> None:
        for axis, name in enumerate(worlds.names):
            variable = density.schema[name]
            if not variable.is_coded:
                continue
            cube = np.moveaxis(p.reshape(worlds.shape), axis, -1).reshape(-1, worlds.shape[axis])
            rest = worlds.only([n for n in worlds.names if n != name])
            rows = rest.frame if rest.names else pd.DataFrame(index=[0])
            some = np.flatnonzero(cube.sum(axis=1) > 0)[:200]
            found = density.predict_proba(rows.iloc[some], name)
            assert tuple(found.columns) == variable.categories
            self.close(found, cube[some] / cube[some].sum(axis=1, keepdims=True))

    def test_moments_are_integrals(self, density: Density, worlds: Worlds, p: np.ndarray) -> None:
        mass = p * worlds.weights
        names = [v.name for v in density.schema if not v.is_coded or v.numbers is not None]
        if not names:
            pytest.skip("no numeric variable")
        values = worlds.frame[names].to_numpy(dtype=float)
        mean = mass @ values
        centred = values - mean
        spread = (centred * mass[:, None]).T @ centred
        for at, name in enumerate(names):
            self.close(density.expectation(name), mean[at], 100)
            self.close(density.moment(name, 2), mass @ values[:, at] ** 2, 100)
            self.close(density.variance(name), spread[at, at], 100)
        try:
            found = density.covariance(names)
        except QueryError as error:
            assert "does not answer covariance" in str(error)  # noqa: PT017
            return
        self.close(found, spread, 100)

    def test_conditional_means_are_integrals_row_by_row(
        self, density: Density, worlds: Worlds, p: np.ndarray
    ) -> None:
        for evidence, rest, joint in self.splits(worlds, p):
            mass = joint * rest.weights
            mass = mass / mass.sum()
            for name in rest.names:
                variable = density.schema[name]
                if variable.is_coded and variable.numbers is None:
                    continue
                expected = mass @ rest.frame[name].to_numpy(dtype=float)
                rows = pd.DataFrame([evidence, evidence], index=["one", "two"])
                found = density.expectation(name, rows)
                assert list(found.index) == ["one", "two"]
                self.close(found, [expected, expected], 100)

    def test_events_are_sums_over_their_worlds(
        self, density: Density, worlds: Worlds, p: np.ndarray
    ) -> None:
        if not density.answers_events:  # then they are refused, not overheard
            name = density.schema.names[0]
            with pytest.raises(QueryError, match="not events"):
                density.probability({name: worlds.frame[name].iloc[0]})
            return
        check_events(density, worlds.frame, p * worlds.weights, self.rtol, self.atol)

    def test_samples_follow_the_density(
        self, density: Density, worlds: Worlds, p: np.ndarray
    ) -> None:
        drawn = density.sample(self.n_samples, seed=11)
        assert list(drawn.columns) == worlds.names
        mass = p * worlds.weights
        assert_sample_follows(drawn, worlds, mass / mass.sum())

    def test_conditional_samples_follow_the_conditional_of_their_row(
        self, density: Density, worlds: Worlds, p: np.ndarray
    ) -> None:
        splits = self.splits(worlds, p)
        if not splits:
            pytest.skip("one variable")
        rows = pd.DataFrame([evidence for evidence, _, _ in splits]).astype(object)
        n = self.n_samples // 4
        drawn = density.sample(n, rows, seed=7)
        assert list(drawn.index) == list(np.repeat(np.arange(len(rows)), n))
        for at, (evidence, rest, joint) in enumerate(splits):
            mine = drawn.iloc[at * n : (at + 1) * n]
            assert matches(mine, evidence).all()
            mass = joint * rest.weights
            assert_sample_follows(mine, rest, mass / mass.sum())

    def test_the_same_seed_gives_the_same_sample(self, density: Density) -> None:
        pd.testing.assert_frame_equal(density.sample(9, seed=3), density.sample(9, seed=3))

    def test_completions_keep_the_evidence_and_never_beat_the_maximum(
        self, density: Density, worlds: Worlds, p: np.ndarray
    ) -> None:
        for evidence, rest, joint in self.splits(worlds, p):
            completed = density.mpe(evidence)
            assert matches(completed, evidence).all()
            assert completed.attrs["method"] == ("exact" if density.mpe_is_exact else "decoding")
            assert completed.attrs["log_prob"] == pytest.approx(
                density.log_prob(completed).tolist(), rel=self.rtol, abs=self.atol
            )
            value = float(np.exp(density.log_prob(completed).iloc[0]))
            if rest.is_discrete:
                assert 0 < value <= joint.max() * (1 + 10 * self.rtol)
                if density.mpe_is_exact:
                    self.close(value, joint.max(), 10)

    def test_row_labels_and_order_are_kept(self, density: Density, worlds: Worlds) -> None:
        rows = worlds.frame.iloc[[5 % len(worlds.frame), 0, 3 % len(worlds.frame)]]
        rows = rows.set_axis(["z", "a", "m"], axis=0)
        found = density.log_prob(rows[rows.columns[::-1]])
        assert list(found.index) == ["z", "a", "m"]
        self.close(
            np.exp(found.loc[["m", "z", "a"]]), np.exp(density.log_prob(rows.iloc[[2, 0, 1]]))
        )

    def test_nothing_observed_has_log_likelihood_zero(self, density: Density) -> None:
        assert density.log_prob(pd.DataFrame(index=["a", "b"])).tolist() == pytest.approx(
            [0.0, 0.0], abs=max(1e-12, self.atol)
        )

    def test_no_rows_give_an_empty_answer(self, density: Density, worlds: Worlds) -> None:
        found = density.log_prob(worlds.frame.iloc[:0])
        assert found.tolist() == []
        assert found.dtype == float

    def test_saving_and_loading_changes_no_answer(
        self, density: Density, worlds: Worlds, p: np.ndarray, tmp_path: Path
    ) -> None:
        density.save(tmp_path / "model.fc")
        again = fc.load(tmp_path / "model.fc")
        assert again.schema == density.schema
        assert type(again) is type(density)
        np.testing.assert_array_equal(np.exp(again.log_prob(worlds.frame).to_numpy()), p)
        pd.testing.assert_frame_equal(again.sample(20, seed=5), density.sample(20, seed=5))
        for evidence, _, _ in self.splits(worlds, p):
            pd.testing.assert_frame_equal(again.mpe(evidence), density.mpe(evidence))
            pd.testing.assert_frame_equal(
                again.sample(5, evidence, seed=1), density.sample(5, evidence, seed=1)
            )
        for variable in density.schema:
            if variable.is_coded:
                one = again.predict_proba(worlds.frame.iloc[:1], variable.name, impossible="nan")
                two = density.predict_proba(worlds.frame.iloc[:1], variable.name, impossible="nan")
                pd.testing.assert_frame_equal(one, two)
            if not variable.is_coded or variable.numbers is not None:
                assert again.moment(variable.name, 2) == density.moment(variable.name, 2)

"""The law of coherence: every query of a `Density` answers from one distribution.

`check_coherence(density)` enumerates the cells of a small discrete model. Over every pattern of
missing cells, with every variable as the target y:

- mass is one, and `log_prob` with gaps is the sum over the cells that are missing;
- `predict_proba(x)[y]` = exp(log_prob(x, y) - log_prob(x)) = `condition(x).predict_proba` =
  `marginal(columns of x + y).predict_proba`, and is the mean of itself over an absent column;
- `predict` is the likeliest value; `sample(given=x)` has these frequencies;
- the value that `mpe` states is `log_prob` of what it returns.

Smaller models (`condition`, `marginal`) are made for some patterns alone unless `thorough`. All to
1e-9 (float32 models: `tolerance`). Where a model is an estimate (`is_exact` is False) its answers
are held to the standard errors that they state.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from fedcircuits.density import Density

EXACT = 1e-9
MOST_CELLS = 4096  # of the enumeration with gaps: products of (categories + 1)
FEW_PATTERNS = 4
SAMPLES, FALSE_ALARM = 2000, 1e-7
ERRORS, COVERED = 6.0, 0.8  # estimates: none beyond 6 standard errors, 80 % within 1.96


@dataclass(frozen=True)
class Enumeration:
    """Every cell of a discrete model, and every row with gaps.

    Attributes:
        names: of the variables.
        worlds: (w, D) complete rows.
        mass: (w,) their probabilities.
        gaps: (g, D) complete and incomplete rows, None where a cell is missing; evidence of
            probability zero is left out.
        share: (g, w) whether a world agrees with a row.
    """

    names: list[str]
    worlds: pd.DataFrame
    mass: np.ndarray
    gaps: pd.DataFrame
    share: np.ndarray

    def posterior(self, rows: np.ndarray, target: str, values: list[Any]) -> np.ndarray:
        """(n, k) p(target = value | the other cells) by adding up worlds."""
        others = self.gaps.loc[rows].drop(columns=target)
        worlds = self.worlds.drop(columns=target)
        agrees = agreeing(others, worlds)
        by_value = np.stack([(self.worlds[target] == v).to_numpy(float) for v in values], axis=1)
        joint = (agrees * self.mass) @ by_value
        return joint / joint.sum(axis=1, keepdims=True)


def agreeing(rows: pd.DataFrame, worlds: pd.DataFrame) -> np.ndarray:
    """(n, w) whether a world has all the observed cells of a row."""
    answer = np.ones((len(rows), len(worlds)), dtype=bool)
    for name in worlds:
        mine, theirs = rows[name].to_numpy(object), worlds[name].to_numpy(object)
        missing = rows[name].isna().to_numpy()
        answer &= missing[:, None] | (mine[:, None] == theirs[None, :])
    return answer


def enumerated(density: Density) -> Enumeration:
    """All cells of a model whose variables are all coded."""
    names = list(density.schema.names)
    values = [list(density.schema[name].categories) for name in names]
    n_gaps = np.prod([len(each) + 1.0 for each in values])
    assert n_gaps <= MOST_CELLS, f"{n_gaps:.0f} rows with gaps: give a smaller model"
    worlds = pd.DataFrame(list(itertools.product(*values)), columns=names, dtype=object)
    mass = np.exp(density.log_prob(worlds).to_numpy())
    gaps = pd.DataFrame(
        list(itertools.product(*([*each, None] for each in values))), columns=names, dtype=object
    )
    share = agreeing(gaps, worlds)
    possible = share @ mass > 1e-12
    gaps = gaps[possible].reset_index(drop=True)
    return Enumeration(names, worlds, mass, gaps, share[possible])


def check_coherence(
    density: Density, *, tolerance: float = EXACT, thorough: bool = False, seed: int = 0
) -> None:
    """Assert the law (see the module's docstring).

    Args:
        density: over coded variables alone, few enough to enumerate.
        tolerance: of probabilities and logarithms.
        thorough: whether smaller models of every pattern are made, or of some.
        seed: of the samples, and of the rows that are conditioned on.
    """
    most = 2 ** len(density.schema) if thorough else FEW_PATTERNS
    Law(density, enumerated(density), tolerance, most, np.random.default_rng(seed)).check()


def check_same(density: Density, other: Density) -> None:
    """Assert that another density gives, bit for bit, the answers that the law is about."""
    rows = enumerated(density).gaps
    np.testing.assert_array_equal(other.log_prob(rows), density.log_prob(rows))
    for target in density.schema.names:
        asked = rows.drop(columns=target)
        pd.testing.assert_frame_equal(
            other.predict_proba(asked, target), density.predict_proba(asked, target)
        )
    pd.testing.assert_frame_equal(other.sample(100, seed=1), density.sample(100, seed=1))


@dataclass(frozen=True)
class Law:
    """One check of one density.

    Attributes:
        density: on trial.
        every: its cells.
        tolerance: of probabilities and logarithms.
        most_patterns: of missing cells, that smaller models are made for.
        rng: of samples and choices.
    """

    density: Density
    every: Enumeration
    tolerance: float
    most_patterns: int
    rng: np.random.Generator

    def check(self) -> None:
        """Assert all of it."""
        total = self.every.mass.sum()
        assert abs(total - 1.0) < self.tolerance, f"mass {total:.12f}"
        self.check_sums()
        for target in self.every.names:
            self.check_target(target)
        self.check_samples()
        self.check_mpe()

    def check_sums(self) -> None:
        """`log_prob` of rows with gaps is the sum over what is missing."""
        found = np.exp(self.density.log_prob(self.every.gaps).to_numpy())
        if self.density.is_exact:
            right = self.every.share @ self.every.mass
            np.testing.assert_allclose(found, right, rtol=0, atol=self.tolerance)

    def check_target(self, target: str) -> None:
        """All queries that give p(target | the rest) give the same."""
        every, density = self.every, self.density
        asked = np.flatnonzero(every.gaps[target].isna())
        rows = every.gaps.loc[asked]
        proba, error = density.predict_proba(rows, target, with_error=True)
        found, spread, values = proba.to_numpy(), error.to_numpy(), list(proba.columns)
        right = every.posterior(asked, target, values)
        self.compare(found, right, spread, f"predict_proba of {target!r} by enumeration")
        if density.is_exact:
            alone = density.log_prob(rows).to_numpy()
            ratio = [np.exp(density.log_prob(_filled(rows, target, v)) - alone) for v in values]
            self.compare(
                np.stack(ratio, axis=1), found, 0.0, f"log_prob with and without {target!r}"
            )
        column = {value: at for at, value in enumerate(values)}
        predicted = [column[value] for value in density.predict(rows, target)]
        short = found.max(axis=1) - found[np.arange(len(rows)), predicted]
        assert (short <= 2 * spread.max(axis=1) + self.tolerance).all(), f"predict of {target!r}"
        patterns = _patterns(every.names, target)
        chosen = self.rng.permutation(len(patterns))[: self.most_patterns]
        for pattern in (patterns[at] for at in sorted(chosen)):
            mine = np.flatnonzero(_has_pattern(rows, pattern))
            self.check_marginal_model(rows.iloc[mine][pattern], target, found[mine], spread[mine])
            at = int(self.rng.choice(mine))
            self.check_conditioned(rows.iloc[at][pattern].to_dict(), target, found[at], spread[at])
        if self.most_patterns > FEW_PATTERNS or not density.is_exact:
            # Of an exact model it follows: all these posteriors are those of the enumeration.
            self.check_total_probability(rows, target, found, spread)

    def check_marginal_model(self, rows: pd.DataFrame, target: str, found: Any, error: Any) -> None:
        """`marginal(columns + target)` first, then asked."""
        smaller = self.density.marginal([*rows.columns, target])
        proba, own = smaller.predict_proba(rows, target, with_error=True)
        spread = np.hypot(own.to_numpy(), error)
        self.compare(proba.to_numpy(), found, spread, f"marginal({[*rows, target]})")

    def check_conditioned(self, given: dict[str, Any], target: str, found: Any, error: Any) -> None:
        """`condition(x)` first, then asked without evidence."""
        if given:
            smaller = self.density.condition(given)
            proba, own = smaller.predict_proba(pd.DataFrame(index=[0]), target, with_error=True)
            spread = np.hypot(own.to_numpy()[0], error)
            self.compare(proba.to_numpy()[0], found, spread, f"condition({given}) then {target!r}")

    def check_total_probability(
        self, rows: pd.DataFrame, target: str, found: Any, error: Any
    ) -> None:
        """p(y | x) = sum_v p(z = v | x) p(y | x, z = v) over an absent column z."""
        for absent in (name for name in self.every.names if name != target):
            lacking = rows[absent].isna().to_numpy()
            some = rows[lacking]
            shares, own = self.density.predict_proba(some, absent, with_error=True)
            mixed, spread = np.zeros_like(found[lacking]), error[lacking] ** 2
            for value in shares.columns:
                weight, of_weight = shares[value].to_numpy(), own[value].to_numpy()
                possible = weight > 1e-12
                rest = _filled(some, absent, value)[possible]
                mine, of_mine = self.density.predict_proba(rest, target, with_error=True)
                mixed[possible] += weight[possible, None] * mine.to_numpy()
                spread[possible] += (weight[possible, None] * of_mine.to_numpy()) ** 2
                spread[possible] += (of_weight[possible, None] * mine.to_numpy()) ** 2
            what = f"{target!r} over an absent {absent!r}"
            self.compare(mixed, found[lacking], np.sqrt(spread), what)

    def check_samples(self) -> None:
        """`sample(given=x)` has the frequencies of the enumeration."""
        every = self.every
        some = np.sort(self.rng.choice(len(every.gaps), min(6, len(every.gaps)), replace=False))
        seed = int(self.rng.integers(2**31))
        drawn = self.density.sample(SAMPLES, every.gaps.loc[some], seed=seed)
        which = agreeing(drawn[every.names].astype(object), every.worlds).argmax(axis=1)
        for at, row in enumerate(some):
            right = every.share[row] * every.mass
            right = np.minimum(right / right.sum(), 1.0)
            counts = np.bincount(which[at * SAMPLES : (at + 1) * SAMPLES], minlength=right.size)
            for world in np.flatnonzero((right > 1e-12) | (counts > 0)):
                chance = stats.binomtest(int(counts[world]), SAMPLES, right[world]).pvalue
                assert chance > FALSE_ALARM, (
                    f"sample: {counts[world]} of {SAMPLES} with probability {right[world]:.4f}"
                )

    def check_mpe(self) -> None:
        """`mpe` keeps what is observed and states the value of what it returns."""
        gaps = self.every.gaps
        best = self.density.mpe(gaps)
        held = self.density.log_prob(best[self.every.names]).to_numpy()
        np.testing.assert_allclose(best.attrs["log_prob"], held, rtol=0, atol=self.tolerance)
        kept = agreeing(gaps, best[self.every.names].astype(object)).diagonal()
        assert kept.all(), "mpe changed an observed cell"

    def compare(self, found: Any, right: Any, error: Any, what: str) -> None:
        """Equal to rounding, or within the standard errors that are stated."""
        gap = np.abs(np.asarray(found) - np.asarray(right))
        error = np.broadcast_to(error, gap.shape)
        exact = gap[error <= 0]
        assert exact.size == 0 or exact.max() < self.tolerance, f"{what}: {exact.max():.2e}"
        scale = gap[error > 0] / error[error > 0]
        assert scale.size == 0 or scale.max() < ERRORS, f"{what}: {scale.max():.1f} std. errors"
        covered = (scale < 1.96).mean() if scale.size >= 50 else 1.0
        assert covered >= COVERED, f"{what}: {covered:.0%} within 1.96 standard errors"


def _filled(rows: pd.DataFrame, name: str, value: Any) -> pd.DataFrame:
    """The rows with one column set to a value."""
    return rows.assign(**{name: pd.Series([value] * len(rows), rows.index, dtype=object)})


def _patterns(names: list[str], target: str) -> list[list[str]]:
    """Every set of columns beside the target."""
    others = [name for name in names if name != target]
    return [
        list(chosen)
        for size in range(len(others) + 1)
        for chosen in itertools.combinations(others, size)
    ]


def _has_pattern(rows: pd.DataFrame, pattern: list[str]) -> np.ndarray:
    """(n,) whether exactly these columns are observed."""
    seen = rows.notna()
    return np.all([seen[name] == (name in pattern) for name in rows], axis=0)

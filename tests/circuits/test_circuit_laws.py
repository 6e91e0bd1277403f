"""Laws of exact queries on random mixed DAGs, against enumeration, quadrature and a reference.

Convention: `worlds` are all points of the schema with their weights in the base measure, so that
sum(weight * density) is an integral; densities are compared in linear space.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedcircuits.circuits import passes
from fedcircuits.errors import ImpossibleEvidenceError
from oracles.enumeration import Points, Worlds, matches
from oracles.random_circuits import COMBINATIONS, DISCRETE, Case, cases
from oracles.reference import density as reference_density

laws = settings(
    max_examples=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
MIXED = tuple(c for c in COMBINATIONS if len(c) > 1)
RTOL, ATOL = 1e-8, 1e-11


def density(model: Any, rows: pd.DataFrame) -> np.ndarray:
    """(n,) density in linear space."""
    return np.exp(model.log_prob(rows).to_numpy())


def close(found: Any, expected: Any, rtol: float = RTOL, atol: float = ATOL) -> None:
    np.testing.assert_allclose(np.asarray(found, float), np.asarray(expected, float), rtol, atol)


def some_rows(case: Case, seed: int, n: int) -> pd.DataFrame:
    """Worlds with a random part of the cells made missing, a different part in each row."""
    rng = np.random.default_rng(seed)
    rows = case.worlds.frame.iloc[rng.integers(0, len(case.worlds.frame), n)].astype(object)
    rows = rows.mask(rng.random(rows.shape) < 0.4, None)
    rows.index = [f"row {i}" for i in rng.permutation(n)]
    return rows


def as_mapping(row: pd.Series) -> dict[str, Any]:
    return {name: value for name, value in row.items() if not pd.isna(value)}


@laws
@given(cases())
def test_mass_is_one(case: Case) -> None:
    mass = case.worlds.weights @ density(case.circuit, case.worlds.frame)
    assert mass == pytest.approx(1.0, abs=1e-9)


@laws
@given(cases(), st.integers(0, 999))
def test_log_prob_is_that_of_the_recursive_reference_whatever_is_missing(
    case: Case, seed: int
) -> None:
    rows = some_rows(case, seed, 25)
    expected = [reference_density(case.reference, as_mapping(row)) for _, row in rows.iterrows()]
    found = case.circuit.log_prob(rows)
    close(np.exp(found), expected)
    assert list(found.index) == list(rows.index)


@laws
@given(cases(MIXED), st.data())
def test_a_marginal_is_the_sum_over_the_missing(case: Case, data: st.DataObject) -> None:
    worlds = case.worlds
    keep = data.draw(
        st.lists(st.sampled_from(worlds.names), min_size=1, unique=True).filter(
            lambda names: len(names) < len(worlds.names)
        )
    )
    left = worlds.only(keep)
    summed = worlds.sum_out(density(case.circuit, worlds.frame), keep)
    close(density(case.circuit, left.frame), summed)  # cells left out
    gaps = left.frame.reindex(columns=worlds.names).astype(object)
    close(density(case.circuit, gaps), summed)  # cells that are NaN
    smaller = case.circuit.marginal(keep)
    assert smaller.schema.names == tuple(keep)
    close(density(smaller, left.frame), summed)  # a circuit of its own


def evidence_of(case: Case, data: st.DataObject, leave: int = 1) -> dict[str, Any] | None:
    """Values of some variables with positive probability, or None if a draw has none."""
    names = data.draw(st.permutations(case.worlds.names))
    names = names[: data.draw(st.integers(1, len(names) - leave))]
    at = data.draw(st.integers(0, 10**6)) % len(case.worlds.frame)
    given_values = {name: case.worlds.frame[name].iloc[at] for name in names}
    possible = case.circuit.log_prob(pd.DataFrame([given_values])).iloc[0] > -np.inf
    return given_values if possible else None


@laws
@given(cases(MIXED), st.data())
def test_conditional_times_evidence_is_the_joint(case: Case, data: st.DataObject) -> None:
    evidence = evidence_of(case, data)
    if evidence is None:
        return
    p_evidence = density(case.circuit, pd.DataFrame([evidence]))[0]
    conditional = case.circuit.condition(evidence)
    assert set(conditional.schema.names) == set(case.worlds.names) - set(evidence)
    left = case.worlds.only(conditional.schema.names)
    p_left = density(conditional, left.frame)
    assert left.weights @ p_left == pytest.approx(1.0, abs=1e-9)
    close(p_left * p_evidence, density(case.circuit, left.frame.assign(**evidence)))


@laws
@given(cases([c for c in COMBINATIONS if len(c) > 2]), st.data())
def test_conditioning_twice_is_conditioning_on_both(case: Case, data: st.DataObject) -> None:
    evidence = evidence_of(case, data)
    if evidence is None or len(evidence) < 2:
        return
    (first, x), *rest = evidence.items()
    both = case.circuit.condition(evidence)
    chained = case.circuit.condition({first: x}).condition(dict(rest))
    left = case.worlds.only(both.schema.names)
    close(density(chained, left.frame), density(both, left.frame))


@laws
@given(cases([c for c in COMBINATIONS if len(c) > 2]), st.data())
def test_marginal_and_condition_commute(case: Case, data: st.DataObject) -> None:
    names = data.draw(st.permutations(case.worlds.names))
    given_name, kept, gone = names[0], names[1], names[2]
    at = data.draw(st.integers(0, 10**6)) % len(case.worlds.frame)
    evidence = {given_name: case.worlds.frame[given_name].iloc[at]}
    if density(case.circuit, pd.DataFrame([evidence]))[0] == 0:
        return
    left = case.worlds.only([kept]).frame
    one = case.circuit.condition(evidence).marginal([kept])
    other = case.circuit.marginal([kept, given_name]).condition(evidence)
    close(density(one, left), density(other, left))
    assert gone not in one.schema


@laws
@given(cases([c for c in MIXED if {"dial", "flag", "colour"} & set(c)]), st.integers(0, 999))
def test_predict_proba_is_the_normalised_enumeration(case: Case, seed: int) -> None:
    rows = some_rows(case, seed, 12)
    target = next(n for n in case.worlds.names if n in ("dial", "flag", "colour"))
    outcomes = case.worlds.points[target].values
    joint = np.array(
        [
            [
                reference_density(case.reference, {**as_mapping(row), target: outcome})
                for outcome in outcomes
            ]
            for _, row in rows.iterrows()
        ]
    )
    found = case.circuit.predict_proba(rows, target, impossible="nan")
    assert list(found.columns) == list(outcomes)
    assert list(found.index) == list(rows.index)
    possible = joint.sum(axis=1) > 0
    close(found.to_numpy()[possible], joint[possible] / joint[possible].sum(axis=1, keepdims=True))
    assert found.to_numpy()[~possible].size == 0 or np.isnan(found.to_numpy()[~possible]).all()
    predicted = case.circuit.predict(rows[possible], target)
    best = found.to_numpy()[possible].max(axis=1, initial=0.0)
    picked = [found.loc[label, value] for label, value in predicted.items()]
    close(picked, best)


@laws
@given(cases(DISCRETE), st.integers(0, 999))
def test_impossible_evidence_is_named_by_label_or_nan_on_request(case: Case, seed: int) -> None:
    rows = some_rows(case, seed, 12)
    numeric = next((n for n in case.worlds.names if n.startswith(("dial", "count", "flag"))), None)
    if numeric is None:
        return
    possible = case.circuit.log_prob(rows) > -np.inf
    moments = case.circuit.moment(numeric, 2, rows, impossible="nan")
    assert (moments.isna() == ~possible).all()
    if possible.all():
        return
    with pytest.raises(ImpossibleEvidenceError, match="probability zero") as caught:
        case.circuit.moment(numeric, 2, rows)
    assert caught.value.rows == tuple(rows.index[~possible])


@laws
@given(cases(MIXED), st.data())
def test_moments_are_integrals_over_the_conditional(case: Case, data: st.DataObject) -> None:
    evidence = evidence_of(case, data)
    if evidence is None:
        return
    worlds = case.worlds
    numeric = [n for n in worlds.names if n != "colour"]
    rows = worlds.only([n for n in worlds.names if n not in evidence]).frame.assign(**evidence)
    rest = worlds.only([n for n in worlds.names if n not in evidence])
    p = density(case.circuit, rows) * rest.weights
    p /= p.sum()
    values = rows[numeric].to_numpy(dtype=float)
    mean = p @ values
    for at, name in enumerate(numeric):
        for order in (1, 2, 3):
            found = case.circuit.moment(name, order, evidence)
            assert found == pytest.approx(p @ values[:, at] ** order, rel=1e-6, abs=1e-7)
        spread = p @ (values[:, at] - mean[at]) ** 2
        assert case.circuit.variance(name, evidence) == pytest.approx(spread, rel=1e-6, abs=1e-7)
    centred = values - mean
    expected = (centred * p[:, None]).T @ centred
    found = case.circuit.covariance(numeric, evidence)
    close(found, expected, rtol=1e-6, atol=1e-7)
    assert list(found.columns) == numeric
    assert list(found.index) == numeric


@laws
@given(cases(), st.integers(0, 999))
def test_rows_of_different_patterns_are_answered_as_if_alone(case: Case, seed: int) -> None:
    rows = some_rows(case, seed, 9)
    together = case.circuit.log_prob(rows)
    alone = pd.concat([case.circuit.log_prob(rows.iloc[i : i + 1]) for i in range(len(rows))])
    close(np.exp(together), np.exp(alone))
    assert list(together.index) == list(alone.index)


@laws
@given(cases(), st.integers(0, 999))
def test_a_row_without_evidence_has_log_likelihood_zero(case: Case, seed: int) -> None:
    rows = some_rows(case, seed, 5)
    rows.iloc[2] = None
    assert case.circuit.log_prob(rows).iloc[2] == pytest.approx(0.0, abs=1e-13)
    assert case.circuit.log_prob(pd.DataFrame(index=["a"])).tolist() == pytest.approx([0.0])


@laws
@given(cases(DISCRETE), st.integers(0, 999))
def test_mpe_never_beats_enumeration_and_keeps_the_evidence(case: Case, seed: int) -> None:
    rows = some_rows(case, seed, 8)
    rows = rows[case.circuit.log_prob(rows) > -np.inf]
    completed = case.circuit.mpe(rows)
    exact = case.circuit.mpe_is_exact
    assert completed.attrs["method"] == ("exact" if exact else "decoding")
    everything = density(case.circuit, case.worlds.frame)
    for label, row in rows.iterrows():
        known = as_mapping(row)
        assert matches(completed.loc[[label]], known).all()
        best = everything[matches(case.worlds.frame, known)].max()
        value = density(case.circuit, completed.loc[[label]])[0]
        assert 0 < value <= best * (1 + 1e-9)
        if exact:
            assert value == pytest.approx(best, rel=1e-9)


@laws
@given(cases(), st.integers(0, 999))
def test_answers_do_not_depend_on_the_size_of_a_chunk(case: Case, seed: int) -> None:
    rows = some_rows(case, seed, 150)
    rows = rows[case.circuit.log_prob(rows) > -np.inf]
    name = next((n for n in case.worlds.names if n != "colour"), None)

    def answers() -> list[np.ndarray]:
        found = [case.circuit.log_prob(rows).to_numpy(), case.circuit.mpe(rows).to_numpy()]
        if name is not None:
            found.append(case.circuit.expectation(name, rows).to_numpy())
        return found

    whole = answers()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(passes, "CHUNK_BYTES", 1)  # the least there is: 16 rows a chunk
        assert passes.chunk_rows(case.circuit.n_nodes) == 16
        parts = answers()
    close(parts[0], whole[0], rtol=1e-12, atol=1e-12)
    assert (parts[1] == whole[1]).all()
    for part, expected in itertools.zip_longest(parts[2:], whole[2:]):
        close(part, expected, rtol=1e-12, atol=1e-12)


@laws
@given(cases(), st.permutations(range(14)))
def test_the_order_of_rows_and_columns_changes_nothing(case: Case, order: list[int]) -> None:
    rows = some_rows(case, 5, 14)
    expected = case.circuit.log_prob(rows)
    shuffled = rows.iloc[order][rows.columns[::-1]]
    found = case.circuit.log_prob(shuffled)
    assert list(found.index) == list(shuffled.index)
    close(np.exp(found), np.exp(expected.loc[shuffled.index]))


def test_worlds_integrate_what_they_should() -> None:
    """The oracle itself: a Lomax tail, atoms and an interval, by hand."""
    tail = Points.of_tail(3.5, 1.6, 1)
    x = np.array(tail.values)
    lomax = 4 / 1.6 * (1 + (x - 3.5) / 1.6) ** -5.0
    assert tail.weights @ lomax == pytest.approx(1.0, abs=1e-12)
    assert tail.weights @ (lomax * x) == pytest.approx(3.5 + 1.6 / 3, rel=1e-10)
    both = Worlds({"a": Points.of_values([1, 2, 3]), "x": Points.of_interval([0.0, 0.5, 2.0])})
    f = both.frame["a"] * both.frame["x"] ** 2
    assert both.weights @ f == pytest.approx(6 * 8 / 3, rel=1e-12)
    close(both.sum_out(f.to_numpy(), ["a"]), [8 / 3, 16 / 3, 8])

"""Events against enumeration and quadrature: every query, random circuits, every leaf family."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
import pytest

import fedcircuits as fc
from fedcircuits.errors import ImpossibleEvidenceError, QueryError, UnknownCategoryError
from fedcircuits.schema import Grid
from oracles.enumeration import Points, Worlds
from oracles.random_circuits import COMBINATIONS, DISCRETE, GRID, Case, seeded_case, variable
from oracles.reference import leaves

# By the first letters of a variable: an event, and whether a value belongs to it.
EVENTS: dict[str, list[tuple[Any, Any]]] = {
    "colour": [
        (fc.one_of(["red", "blue"]), lambda x: x in ("red", "blue")),
        (fc.not_("green"), lambda x: x != "green"),
    ],
    "dial": [
        (fc.above(1), lambda x: x > 1),
        (fc.between(1, 4), lambda x: 1 <= x <= 4),
        (fc.not_(fc.between(2, 5)), lambda x: not 2 <= x <= 5),
    ],
    "flag": [(fc.one_of([0, 1]), lambda x: x in (0, 1)), (fc.below(1), lambda x: x < 1)],
    "count": [
        (fc.between(1, 3.5), lambda x: 1 <= x <= 3),
        (fc.above(2), lambda x: x > 2),
        (fc.above(2, inclusive=True), lambda x: x >= 2),
        (fc.not_(fc.one_of([0, 3])), lambda x: x not in (0, 3)),
    ],
    "real": [
        (fc.between(-0.3, 1.7), lambda x: -0.3 <= x <= 1.7),
        (fc.below(0.4), lambda x: x < 0.4),
        (fc.not_(fc.between(-0.5, 1.2)), lambda x: not -0.5 <= x <= 1.2),
    ],
    "hist": [
        (fc.between(-1, 2), lambda x: -1 <= x <= 2),
        (fc.between(-1, 2, closed="neither"), lambda x: -1 < x < 2),
        (fc.above(2), lambda x: x > 2),
        (fc.above(5.1), lambda x: x > 5.1),
        (fc.between(-1.9, 4.2), lambda x: -1.9 <= x <= 4.2),
        (fc.not_(fc.between(-0.2, 4.4)), lambda x: not -0.2 <= x <= 4.4),
        (fc.one_of([-1.0, 2.0]), lambda x: x in (-1.0, 2.0)),
    ],
}
CUTS = {"real": [-0.5, -0.3, 0.4, 1.2, 1.7], "hist": [-1.9, -0.2, 4.2, 4.4, 5.1]}


def kind(name: str) -> str:
    return next(key for key in EVENTS if name.startswith(key))


def points(case: Case, name: str) -> Points:
    """The points of a variable, with panels that end where events do."""
    if kind(name) == "hist":
        cuts = CUTS["hist"]
        low, high = min(cuts), max(cuts)
        scales = GRID.tails[0] + GRID.edges[0] - low, GRID.tails[1] + high - GRID.edges[-1]
        return Points.joined([
            Points.of_values(map(float, GRID.atoms)),
            Points.of_interval([*GRID.edges, *cuts], panel=0.25),
            Points.of_tail(low, scales[0], -1),
            Points.of_tail(high, scales[1], 1),
        ])  # fmt: skip
    if kind(name) != "real":
        return case.points(name)
    ends = list(CUTS["real"])
    for leaf in leaves(case.reference):
        if leaf.variable == name:
            p = leaf.params
            ends += [p["low"], p["high"]] if "low" in p else []
            if leaf.family == "gaussian":
                ends += [p["mean"] - 8.5 * p["sd"], p["mean"] + 8.5 * p["sd"]]
    return Points.of_interval(ends, panel=1.2)


class Brute:
    """All worlds of a case, with masks for events."""

    def __init__(self, case: Case) -> None:
        self.circuit = case.circuit
        self.worlds = Worlds({n: points(case, n) for n in case.circuit.schema.names})

    @cached_property
    def mass(self) -> np.ndarray:
        return np.exp(self.circuit.log_prob(self.worlds.frame).to_numpy()) * self.worlds.weights

    def where(self, chosen: dict[str, tuple[Any, Any]]) -> np.ndarray:
        inside = np.ones(len(self.mass), dtype=bool)
        for name, (_, holds) in chosen.items():
            inside &= self.worlds.frame[name].map(holds).to_numpy(dtype=bool)
        return inside


def pick(rng: np.random.Generator, names: list[str]) -> dict[str, tuple[Any, Any]]:
    """An event about each of some variables."""
    return {n: EVENTS[kind(n)][rng.integers(len(EVENTS[kind(n)]))] for n in names}


def evidence(chosen: dict[str, tuple[Any, Any]]) -> dict[str, Any]:
    return {name: event for name, (event, _) in chosen.items()}


CASES = [(names, seed) for names in COMBINATIONS for seed in (1, 2)]


@pytest.fixture(scope="module", params=CASES, ids=lambda c: f"{'-'.join(c[0])}-{c[1]}")
def drawn(request: pytest.FixtureRequest) -> tuple[Brute, np.random.Generator]:
    names, seed = request.param
    return Brute(seeded_case(seed, names)), np.random.default_rng(seed)


def possible(brute: Brute, rng: np.random.Generator, names: list[str]) -> dict[str, Any]:
    for _ in range(50):
        chosen = pick(rng, names)
        if brute.mass[brute.where(chosen)].sum() > 1e-6:
            return chosen
    pytest.skip("no event of positive probability")


def test_probabilities_and_moments_given_events(drawn: tuple[Brute, np.random.Generator]) -> None:
    brute, rng = drawn
    circuit, frame, names = brute.circuit, brute.worlds.frame, list(brute.circuit.schema.names)
    for _ in range(3):
        given = possible(brute, rng, [n for n in names if rng.random() < 0.7] or names[:1])
        inside = brute.where(given)
        total = brute.mass[inside].sum()
        row = pd.DataFrame({n: pd.Series([e]) for n, e in evidence(given).items()})
        assert circuit.log_prob(row)[0] == pytest.approx(np.log(total), abs=1e-8)
        asked = pick(rng, [n for n in names if rng.random() < 0.7] or names[-1:])
        joint = brute.mass[inside & brute.where(asked)].sum()
        found = circuit.probability(evidence(asked), evidence(given))
        assert found == pytest.approx(joint / total, abs=1e-9)
        limited = circuit.condition(evidence(given))
        assert limited.probability(evidence(asked)) == pytest.approx(joint / total, abs=1e-9)
        for name in names:
            if kind(name) == "colour":
                continue
            x = frame[name].to_numpy(dtype=float)
            p = np.where(inside, brute.mass, 0.0) / total
            if kind(name) == "hist" and not _bounded(given.get(name)):
                continue  # tails: the quadrature of a second moment has few digits
            mean = (p * x).sum()
            spread = (p * (x - mean) ** 2).sum()
            for model, e in ((circuit, evidence(given)), (limited, None)):
                assert model.expectation(name, e) == pytest.approx(mean, rel=1e-8, abs=1e-8)
                assert model.variance(name, e) == pytest.approx(spread, rel=1e-7, abs=1e-8)


def _bounded(chosen: tuple[Any, Any] | None) -> bool:
    return chosen is not None and not chosen[1](1e9) and not chosen[1](-1e9)


def test_posteriors_covariances_and_values_beside_events(
    drawn: tuple[Brute, np.random.Generator],
) -> None:
    brute, rng = drawn
    circuit, frame, names = brute.circuit, brute.worlds.frame, list(brute.circuit.schema.names)
    given = possible(brute, rng, [n for n in names if rng.random() < 0.6] or names[:1])
    inside = brute.where(given)
    p = np.where(inside, brute.mass, 0.0) / brute.mass[inside].sum()
    row = pd.DataFrame({n: pd.Series([e]) for n, e in evidence(given).items()})
    for name in names:
        if not variable(name).is_coded:
            continue
        others = brute.where({n: v for n, v in given.items() if n != name})
        found = circuit.predict_proba(row, name).iloc[0]
        limited = circuit.condition(evidence(given)).predict_proba(
            row.drop(columns=name, errors="ignore"), name
        )
        for category in variable(name).categories:
            here = (frame[name] == category).to_numpy(dtype=bool)
            expected = brute.mass[others & here].sum() / brute.mass[others].sum()
            assert found[category] == pytest.approx(expected, abs=1e-9)
            assert limited.iloc[0][category] == pytest.approx(p[here].sum(), abs=1e-9)
    moments = [
        n for n in names if kind(n) != "colour" and (kind(n) != "hist" or _bounded(given.get(n)))
    ]
    if moments:
        x = frame[moments].to_numpy(dtype=float)
        away = x - p @ x
        expected = (away * p[:, None]).T @ away
        for model, e in ((circuit, evidence(given)), (circuit.condition(evidence(given)), None)):
            found = model.covariance(moments, e).to_numpy()
            np.testing.assert_allclose(found, expected, rtol=1e-7, atol=1e-8)
    # A value of one variable beside events about others, and the same world after conditioning.
    world = frame.iloc[[int(rng.choice(len(p), p=p))]].reset_index(drop=True)
    whole = circuit.log_prob(world)[0]
    limited = circuit.condition(evidence(given))
    total = np.log(brute.mass[inside].sum())
    assert limited.log_prob(world)[0] == pytest.approx(whole - total, abs=1e-8)
    out = frame[~inside & (brute.mass > 0)]
    if len(out):
        assert limited.log_prob(out.iloc[[0]]).iloc[0] == -np.inf


def test_samples_and_completions_lie_in_the_event(drawn: tuple[Brute, np.random.Generator]) -> None:
    brute, rng = drawn
    circuit, names = brute.circuit, list(brute.circuit.schema.names)
    given = possible(brute, rng, [n for n in names if rng.random() < 0.7] or names[:1])
    for model, e in ((circuit, evidence(given)), (circuit.condition(evidence(given)), None)):
        sample = model.sample(300, e, seed=3)
        best = model.mpe(e)
        filled = circuit.impute(
            pd.DataFrame({n: pd.Series([v]) for n, v in evidence(given).items()})
        )
        for name, (_, holds) in given.items():
            assert sample[name].map(holds).all(), name
            assert best[name].map(holds).all(), name
            assert filled[name].map(holds).all(), name
        if model.mpe_is_exact:
            assert best.attrs["log_prob"][0] >= model.log_prob(sample).max() - 1e-9


def test_samples_given_an_event_follow_the_conditional() -> None:
    case = seeded_case(5, ("hist", "colour", "flag"))
    given = {"hist": fc.not_(fc.between(-0.2, 4.4)), "colour": fc.not_("green")}
    circuit = case.circuit
    sample = circuit.sample(20_000, given, seed=1)
    for x in (-3.0, -1.0, -0.7, 5.0, 8.0):
        p = circuit.cdf("hist", x, given)
        assert (sample["hist"] <= x).mean() == pytest.approx(p, abs=5 * np.sqrt(0.25 / 20_000))
    p = circuit.probability({"colour": "red"}, given)
    assert (sample["colour"] == "red").mean() == pytest.approx(p, abs=0.02)


def test_distribution_function_and_quantile_are_inverse(
    drawn: tuple[Brute, np.random.Generator],
) -> None:
    brute, rng = drawn
    circuit, frame, names = brute.circuit, brute.worlds.frame, list(brute.circuit.schema.names)
    given = possible(brute, rng, names[:1])
    inside = brute.where(given)
    for name in names:
        if kind(name) == "colour":
            continue
        for x in (-0.3, 0.4, 1.7) if kind(name) == "real" else (-1.0, 2.0, 4.2):
            here = inside & (frame[name].to_numpy(dtype=float) <= x)
            expected = brute.mass[here].sum() / brute.mass[inside].sum()
            assert circuit.cdf(name, x, evidence(given)) == pytest.approx(expected, abs=1e-9)
        shares = [0.05, 0.5, 0.9]
        found = circuit.quantile(name, shares, evidence(given))
        for p, x in found.items():
            assert circuit.cdf(name, x, evidence(given)) >= p - 1e-12
            before = np.nextafter(x, -np.inf)
            assert circuit.cdf(name, before, evidence(given)) <= p + 1e-12
        low, high = circuit.interval(name, 0.8, evidence(given))
        assert low <= found[0.5] <= high
        if kind(name) == "count":
            assert found.map(float.is_integer).all()


@pytest.mark.parametrize("names", DISCRETE, ids="-".join)
def test_entropy_and_mutual_information_by_enumeration(names: tuple[str, ...]) -> None:
    brute = Brute(seeded_case(3, names))
    circuit, frame = brute.circuit, brute.worlds.frame
    p = pd.Series(brute.mass)

    def entropy(columns: list[str]) -> float:
        share = p.groupby([frame[c] for c in columns]).sum()
        return float(-(share[share > 0] * np.log(share[share > 0])).sum())

    coded = [n for n in names if variable(n).is_coded]
    if coded:
        assert circuit.entropy(coded) == pytest.approx(entropy(coded), abs=1e-9)
    if len(names) > 1:
        matrix = circuit.mutual_information_matrix()
        for a in names:
            assert matrix.loc[a, a] == pytest.approx(entropy([a]), abs=1e-8)
            for b in names:
                if a < b:
                    expected = entropy([a]) + entropy([b]) - entropy([a, b])
                    assert matrix.loc[a, b] == pytest.approx(expected, abs=1e-8)
                    assert circuit.mutual_information(a, b) == pytest.approx(expected, abs=1e-8)


def test_events_in_cells_answer_row_by_row() -> None:
    circuit = seeded_case(4, ("hist", "colour", "flag")).circuit
    rows = pd.DataFrame(
        {
            "hist": [fc.above(0), None, 2.0, fc.above(0)],
            "colour": ["red", fc.one_of(["red", "blue"]), None, None],
        },
        index=["a", "b", "c", "d"],
    )
    found = circuit.log_prob(rows)
    proba = circuit.predict_proba(rows, "flag", impossible="nan")
    for label, row in rows.iterrows():
        given = {n: v for n, v in row.items() if v is not None}
        alone = pd.DataFrame({n: pd.Series([v]) for n, v in given.items()})
        assert found[label] == circuit.log_prob(alone)[0]
        one = circuit.predict_proba(alone, "flag", impossible="nan").iloc[0]
        np.testing.assert_allclose(proba.loc[label], one, rtol=1e-12)
    chance = circuit.probability({"flag": 1}, rows, impossible="nan")
    np.testing.assert_allclose(chance, proba[1], atol=1e-12)
    upto = circuit.cdf("hist", [0.0, 3.0], rows, impossible="nan")
    assert list(upto.columns) == [0.0, 3.0]
    assert upto.loc["c"].tolist() == [0.0, 1.0]


def test_closed_and_open_ends_matter_at_atoms_and_whole_numbers() -> None:
    grid = Grid(np.array([1.0, 3.0]), np.array([0.0, 4.0]), tails=(0.0, 0.0))
    schema = fc.Schema((fc.Variable("x", "continuous"),))
    one = fc.build.circuit(schema, fc.build.histogram("x", grid, [0.5, 0.3, 0.2]))
    states = {"a": one.probability({"x": 1}), "b": one.probability({"x": 3.0})}
    rest = 1 - sum(states.values())
    assert one.probability({"x": 2}) == 0.0  # a single number of a continuum
    both = one.probability({"x": fc.between(1, 3)})
    assert both == pytest.approx(states["a"] + states["b"] + rest / 2, abs=1e-12)
    for closed, atoms in (("left", states["a"]), ("right", states["b"]), ("neither", 0.0)):
        found = one.probability({"x": fc.between(1, 3, closed=closed)})
        assert found == pytest.approx(atoms + rest / 2, abs=1e-12)
    assert one.probability({"x": fc.below(1)}) == pytest.approx(rest / 4, abs=1e-12)
    assert one.probability({"x": fc.below(1, inclusive=True)}) == pytest.approx(
        rest / 4 + states["a"]
    )
    assert one.probability({"x": fc.not_([1, 3])}) == pytest.approx(rest, abs=1e-12)
    counts = fc.build.circuit(fc.Schema((fc.Variable("n", "count"),)), fc.build.poisson("n", 2.5))
    p = [counts.probability({"n": k}) for k in range(4)]
    assert counts.probability({"n": fc.between(0.5, 2.9)}) == pytest.approx(p[1] + p[2], abs=1e-12)
    assert counts.probability({"n": fc.between(1, 3, closed="neither")}) == pytest.approx(p[2])
    assert counts.probability({"n": fc.above(10**6)}) == 0.0
    assert counts.sample(5, {"n": fc.above(40)}, seed=0)["n"].min() > 40


def test_impossible_empty_and_unknown_events_are_said() -> None:
    circuit = seeded_case(4, ("hist", "colour", "flag")).circuit
    for empty in (fc.between(3, 1), fc.one_of([])):
        assert circuit.probability({"hist": empty}) == 0.0
        with pytest.raises(ImpossibleEvidenceError, match="row label: 0"):
            circuit.expectation("hist", {"hist": empty})
    rows = pd.DataFrame({"hist": [fc.above(0), fc.between(3, 1)]}, index=["x", "y"])
    with pytest.raises(ImpossibleEvidenceError, match="'y'"):
        circuit.sample(1, rows)
    with pytest.raises(UnknownCategoryError, match="'red'"):
        circuit.probability({"colour": fc.one_of(["red", "pink"])})
    with pytest.raises(QueryError, match="without an order"):
        circuit.probability({"colour": fc.below(3)})
    with pytest.raises(QueryError, match="no variable 'size'"):
        circuit.probability({"size": fc.below(3)})
    with pytest.raises(QueryError, match="closed is one of"):
        fc.between(1, 2, closed="up")  # type: ignore[arg-type]
    with pytest.raises(QueryError, match="list of values"):
        fc.one_of("red")
    with pytest.raises(QueryError, match="strictly between"):
        circuit.quantile("hist", 1.0)
    with pytest.raises(QueryError, match="continuum"):
        circuit.entropy("hist")


def test_a_conditional_on_events_is_saved_and_loaded(tmp_path: Any) -> None:
    circuit = seeded_case(6, ("hist", "colour", "flag")).circuit
    limited = circuit.condition({"hist": fc.not_(fc.between(-1, 0)), "colour": fc.not_("red")})
    limited.save(tmp_path / "limited.fc")
    again = fc.load(tmp_path / "limited.fc")
    asked = {"hist": fc.above(1), "flag": 1}
    assert again.probability(asked) == limited.probability(asked)
    both = circuit.probability(
        {"hist": fc.above(1), "flag": 1},
        {"hist": fc.not_(fc.between(-1, 0)), "colour": fc.not_("red")},
    )
    assert limited.condition({"hist": fc.above(1)}).probability({"flag": 1}) == pytest.approx(
        both / limited.probability({"hist": fc.above(1)}), abs=1e-12
    )


def test_entropy_says_how_large_the_enumeration_would_be() -> None:
    names = [f"v{i}" for i in range(6)]
    schema = fc.Schema(tuple(fc.Variable(n, "categorical", tuple("abcdefgh")) for n in names))
    nodes = [fc.build.categorical(n, np.full(8, 1 / 8)) for n in names]
    circuit = fc.build.circuit(schema, fc.build.product(nodes))
    assert circuit.entropy(names[:5]) == pytest.approx(5 * np.log(8), abs=1e-9)
    with pytest.raises(QueryError, match="262144"):
        circuit.entropy(names)

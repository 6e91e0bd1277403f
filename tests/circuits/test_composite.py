"""A composite of densities gives the answers of the one circuit it unrolls to."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import fedcircuits as fc
from fedcircuits import build as b
from fedcircuits.circuits import Circuit, Composite
from fedcircuits.circuits.composite import compose
from fedcircuits.circuits.structure_builder import StructureBuilder
from fedcircuits.density import Density
from fedcircuits.errors import StructureError

SCHEMA = fc.Schema(
    (
        fc.Variable("c", "categorical", ("p", "q", "r")),
        fc.Variable("x", "continuous"),
        fc.Variable("k", "count"),
        fc.Variable("y", "binary", (0, 1)),
    )
)


def left(shift: float) -> Circuit:
    """A circuit over y and x, in an order unlike the schema's."""
    root = b.sum(
        [
            b.product([b.bernoulli("y", 0.2), b.gaussian("x", shift, 1.5)]),
            b.product([b.bernoulli("y", 0.7), b.gaussian("x", shift + 2.0, 0.5)]),
        ],
        [0.4, 0.6],
    )
    return b.circuit(SCHEMA.select(["y", "x"]), root)


def right(rate: float) -> Circuit:
    """A circuit over k and c."""
    root = b.sum(
        [
            b.product([b.poisson("k", rate), b.categorical("c", [0.5, 0.2, 0.3])]),
            b.product([b.poisson("k", 3 * rate), b.categorical("c", [0.1, 0.1, 0.8])]),
        ],
        [0.7, 0.3],
    )
    return b.circuit(SCHEMA.select(["k", "c"]), root)


@pytest.fixture(scope="module")
def composite() -> Composite:
    """Three products over four parts, one of them shared, below an unequal mixture."""
    parts: list[Density] = [left(0.0), left(3.0), right(1.0), right(4.0)]
    graph = StructureBuilder()
    a0, a1, b0, b1 = (int(n) for n in graph.number(4))
    products = [graph.product(pair) for pair in ([a0, b0], [b1, a1], [a1, b0])]
    made = compose(SCHEMA, parts, graph, graph.sum(products, np.log([0.5, 0.2, 0.3])))
    assert isinstance(made, Composite)
    return made


@pytest.fixture(scope="module")
def rows(composite: Composite) -> pd.DataFrame:
    """Rows with a different pattern of gaps in each."""
    drawn = composite.merged().sample(60, seed=5)
    gaps = np.random.default_rng(1).random(drawn.shape) < 0.35
    return drawn.astype(object).mask(gaps)


def test_log_prob_equals_the_merged_circuit(composite: Composite, rows: pd.DataFrame) -> None:
    expected = composite.merged().log_prob(rows)
    np.testing.assert_allclose(composite.log_prob(rows), expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("target", ["c", "y"])
def test_posteriors_equal_the_merged_circuit(
    composite: Composite, rows: pd.DataFrame, target: str
) -> None:
    expected = composite.merged().predict_proba(rows, target)
    np.testing.assert_allclose(composite.predict_proba(rows, target), expected, atol=1e-10)


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("name", ["x", "k", "y"])
def test_moments_equal_the_merged_circuit(
    composite: Composite, rows: pd.DataFrame, name: str, order: int
) -> None:
    expected = composite.merged().moment(name, order, rows)
    np.testing.assert_allclose(composite.moment(name, order, rows), expected, rtol=1e-10)


def test_covariance_equals_the_merged_circuit(composite: Composite) -> None:
    given = {"c": "r"}
    expected = composite.merged().covariance(["k", "x", "y"], given)
    np.testing.assert_allclose(composite.covariance(["k", "x", "y"], given), expected, atol=1e-10)


def test_conditions_and_marginals_equal_the_merged_circuit(
    composite: Composite, rows: pd.DataFrame
) -> None:
    merged = composite.merged()
    for ours, theirs in (
        (composite.condition(k=3), merged.condition(k=3)),
        (composite.condition(y=1, x=0.3), merged.condition(y=1, x=0.3)),
        (composite.marginal(["c", "x"]), merged.marginal(["c", "x"])),
        (composite.marginal(["k"]), merged.marginal(["k"])),
    ):
        asked = rows[list(ours.schema.names)]
        assert ours.schema.names == theirs.schema.names
        np.testing.assert_allclose(ours.log_prob(asked), theirs.log_prob(asked), atol=1e-10)


def test_samples_have_the_merged_circuits_moments(composite: Composite) -> None:
    # 40,000 draws: five standard errors, so a false alarm is below 1e-5 for all three together.
    drawn = composite.sample(40_000, given={"y": 1}, seed=8)
    merged = composite.merged()
    for name in ("x", "k"):
        mean, variance = merged.expectation(name, {"y": 1}), merged.variance(name, {"y": 1})
        assert abs(drawn[name].mean() - mean) < 5 * (variance / 40_000) ** 0.5
    share = merged.predict_proba(pd.DataFrame({"y": [1]}), "c")["r"].iloc[0]
    assert abs((drawn["c"] == "r").mean() - share) < 5 * (share * (1 - share) / 40_000) ** 0.5
    assert (drawn["y"] == 1).all()


def test_a_decoding_keeps_the_evidence_and_is_no_worse_than_a_sample(
    composite: Composite, rows: pd.DataFrame
) -> None:
    completed = composite.mpe(rows)
    assert completed.attrs["method"] == "decoding"
    kept = rows.notna()
    assert (completed.astype(object).where(kept) == rows.where(kept))[kept].fillna(True).all().all()
    drawn = composite.log_prob(composite.sample(given=rows, seed=2))
    assert composite.log_prob(completed).mean() > drawn.mean()


def test_saved_and_loaded_it_answers_the_same(
    composite: Composite, rows: pd.DataFrame, tmp_path: Path
) -> None:
    composite.save(tmp_path / "m.fc")
    loaded = fc.load(tmp_path / "m.fc")
    assert isinstance(loaded, Composite)
    pd.testing.assert_series_equal(loaded.log_prob(rows), composite.log_prob(rows))
    assert loaded.n_parameters >= composite.n_parameters


def test_parts_that_overlap_are_refused() -> None:
    graph = StructureBuilder()
    numbers = graph.number(2)
    with pytest.raises(StructureError, match=r"share 'y', 'x'|share 'x', 'y'"):
        compose(SCHEMA.select(["y", "x"]), [left(0.0), left(1.0)], graph, graph.product(numbers))


def test_a_part_with_other_categories_is_refused() -> None:
    other = fc.Schema((fc.Variable("c", "categorical", ("p", "q")),))
    part = b.circuit(other, b.categorical("c", [0.5, 0.5]))
    graph = StructureBuilder()
    graph.number(2)
    with pytest.raises(StructureError, match="encodes 'c' in another way"):
        compose(SCHEMA.select(["c"]), [part, part], graph, graph.sum([0, 1], np.log([0.5, 0.5])))

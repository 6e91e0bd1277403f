"""Variances and covariances of EiNets: those of the circuit they unroll to, and of enumeration."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("torch")

import fedcircuits as fc
from fedcircuits.learners.einet import EiNet, unroll
from fedcircuits.schema import Schema
from fedcircuits.schema.images import image_table

PARITY = 1e-9
SMALL = {"width": 3, "epochs": 3, "batch": 60, "precision": "float64", "device": "cpu"}


def close(found: Any, expected: Any) -> None:
    """Equal to 1e-9 of the largest entry: a covariance near zero has no digits of its own."""
    found, expected = np.asarray(found, dtype=float), np.asarray(expected, dtype=float)
    np.testing.assert_allclose(found, expected, rtol=PARITY, atol=PARITY * np.abs(expected).max())


@pytest.mark.parametrize("leaf", ["categorical", "discretised-gaussian", "binomial"])
@pytest.mark.parametrize(
    ("structure", "layer"),
    [
        ("poon-domingos", "cp"),
        ("poon-domingos", "tucker"),
        ("random-trees", "tucker"),
        ("hclt", "cp"),
    ],
)
def test_they_equal_those_of_the_unrolled_circuit(
    structure: str, layer: str, leaf: str, rng: np.random.Generator
) -> None:
    images = (rng.random((120, 2, 3)) * 256).astype(np.uint8)
    images[:60] //= 3
    # Two cells of three pixels: pixels of one leaf region vary together as well.
    learner = EiNet(structure=structure, layer=layer, leaf=leaf, pieces=(2, 1), depth=2, **SMALL)
    density = learner.fit(image_table(images), rng)
    circuit = unroll(density)
    everything = circuit.covariance()
    assert np.abs(everything.to_numpy() - np.diag(np.diag(everything))).max() > 1.0
    close(density.covariance(), everything)
    given = {"pixel_000_001": 40, "pixel_001_002": 200}
    close(density.covariance(given=given), circuit.covariance(given=given))
    names = ["pixel_001_000", "pixel_000_001", "pixel_000_000"]
    close(density.covariance(names, given), circuit.covariance(names, given))
    table = image_table(images, rng.random(images.shape) < 0.5)
    close(density.variance_table(table), circuit.variance_table(table))


def frame(n: int = 240, offset: float = 1e5) -> pd.DataFrame:
    rng = np.random.default_rng(5)
    kind = rng.integers(3, size=n)
    return pd.DataFrame(
        {
            "grade": kind,
            "size": rng.normal(kind * 2.0, 1.0),
            "far": offset + rng.normal(kind * 0.5, 0.1),
            "visits": rng.poisson(1 + kind).clip(max=6),
        }
    )


@pytest.mark.parametrize("options", [{}, {"leaf": "gaussian"}, {"label": "grade"}])
def test_mixed_tables_and_numeric_labels(options: dict[str, Any]) -> None:
    kinds = {"grade": "categorical", "visits": "count"}
    density = fc.learn(frame(), learner=EiNet(**SMALL, **options), kinds=kinds, seed=3)
    circuit = unroll(density)
    for given in ({}, {"visits": 2}, {"grade": 1}):
        # Column by column: their scales differ by far more than nine digits of the largest.
        found, expected = density.covariance(given=given), circuit.covariance(given=given)
        scale = np.sqrt(np.outer(np.diag(expected), np.diag(expected)))
        np.testing.assert_allclose(found / scale, expected / scale, rtol=PARITY, atol=PARITY)
        np.testing.assert_allclose(density.variance("far", given), expected.loc["far", "far"])
    assert density.covariance(["grade", "size"], {"grade": 1}).loc["grade"].tolist() == [0.0, 0.0]


def test_a_large_mean_costs_no_digits() -> None:
    far, near = (
        fc.learn(frame(offset=offset), learner=EiNet(leaf="gaussian", **SMALL), seed=3)
        for offset in (1e7, 0.0)
    )
    assert far.variance("far") == pytest.approx(near.variance("far"), rel=1e-6)


def informative(names: list[str], **options: Any) -> Any:
    """An EiNet of a table in which "missing" is a state of some columns."""
    data = frame()
    for step, name in enumerate(names, start=3):
        data.loc[data.index[::step], name] = np.nan
    inferred = Schema.infer(data, {"grade": "categorical"})
    schema = inferred.with_variables([replace(inferred[n], missing_state=True) for n in names])
    table = schema.encode(data, missing_as_state=True)
    return EiNet(**SMALL, **options).fit(table, np.random.default_rng(3))


@pytest.mark.parametrize("label", [None, "grade"])
def test_missing_as_a_state_counts_as_the_mean(label: str | None) -> None:
    density = informative(["grade", "size"], label=label)
    circuit = unroll(density)
    names = ["grade", "size", "visits"]
    close(density.covariance(names), circuit.covariance(names))
    close([density.variance(name) for name in names], [circuit.variance(name) for name in names])


def test_single_precision_is_close_and_conditionals_answer_too(rng: np.random.Generator) -> None:
    images = (rng.random((120, 3, 3)) * 256).astype(np.uint8)
    images[:60] //= 3
    model = fc.learn(images, learner="einet", width=4, epochs=3, batch=60, device="cpu")
    expected = unroll(model).covariance().to_numpy()
    np.testing.assert_allclose(model.covariance(), expected, rtol=0, atol=1e-4 * expected.max())
    given = {"pixel_000_000": 10}
    part = model.condition(given)
    np.testing.assert_allclose(
        part.covariance(), model.covariance(given=given), rtol=1e-12, atol=1e-9
    )

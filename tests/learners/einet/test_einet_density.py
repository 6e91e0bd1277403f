"""The whole Density contract, and parity with the unrolled core circuit, in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("torch")

import fedcircuits as fc
from contracts.density import DensityContract
from fedcircuits.api import load as api
from fedcircuits.learners.einet import EiNet, EiNetDensity, unroll
from fedcircuits.schema.images import image_table
from oracles.enumeration import Points, Worlds

PARITY = 1e-9


@pytest.fixture(autouse=True, scope="module")
def _registered() -> Any:
    """Files of kind "einet" can be read, whether or not the api knows them yet."""
    before = dict(api.DENSITIES)
    api.DENSITIES["einet"] = EiNetDensity.from_record
    yield
    api.DENSITIES.clear()
    api.DENSITIES.update(before)


def mixed_frame(n: int = 300) -> pd.DataFrame:
    rng = np.random.default_rng(5)
    kind = rng.integers(3, size=n)
    return pd.DataFrame(
        {
            "colour": np.array(["red", "green", "blue"])[kind],
            "flag": np.where(rng.random(n) < 0.2 + 0.3 * kind, "yes", "no"),
            "size": rng.normal(kind * 2.0, 1.0),
            "visits": rng.poisson(1 + kind).clip(max=6),
        }
    )


def learned(**options: Any) -> Any:
    frame = mixed_frame()
    learner = EiNet(width=4, epochs=4, batch=100, precision="float64", device="cpu", **options)
    return fc.learn(frame, learner=learner, kinds={"visits": "count"}, seed=3)


class TestTableContract(DensityContract):
    """A mixed table: categories, truth values, a continuum and counts, without a label."""

    @pytest.fixture(scope="class")
    @classmethod
    def density(cls) -> Any:
        frame = mixed_frame()
        learner = EiNet(width=4, epochs=4, batch=100, precision="float64", device="cpu")
        domains = {"visits": (0, 6)}
        return fc.learn(frame, learner=learner, kinds={"visits": "count"}, domains=domains, seed=3)

    @pytest.fixture(scope="class")
    @classmethod
    def worlds(cls, density: Any) -> Worlds:
        size = density.schema["size"].grid
        return Worlds(
            {
                "colour": Points.of_values(density.schema["colour"].categories),
                "flag": Points.of_values(density.schema["flag"].categories),
                "size": Points.of_grid(size.atoms, size.edges, size.tails),
                "visits": Points.of_values(range(7)),
            }
        )


class TestLabelledImageContract(DensityContract):
    """Tiny images with one root per class, Tucker layers on a Poon-Domingos grid."""

    @pytest.fixture(scope="class")
    @classmethod
    def density(cls) -> Any:
        rng = np.random.default_rng(1)
        kind = rng.integers(3, size=200)
        frame = pd.DataFrame(
            {
                f"pixel_{r:03d}_{c:03d}": (rng.random(200) < 0.2 + 0.25 * kind).astype(int) * 2
                + rng.integers(2, size=200)
                for r in range(2)
                for c in range(2)
            }
        )
        frame["digit"] = kind
        learner = EiNet(
            structure="poon-domingos", layer="tucker", pieces=2, width=3, epochs=4, batch=100,
            precision="float64", device="cpu", label="digit", leaf="discretised-gaussian",
        )  # fmt: skip
        domains = dict.fromkeys(frame.columns[:4], (0, 3))
        kinds = dict.fromkeys(frame.columns[:4], "count") | {"digit": "categorical"}
        return fc.learn(frame, learner=learner, kinds=kinds, domains=domains, seed=2)

    @pytest.fixture(scope="class")
    @classmethod
    def worlds(cls, density: Any) -> Worlds:
        points = {name: Points.of_values(range(4)) for name in density.schema.names[:4]}
        return Worlds(points | {"digit": Points.of_values((0, 1, 2))})


@pytest.mark.parametrize("leaf", ["categorical", "discretised-gaussian", "binomial", "gaussian"])
@pytest.mark.parametrize(
    ("structure", "layer"),
    [
        ("poon-domingos", "cp"),
        ("poon-domingos", "tucker"),
        ("random-trees", "cp"),
        ("random-trees", "tucker"),
        ("hclt", "cp"),
    ],
)
def test_an_einet_equals_the_same_circuit_unrolled(
    structure: str, layer: str, leaf: str, rng: np.random.Generator
) -> None:
    images = (rng.random((120, 3, 3)) * 256).astype(np.uint8)
    images[:60] //= 3
    learner = EiNet(
        structure=structure, layer=layer, leaf=leaf, width=3, pieces=3, depth=2, repetitions=2,
        epochs=3, batch=60, precision="float64", device="cpu",
    )  # fmt: skip
    density = learner.fit(image_table(images), rng)
    circuit = unroll(density)
    table = image_table(images, rng.random(images.shape) < 0.7)
    np.testing.assert_allclose(
        density.log_prob_table(table), circuit.log_prob_table(table), rtol=PARITY
    )
    evidence = image_table(images[:1], rng.random((1, 3, 3)) < 0.4)
    name = density.schema.names[int(np.flatnonzero(~evidence.observed[0])[0])]
    given = {n: v for n, v, o in zip(density.schema.names, evidence.values[0], evidence.observed[0],
                                     strict=True) if o}  # fmt: skip
    assert density.expectation(name, given) == pytest.approx(
        circuit.expectation(name, given), rel=1e-8
    )


@pytest.mark.parametrize("options", [{}, {"leaf": "gaussian"}, {"label": "colour"}])
def test_mixed_tables_equal_their_circuit(options: dict[str, Any]) -> None:
    density = learned(**options)
    circuit = unroll(density)
    frame = mixed_frame().iloc[:50].copy()
    frame.loc[frame.index[:20], "size"] = np.nan
    frame.loc[frame.index[10:30], "colour"] = None
    np.testing.assert_allclose(density.log_prob(frame), circuit.log_prob(frame), rtol=PARITY)
    rest = frame.drop(columns="colour")
    np.testing.assert_allclose(
        density.predict_proba(rest, "colour"), circuit.predict_proba(rest, "colour"), rtol=1e-7
    )


def test_gaussian_moments_are_those_of_the_circuit() -> None:
    density = learned(leaf="gaussian")
    circuit = unroll(density)
    for order in (1, 2, 3):
        found = density.moment("size", order, {"flag": "yes"})
        assert found == pytest.approx(circuit.moment("size", order, {"flag": "yes"}), rel=1e-9)


def test_row_weights_count_like_repeated_rows(rng: np.random.Generator) -> None:
    images = (rng.random((40, 2, 2)) * 4).astype(np.uint8)
    table = image_table(images)
    weights = rng.integers(1, 4, size=40)
    options = {"structure": "random-trees", "depth": 1, "repetitions": 1, "width": 1, "epochs": 1,
               "frequency": 0, "by_mass": False, "step": 1.0, "last_step": 1.0, "batch": 500,
               "pseudo_count": 0.0, "leaf_count": 0.0, "blur": 0.0,
               "precision": "float64"}  # fmt: skip
    from dataclasses import replace

    one = EiNet(**options).fit(replace(table, weights=weights.astype(float)), rng)
    two = EiNet(**options).fit(table.rows(np.repeat(np.arange(40), weights)), rng)
    np.testing.assert_allclose(one.log_prob_table(table), two.log_prob_table(table), rtol=1e-9)

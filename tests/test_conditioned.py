"""A conditional that only knows its joint answers like one folded into a circuit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import fedcircuits as fc
from fedcircuits import build as b
from fedcircuits import encoding
from fedcircuits.density.conditioned import Conditioned
from fedcircuits.errors import StorageError

SCHEMA = fc.Schema(
    (
        fc.Variable("x", "continuous"),
        fc.Variable("c", "categorical", ("p", "q", "r")),
        fc.Variable("k", "count"),
    )
)


@pytest.fixture(scope="module")
def pair() -> tuple[fc.Density, Conditioned]:
    """p(x, c | k = 3) twice: folded into the circuit, and as a view of the joint."""
    root = b.sum(
        [
            b.product([b.gaussian("x", mean, 1.5), b.categorical("c", probs), b.poisson("k", rate)])
            for mean, probs, rate in ((0.0, [0.5, 0.2, 0.3], 1.0), (4.0, [0.1, 0.8, 0.1], 6.0))
        ],
        [0.35, 0.65],
    )
    joint = b.circuit(SCHEMA, root)
    evidence = SCHEMA.encode(pd.DataFrame({"k": [3]}))
    return joint.condition(k=3), Conditioned(joint, ("x", "c"), evidence)


def test_it_answers_like_the_folded_circuit(pair: tuple[fc.Density, Conditioned]) -> None:
    folded, view = pair
    rows = pd.DataFrame({"x": [0.3, None, 5.0], "c": ["p", "q", None]})
    np.testing.assert_allclose(view.log_prob(rows), folded.log_prob(rows), atol=1e-12)
    np.testing.assert_allclose(
        view.predict_proba(rows, "c"), folded.predict_proba(rows, "c"), atol=1e-12
    )
    np.testing.assert_allclose(view.expectation("x", rows), folded.expectation("x", rows))
    assert view.variance("x") == pytest.approx(folded.variance("x"))
    again = view.condition(c="q")
    assert again.expectation("x") == pytest.approx(folded.condition(c="q").expectation("x"))


def test_saved_and_loaded_it_answers_the_same(
    pair: tuple[fc.Density, Conditioned], tmp_path: Path
) -> None:
    _, view = pair
    view.save(tmp_path / "m.fc")
    rows = pd.DataFrame({"x": [0.3, 2.0], "c": ["p", None]})
    pd.testing.assert_series_equal(fc.load(tmp_path / "m.fc").log_prob(rows), view.log_prob(rows))


def test_evidence_that_does_not_fit_is_a_storage_error(
    pair: tuple[fc.Density, Conditioned], tmp_path: Path
) -> None:
    record = pair[1].to_record()
    arrays = {**record.arrays, "values": np.zeros((1, 2))}
    broken = encoding.Record(record.kind, record.header, arrays)
    encoding.write(tmp_path / "m.fc", encoding.pack(broken))
    with pytest.raises(StorageError, match="does not fit"):
        fc.load(tmp_path / "m.fc")

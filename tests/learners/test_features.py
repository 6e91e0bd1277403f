"""Values for trees of a head: packed without loss, and memory of learning that rows bound."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pandas as pd
import pytest

import fedcircuits as fc
from fedcircuits.learners.hclt.features import Features, as_features, joined
from fedcircuits.schema import Schema

# Bytes of arrays at work for every cell of a table more, in units of the coded table (4 a cell).
MOST_BYTES = 6.0


def frame(n: int, n_numbers: int = 6, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    hidden = rng.normal(size=n)
    columns: dict[str, object] = {f"x{j}": hidden + rng.normal(size=n) for j in range(n_numbers)}
    columns |= {f"n{j}": rng.poisson(np.exp(0.5 * hidden) + 1) for j in range(4)}
    columns["kind"] = rng.choice(["a", "b", "c"], size=n)
    columns["big"] = rng.integers(2**40, size=n) * 3
    columns["label"] = np.where(hidden + rng.normal(size=n) > 0, "yes", "no")
    return pd.DataFrame(columns)


def test_features_are_the_values_bit_for_bit() -> None:
    rows = frame(500)
    rows.loc[rows.index % 7 == 0, "x0"] = np.nan
    rows.loc[rows.index % 5 == 0, "kind"] = None
    rows["signed"] = np.where(rows["n0"] > 1, -0.0, 65_504.0)
    rows["wide"] = np.where(rows["n0"] > 1, 0.5, 70_001.0)
    table = Schema.infer(rows).encode(rows)
    at = list(range(len(table.schema)))
    plain, packed = as_features(table, at), Features.of(table, at)
    assert packed.shape == plain.shape
    some, chosen = np.array([3, 400, 3, 77]), np.arange(500) % 3 == 0
    pairs = [(plain, packed), (plain[some], packed[some]), (plain[chosen], packed[chosen])]
    pairs.append((plain[chosen][:4], packed[chosen][np.arange(4)]))
    pairs.append((joined(plain[some], plain[chosen]), joined(packed[some], packed[chosen])))
    for one, other in pairs:
        assert len(one) == len(other)
        for j in at:
            expected, found = (np.ascontiguousarray(values[:, j]) for values in (one, other))
            np.testing.assert_array_equal(found, expected)
            np.testing.assert_array_equal(np.signbit(found), np.signbit(expected))
    sizes = {column.dtype.itemsize for column in packed.columns}
    assert sizes == {2, 4, 8}


@pytest.mark.slow
def test_memory_of_learning_for_every_row_more() -> None:
    sizes, peaks = (20_001, 40_001), []  # more than the rows that are sorted first
    options = {"n_states": 8, "n_trees": 1, "n_iterations": 3, "n_jobs": 1}
    for n in sizes:
        rows = frame(n, 20).drop(columns="big")
        fc.learn(rows.head(200), label="label", **options)  # imports
        tracemalloc.start()
        fc.learn(rows, label="label", head=True, class_transitions=True, **options)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    more = (peaks[1] - peaks[0]) / (4 * len(rows.columns) * (sizes[1] - sizes[0]))
    assert more < MOST_BYTES, peaks

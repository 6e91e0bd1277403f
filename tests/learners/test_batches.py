"""Tables beyond memory: batches of a file or a table give one model, and memory stays bounded."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import fedcircuits as fc
from fedcircuits.errors import FedcircuitsWarning, LearningError, SchemaError
from fedcircuits.learners.hclt.tree.chow_liu import chow_liu_tree
from fedcircuits.learners.hclt.tree.marginals import row_marginals, shares
from fedcircuits.learners.hclt.tree.starts import initial_tree
from fedcircuits.learners.hclt.tree.tree_em import (
    EmOptions,
    Smoothing,
    column_marginals,
    fit_em,
    refit_over,
)
from fedcircuits.schema import Schema
from fedcircuits.schema.reading import parquet
from fedcircuits.schema.reading.batches import infer_schema
from fedcircuits.schema.reading.parquet import ParquetFile

N = 900


def _rows(n: int = N, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    hidden = rng.normal(size=n)
    frame = pd.DataFrame(
        {
            "number": hidden + rng.normal(size=n),
            "count": rng.poisson(np.exp(0.5 * hidden) + 1),
            "yes": rng.integers(0, 2, size=n),
            "kind": np.where(hidden + rng.normal(size=n) > 0, "a", "b"),
            "late": np.where(np.arange(n) < n / 2, "early", "late"),
            "label": np.where(hidden + rng.normal(size=n) > 0, "yes", "no"),
        }
    )
    frame.loc[rng.random(n) < 0.1, "number"] = np.nan
    frame.loc[frame.index < n / 3, "kind"] = None  # whole batches without a value
    return frame


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "BATCH_CELLS", 600)  # 100 rows


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "rows.parquet"
    _rows().to_parquet(path, row_group_size=70)
    return path


def _same(one: fc.Density, other: fc.Density, rows: pd.DataFrame) -> None:
    assert one.schema == other.schema
    np.testing.assert_array_equal(one.log_prob(rows), other.log_prob(rows))


@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize("label", [None, "label"])
def test_a_file_in_batches_gives_the_model_of_the_table(file: Path, label: str | None) -> None:
    """Bit for bit, where both are larger than the rows in memory and where both fit."""
    settings: dict[str, Any] = {"label": label, "n_states": 4, "head": False}
    for most in (300, N):
        from_file = fc.learn(file, rows_in_memory=most, **settings)
        _same(from_file, fc.learn(_rows(), rows_in_memory=most, **settings), _rows())
        assert from_file.fit_report is not None
        sizes = from_file.fit_report.sizes
        assert sizes["training rows"] == N
        assert sizes.get("rows that choices and the label were fitted to", N) == most
    _same(from_file, fc.learn(_rows(), **settings), _rows())


@pytest.mark.usefixtures("small_batches")
def test_a_folder_of_files_is_one_table(tmp_path: Path) -> None:
    folder = tmp_path / "rows"
    folder.mkdir()
    for number, first in enumerate(range(0, N, 250)):
        _rows().iloc[first : first + 250].to_parquet(folder / f"{number}.parquet")
    settings: dict[str, Any] = {"n_states": 4}
    _same(
        fc.learn(folder, rows_in_memory=300, **settings),
        fc.learn(_rows(), rows_in_memory=300, **settings),
        _rows(),
    )
    _same(fc.learn(folder, **settings), fc.learn(_rows(), **settings), _rows())


@pytest.mark.usefixtures("small_batches")
def test_all_rows_count(file: Path) -> None:
    """Marginals come from all rows, not from those in memory."""
    model = fc.learn(file, rows_in_memory=120, n_states=3)
    rows = _rows()
    late = model.predict_proba(pd.DataFrame(index=[0]), "late")["late"].item()
    assert late == pytest.approx((rows["late"] == "late").mean(), abs=1e-4)
    counts = rows["count"].value_counts(normalize=True)
    known = model.schema["count"].grid
    assert known is not None
    found = model.predict_proba(pd.DataFrame(index=[0]), "yes")[1].item()
    assert found == pytest.approx(rows["yes"].mean(), abs=1e-4)
    assert np.isfinite(model.log_prob(rows)).all()
    assert counts.size > 2


@pytest.mark.usefixtures("small_batches")
def test_the_schema_of_batches_is_that_of_all_rows(file: Path) -> None:
    found = infer_schema(ParquetFile(file), [], _rows(), {}, None, None, ())
    assert found == Schema.infer(_rows())


@pytest.mark.usefixtures("small_batches")
def test_identifiers_are_left_out_of_files_too(tmp_path: Path) -> None:
    path = tmp_path / "ids.parquet"
    names = [f"row {i}" for i in range(N)]
    _rows().assign(key=np.arange(N) + 7, name=names).to_parquet(path)
    with pytest.warns(FedcircuitsWarning) as told:
        model = fc.learn(path, rows_in_memory=300, n_states=2)
    assert {"key", "name"}.isdisjoint(model.schema.names)
    for column in ("key", "name"):
        assert any(f"left out column {column!r}" in str(each.message) for each in told)


@pytest.mark.usefixtures("small_batches")
def test_errors_of_files_in_batches(file: Path, tmp_path: Path) -> None:
    with pytest.raises(LearningError, match="label: "):
        fc.learn(file, "lable", rows_in_memory=300)
    with pytest.raises(SchemaError, match="kindd"):
        fc.learn(file, drop=["kindd"], rows_in_memory=300)
    with pytest.raises(LearningError, match=r"'rows_in_memory' .* is a whole number >= 1"):
        fc.learn(file, rows_in_memory=0)
    with pytest.raises(LearningError, match="weights= is for tables in memory"):
        fc.learn(file, rows_in_memory=300, weights=np.ones(N))
    mixed = tmp_path / "mixed"
    mixed.mkdir()
    _rows().to_parquet(mixed / "0.parquet")
    _rows()[["number", "kind"]].to_parquet(mixed / "1.parquet")
    assert fc.learn(mixed, rows_in_memory=300, n_states=2).schema.names == tuple(_rows().columns)
    broken = tmp_path / "broken.parquet"
    broken.write_bytes(b"PAR1 and nothing else")
    with pytest.raises(SchemaError, match="cannot be read as Parquet"):
        fc.learn(broken)


def test_steps_over_batches_are_those_of_all_rows() -> None:
    rng = np.random.default_rng(1)
    cards = (3, 4, 2)
    codes = np.stack([rng.integers(-1, card, size=500) for card in cards], axis=1)
    weights = rng.random(500)
    shape = chow_liu_tree(codes, cards, weights)
    marginals = column_marginals(codes, cards, weights)
    structure = shape.parent, shape.order, np.arange(3)
    trees = tuple(initial_tree(*structure, marginals, 4, codes, rng) for _ in range(2))
    smoothing = Smoothing(0.3, 0.3, 0.3)
    parts = [slice(i, i + 90) for i in range(0, 500, 90)]
    found, counts = refit_over(
        trees, lambda: ((codes[p], weights[p]) for p in parts), smoothing, 2, np.float64
    )
    for before, after in zip(trees, found, strict=True):
        options = EmOptions(
            n_iterations=2, n_warmup_epochs=0, smoothing=smoothing, dtype=np.float64
        )
        whole = fit_em(before, codes, weights, options, rng).tree
        np.testing.assert_allclose(after.transitions, whole.transitions, atol=1e-12)
        for one, other in zip(after.emissions, whole.emissions, strict=True):
            np.testing.assert_allclose(one, other, atol=1e-12)
    for one, other in zip(shares(counts), row_marginals(codes, cards, weights), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-12)


def test_states_without_rows_share_the_pseudo_rows() -> None:
    counts = [np.array([6.0, 0.0, 3.0, 0.0])]
    (found,) = shares(counts, 0.4)
    np.testing.assert_allclose(found, np.array([6.0, 0.1, 3.0, 0.1]) / 9.2, atol=1e-12)


def test_memory_does_not_grow_with_the_file(tmp_path: Path, monkeypatch: Any) -> None:
    """Peak of the arrays that Python makes; what Arrow reads ahead is bounded by its batches."""
    monkeypatch.setattr(parquet, "BATCH_CELLS", 12_000)
    monkeypatch.setattr("fedcircuits.api.learn.TELLING_ROWS", 500)
    peaks = []
    for times in (1, 8):
        path = tmp_path / f"{times}.parquet"
        _rows(4_000 * times).to_parquet(path, row_group_size=2_000)
        fc.learn(path, rows_in_memory=1_000, n_states=3, n_trees=1)  # modules are loaded
        tracemalloc.start()
        fc.learn(path, rows_in_memory=1_000, n_states=3, n_trees=1)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.3 * peaks[0]

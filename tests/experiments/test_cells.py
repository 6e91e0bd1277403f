"""A cell of each experiment at small size: it runs, and the same seed gives the same figures.

The cells of `density` are those of `test_experiment_files.py`.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from fedcircuits.cli.app import app
from fedcircuits.experiments import data
from fedcircuits.experiments.experiment import Context, Experiment
from fedcircuits.experiments.records import about_this_run
from fedcircuits.experiments.run import run

pytest.importorskip("torch")
TIMES = ("seconds", "seconds_slowest", "wall_seconds", *about_this_run())
RIVALS = {"settings": 2, "rounds": 2, "trees": 5, "trial_rows": 50}
TWO_ROWS = {"rows": {"split": "rows", "clients": 2, "how": "iid"}}
TWO_COLUMNS = {"columns": {"split": "columns", "clients": 2, "label": "one"}}
SMALL: dict[str, dict[str, Any]] = {
    "classification": {"models": ("FedAvg [network]",), "settings": TWO_ROWS},
    "communication": {"models": ("SplitNN [network]",), "settings": TWO_COLUMNS},
    "one-pass": {"models": ("one pass",), "settings": TWO_COLUMNS},
    "clients": {"models": ("default",), "settings": TWO_ROWS},
}


def small(name: str) -> Experiment:
    """Return two or fewer cells of an experiment on 150 rows."""
    whole = Experiment.named(name, quick=True, seeds=1)
    options = {**whole.options, "rivals": RIVALS, "width": 2, "epochs": 1}
    return replace(whole, data=("cancer",), most_rows=150, options=options, **SMALL[name])


def figures(experiment: Experiment, path: Path) -> pd.DataFrame:
    """Return what a run records of its cells, without times."""
    records, notes = run(experiment, Context(), path)
    assert notes == []
    frame = records.frame()
    assert len(frame) == len(list(experiment.cells()))
    return frame.drop(columns=[name for name in TIMES if name in frame])


@pytest.mark.parametrize("name", SMALL)
def test_the_same_seed_gives_the_same_figures_twice(name: str, tmp_path: Path) -> None:
    if name in ("classification", "communication"):
        pytest.importorskip("pytorch_tabnet")
    experiment = small(name)
    first, second = (figures(experiment, tmp_path / f"{at}.parquet") for at in "ab")
    # The report of a fit travels with it and holds its seconds, in more or fewer digits.
    np.testing.assert_allclose(first.pop("bytes"), second.pop("bytes"), rtol=1e-3)
    pd.testing.assert_frame_equal(first, second, check_exact=True)
    shown = [name for name in experiment.metrics if name in first]
    assert np.isfinite(first[shown]).all(axis=None)


def test_images_over_clients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    pictures = [rng.integers(0, 256, size=(n, 8, 8, 3), dtype=np.uint8) for n in (80, 20)]
    monkeypatch.setattr(data, "images", lambda *_: tuple(pictures))
    monkeypatch.setattr(data, "available", lambda *_: None)
    whole = Experiment.named("scaling", quick=True)
    settings = {"2, clustered": {"split": "rows", "clients": 2, "how": "clustered"}}
    options = {**whole.options, "width": 2, "epochs": 1, "pixels": 8}
    experiment = replace(whole, settings=settings, models=("FedPC",), options=options)
    first, second = (figures(experiment, tmp_path / f"{at}.parquet") for at in "ab")
    pd.testing.assert_frame_equal(first, second, check_exact=True)
    assert -20 < first["nats_a_value"].item() < -3


def test_a_command_that_recorded_nothing_says_so_and_what_was_left_out(tmp_path: Path) -> None:
    records = tmp_path / "a.parquet"
    words = ["experiment", "density", "--quick", "--minutes", "0", "--records", str(records)]
    found = CliRunner().invoke(app, words)
    said = " ".join(found.stderr.split())
    assert found.exit_code == 1
    assert "income: fetch adult.parquet" in said
    assert "cells are not run yet" in said
    assert "no cell of 'density' is recorded in" in said
    assert not list(tmp_path.iterdir())

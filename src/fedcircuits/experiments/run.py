"""Runs the cells of an experiment that are not yet recorded."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedcircuits.errors import FedcircuitsError, MissingExtraError
from fedcircuits.experiments import data
from fedcircuits.experiments.experiment import Cell, Context, Experiment, ExperimentError
from fedcircuits.experiments.records import KEY, Records

Progress = Callable[[float, str], None]


def run(
    experiment: Experiment,
    context: Context,
    path: Path,
    progress: Progress | None = None,
    minutes: float | None = None,
) -> tuple[Records, list[str]]:
    """Return the records with all cells, and a line for everything that was left out.

    Args:
        experiment: to run.
        context: data folder, engine and device.
        path: Parquet file of the records; cells in it are not run again.
        progress: called with the fraction done and the cell that is next.
        minutes: after which no further cell is begun; None for no limit.
    """
    missing = {name: data.available(name, context.folder) for name in experiment.data}
    notes = [text for text in missing.values() if text is not None]
    if len(notes) == len(experiment.data):
        raise ExperimentError(
            f"none of the data sets of {experiment.name!r} is here: " + "; ".join(notes)
        )
    records = Records(path)
    cells = [c for c in experiment.cells() if missing[c.data] is None and c not in records]
    module = importlib.import_module(
        f"fedcircuits.experiments.cells.{experiment.name.replace('-', '_')}"
    )
    start = time.monotonic()
    for at, cell in enumerate(cells):
        if minutes is not None and time.monotonic() - start > 60 * minutes:
            notes.append(f"{len(cells) - at} cells are not run yet; the same command goes on")
            break
        if progress is not None:
            progress(at / len(cells), in_words(cell))
        try:
            same = _same_training(cell, experiment, records)
            if same is None:
                records.add(cell, module.run(cell, experiment, context))
            else:
                records.add(cell, module.of_record(same, cell, experiment))
        except FedcircuitsError as error:
            # What is not installed is said once for a model, not for every cell.
            once = isinstance(error, MissingExtraError)
            note = str(error) if once else f"{in_words(cell)}: {error}"
            notes += [note] * (note not in notes)
    return records, notes


def _same_training(cell: Cell, experiment: Experiment, records: Records) -> dict[str, Any] | None:
    """Return the record of the same training in the experiment that is named, if there is one."""
    named = experiment.options.get("same_training_as")
    row = None if named is None else records.find(replace(cell, experiment=named))
    return None if row is None else {k: v for k, v in row.items() if k not in KEY}


def in_words(cell: Cell) -> str:
    """Return data, setting, model and seed of a cell."""
    return f"{cell.data}, {cell.setting}, {cell.model}, seed {cell.seed}"

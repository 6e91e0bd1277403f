"""Runs the cells of an experiment that are not yet recorded."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path

from fedcircuits.errors import FedcircuitsError
from fedcircuits.experiments import data
from fedcircuits.experiments.experiment import Cell, Context, Experiment, ExperimentError
from fedcircuits.experiments.records import Records

Progress = Callable[[float, str], None]


def run(
    experiment: Experiment,
    context: Context,
    path: Path,
    progress: Progress | None = None,
) -> tuple[Records, list[str]]:
    """Return the records with all cells, and a line for everything that was left out.

    Args:
        experiment: to run.
        context: data folder, engine and device.
        path: Parquet file of the records; cells in it are not run again.
        progress: called with the fraction done and the cell that is next.
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
    for at, cell in enumerate(cells):
        if progress is not None:
            progress(at / len(cells), in_words(cell))
        try:
            records.add(cell, module.run(cell, experiment, context))
        except FedcircuitsError as error:
            notes.append(f"{in_words(cell)}: {error}")
    return records, notes


def in_words(cell: Cell) -> str:
    """Return data, setting, model and seed of a cell."""
    return f"{cell.data}, {cell.setting}, {cell.model}, seed {cell.seed}"

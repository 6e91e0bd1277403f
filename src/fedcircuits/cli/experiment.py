"""`fedcircuits experiment`: run one of the paper's experiments and write its page."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from fedcircuits.cli.output import Output
from fedcircuits.experiments.experiment import Context, Experiment, ExperimentError
from fedcircuits.experiments.page import rows_of, table, write_page
from fedcircuits.experiments.records import Records
from fedcircuits.experiments.run import run as run_cells


def run(
    out: Output,
    name: str,
    quick: bool,
    seeds: int | None,
    engine: str,
    data: Path | None,
    device: str,
    records: Path,
    page: Path | None,
    minutes: float | None,
    only_page: bool,
    only: Sequence[str] = (),
) -> None:
    """Run the cells that are not recorded yet, write the page, print its first table."""
    experiment = Experiment.named(name, quick=quick, seeds=seeds)
    if only:
        experiment = experiment.only(only)
    notes: list[str] = []
    if only_page:
        found = Records(records)
    else:
        with out.progress() as progress:
            context = Context(data, engine, device)
            found, notes = run_cells(experiment, context, records, progress, minutes)
    frame = found.frame()
    for note in notes:
        out.note(f"left out: {note}")
    if not any(row["experiment"] == name and row["quick"] == quick for row in found.rows):
        raise ExperimentError(f"no cell of {name!r} is recorded in {records}: nothing to show")
    words = f"fedcircuits experiment {name}" + (" --quick" if quick else "")
    words += "" if seeds is None else f" --seeds {seeds}"
    words += "".join(f" --only {one!r}" if " " in one else f" --only {one}" for one in only)
    words += "" if device == "cpu" else f" --device {device}"
    whole = Experiment.named(name, quick=quick)  # the page says what of it has not been run
    path = write_page(whole, frame, page or records.parent, words)
    metric, title = next(iter(experiment.metrics.items()))
    lines = list(table(experiment, rows_of(experiment, frame), metric, experiment.seeds))
    plain = [re.sub(r"\*(.+?)\*", r"(paper \1)", line) for line in lines]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in plain]
    if len(cells) > 2:
        out.table(title, cells[0], [list(row) for row in cells[2:]])
    out.say(f"Records: {records}")
    out.say(f"Page: {path}")
    out.result({"records": str(records), "page": str(path), "left_out": notes, "rows": len(frame)})

"""`fedcircuits learn`: learn a model from one table and save it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pandas as pd

from fedcircuits.api.learn import DEFAULT_LEARNER, learn
from fedcircuits.cli.output import Output
from fedcircuits.cli.rows import holds_images
from fedcircuits.density.pictures import read_images
from fedcircuits.errors import FedcircuitsError, SchemaError
from fedcircuits.schema import read
from fedcircuits.schema.images import LABEL


def run(
    out: Output,
    data: Path,
    output: Path,
    learner: str | None,
    label: str | None,
    kinds: list[str],
    missing_values: list[str],
    drop: list[str],
    sep: str | None,
    seed: int,
) -> None:
    """Learn and save."""
    rows: Any
    labels: Any = label
    if holds_images(data):
        if drop or kinds or missing_values:
            raise SchemaError("--drop, --kind and --missing are for tables, and these are images")
        rows, labels = read_images(data)
        if label is not None and (label != LABEL or labels is None):
            raise SchemaError(
                f"the label of images is called {LABEL!r} and comes with them, as names of folders "
                f"or the array 'labels'; found --label {label}"
            )
    else:
        rows = read(data, sep=sep)
        absent = [name for name in drop if name not in rows.columns]
        if absent:
            raise SchemaError(f"cannot drop {absent[0]!r}: the table has no such column")
        rows = rows.drop(columns=drop)
    if output.is_dir() or not output.parent.exists():
        # An error now rather than after the work.
        raise FedcircuitsError(f"cannot write {output}: not a file in an existing folder")
    start = time.perf_counter()
    with out.progress() as progress:
        model = learn(
            rows,
            label=labels,
            learner=learner or DEFAULT_LEARNER,
            kinds=dict(_pair(text, "--kind") for text in kinds),
            missing_values=missing_values,
            seed=seed,
            progress=progress,
        )
    model.save(output)
    seconds = time.perf_counter() - start
    known = rows[list(model.schema.names)] if isinstance(rows, pd.DataFrame) else rows
    mean = model.mean_log_prob(known)
    out.say(f"{model!r}")
    out.say(f"learned from {len(rows)} rows in {seconds:.1f} s; mean log-density on the training")
    out.say(f"rows {mean:.4f} nats; saved to {output}")
    report = model.fit_report
    for warning in report.warnings if report else ():
        out.notes.print(f"note: {warning}", markup=False, style="yellow")
    out.result(
        {
            "model": str(output),
            "rows": len(rows),
            "seconds": seconds,
            "train_mean_log_prob": mean,
            "n_parameters": model.n_parameters,
            "fit_report": None if report is None else report.to_json(),
        }
    )


def _pair(text: str, option: str) -> tuple[str, Any]:
    name, sign, value = text.partition("=")
    if not sign or not name:
        raise SchemaError(f"{option} takes NAME=VALUE, found {text!r}")
    return name, value

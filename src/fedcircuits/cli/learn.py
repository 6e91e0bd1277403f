"""`fedcircuits learn`: learn a model from one table and save it."""

from __future__ import annotations

import time
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedcircuits.api.learn import learn, make_learner
from fedcircuits.cli import held_out
from fedcircuits.cli.federation_file.draft import missing_spellings
from fedcircuits.cli.output import Output
from fedcircuits.cli.rows import holds_images
from fedcircuits.density import Density
from fedcircuits.density.contracts import LearnsBatches
from fedcircuits.density.pictures import read_images
from fedcircuits.errors import FedcircuitsError, FedcircuitsWarning, SchemaError, unknown_name
from fedcircuits.report.meanings import explained
from fedcircuits.schema import Schema, read
from fedcircuits.schema.images import LABEL
from fedcircuits.schema.reading.known import read_known
from fedcircuits.schema.reading.parquet import ParquetFile, is_parquet

# Rows of a file that is not read whole, on which models are scored.
SCORED_ROWS = 20_000


def run(
    out: Output,
    data: Path,
    output: Path,
    learner: str,
    label: str | None,
    kinds: list[str],
    missing_values: list[str],
    drop: list[str],
    test: Path | None,
    holdout: float,
    report_to: Path | None,
    sep: str | None,
    seed: int,
    rows_in_memory: int | None = None,
) -> None:
    """Learn, save, and score on rows that were not learned from."""
    held_out.check_share(holdout)
    memory: dict[str, Any] = {} if rows_in_memory is None else {"rows_in_memory": rows_in_memory}
    beyond = _beyond_memory(data, learner, memory)
    if beyond is None:
        rows, labels = _rows(data, label, kinds, missing_values, drop, sep)
    else:
        chosen = np.random.default_rng(seed).choice(beyond.n_rows, size=SCORED_ROWS, replace=False)
        rows, labels = _without(beyond.take(np.sort(chosen)), drop), label
        out.note(
            f"{data} has {beyond.n_rows} rows and is learned in batches; scores are those of "
            f"{SCORED_ROWS} random rows"
        )
    if isinstance(rows, pd.DataFrame) and not missing_values:
        missing_values = list(missing_spellings({"": rows}))
        if missing_values:
            out.note(f"read as missing: {', '.join(map(repr, missing_values))}")
    for file in (output, report_to):
        if file is not None and (file.is_dir() or not file.parent.exists()):
            # An error now rather than after the work.
            raise FedcircuitsError(f"cannot write {file}: not a file in an existing folder")
    settings: dict[str, Any] = {
        "learner": learner, "kinds": dict(_pair(text, "--kind") for text in kinds),
        "missing_values": missing_values, "seed": seed,
    }  # fmt: skip
    tests = read(test, sep=sep) if test is not None else None
    if tests is not None and missing_values:
        tests = tests.replace(missing_values, None)
    start = time.perf_counter()
    with out.progress() as progress:
        source, left_out = (rows, []) if beyond is None else (data, drop)
        model = learn(source, label=labels, drop=left_out, progress=progress, **settings, **memory)
    model.save(output)
    seconds = time.perf_counter() - start
    known = rows
    if isinstance(rows, pd.DataFrame):
        unlearned = [name for name in rows.columns if name not in model.schema]  # it was said
        rows = rows.drop(columns=unlearned)
        if tests is not None:
            tests = read_known(tests.drop(columns=unlearned, errors="ignore"), model.schema)
        known = rows.replace(missing_values, None)
    mean = model.mean_log_prob(known)
    out.say(f"{model!r}")
    n_rows = len(rows) if beyond is None else beyond.n_rows
    out.say(f"learned from {n_rows} rows in {seconds:.1f} s; saved to {output}")
    out.say(f"mean log-density of the training rows: {mean:.4f} nats per row")
    report = model.fit_report
    for warning in report.warnings if report else ():
        out.note(explained(warning))
    found = _scores(out, model, rows, tests, labels, holdout, settings)
    if report_to is not None:
        held = (tests, None) if found is None else (found.rows, found.model)
        made = model.report(
            report_to, held[0], label=label, scored=None if held[1] is model else held[1]
        )
        out.say(f"report written to {made}; open it in a browser")
    out.result(
        {
            "model": str(output),
            "rows": n_rows,
            "seconds": seconds,
            "train_mean_log_prob": mean,
            "held_out": None if found is None else found.scores,
            "n_parameters": model.n_parameters,
            "report": None if report_to is None else str(report_to),
            "fit_report": None if report is None else report.to_json(),
        }
    )


def _rows(
    data: Path,
    label: str | None,
    kinds: list[str],
    missing_values: list[str],
    drop: list[str],
    sep: str | None,
) -> tuple[Any, Any]:
    """Return the rows and the label: its column, or of images one value each."""
    if holds_images(data):
        if drop or kinds or missing_values:
            raise SchemaError(
                "--drop, --kind and --missing-value are for tables, and these are images"
            )
        rows, labels = read_images(data)
        if label is not None and (label != LABEL or labels is None):
            raise SchemaError(
                f"the label of images is called {LABEL!r} and comes with them, as names of folders "
                f"or the array 'labels'; found --label {label}"
            )
        return rows, labels
    return _without(read(data, sep=sep), drop), label


def _without(table: pd.DataFrame, drop: list[str]) -> pd.DataFrame:
    absent = [name for name in drop if name not in table.columns]
    if absent:
        names = map(str, table.columns)
        raise SchemaError(f"--drop: {unknown_name('column', absent[0], names, 'the table')}")
    return table.drop(columns=drop)


def _beyond_memory(data: Path, learner: str, memory: dict[str, Any]) -> ParquetFile | None:
    """Return a file with more rows than the learner has in memory at the same time."""
    made = make_learner(learner, memory, {})
    if not is_parquet(data) or not isinstance(made, LearnsBatches):
        return None
    file = ParquetFile(data)
    large = file.n_rows > max(made.most_rows(len(file.names)), SCORED_ROWS)
    return file if large else None


def _scores(
    out: Output,
    model: Density,
    rows: Any,
    tests: pd.DataFrame | None,
    label: Any,
    holdout: float,
    settings: dict[str, Any],
) -> held_out.HeldOut | None:
    """Show and return scores on the test rows, or on rows that a second fit has not seen."""
    if not isinstance(rows, pd.DataFrame):
        return None
    rows = rows.replace(settings["missing_values"], None) if settings["missing_values"] else rows
    if tests is not None:
        found = held_out.scores(model, tests, label, rows)
        held_out.show(out, found, len(tests), "--test")
        return held_out.HeldOut(found, tests, model)

    with out.progress() as progress, warnings.catch_warnings():
        warnings.simplefilter("ignore", FedcircuitsWarning)  # said at the first fit
        made = held_out.scored(
            lambda part: learn(part, label=label, schema=_open(model), progress=progress,
                               learner=settings["learner"], seed=settings["seed"]),
            rows, label, holdout, settings["seed"],
        )  # fmt: skip
    if made is None:
        return None
    held_out.show(out, made.scores, len(made.rows), "learned once more without them")
    return made


def _open(model: Density) -> Schema:
    """Return the schema of a model without what was fitted to its rows."""
    bare = (replace(v, grid=None, missing_state=False) for v in model.schema)
    return Schema(tuple(bare))


def _pair(text: str, option: str) -> tuple[str, Any]:
    name, sign, value = text.partition("=")
    if not sign or not name:
        raise SchemaError(f"{option} takes NAME=VALUE, found {text!r}")
    return name, value

"""`fedcircuits learn`: learn a model from one table and save it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from fedcircuits.api.learn import DEFAULT_LEARNER, learn
from fedcircuits.cli.output import Output
from fedcircuits.errors import FedcircuitsError, SchemaError
from fedcircuits.schema import read


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
    frame = read(data, sep=sep)
    absent = [name for name in drop if name not in frame.columns]
    if absent:
        raise SchemaError(f"cannot drop {absent[0]!r}: the table has no such column")
    if output.is_dir() or not output.parent.exists():
        # An error now rather than after the work.
        raise FedcircuitsError(f"cannot write {output}: not a file in an existing folder")
    start = time.perf_counter()
    with out.progress() as progress:
        model = learn(
            frame.drop(columns=drop),
            label=label,
            learner=learner or DEFAULT_LEARNER,
            kinds=dict(_pair(text, "--kind") for text in kinds),
            missing_values=missing_values,
            seed=seed,
            progress=progress,
        )
    model.save(output)
    seconds = time.perf_counter() - start
    mean = model.mean_log_prob(frame[list(model.schema.names)])
    out.say(f"{model!r}")
    out.say(f"learned from {len(frame)} rows in {seconds:.1f} s; mean log-density on the training")
    out.say(f"rows {mean:.4f} nats; saved to {output}")
    report = model.fit_report
    for warning in report.warnings if report else ():
        out.notes.print(f"note: {warning}", markup=False, style="yellow")
    out.result(
        {
            "model": str(output),
            "rows": len(frame),
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

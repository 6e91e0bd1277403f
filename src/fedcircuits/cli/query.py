"""`fedcircuits query`: one question to a model file."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pandas as pd

from fedcircuits.api.saved import load
from fedcircuits.cli.output import Output
from fedcircuits.cli.rows import is_picture, read_rows, write_grid
from fedcircuits.density import Density
from fedcircuits.errors import QueryError
from fedcircuits.schema.events.parse import from_texts
from fedcircuits.schema.table import Unknown
from fedcircuits.schema.times import from_numbers

INSIDE = 0.9  # of the interval that is printed beside a predicted number


def run(
    out: Output,
    path: Path,
    questions: dict[str, Any],
    rows: Path | None,
    given: list[str],
    unknown: str,
    output: Path | None,
    sep: str | None,
    seed: int,
) -> None:
    """Answer the one question that was asked."""
    asked = [name for name, value in questions.items() if value is not None]
    if len(asked) != 1:
        listed = ", ".join(f"--{name}" for name in questions)
        raise QueryError(f"ask one question ({listed}), found {len(asked)}")
    if unknown not in ("error", "missing"):
        raise QueryError(f"--unknown is 'error' or 'missing', found {unknown!r}")
    if rows is not None and given:
        raise QueryError("give evidence as --rows or as --given, not both")
    model: Any = load(path)  # a classifier of a federation answers --predict alone
    question, value = asked[0], questions[asked[0]]
    if not isinstance(model, Density) and question != "predict":
        raise QueryError(f"the file holds a {type(model).__name__}, which answers --predict alone")
    how = cast(Unknown, unknown)
    painted = is_picture(output)
    if painted and question not in ("mpe", "sample", "impute"):
        raise QueryError(f"--{question} answers with a table: write it to CSV or Parquet")
    schema = model.schema
    evidence: Any = (
        read_rows(rows, sep, schema) if rows is not None else from_texts(schema, given, "--given")
    )
    if question == "log-prob":
        scored = model.log_prob(read_rows(value, sep, schema), unknown=how).to_frame()
        out.frame("log-density, nats", scored, output)
        out.say(f"mean {scored['log_prob'].mean():.6g} nats over {len(scored)} row(s)")
    elif question == "mpe":
        completed = model.mpe(read_rows(value, sep, schema), unknown=how, as_images=painted)
        method = "exact" if model.mpe_is_exact else "decoding"
        _completed(out, f"most probable completion ({method})", completed, output)
    elif question == "sample":
        drawn = model.sample(value, evidence, seed=seed, unknown=how, as_images=painted)
        _completed(out, "samples", drawn, output)
    elif question == "impute":
        filled = model.impute(read_rows(value, sep, schema), unknown=how, as_images=painted)
        _completed(out, "rows with gaps filled", filled, output)
    elif question == "probability":
        event = from_texts(model.schema, value, "--probability")
        chance = model.probability(event, evidence, unknown=how)
        frame = chance.to_frame() if rows is not None else pd.DataFrame([{"probability": chance}])
        out.frame(f"P({' and '.join(value)} | evidence)", frame, output)
    elif question == "predict":
        if rows is None and value in evidence:
            raise QueryError(f"--given {value}: it is what --predict asks for; leave one of them")
        frame = evidence if rows is not None else _one_row(evidence)
        if isinstance(model, Density) and model.schema[value].outcomes is None:
            found, title = _of_number(model, value, frame, how), f"{value} given the evidence"
        else:
            found = model.predict_proba(frame, value, unknown=how)
            title = f"p({value} | evidence)"
        out.frame(title, found if rows is not None else found.reset_index(drop=True), output)
    else:
        mean = model.expectation(value, evidence, unknown=how)
        answer = {"mean": mean, "sd": model.variance(value, evidence, unknown=how) ** 0.5}
        frame = pd.DataFrame(answer) if rows is not None else pd.DataFrame([answer])
        if (time := model.schema[value].time) is not None:
            frame["mean"] = from_numbers(frame["mean"].to_numpy(dtype=float), time)
            frame = frame.rename(columns={"sd": f"sd, {'days' if time == 'date' else 'seconds'}"})
        out.frame(f"{value} given the evidence", frame, output)


def _of_number(model: Density, name: str, rows: Any, unknown: Unknown) -> pd.DataFrame:
    """Return what is predicted of a number: its mean, and where it lies in nine of ten cases."""
    rows = rows.drop(columns=name, errors="ignore")  # as `predict` does
    ends = model.interval(name, INSIDE, rows, unknown=unknown)
    bounds = ((1 - INSIDE) / 2, (1 + INSIDE) / 2)
    found = {
        f"{share:.0%} lie below": ends[e] for share, e in zip(bounds, ends.columns, strict=True)
    }
    return pd.DataFrame({"mean": model.predict(rows, name, unknown=unknown), **found})


def _completed(out: Output, title: str, answer: Any, output: Path | None) -> None:
    """Print completed rows or write them: images as a picture, others as a table."""
    if isinstance(answer, pd.DataFrame) or output is None:
        out.frame(title, answer, output)
        return
    write_grid(answer, output)
    out.say(f"{len(answer)} image(s) written to {output}")
    out.result({"images": len(answer), "written": str(output)})


def _one_row(evidence: dict[str, Any]) -> pd.DataFrame:
    return pd.DataFrame({name: pd.Series([value]) for name, value in evidence.items()}, index=[0])

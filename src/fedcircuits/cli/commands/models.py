"""Commands about one model: learn, query, inspect, report, explore, serve."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedcircuits.cli.commands.options import Json, MissingValue, Seed, Sep
from fedcircuits.cli.output import Output
from fedcircuits.errors import QueryError


def learn(
    data: Annotated[
        Path,
        typer.Argument(
            help="CSV or Parquet file with a header, folder of Parquet files; a folder or NPZ of "
            "images."
        ),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="Where to write the model.")],
    learner: Annotated[str, typer.Option(help="Name of the learner; the list is below.")] = "hclt",
    label: Annotated[str | None, typer.Option(help="Column to be predicted.")] = None,
    kind: Annotated[
        list[str] | None,
        typer.Option(help="NAME=continuous|count|categorical|binary, where a guess is wrong."),
    ] = None,
    missing_value: MissingValue = None,
    drop: Annotated[
        list[str] | None, typer.Option(help="Column to leave out; may be repeated.")
    ] = None,
    test: Annotated[
        Path | None, typer.Option(help="Rows to score the model on: CSV or Parquet.")
    ] = None,
    holdout: Annotated[
        float,
        typer.Option(
            help="Without --test: learn once more without this share of the rows, and score on "
            "them; 0 for no score."
        ),
    ] = 0.2,
    report: Annotated[
        Path | None, typer.Option(help="Write a report about the model there, too: an HTML page.")
    ] = None,
    rows_in_memory: Annotated[
        int | None,
        typer.Option(help="Of a Parquet file with more rows, only so many are read at a time."),
    ] = None,
    sep: Sep = None,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Learn a model from one table, and score it on rows that it has not seen.

    \b
    Examples:
      fedcircuits learn people.csv --label income -o people.fc
      fedcircuits learn people.csv --label income -o people.fc --report people.html
    """
    from fedcircuits.cli.learn import run

    out = Output(json)
    with out.errors():
        run(
            out, data, output, learner, label, kind or [], missing_value or [], drop or [], test,
            holdout, report, sep, seed, rows_in_memory,
        )  # fmt: skip


def query(
    model: Annotated[Path, typer.Argument(help="A model file.")],
    log_prob: Annotated[
        Path | None, typer.Option(help="Log-density of every row of a file.")
    ] = None,
    predict: Annotated[
        str | None,
        typer.Option(
            help="Probabilities of a variable (a number: mean, range), given --rows or --given."
        ),
    ] = None,
    expect: Annotated[
        str | None, typer.Option(help="Mean and standard deviation of a variable.")
    ] = None,
    sample: Annotated[int | None, typer.Option(help="Draw this many rows.")] = None,
    mpe: Annotated[
        Path | None, typer.Option(help="Fill missing cells of a file's rows with their joint mode.")
    ] = None,
    impute: Annotated[
        Path | None,
        typer.Option(help="Fill missing cells of a file's rows: means, likeliest values."),
    ] = None,
    probability: Annotated[
        list[str] | None,
        typer.Option(help="Probability of an event: 'age=30..40', 'hours>50'; all that are given."),
    ] = None,
    rows: Annotated[
        Path | None, typer.Option(help="Evidence: a file of rows (for --predict, --expect).")
    ] = None,
    given: Annotated[
        list[str] | None,
        typer.Option(
            help="Evidence, may be repeated: 'sex=Male', 'age=30..40', 'work=Private|State-gov', "
            "'hours>50' (or >=, <, <=, !=)."
        ),
    ] = None,
    unknown: Annotated[
        str, typer.Option(help="Treat a category that the model has not seen as: error or missing.")
    ] = "error",
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Write rows to CSV or Parquet, images to PNG."),
    ] = None,
    sep: Sep = None,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Answer one query with a model.

    \b
    Examples:
      fedcircuits query people.fc --predict income --given age=40 --given sex=Male
      fedcircuits query people.fc --probability "hours>50" --given "age=30..40"
      fedcircuits query people.fc --log-prob rows.csv -o scored.csv
      fedcircuits query people.fc --sample 100 --given age=40 -o drawn.csv
    """
    from fedcircuits.cli.query import run

    questions = {
        "log-prob": log_prob, "predict": predict, "expect": expect, "sample": sample, "mpe": mpe,
        "impute": impute, "probability": probability or None,
    }  # fmt: skip
    out = Output(json)
    with out.errors():
        run(out, model, questions, rows, given or [], unknown, output, sep, seed)


def inspect(
    model: Annotated[Path, typer.Argument(help="A model file.")],
    picture: Annotated[
        Path | None,
        typer.Option(help="Draw the model there: .png, .svg or .pdf."),
    ] = None,
    json: Json = False,
) -> None:
    """Show what a model file holds: variables, structure, sizes, how it was learned.

    The picture is the tree of strongest dependences, a small circuit's nodes, an EiNet's regions,
    or a federation's network with its clients.

    \b
    Examples:
      fedcircuits inspect people.fc
      fedcircuits inspect people.fc --picture people.png
    """
    from fedcircuits.cli.inspect import run

    out = Output(json)
    with out.errors():
        run(out, model, picture)


def report(
    model: Annotated[Path, typer.Argument(help="A model file.")],
    data: Annotated[
        Path | None,
        typer.Option(help="Held-out rows to score the model on: CSV, Parquet or images."),
    ] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="Where to write the page.")] = Path(
        "report.html"
    ),
    label: Annotated[str | None, typer.Option(help="Variable whose prediction is scored.")] = None,
    figures: Annotated[
        Path | None, typer.Option(help="Folder that gets every figure as SVG too.")
    ] = None,
    json: Json = False,
) -> None:
    """Write a report about a model: one HTML page that needs no network.

    \b
    Example:
      fedcircuits report people.fc --data test.csv --label income -o people.html
    """
    from fedcircuits.api.saved import load
    from fedcircuits.cli.rows import read_rows
    from fedcircuits.density import Density

    out = Output(json)
    with out.errors():
        found = load(model)
        if not isinstance(found, Density):
            kind = type(found).__name__
            raise QueryError(f"{model} holds a {kind}; a report is made of a density")
        rows = None if data is None else read_rows(data, None, found.schema)
        made = found.report(output, rows, label=label, figures_to=figures)
        size = made.stat().st_size
        out.say(f"report written to {made} ({size / 1e6:.1f} MB); open it in a browser")
        out.result({"report": str(made), "bytes": size})


def explore(
    model: Annotated[Path, typer.Argument(help="A model file.")],
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port; 0 takes one that is free.")
    ] = 0,
    json: Json = False,
) -> None:
    """Start a page on this machine where evidence is set and every distribution moves with it.

    \b
    Example:
      fedcircuits explore people.fc
    """
    from fedcircuits.cli.serve import run
    from fedcircuits.serving.questions import Limits

    out = Output(json)
    with out.errors():
        run(out, model, "127.0.0.1", port, None, Limits(), None, None, explore=True)


def serve(
    model: Annotated[Path, typer.Argument(help="A model file.")],
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port to listen on; 0 for any free port.")
    ] = 8000,
    token_file: Annotated[
        Path | None,
        typer.Option(help="File with the token; else FEDCIRCUITS_TOKEN, else a new one."),
    ] = None,
    max_body: Annotated[int, typer.Option(help="Largest request, in bytes.")] = 10 * 2**20,
    max_rows: Annotated[int, typer.Option(help="Most rows in a request.")] = 10_000,
    max_samples: Annotated[int, typer.Option(help="Most samples in a reply.")] = 10_000,
    max_seconds: Annotated[float, typer.Option(help="Most seconds for a reply.")] = 30.0,
    workers: Annotated[int, typer.Option(help="Queries computed at once.")] = 4,
    certificate: Annotated[
        Path | None, typer.Option(help="PEM certificate, for HTTPS; with --key.")
    ] = None,
    key: Annotated[Path | None, typer.Option(help="Private key of the certificate.")] = None,
    json: Json = False,
) -> None:
    """Answer queries of a model over HTTP, for callers that have the token.

    \b
    Example:
      fedcircuits serve people.fc --port 8000 --token-file token.txt
    """
    from fedcircuits.cli.serve import run
    from fedcircuits.serving.questions import Limits

    out = Output(json)
    with out.errors():
        limits = Limits(max_body, max_rows, max_samples, max_seconds, workers)
        run(out, model, host, port, token_file, limits, certificate, key)

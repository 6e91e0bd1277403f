"""The commands of `fedcircuits` with their options and help; each runs a module of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedcircuits import __version__
from fedcircuits.cli.output import Output

app = typer.Typer(
    name="fedcircuits",
    help="Learn one tractable joint distribution from one or many tables, and query it.",
    no_args_is_help=True,
    rich_markup_mode=None,  # else [clients] in an example is taken for markup and left out
    add_completion=False,
    pretty_exceptions_enable=False,
)

Json = Annotated[bool, typer.Option("--json", help="Write one JSON document to standard output.")]
Sep = Annotated[
    str | None, typer.Option(help="Separator of CSV files ('tab' for a tab), if a guess is wrong.")
]
Seed = Annotated[int, typer.Option(help="Seed of random numbers; the same seed, the same result.")]


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"fedcircuits {__version__}")
        raise typer.Exit


@app.callback()
def _every_command(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    del version  # its callback has shown it


@app.command()
def learn(
    data: Annotated[
        Path, typer.Argument(help="CSV or Parquet file with a header; a folder or NPZ of images.")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="Where to write the model.")],
    learner: Annotated[str, typer.Option(help="Name of the learner; hclt by default.")] = "",
    label: Annotated[str | None, typer.Option(help="Column to be predicted.")] = None,
    kind: Annotated[
        list[str] | None,
        typer.Option(help="NAME=continuous|count|categorical|binary, where a guess is wrong."),
    ] = None,
    missing_value: Annotated[
        list[str] | None,
        typer.Option(help="A text that means a missing value, such as '?'; may be repeated."),
    ] = None,
    drop: Annotated[
        list[str] | None, typer.Option(help="Column to leave out; may be repeated.")
    ] = None,
    sep: Sep = None,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Learn a model from one table.

    \b
    Example:
      fedcircuits learn people.csv --label income -o people.fc
    """
    from fedcircuits.cli.learn import run

    out = Output(json)
    with out.errors():
        run(
            out, data, output, learner or None, label, kind or [], missing_value or [], drop or [],
            sep, seed,
        )  # fmt: skip


@app.command()
def query(
    model: Annotated[Path, typer.Argument(help="A model file.")],
    log_prob: Annotated[
        Path | None, typer.Option(help="Log-density of every row of a file.")
    ] = None,
    predict: Annotated[
        str | None, typer.Option(help="Probabilities of a variable, given --rows or --given.")
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


@app.command()
def inspect(
    model: Annotated[Path, typer.Argument(help="A model file.")],
    picture: Annotated[
        Path | None,
        typer.Option(help="Draw the region graph of an EiNet there: .png, .svg or .pdf."),
    ] = None,
    json: Json = False,
) -> None:
    """Show what a model file holds: variables, structure, sizes, how it was learned."""
    from fedcircuits.cli.inspect import run

    out = Output(json)
    with out.errors():
        run(out, model, picture)


@app.command()
def federate(
    file: Annotated[Path, typer.Argument(help="A federation file (TOML): clients and settings.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Where to write the model.")
    ] = None,
    engine: Annotated[
        str | None, typer.Option(help="local, processes (one for each client), ray or nvflare.")
    ] = None,
    json: Json = False,
) -> None:
    """Learn one model from tables that stay where they are.

    The file may hold every setting of fedcircuits.federate. Paths are relative to it:

    \b
      label = "default"
      id = "customer"
      output = "model.fc"
      [clients]
      bank = "bank.parquet"
      shop = "shop.csv"
    """
    from fedcircuits.cli.federate import run

    out = Output(json)
    with out.errors():
        run(out, file, output, engine)


@app.command()
def serve(
    model: Annotated[Path, typer.Argument(help="A model file.")],
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 for any free port.")] = 8000,
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


@app.command()
def explore(
    model: Annotated[Path, typer.Argument(help="A model file.")],
    port: Annotated[int, typer.Option(help="Port; 0 takes one that is free.")] = 0,
    json: Json = False,
) -> None:
    """Start a page on this machine where evidence is set and every distribution moves with it.

    Example: fedcircuits explore people.fc
    """
    from fedcircuits.cli.serve import run
    from fedcircuits.serving.questions import Limits

    out = Output(json)
    with out.errors():
        run(out, model, "127.0.0.1", port, None, Limits(), None, None, explore=True)


@app.command()
def report(
    model: Annotated[Path, typer.Argument(help="A model file.")],
    data: Annotated[
        Path | None, typer.Option(help="Held-out rows to score the model on: CSV or Parquet.")
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

    Example: fedcircuits report people.fc --data test.csv --label income -o people.html
    """
    from fedcircuits.cli.report import run

    out = Output(json)
    with out.errors():
        run(out, model, data, output, label, figures)


@app.command()
def provision(
    file: Annotated[Path, typer.Argument(help="A federation file with the names of the clients.")],
    kits: Annotated[
        Path | None, typer.Option(help="Folder of the kits; kits/ beside the file by default.")
    ] = None,
    json: Json = False,
) -> None:
    """Make start-up kits with certificates for the clients of a federation.

    The file is that of `federate`, with the clients' names and no data files:

    \b
      [coordinator]
      host = "coordinator.example.org"
      [clients]
      bank = {}
      shop = {}
    """
    from fedcircuits.cli.provision import run

    out = Output(json)
    with out.errors():
        run(out, file, kits)


@app.command()
def silo(
    kit: Annotated[Path, typer.Argument(help="The start-up kit that the coordinator made.")],
    data: Annotated[Path, typer.Option(help="CSV or Parquet file; its rows stay here.")],
    policy: Annotated[
        Path | None, typer.Option(help="TOML file: columns, label, queries, smallest group.")
    ] = None,
    id_secret_file: Annotated[
        Path | None, typer.Option(help="File with the secret that all clients mix into ids.")
    ] = None,
    audit: Annotated[
        Path | None,
        typer.Option(help="File that logs every message; audit.jsonl in the kit by default."),
    ] = None,
    json: Json = False,
) -> None:
    """Take part in a federation with your own table, until stopped.

    \b
    Example:
      fedcircuits silo kits/bank --data bank.parquet --policy bank-policy.toml
    """
    from fedcircuits.cli.silo import run

    out = Output(json)
    with out.errors():
        run(out, kit, data, policy, id_secret_file, audit)


@app.command()
def coordinate(
    file: Annotated[Path, typer.Argument(help="The file the kits were made from.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Where to write the model.")
    ] = None,
    kits: Annotated[
        Path | None, typer.Option(help="Folder of the kits; kits/ beside the file by default.")
    ] = None,
    wait: Annotated[float, typer.Option(help="Seconds to wait for the clients.")] = 300.0,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Delete the replies that an earlier run has kept.")
    ] = False,
    json: Json = False,
) -> None:
    """Train with the clients whose silos run, show progress, and write the model.

    A run that was interrupted continues where it was: the clients' replies are kept.
    """
    from fedcircuits.cli.coordinate import run

    out = Output(json)
    with out.errors():
        run(out, file, output, kits, wait, fresh)


@app.command()
def demo(seed: Seed = 0, json: Json = False) -> None:
    """Split built-in data over four clients in three ways, train, query and compare."""
    from fedcircuits.cli.demo import run

    out = Output(json)
    with out.errors():
        run(out, seed)


def main() -> None:
    """Entry point of the command `fedcircuits`."""
    app()

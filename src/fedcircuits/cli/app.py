"""The commands and their words."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedcircuits.cli.output import Output

app = typer.Typer(
    name="fedcircuits",
    help="Learn one tractable joint distribution from tables, and ask it anything.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

Json = Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")]
Seed = Annotated[int, typer.Option(help="The same seed gives the same answer.")]


@app.command()
def learn(
    data: Annotated[Path, typer.Argument(help="CSV or Parquet file with a header.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Where to write the model.")],
    learner: Annotated[str, typer.Option(help="Name of the learner.")] = "",
    label: Annotated[str | None, typer.Option(help="Column that is to be predicted well.")] = None,
    kind: Annotated[
        list[str] | None,
        typer.Option(help="NAME=continuous|count|categorical|binary, where a guess is wrong."),
    ] = None,
    missing_value: Annotated[
        list[str] | None, typer.Option(help="A spelling of a missing value, '?' say.")
    ] = None,
    drop: Annotated[list[str] | None, typer.Option(help="Column to leave out.")] = None,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Learn a model from one table.

    Example: fedcircuits learn people.csv --label income -o people.fc
    """
    from fedcircuits.cli.learn import run

    out = Output(json)
    with out.errors():
        run(
            out, data, output, learner or None, label, kind or [], missing_value or [], drop or [],
            seed,
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
        Path | None, typer.Option(help="Fill the gaps of a file's rows with what is likeliest.")
    ] = None,
    rows: Annotated[
        Path | None, typer.Option(help="Evidence: a file of rows (for --predict, --expect).")
    ] = None,
    given: Annotated[
        list[str] | None, typer.Option(help="Evidence: NAME=VALUE, may be repeated.")
    ] = None,
    unknown: Annotated[
        str, typer.Option(help="What an unseen category is: error or missing.")
    ] = "error",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write rows to CSV or Parquet.")
    ] = None,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Ask a model one question.

    Examples:

      fedcircuits query people.fc --predict income --given age=40 --given sex=Male

      fedcircuits query people.fc --log-prob rows.csv -o scored.csv

      fedcircuits query people.fc --sample 100 --given age=40 -o drawn.csv
    """
    from fedcircuits.cli.query import run

    questions = {
        "log-prob": log_prob, "predict": predict, "expect": expect, "sample": sample, "mpe": mpe,
    }  # fmt: skip
    out = Output(json)
    with out.errors():
        run(out, model, questions, rows, given or [], unknown, output, seed)


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
    file: Annotated[Path, typer.Argument(help="A TOML file that names clients and settings.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Where to write the model.")
    ] = None,
    engine: Annotated[
        str | None, typer.Option(help="local, or processes: one for each client.")
    ] = None,
    json: Json = False,
) -> None:
    """Learn one model from tables that stay where they are.

    Example of a file (paths are relative to it):

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
def demo(seed: Seed = 0, json: Json = False) -> None:
    """Split built-in data three ways over four clients, learn, ask, compare; under a minute."""
    from fedcircuits.cli.demo import run

    out = Output(json)
    with out.errors():
        run(out, seed)


def main() -> None:
    """Entry point of the command `fedcircuits`."""
    app()

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
    impute: Annotated[
        Path | None, typer.Option(help="Fill the gaps of a file's rows: means, likeliest values.")
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
        str | None, typer.Option(help="local, processes (one for each client), ray or nvflare.")
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
def serve(
    model: Annotated[Path, typer.Argument(help="A model file.")],
    host: Annotated[str, typer.Option(help="Address to listen at.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port; 0 takes one that is free.")] = 8000,
    token_file: Annotated[
        Path | None,
        typer.Option(help="File with the token; else FEDCIRCUITS_TOKEN, else one is made."),
    ] = None,
    max_body: Annotated[int, typer.Option(help="Most bytes of a request.")] = 10 * 2**20,
    max_rows: Annotated[int, typer.Option(help="Most rows of a request.")] = 10_000,
    max_samples: Annotated[int, typer.Option(help="Most samples of an answer.")] = 10_000,
    max_seconds: Annotated[float, typer.Option(help="Most seconds for an answer.")] = 30.0,
    workers: Annotated[int, typer.Option(help="Questions worked on at once.")] = 4,
    certificate: Annotated[
        Path | None, typer.Option(help="PEM certificate, for HTTPS; with --key.")
    ] = None,
    key: Annotated[Path | None, typer.Option(help="Private key of the certificate.")] = None,
    json: Json = False,
) -> None:
    """Answer questions to a model over HTTP, for whoever has the token.

    Example: fedcircuits serve people.fc --port 8000 --token-file token.txt
    """
    from fedcircuits.cli.serve import run
    from fedcircuits.serving.questions import Limits

    out = Output(json)
    with out.errors():
        limits = Limits(max_body, max_rows, max_samples, max_seconds, workers)
        run(out, model, host, port, token_file, limits, certificate, key)


@app.command()
def provision(
    file: Annotated[Path, typer.Argument(help="A federation file that names the parties.")],
    kits: Annotated[
        Path | None, typer.Option(help="Folder of the kits; kits/ beside the file by default.")
    ] = None,
    json: Json = False,
) -> None:
    """Make start-up kits with certificates for the parties of a federation.

    The file is that of `federate`, with the parties' names and no data files:

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
        Path | None, typer.Option(help="File with the secret that all parties mix into ids.")
    ] = None,
    audit: Annotated[
        Path | None, typer.Option(help="Where every message is noted; in the kit by default.")
    ] = None,
    json: Json = False,
) -> None:
    """Take part in a federation with a table of one's own, until stopped.

    Example: fedcircuits silo kits/bank --data bank.parquet --policy bank-policy.toml
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
    wait: Annotated[float, typer.Option(help="Seconds to wait for the parties.")] = 300.0,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Forget what an earlier run has done.")
    ] = False,
    json: Json = False,
) -> None:
    """Train with the parties whose silos run, show progress, fetch the model.

    A run that was cut short goes on where it was: what parties have answered is kept.
    """
    from fedcircuits.cli.coordinate import run

    out = Output(json)
    with out.errors():
        run(out, file, output, kits, wait, fresh)


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

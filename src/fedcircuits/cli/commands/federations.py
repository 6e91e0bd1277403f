"""Commands about federations: init, federate, provision, silo, coordinate, demo, experiment."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedcircuits.cli.commands.options import Json, MissingValue, Seed, Sep
from fedcircuits.cli.output import Output


def init(
    files: Annotated[
        list[Path], typer.Argument(help="The tables, one for each client: CSV or Parquet.")
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Where to write the federation file.")
    ] = Path("federation.toml"),
    label: Annotated[
        str | None, typer.Option(help="Column to be predicted, if a guess is wrong.")
    ] = None,
    id: Annotated[
        str | None, typer.Option(help="Column that names rows, if a guess is wrong.")
    ] = None,
    missing_value: MissingValue = None,
    sep: Sep = None,
    force: Annotated[bool, typer.Option("--force", help="Write over a file.")] = False,
    json: Json = False,
) -> None:
    """Write a commented federation file from tables: id, label, kinds and split are guessed.

    \b
    Example:
      fedcircuits init bank.csv shop.csv --label default
      fedcircuits federate federation.toml
    """
    from fedcircuits.cli.init import run

    out = Output(json, settings_in=output.name)
    with out.errors():
        run(out, files, output, label, id, missing_value or [], sep, force)


def federate(
    file: Annotated[Path, typer.Argument(help="A federation file (TOML): clients and settings.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Where to write the model.")
    ] = None,
    engine: Annotated[
        str | None, typer.Option(help="How messages travel; the list is below.")
    ] = None,
    report: Annotated[
        Path | None, typer.Option(help="Write a report about the model there, too: an HTML page.")
    ] = None,
    test: Annotated[
        Path | None, typer.Option(help="Rows to score the model on: CSV or Parquet.")
    ] = None,
    json: Json = False,
) -> None:
    """Learn one model from tables that stay where they are.

    `fedcircuits init` writes such a file from tables; docs/federation-toml.md has every setting.
    Paths are relative to the file:

    \b
      label = "default"
      id = "customer"
      output = "model.fc"
      [clients]
      bank = "bank.parquet"
      shop = "shop.csv"
    """
    from fedcircuits.cli.federate import run

    out = Output(json, settings_in=file.name)
    with out.errors():
        run(out, file, output, engine, report, test)


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
    from fedcircuits.cli.federation_file import read_parties

    out = Output(json)
    with out.errors():
        from fedcircuits.engines.nvflare.kits import provision

        parties = read_parties(file, kits)
        had = {name for name in parties.names if (parties.kits / name).exists()}
        made = provision(parties.kits, parties.host, parties.port, parties.names)
        for name in parties.names:
            if name not in had:
                out.say(f"{name}: send {made.site(name)} to this client over a channel you trust")
        for name in sorted(had):
            out.say(f"{name}: has its kit already")
        out.say(
            f"coordinator: {made.server.parent} stays here; open port {parties.port} of "
            f"{parties.host} to the clients"
        )
        out.result(
            {
                "kits": {name: str(made.site(name)) for name in parties.names},
                "new": [name for name in parties.names if name not in had],
                "coordinator": str(made.server.parent),
                "host": parties.host,
                "port": parties.port,
            }
        )


def silo(
    kit: Annotated[Path, typer.Argument(help="The start-up kit that the coordinator made.")],
    data: Annotated[
        Path | None, typer.Option(help="CSV or Parquet file; its rows stay here.")
    ] = None,
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
    federation: Annotated[
        Path | None,
        typer.Option(
            help="Federation file with the fingerprints of the others' keys, to pin them."
        ),
    ] = None,
    fingerprint: Annotated[
        bool, typer.Option("--fingerprint", help="Print the fingerprint of this silo's key.")
    ] = False,
    review: Annotated[
        bool, typer.Option("--review", help="Print the policy, the plans of runs, what they cost.")
    ] = False,
    json: Json = False,
) -> None:
    """Take part in a federation with your own table, until stopped.

    \b
    Example:
      fedcircuits silo kits/bank --fingerprint
      fedcircuits silo kits/bank --data bank.parquet --policy bank.toml --federation federation.toml
      fedcircuits silo kits/bank --policy bank.toml --review
    """
    from fedcircuits.cli import silo

    out = Output(json)
    with out.errors():
        if fingerprint:
            silo.show_fingerprint(out, kit)
        elif review:
            silo.review(out, kit, policy, audit)
        else:
            silo.run(out, kit, data, policy, id_secret_file, audit, federation)


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


def demo(
    data: Annotated[
        Path | None, typer.Option(help="Your own table in place of the built-in one: CSV, Parquet.")
    ] = None,
    label: Annotated[str | None, typer.Option(help="Its column to be predicted.")] = None,
    report: Annotated[Path, typer.Option(help="Where the report goes.")] = Path("report.html"),
    sep: Sep = None,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Split a table over clients in three ways, train, query and compare; write a report.

    \b
    Examples:
      fedcircuits demo
      fedcircuits demo --data people.csv --label income
    """
    from fedcircuits.cli.demo import run

    out = Output(json)
    with out.errors():
        run(out, seed, data, label, sep, report)


def experiment(
    name: Annotated[
        str,
        typer.Argument(
            help="density, scaling, classification, one-pass, communication or clients."
        ),
    ],
    quick: Annotated[
        bool, typer.Option("--quick", help="A small variant: minutes on two cores.")
    ] = False,
    seeds: Annotated[
        int | None, typer.Option(min=1, help="How many seeds, if not as listed.")
    ] = None,
    engine: Annotated[str, typer.Option(help="local, processes or ray.")] = "local",
    data: Annotated[Path | None, typer.Option(help="Folder with the data sets.")] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda, for networks and EiNets.")] = "cpu",
    records: Annotated[
        Path, typer.Option(help="Parquet file of the results; what is in it is not run again.")
    ] = Path("runs/experiments.parquet"),
    page: Annotated[
        Path | None, typer.Option(help="Folder for tables and figures; by default the records'.")
    ] = None,
    minutes: Annotated[
        float | None,
        typer.Option(help="Begin nothing new after so many; the same command goes on later."),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(help="A data set, setting or model; may be repeated. Without it all."),
    ] = None,
    only_page: Annotated[
        bool, typer.Option("--only-page", help="Run nothing: write the page from the records.")
    ] = False,
    json: Json = False,
) -> None:
    """Run one of the paper's experiments; a run that was stopped goes on where it was.

    \b
    Examples:
      fedcircuits experiment density --quick --data DIR
      fedcircuits experiment classification --data DIR --seeds 5
    """
    from fedcircuits.cli.experiment import run

    out = Output(json)
    with out.errors():
        run(
            out,
            name,
            quick,
            seeds,
            engine,
            data,
            device,
            records,
            page,
            minutes,
            only_page,
            only or (),
        )

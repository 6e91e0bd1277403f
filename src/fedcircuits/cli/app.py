"""`fedcircuits` as a command: its sub-commands, `--version` and `--debug`."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from fedcircuits import __version__
from fedcircuits.cli.commands import federations, models
from fedcircuits.cli.commands.options import ENGINES, LEARNERS, RULES, listing
from fedcircuits.cli.output import Output

app = typer.Typer(
    name="fedcircuits",
    help="Learn one tractable joint distribution from one or many tables, and query it.",
    no_args_is_help=True,
    rich_markup_mode=None,  # else [clients] in an example is taken for markup and left out
    add_completion=False,
    pretty_exceptions_enable=False,
)
RULE_LIST = "\n\n".join([listing("Agreement rules", RULES), listing("Engines", ENGINES)])
app.command()(federations.demo)
app.command(epilog=listing("Learners", LEARNERS))(models.learn)
app.command()(models.query)
app.command()(models.inspect)
app.command()(models.report)
app.command()(models.explore)
app.command()(models.serve)
app.command()(federations.init)
app.command(epilog=RULE_LIST)(federations.federate)
app.command()(federations.provision)
app.command()(federations.silo)
app.command()(federations.coordinate)
app.command()(federations.experiment)


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
    debug: Annotated[
        bool, typer.Option("--debug", help="Show where in the code an error was raised.")
    ] = False,
) -> None:
    del version  # its callback has shown it
    Output.debug = debug


def main() -> None:
    """Entry point of the command `fedcircuits`; --debug may stand anywhere."""
    arguments = sys.argv[1:]
    if "--debug" in arguments:
        arguments = ["--debug", *(word for word in arguments if word != "--debug")]
    app(arguments)

"""Output of all commands: tables for people or one JSON document, and errors."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from fedcircuits.errors import FedcircuitsError, FedcircuitsWarning
from fedcircuits.jsonable import plain_json

ROWS_SHOWN = 20
# A bar appears only once the work has taken this long.
PATIENCE = 1.0


class Output:
    """Where results, notes and errors of one command go.

    Attributes:
        as_json: whether standard output carries one JSON document and nothing else.
        console: for people, on standard output.
        notes: for progress, warnings and errors, on standard error.
    """

    def __init__(self, as_json: bool = False) -> None:
        self.as_json = as_json
        self.console = Console(soft_wrap=True, highlight=False)
        self.notes = Console(stderr=True, soft_wrap=True, highlight=False)

    def say(self, text: str) -> None:
        """Print a line, unless output is JSON."""
        if not self.as_json:
            self.console.print(text, markup=False)

    def result(self, value: dict[str, Any]) -> None:
        """Print the result as JSON, if that is asked for; people were shown it already."""
        if self.as_json:
            sys.stdout.write(json.dumps(plain_json(value), allow_nan=False) + "\n")

    def flush(self) -> None:
        """Flush standard output, for a reader at the other end of a pipe."""
        sys.stdout.flush()

    def table(self, title: str, columns: list[str], rows: list[list[Any]]) -> None:
        """Print a table, unless output is JSON."""
        if self.as_json:
            return
        table = Table(title=title, title_justify="left")
        for at, name in enumerate(columns):
            table.add_column(name, justify="left" if at == 0 else "right", overflow="fold")
        for row in rows:
            table.add_row(*(_cell(value) for value in row))
        self.console.print(table)

    def frame(self, title: str, frame: pd.DataFrame, to: Path | None) -> None:
        """Write rows to a file if one is named, else print the first few, or all as JSON."""
        if to is not None:
            write_frame(frame, to)
            self.say(f"{len(frame)} row(s) written to {to}")
            self.result({"rows": len(frame), "written": str(to)})
            return
        index = [] if isinstance(frame.index, pd.RangeIndex) else [frame.index.name or "row"]
        records = frame.reset_index() if index else frame
        rows = [list(r) for r in records.head(ROWS_SHOWN).itertuples(index=False, name=None)]
        self.table(title, [str(c) for c in records.columns], rows)
        if len(frame) > ROWS_SHOWN:
            self.say(f"... {len(frame) - ROWS_SHOWN} more; write them all with -o FILE")
        self.result({"rows": records.to_dict("records")})

    @contextmanager
    def progress(self) -> Iterator[Callable[[float, str], None]]:
        """Show a progress bar on a terminal once work takes more than a second."""
        if not self.notes.is_terminal:
            yield lambda *_: None
            return
        bar = Progress(
            TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), console=self.notes
        )
        task = bar.add_task("", total=1.0)

        def show(fraction: float, text: str) -> None:
            bar.update(task, completed=fraction, description=text)
            if not bar.live.is_started and (bar.tasks[0].elapsed or 0.0) > PATIENCE:
                bar.start()

        try:
            yield show
        finally:
            if bar.live.is_started:
                bar.stop()

    @contextmanager
    def errors(self) -> Iterator[None]:
        """End the command with code 1 and a message for our errors; print warnings as notes."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", FedcircuitsWarning)
            try:
                yield
            except FedcircuitsError as error:
                said = as_typed(str(error))
                if self.as_json:
                    self.result({"error": said, "type": type(error).__name__})
                self.notes.print(f"error: {said}", markup=False, style="red")
                raise SystemExit(1) from None
            finally:
                for warning in caught:
                    if issubclass(warning.category, FedcircuitsWarning):
                        self.notes.print(f"note: {warning.message}", markup=False, style="yellow")


# Advice of the library, in the words of the command line and of federation files.
AS_TYPED = {
    "unknown='missing'": "--unknown missing",
    "expectation()": "--expect",
    "condition(...).sample()": "--sample with --given",
    "pass id=": "name it in the file: id = 'COLUMN'",
}


def as_typed(message: str) -> str:
    """Return an error of the library with its advice in terms of the command line."""
    for said, typed in AS_TYPED.items():
        message = message.replace(said, typed)
    return message


def write_frame(frame: pd.DataFrame, path: Path) -> None:
    """Write rows as CSV, or as Parquet if the name ends so."""
    try:
        if path.suffix == ".parquet":
            frame.to_parquet(path)
        else:
            frame.to_csv(path, index=not isinstance(frame.index, pd.RangeIndex))
    except OSError as error:
        raise FedcircuitsError(f"cannot write {path}: {error.strerror}") from None


def _cell(value: Any) -> str:
    if value is None or (isinstance(value, float) and np.isnan(value)):
        return "-"
    return f"{value:.6g}" if isinstance(value, float) else str(value)

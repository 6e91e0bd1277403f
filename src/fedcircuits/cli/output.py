"""Output of all commands: tables for people or one JSON document, and errors."""

from __future__ import annotations

import json
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from fedcircuits.errors import FedcircuitsError, FedcircuitsWarning
from fedcircuits.jsonable import plain_json

ROWS_SHOWN = 20
NARROWEST = 80  # columns of a terminal, or of a pipe
# A bar appears only once the work has taken this long.
PATIENCE = 1.0


class Output:
    """Where results, notes and errors of one command go.

    Attributes:
        as_json: whether standard output carries one JSON document and nothing else.
        console: for people, on standard output.
        notes: for progress, warnings and errors, on standard error.
        settings_in: the file that names this command's settings; "" where options do.
        debug: whether errors are raised with their traceback.
    """

    debug: ClassVar[bool] = False

    def __init__(self, as_json: bool = False, settings_in: str = "") -> None:
        self.as_json = as_json
        self.settings_in = settings_in
        self.console = Console(soft_wrap=True, highlight=False)
        self.notes = Console(stderr=True, soft_wrap=True, highlight=False)

    def say(self, text: str) -> None:
        """Print a line, unless output is JSON."""
        if not self.as_json:
            self.console.print(text, markup=False)

    def note(self, text: str) -> None:
        """Print a line that the user should know of, on standard error."""
        self.notes.print(f"note: {text}", markup=False, style="yellow")

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
        widths = [
            max(len(name), *(len(_cell(row[at])) for row in rows), 0)
            for at, name in enumerate(columns)
        ]
        wide = sum(widths) + 3 * len(columns) + 1 > max(self.console.width, NARROWEST)
        if wide and len(columns) > len(rows) + 1:  # few rows of many columns: a line a column
            columns, rows = (
                [columns[0], *(_cell(row[0]) for row in rows)],
                [[name, *(row[at] for row in rows)] for at, name in enumerate(columns) if at],
            )
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

        highest = 0.0

        def show(fraction: float, text: str) -> None:
            nonlocal highest
            highest = fraction = max(fraction, highest)
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
        """End the command with code 1 and a message for errors; print warnings as notes.

        Where in the code an error was raised is shown with --debug alone.
        """
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", FedcircuitsWarning)
            try:
                yield
            except BrokenPipeError:
                raise  # the reader of standard output has gone: nothing is wrong
            except KeyboardInterrupt:
                self.notes.print("interrupted", style="red")
                raise SystemExit(130) from None
            except Exception as error:
                if self.debug:
                    raise
                self._failed(error)
                raise SystemExit(1) from None
            finally:
                ours = (w for w in caught if issubclass(w.category, FedcircuitsWarning))
                for said in dict.fromkeys(self._typed(str(warning.message)) for warning in ours):
                    self.note(said)  # once, though every client said it

    def _typed(self, message: str) -> str:
        return as_typed(message, self.settings_in)

    def _failed(self, error: Exception) -> None:
        """Print an error; one that is not ours with what to do about it."""
        said = self._typed(str(error))
        if isinstance(error, OSError) and not isinstance(error, FedcircuitsError):
            said = f"{error.strerror or error}: {error.filename}" if error.filename else str(error)
        elif not isinstance(error, FedcircuitsError):
            said = (
                f"unexpected {type(error).__name__}: {said}. This is a fault of fedcircuits or of "
                "a learner that was passed to it; run the command with --debug to see where"
            )
        if self.as_json:
            self.result({"error": said, "type": type(error).__name__})
        self.notes.print(f"error: {said}", markup=False, style="red")


# Advice of the library, in the words of the command line and of federation files.
AS_TYPED = {
    "unknown='missing'": "--unknown missing",
    "expectation()": "--expect",
    "ask predict_proba": "ask --predict",
    ", or ask with impossible='nan'": "",
    "condition(...).sample()": "--sample with --given",
    "pass id=": "name it in the file: id = 'COLUMN'",
}


OPTIONS_AS_TYPED = (
    (r"^kinds\['(.*?)'\] is", r"--kind: the kind of '\1' is"),
    (r"\(kinds=\{'(.*?)': \.\.\.\}\), or", r"(--kind '\1=KIND'), or"),
    (r"pass drop=\[(.*?)\]", r"pass --drop \1"),
)
SETTINGS_AS_WRITTEN = (
    (r"pass missing_values=", "write missing_values="),
    (r"missing_values=(\[.*?\])", r"'missing_values = \1' in {file}"),
    (r"\(kinds=\{'(.*?)': \.\.\.\}\)", r"('\1' = 'KIND' below [kinds] in {file})"),
    (r"pass drop=(\[.*?\])", r"write drop = \1 in {file}"),
    (r"leave it out \(drop=(\[.*?\])\)", r"leave it out (drop = \1)"),
)


def as_typed(message: str, file: str = "") -> str:
    """Return an error of the library with its advice in terms of the command line.

    Args:
        message: of the library.
        file: what holds the settings of the command; "" where they are options.
    """
    for said, typed in AS_TYPED.items():
        message = message.replace(said, typed)
    for said, typed in SETTINGS_AS_WRITTEN if file else ():
        message = re.sub(said, typed.replace("{file}", file), message)
    for said, typed in OPTIONS_AS_TYPED:
        message = re.sub(said, typed, message)
    return re.sub(r"missing_values=\[(.*?)\]", _missing_value_options, message)


def _missing_value_options(found: re.Match[str]) -> str:
    texts = re.findall(r"'[^']*'|\"[^\"]*\"", found[1])
    return " ".join(f"--missing-value {text}" for text in texts)


def write_frame(frame: pd.DataFrame, path: Path) -> None:
    """Write rows as CSV, or as Parquet if the name ends so."""
    try:
        if path.suffix == ".parquet":
            frame.to_parquet(path)
        else:
            frame.to_csv(path, index=not isinstance(frame.index, pd.RangeIndex))
    except OSError as error:
        raise FedcircuitsError(f"cannot write {path}: {error.strerror or error}") from None


def _cell(value: Any) -> str:
    if value is None or value is pd.NaT or (isinstance(value, float) and np.isnan(value)):
        return "-"
    if isinstance(value, pd.Timestamp) and value == value.normalize():
        return str(value.date())
    return f"{value:.6g}" if isinstance(value, float) else str(value)

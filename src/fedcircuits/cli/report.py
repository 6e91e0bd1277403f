"""`fedcircuits report`: a model file in, one HTML page out."""

from __future__ import annotations

from pathlib import Path

from fedcircuits.api.saved import load
from fedcircuits.cli.output import Output
from fedcircuits.density import Density
from fedcircuits.errors import QueryError


def run(
    out: Output,
    path: Path,
    data: Path | None,
    output: Path,
    label: str | None,
    figures: Path | None,
) -> None:
    """Write the report and print where it is.

    Args:
        out: where the path is printed.
        path: of the model file.
        data: held-out rows.
        output: where the page goes.
        label: variable whose prediction is scored.
        figures: folder for the figures as SVG files.
    """
    model = load(path)
    if not isinstance(model, Density):
        raise QueryError(f"{path} holds a {type(model).__name__}; a report is made of a density")
    made = model.report(output, data, label=label, figures_to=figures)
    size = made.stat().st_size
    out.say(f"report written to {made} ({size / 1e6:.1f} MB); open it in a browser")
    out.result({"report": str(made), "bytes": size})

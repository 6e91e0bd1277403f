"""Figures of a report, drawn by matplotlib as SVG text. matplotlib is imported here alone.

Lines and letters take the page's own text colour, so one figure serves a light and a dark page.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fedcircuits.arrays import FloatArray

INK = "#010203"  # drawn with this colour, then replaced by the page's text colour
PAPER = "#fefdfc"  # likewise, by the colour behind the text
REAL, MODEL, GOOD, BAD = "#0a7ea4", "#e07a1f", "#2a9d5c", "#c8453b"
_SETTINGS: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "fedcircuits",  # the same figure gives the same bytes
    "font.size": 9,
    "font.family": ["system-ui", "sans-serif"],
    "text.color": INK,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.7,
    "legend.frameon": False,
}


def shortened(name: object, width: int) -> str:
    """A name that fits, with its middle left out: ends tell names apart as often as beginnings."""
    text = str(name)
    if len(text) <= width:
        return text
    tail = width // 3
    return f"{text[: width - tail - 1].rstrip()}…{text[-tail:].lstrip()}"


class Figure:
    """One figure under construction; `svg` holds its text after the block of `figure` ends."""

    svg: str = ""
    axes: Any

    def save(self, path: Path) -> None:
        """Write the figure to a file by its ending, on white."""
        self.axes.figure.savefig(path, facecolor="white", transparent=False, dpi=150)


@contextmanager
def figure(width: float, height: float, title: str) -> Iterator[Figure]:
    """Yields a figure with one pair of axes and turns it into SVG text at the end.

    Args:
        width: in inches.
        height: in inches.
        title: what the figure shows, for readers who cannot see it.
    """
    import logging

    from matplotlib import rc_context
    from matplotlib.figure import Figure as Drawing

    # Fonts are named, not measured exactly: the browser draws the letters.
    logging.getLogger("matplotlib.font_manager").setLevel(logging.ERROR)
    made = Figure()
    with rc_context(_SETTINGS):
        drawing = Drawing(figsize=(width, height), layout="constrained")
        drawing.patch.set_alpha(0.0)
        made.axes = drawing.add_subplot()
        made.axes.patch.set_alpha(0.0)
        yield made
        text = io.StringIO()
        drawing.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    made.svg = _inline(text.getvalue(), title)


def drawn(size: tuple[float, float], title: str, paint: Callable[[Any], None]) -> str:
    """What a function draws on axes of that size in inches, as SVG text."""
    with figure(*size, title) as made:
        paint(made.axes)
    return made.svg


def _inline(svg: str, title: str) -> str:
    """SVG as it stands inside a page: no prologue, the page's colours, a title for readers."""
    svg = svg[svg.index("<svg") :].replace(INK, "currentColor").replace(PAPER, "var(--card, #fff)")
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    escaped = title.replace("&", "&amp;").replace("<", "&lt;").replace('"', "&quot;")
    return svg.replace("<svg", f'<svg role="img" aria-label="{escaped}"', 1)


def roc(curves: dict[str, tuple[FloatArray, FloatArray, float]], title: str) -> str:
    """ROC curves by name: false- and true-positive rates, and the area in the legend."""
    with figure(3.6, 3.4, title) as drawn:
        axes = drawn.axes
        axes.plot([0, 1], [0, 1], color=INK, linewidth=0.6, linestyle=":")
        for name, (false, true, area) in curves.items():
            axes.plot(false, true, linewidth=1.6, label=f"{name}: {area:.3f}")
        axes.set(xlabel="false positives", ylabel="true positives", xlim=(0, 1), ylim=(0, 1.01))
        axes.legend(title="area", loc="lower right")
    return drawn.svg


def calibration(table: pd.DataFrame, title: str) -> str:
    """Observed shares over mean predictions, with two standard errors."""
    with figure(3.6, 3.4, title) as drawn:
        axes = drawn.axes
        axes.plot([0, 1], [0, 1], color=INK, linewidth=0.6, linestyle=":")
        axes.errorbar(
            table["predicted"], table["observed"], yerr=2 * table["error"],
            color=REAL, marker="o", markersize=4, linewidth=1.2, elinewidth=0.8,
        )  # fmt: skip
        axes.set(xlabel="predicted probability", ylabel="observed share", xlim=(0, 1), ylim=(0, 1))
    return drawn.svg


def scatter(x: FloatArray, y: FloatArray, title: str, xlabel: str, ylabel: str) -> str:
    """Points over one another, with the line where both are equal; at most 2,000 of them."""
    some = np.linspace(0, len(x) - 1, min(len(x), 2000)).astype(int)
    with figure(3.6, 3.4, title) as drawing:
        axes = drawing.axes
        axes.scatter(x[some], y[some], s=9, color=REAL, alpha=0.6, linewidths=0)
        axes.axline((float(x.mean()), float(x.mean())), slope=1, color=INK, linewidth=0.6)
        axes.set(xlabel=xlabel, ylabel=ylabel)
    return drawing.svg


def compared(
    names: Sequence[str], alone: FloatArray, together: float, title: str, legend: str
) -> str:
    """Horizontal bars of clients alone, and a line where all are together."""
    with figure(4.6, 0.8 + 0.26 * len(names), title) as drawing:
        axes = drawing.axes
        place = np.arange(len(names))[::-1]
        axes.barh(place, alone, color=MODEL, alpha=0.8)
        axes.set_yticks(place, [shortened(n, 24) for n in names])
        axes.axvline(together, color=REAL, linewidth=2.2)
        least = min([0.5, *alone[~np.isnan(alone)]])  # 0.5 is guessing
        axes.set(xlabel=f"{legend}; blue line: together, {together:.3f}", xlim=(least, None))
    return drawing.svg


def bars(names: Sequence[str], series: dict[str, FloatArray], title: str, y: str) -> str:
    """What belongs to each category, one bar a series."""
    width = 0.8 / max(len(series), 1)
    longest = max((len(shortened(n, 16)) for n in names), default=0) if len(names) > 4 else 0
    with figure(3.4, 2.3 + 0.05 * longest, title) as drawn:  # turned names take height
        axes = drawn.axes
        for at, (name, values) in enumerate(series.items()):
            place = np.arange(len(names)) + (at - (len(series) - 1) / 2) * width
            axes.bar(place, values, width, label=name, color=[REAL, MODEL, GOOD][at % 3])
        axes.set_xticks(np.arange(len(names)), [shortened(n, 16) for n in names])
        if len(names) > 4:
            axes.tick_params(axis="x", rotation=60)
        axes.set_ylabel(y)
        _legend(axes, series)
    return drawn.svg


def _legend(axes: Any, series: dict[str, FloatArray]) -> None:
    """Name several series above what is drawn; a single one is named at its axis."""
    if len(series) > 1:
        axes.legend(fontsize=8, ncols=2, loc="lower right", bbox_to_anchor=(1.0, 0.98), borderpad=0)


def histograms(
    edges: FloatArray, series: dict[str, FloatArray], title: str, *, dates: bool = False
) -> str:
    """Shares of rows between edges, one stepped line a series; dates are days since 1970."""
    with figure(3.4, 2.3, title) as drawn:
        for at, (name, values) in enumerate(series.items()):
            drawn.axes.stairs(
                values, edges, label=name, fill=at == 0, alpha=0.45 if at == 0 else 1.0,
                color=[REAL, MODEL, GOOD][at % 3], linewidth=1.4,
            )  # fmt: skip
        drawn.axes.set_ylabel("share of rows")
        _legend(drawn.axes, series)
        _show_dates(drawn.axes, dates)
    return drawn.svg


def _show_dates(axes: Any, dates: bool) -> None:
    """Label a horizontal axis of days with dates."""
    if dates:
        axes.xaxis_date()
        axes.tick_params(axis="x", rotation=60)


def images(found: NDArray[np.generic], title: str, across: int) -> str:
    """Images (n, h, w) or (n, h, w, 3) in rows of `across`, one pixel between them."""
    n, height, width = found.shape[:3]
    down = -(-n // across)
    canvas = np.zeros((down * (height + 1) - 1, across * (width + 1) - 1, 4), dtype=np.uint8)
    levels = np.repeat(found[..., None], 3, axis=3) if found.ndim == 3 else found
    for at, image in enumerate(levels):
        y, x = at // across * (height + 1), at % across * (width + 1)
        canvas[y : y + height, x : x + width, :3] = image
        canvas[y : y + height, x : x + width, 3] = 255
    wide = min(max(0.5 * across, 2.4), 4.6)
    with figure(wide, wide * canvas.shape[0] / canvas.shape[1], title) as drawing:
        drawing.axes.imshow(canvas, interpolation="none")
        drawing.axes.set_axis_off()
    return drawing.svg


def heat_map(matrix: pd.DataFrame, title: str, legend: str) -> str:
    """A square matrix as colours, names beside it."""
    n = len(matrix)
    side = min(2.2 + 0.22 * n, 9.0)
    values = matrix.to_numpy(dtype=float).copy()
    np.fill_diagonal(values, np.nan)
    with figure(side + 0.6, side, title) as drawn:
        axes = drawn.axes
        drawn_map = axes.pcolormesh(values, cmap="viridis", vmin=0.0)
        short = [shortened(name, 20) for name in matrix.columns]
        axes.set_xticks(np.arange(n) + 0.5, short, rotation=90)
        axes.set_yticks(np.arange(n) + 0.5, short)
        axes.invert_yaxis()
        axes.set_aspect("equal")
        axes.figure.colorbar(drawn_map, ax=axes, label=legend, shrink=0.7)
    return drawn.svg


def ranking(names: Sequence[str], values: FloatArray, title: str, legend: str) -> str:
    """Horizontal bars, the largest on top."""
    with figure(4.6, 0.6 + 0.24 * len(names), title) as drawn:
        axes = drawn.axes
        place = np.arange(len(names))[::-1]
        axes.barh(place, values, color=[GOOD if v >= 0 else BAD for v in values])
        axes.set_yticks(place, [shortened(n, 28) for n in names])
        axes.axvline(0.0, color=INK, linewidth=0.7)
        axes.set_xlabel(legend)
    return drawn.svg


def spans(rows: Sequence[str], found: Sequence[Sequence[tuple[float, float]]], title: str) -> str:
    """Bars from begin to end, in seconds: a row of them for each name, the first on top."""
    with figure(6.4, 0.7 + 0.28 * len(rows), title) as drawn:
        axes = drawn.axes
        last = max((end for row in found for _, end in row), default=1.0)
        for place, row in zip(range(len(rows))[::-1], found, strict=True):
            wide = [(begin, max(end - begin, 0.004 * last)) for begin, end in row]  # all are seen
            axes.broken_barh(wide, (place - 0.35, 0.7), color=GOOD)
        axes.set_yticks(np.arange(len(rows))[::-1], list(rows))
        axes.set_xlabel("seconds since the first message")
    return drawn.svg


def lines(
    x: FloatArray,
    series: dict[str, FloatArray],
    title: str,
    xlabel: str,
    y: str,
    *,
    dates: bool = False,
) -> str:
    """Curves over one axis; dates are days since 1970."""
    with figure(3.4, 2.3, title) as drawn:
        for name, values in series.items():
            drawn.axes.plot(x, values, linewidth=1.5, label=name)
        drawn.axes.set(xlabel=shortened(xlabel, 40), ylabel=y)
        _legend(drawn.axes, series)
        _show_dates(drawn.axes, dates)
    return drawn.svg


def holdings(clients: Sequence[str], columns: Sequence[str], held: FloatArray, title: str) -> str:
    """Who holds what: a filled cell where a client holds a column.

    Args:
        clients: C names.
        columns: D names.
        held: (C, D) rows of the client where it holds the column, else 0.
        title: for readers who cannot see it.
    """
    with figure(min(2.0 + 0.24 * len(columns), 9.5), 1.4 + 0.34 * len(clients), title) as drawn:
        axes = drawn.axes
        share = np.where(held > 0, held / max(float(held.max()), 1.0), np.nan)
        axes.pcolormesh(share, cmap="Blues", vmin=-0.4, vmax=1.2, edgecolors="#88888866")
        axes.set_xticks(
            np.arange(len(columns)) + 0.5, [shortened(c, 20) for c in columns], rotation=90
        )
        axes.set_yticks(np.arange(len(clients)) + 0.5, [shortened(c, 20) for c in clients])
        axes.invert_yaxis()
    return drawn.svg

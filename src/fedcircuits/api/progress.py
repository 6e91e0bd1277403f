"""Progress of a training: a bar where a caller passes progress=True, and never going back."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from html import escape
from typing import IO

from fedcircuits.errors import LearningError

Progress = Callable[[float, str], None]
WIDTH = 30


@contextmanager
def shown(progress: Progress | bool | None) -> Iterator[Progress | None]:
    """Give a function that reports progress, with fractions that never fall.

    Args:
        progress: True for a bar on standard error (terminals and notebooks), False or None for
            nothing, or a function of the fraction done and a few words.
    """
    if progress is None or progress is False:
        yield None
        return
    if progress is not True and not callable(progress):
        raise LearningError(
            f"progress is True, False or a function of (fraction, words), found {progress!r}"
        )
    if progress is not True:
        yield rising(progress)
        return
    bar = _notebook_bar() or TextBar(sys.stderr)
    try:
        yield rising(bar.show)
    finally:
        bar.close()


def rising(progress: Progress) -> Progress:
    """Return the same report with fractions within 0 and 1 that never fall."""
    highest = 0.0

    def report(fraction: float, words: str) -> None:
        nonlocal highest
        highest = max(highest, min(float(fraction), 1.0))
        progress(highest, words)

    return report


def _notebook_bar() -> NotebookBar | None:
    """Return a bar for the notebook this runs in; None where it runs in none."""
    shell = sys.modules.get("IPython")
    running = shell.get_ipython() if shell is not None else None
    if running is None or not hasattr(running, "kernel"):
        return None
    from IPython.display import HTML, display  # type: ignore[import-not-found]

    handle = display(HTML(""), display_id=True)
    return NotebookBar(lambda text: handle.update(HTML(text)))


class NotebookBar:
    """A bar in the output of a notebook's cell, which keeps its last state alone.

    Args:
        update: shows HTML in place of what was shown before.
    """

    def __init__(self, update: Callable[[str], None]) -> None:
        self._update = update

    def show(self, fraction: float, words: str) -> None:
        """Draw the bar."""
        self._update(
            f'<progress value="{fraction:.3f}" max="1"></progress> {fraction:.0%} {escape(words)}'
        )

    def close(self) -> None:
        """Show a full bar."""
        self.show(1.0, "done")


class TextBar:
    """A bar in one line of text, drawn over itself.

    Args:
        stream: where it is drawn.
    """

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream
        self._drawn = ""

    def show(self, fraction: float, words: str) -> None:
        """Draw the bar."""
        full = round(fraction * WIDTH)
        line = f"[{'#' * full}{'.' * (WIDTH - full)}] {fraction:4.0%} {words}"
        self._stream.write("\r" + line.ljust(len(self._drawn)))
        self._stream.flush()
        self._drawn = line

    def close(self) -> None:
        """End the line with a full bar."""
        if self._drawn:
            self.show(1.0, "done")
            self._stream.write("\n")

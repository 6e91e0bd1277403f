"""`Section`: one part of a report's page."""

from __future__ import annotations

from dataclasses import dataclass, field

import pandas as pd


@dataclass
class Section:
    """One section of the page.

    Attributes:
        title: its heading.
        text: what is shown, in one or two sentences.
        facts: names and values.
        table: rows of numbers.
        pictures: titles and SVG texts.
        lines: bullet points.
    """

    title: str
    text: str = ""
    facts: list[tuple[str, str]] = field(default_factory=list)
    table: pd.DataFrame | None = None
    pictures: list[tuple[str, str]] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)

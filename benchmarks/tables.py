"""Writes a benchmark's table to docs/benchmarks, with command, date and machine beside it."""

from __future__ import annotations

import datetime
import textwrap
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from fedcircuits.experiments import records

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "benchmarks"
WIDTH = 118  # of a line of docs; tables and code are left as they are


def machine(device: str = "cpu") -> str:
    """The device, processor, cores and versions, in words."""
    packages = []
    for name in ("numpy", "scipy", "scikit-learn", "torch"):
        try:
            packages.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            continue
    return ", ".join([records.machine(device), *packages])


def write(
    name: str,
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[Any]],
    command: str,
    notes: Sequence[str] = (),
    device: str = "cpu",
) -> Path:
    """Write docs/benchmarks/NAME.md and print the table."""
    cells = [[_cell(value) for value in row] for row in rows]
    lines = [
        f"# {title}",
        "",
        f"`{command}`, {datetime.date.today().isoformat()}, {machine(device)}.",
        "",
        "| " + " | ".join(columns) + " |",
        "|" + "---|" * len(columns),
        *("| " + " | ".join(row) + " |" for row in cells),
        "",
        *(f"- {note}" for note in notes),
    ]
    FOLDER.mkdir(parents=True, exist_ok=True)
    path = FOLDER / f"{name}.md"
    path.write_text(wrapped("\n".join(lines)))
    print("\n".join(lines))
    return path


def wrapped(text: str) -> str:
    """Markdown with its paragraphs and list items filled to WIDTH; tables, titles, code as is."""
    return "\n".join(_filled(text.splitlines())).rstrip() + "\n"


def _filled(lines: Sequence[str]) -> Iterator[str]:
    held: list[str] = []  # lines of one paragraph or list item
    code = False

    def fill() -> Iterator[str]:
        if held:
            words = " ".join(line.strip() for line in held)
            indent = held[0][: len(held[0]) - len(held[0].lstrip())]
            hanging = indent + " " * _marker(held[0].strip())
            yield from textwrap.wrap(
                words, WIDTH, initial_indent=indent, subsequent_indent=hanging,
                break_long_words=False, break_on_hyphens=False,
            )  # fmt: skip
            held.clear()

    for line in lines:
        bare = line.strip()
        fence = bare.startswith("```")
        if code or fence or not bare or bare[0] in "#|" or (line.startswith("    ") and not held):
            yield from fill()
            yield line
            code ^= fence
            continue
        if _marker(bare):
            yield from fill()
        held.append(line)
    yield from fill()


def _marker(bare: str) -> int:
    """Characters of a list item's marker; 0 where the line begins no item."""
    first, _, rest = bare.partition(" ")
    numbered = first.endswith(".") and first[:-1].isdigit()
    return len(first) + 1 if rest and (first in "-*" or numbered) else 0


def _cell(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)

"""Writes a benchmark's table to docs/benchmarks, with command, date and machine beside it."""

from __future__ import annotations

import datetime
import os
import platform
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "benchmarks"


def machine() -> str:
    """Processor, cores and versions, in words."""
    model = platform.processor() or platform.machine()
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                model = line.split(":", 1)[1].strip()
                break
    except OSError:
        pass
    packages = []
    for name in ("numpy", "scipy", "scikit-learn", "torch"):
        try:
            packages.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            continue
    return f"{model}, {os.cpu_count()} cores, Python {platform.python_version()}, " + ", ".join(
        packages
    )


def write(
    name: str,
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[Any]],
    command: str,
    notes: Sequence[str] = (),
) -> Path:
    """Write docs/benchmarks/NAME.md and print the table."""
    cells = [[_cell(value) for value in row] for row in rows]
    lines = [
        f"# {title}",
        "",
        f"`{command}`, {datetime.date.today().isoformat()}, {machine()}.",
        "",
        "| " + " | ".join(columns) + " |",
        "|" + "---|" * len(columns),
        *("| " + " | ".join(row) + " |" for row in cells),
        "",
        *(f"- {note}" for note in notes),
    ]
    FOLDER.mkdir(parents=True, exist_ok=True)
    path = FOLDER / f"{name}.md"
    path.write_text("\n".join(lines).rstrip() + "\n")
    print("\n".join(lines))
    return path


def _cell(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)

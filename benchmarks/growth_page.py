"""The page of `growth.py`: a table for everything that grew, with the law through its ends."""

from __future__ import annotations

import datetime
import json
import math
from pathlib import Path
from typing import Any

import tables

NAMES = {
    "rows": "Rows of 30 mixed columns and a label",
    "columns": "Columns of 500 rows, half numbers, half of two categories, and a label",
    "categories": "Categories of one column; 20,000 rows, three numbers and a label besides",
    "classes": "Classes of the label; 20,000 rows, three numbers and a column of two besides",
    "file": "Rows of a Parquet file of 30 mixed columns and a label, 50,000 in memory",
    "clients": "Clients of 100 rows of 30 mixed columns and a label, in one process",
    "small clients": "Clients of 10 rows, in one process",
    "Ray clients": "Clients of 100 rows under Ray",
}
HEADS = ["CPU s", "wall s", "peak MB", "rise by learning MB", "model MB", "`log_prob` µs a row",
         "`predict_proba` µs a row", "`sample` µs a row"]  # fmt: skip
MB = 1e6
LAW = (
    "A law is size to the power given, through the first and the last line. *Rise* is what "
    "the peak of the process's memory rose by while it learned, the table not counted; the "
    "coded table has four bytes a cell, the model eight a parameter."
)


def read(records: Path) -> list[dict[str, Any]]:
    """Return the records that are there."""
    if not records.exists():
        return []
    return [json.loads(line) for line in records.read_text().splitlines() if line]


def write(done: list[dict[str, Any]]) -> None:
    """Write docs/benchmarks/growth.md; tables without a record stay as they are."""
    page = tables.FOLDER / "growth.md"
    today, kept = datetime.date.today().isoformat(), _sections(page)
    parts = []
    for what, title in NAMES.items():
        mine = sorted((each for each in done if each["what"] == what), key=lambda r: r["size"])
        if mine:
            parts += [f"## {title}", "", *_table(what, mine), "", *_laws(what, mine), ""]
            parts += [f"Measured {today}.", ""]
        elif title in kept:
            parts += [f"## {title}", "", kept[title], ""]
    lines = [
        "# How cost grows",
        "",
        f"`python benchmarks/growth.py`, {tables.machine()}; CPU time of one "
        "process (of the coordinating one under Ray), default settings, beside other work on the "
        "machine. Each table says when it was measured.",
        "",
        *parts,
        LAW,
    ]
    page.write_text(tables.wrapped("\n".join(lines)))


def _sections(page: Path) -> dict[str, str]:
    """What the page says below each heading."""
    if not page.exists():
        return {}
    text = page.read_text().replace("\n" + tables.wrapped(LAW), "\n")
    parts = [part.split("\n", 1) for part in text.split("\n## ")[1:]]
    return {title: rest.strip() for title, rest in parts}


def _table(what: str, mine: list[dict[str, Any]]) -> list[str]:
    federated = "sent" in mine[0]
    heads = [what, *HEADS, "coded table MB" if not federated else "MB sent"]
    everything = all(each.get("all") for each in mine)
    if everything:
        heads.append("MB of all processes")
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    for each in mine:
        last = each["sent" if federated else "coded"] / MB
        cells = [
            f"{each['size']:,}", f"{each['cpu']:.1f}", f"{each['wall']:.1f}",
            f"{each['peak'] / MB:.0f}", f"{each['rise'] / MB:.0f}",
            f"{8 * each['parameters'] / MB:.1f}", f"{each['log_prob']:.1f}",
            f"{each['predict']:.1f}", f"{each['sample']:.1f}", f"{last:.1f}",
        ]  # fmt: skip
        if everything:
            cells.append(f"{each['all'] / MB:.0f}")
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def _laws(what: str, mine: list[dict[str, Any]]) -> list[str]:
    first, last = mine[0], mine[-1]
    if first is last:
        return []
    span = math.log(last["size"] / first["size"])

    def power(key: str) -> str:
        return f"{math.log(max(last[key], 1e-9) / max(first[key], 1e-9)) / span:.2f}"

    told = [f"CPU {power('cpu')}", f"`log_prob` {power('log_prob')}",
            f"`predict_proba` {power('predict')}", f"parameters {power('parameters')}"]  # fmt: skip
    if "sent" in first:
        told.append(f"bytes {power('sent')}")
    each = ""
    if "clients" in what:
        costs = ", ".join(f"{r['cpu'] / r['size']:.3f}" for r in mine)
        each = f" CPU s a client: {costs}."
    return [f"Powers: {', '.join(told)}.{each}"]

"""How objects show themselves in a notebook: a title, a few facts and a table, as plain HTML."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from fedcircuits.schema.times import from_numbers

if TYPE_CHECKING:
    from fedcircuits.schema.schema import Schema
    from fedcircuits.schema.variable import Variable

ROWS_SHOWN = 30
NAMES_SHOWN = 6
HEADS = ("name", "kind", "values")  # of a table of variables


def html(
    title: str,
    facts: Iterable[tuple[str, Any]] = (),
    columns: Sequence[str] = (),
    rows: Sequence[Sequence[Any]] = (),
) -> str:
    """Returns a title, named facts and a table as HTML; of a long table the first rows.

    Args:
        title: one line.
        facts: names and values.
        columns: heads of the table.
        rows: its cells.
    """
    parts = [f"<p><b>{escape(title)}</b></p>"]
    listed = [f"{escape(name)}: {escape(str(value))}" for name, value in facts]
    if listed:
        parts.append("<p>" + "<br>".join(listed) + "</p>")
    if columns:
        head = "".join(f"<th>{escape(str(name))}</th>" for name in columns)
        body = "".join(
            "<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in row) + "</tr>"
            for row in rows[:ROWS_SHOWN]
        )
        parts.append(f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>")
        if len(rows) > ROWS_SHOWN:
            parts.append(f"<p>... and {len(rows) - ROWS_SHOWN} more</p>")
    return "".join(parts)


def some(names: Iterable[str], most: int = NAMES_SHOWN) -> str:
    """Returns the first names, and how many more there are."""
    listed = list(names)
    more = f" and {len(listed) - most} more" if len(listed) > most else ""
    return ", ".join(listed[:most]) + more


def values_of(variable: Variable) -> str:
    """Returns the values of a variable in a few words: categories, or lowest and highest."""
    if variable.is_coded:
        return some(map(str, variable.categories), 4)
    ends = _ends(variable)
    if ends is None:
        return ""
    low, high = ends
    about = "" if variable.domain is not None else "about "  # a grid leaves the tails out
    if variable.time is not None:
        times = from_numbers(np.array([low, high]), variable.time)
        length = 10 if variable.time == "date" else 19
        return about + " to ".join(str(end)[:length].replace("T", " ") for end in times)
    unit = f" {variable.unit}" if variable.unit else ""
    return f"{about}{low:g} to {high:g}{unit}" + (" (declared)" if variable.closed else "")


def _ends(variable: Variable) -> tuple[float, float] | None:
    """The lowest and highest value of a number: its domain, else the ends of its grid."""
    if variable.domain is not None or variable.grid is None:
        return variable.domain
    points = np.concatenate([variable.grid.edges, variable.grid.atoms])
    return (float(points.min()), float(points.max())) if points.size else None


def kind_of(variable: Variable) -> str:
    """Returns the kind of a variable in words; of dates and times, what they are."""
    return variable.kind if variable.time is None else variable.time.split()[0]


def variable_rows(schema: Schema) -> list[list[str]]:
    """Returns name, kind and values of every variable."""
    return [[v.name, kind_of(v), values_of(v)] for v in schema]

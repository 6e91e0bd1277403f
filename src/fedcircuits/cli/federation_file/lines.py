"""Which line of a TOML file sets a key, for errors that say where to look.

The standard library's reader returns values without their places. This looks for `key =` and
`[table]` at the start of lines, which is how people write them; a key that is written in another
way (inside an inline table, say) is reported with the line of the table that holds it.
"""

from __future__ import annotations

import re

_TABLE = re.compile(r"\s*\[+\s*([^\]]+?)\s*\]+\s*(#.*)?$")
_KEY = re.compile(r"""\s*((?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*')(?:\s*\.\s*[^\s=.]+)*)\s*=""")


def key_lines(text: str) -> dict[tuple[str, ...], int]:
    """Return the line (from 1) of every table and key of a TOML text, by its dotted path."""
    found: dict[tuple[str, ...], int] = {}
    table: tuple[str, ...] = ()
    for number, line in enumerate(text.splitlines(), 1):
        if header := _TABLE.match(line):
            table = _path(header[1])
            found.setdefault(table, number)
        elif key := _KEY.match(line):
            found.setdefault((*table, *_path(key[1])), number)
    return found


def place(text: str, path: tuple[str, ...]) -> str:
    """Return ", line N" for a key, or for the nearest table that holds it; "" if neither is seen.

    Args:
        text: the TOML file.
        path: names from the top of the file to the key.
    """
    lines = key_lines(text)
    for length in range(len(path), 0, -1):
        if path[:length] in lines:
            return f", line {lines[path[:length]]}"
    return ""


def _path(dotted: str) -> tuple[str, ...]:
    return tuple(part.strip().strip("\"'") for part in dotted.split("."))

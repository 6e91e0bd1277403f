"""Lines of code of `src` by area: `python benchmarks/source_size.py OLD NEW [AREA ...]` (commits).

A line counts where it holds anything but blanks, a comment or a docstring. Below the table: lines
that stand word for word at both commits, wherever they are now, and lines that are gone or new.
"""

from __future__ import annotations

import ast
import io
import subprocess
import sys
import tarfile
import tokenize
from collections import Counter, defaultdict

SILENT = {
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.COMMENT,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
TOGETHER = {"api": "api, density", "density": "api, density"}  # one folder before


Lines = Counter[str]


def code_lines(text: str) -> Lines:
    """Return the lines of a module that are code, without their indentation."""
    docs: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            first = node.body[0]
            docs |= set(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    held: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in SILENT:
            held |= set(range(token.start[0], token.end[0] + 1))
    lines = text.splitlines()
    return Counter(lines[number - 1].strip() for number in held - docs)


def by_area(revision: str) -> dict[str, Lines]:
    """Return the code of each folder of the package at a commit."""
    command = ["git", "archive", revision, "src/fedcircuits"]
    data = subprocess.run(command, capture_output=True, check=True).stdout
    found: dict[str, Lines] = defaultdict(Counter)
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        for member in archive:
            file = archive.extractfile(member) if member.name.endswith(".py") else None
            if file is None:
                continue
            inner = member.name.split("/")[2:]
            deep = 2 if inner[0] == "learners" and len(inner) > 2 else 1
            area = "/".join(inner[:deep]) if len(inner) > 1 else "api"
            found[TOGETHER.get(area, area)] += code_lines(file.read().decode())
    return found


def main(old: str, new: str, *only: str) -> None:
    """Print a table of both commits, of some areas where they are named."""
    before, after = by_area(old), by_area(new)
    none: Lines = Counter()
    rows = {
        area: (before.get(area, none), after.get(area, none))
        for area in sorted(before.keys() | after.keys())
        if not only or area in only
    }
    whole = sum((b for b, _ in rows.values()), none), sum((a for _, a in rows.values()), none)
    ordered = sorted(rows.items(), key=lambda row: row[1][0].total() - row[1][1].total())
    lines = ["| area | before | after |", "| --- | ---: | ---: |"]
    for area, (b, a) in [*ordered, ("all", whole)]:
        lines.append(f"| {area} | {b.total():,} | {a.total():,} |")
    kept, gone, added = ((whole[0] & whole[1]), whole[0] - whole[1], whole[1] - whole[0])
    lines.append("")
    lines.append(f"{kept.total():,} at both, {gone.total():,} gone, {added.total():,} new")
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])

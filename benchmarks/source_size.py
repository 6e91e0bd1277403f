"""Lines of code of `src` by area, at two commits: `python benchmarks/source_size.py OLD NEW`.

A line counts where it holds anything but blanks, a comment or a docstring.
"""

from __future__ import annotations

import ast
import io
import subprocess
import sys
import tarfile
import tokenize
from collections import Counter

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


def code_lines(text: str) -> int:
    """Return how many lines of a module are code."""
    docs: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            first = node.body[0]
            docs |= set(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    held: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in SILENT:
            held |= set(range(token.start[0], token.end[0] + 1))
    return len(held - docs)


def by_area(revision: str) -> Counter[str]:
    """Return code lines of each folder of the package at a commit."""
    command = ["git", "archive", revision, "src/fedcircuits"]
    data = subprocess.run(command, capture_output=True, check=True).stdout
    found: Counter[str] = Counter()
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


def main(old: str, new: str) -> None:
    """Print a table of both commits."""
    before, after = by_area(old), by_area(new)
    lines = ["| area | before | after |", "| --- | ---: | ---: |"]
    for area in sorted(before | after, key=lambda each: before[each] - after[each]):
        lines.append(f"| {area} | {before[area]:,} | {after[area]:,} |")
    lines.append(f"| all | {before.total():,} | {after.total():,} |")
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:3])

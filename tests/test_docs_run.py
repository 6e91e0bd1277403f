"""Code blocks of the documentation: those of a page run in order in a folder of their own.

Python blocks share their names. Of a console block every line behind "$" runs; lines below it must
appear in its output, with any digits where the page has digits and anything where it has "...".
A block with a title is written to the file of that name.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fedcircuits.cli.app import app

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
BLOCK = re.compile(r"^```(\w+)([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# Tables that pages name without making them, as files and as frames.
TABLES = """
import numpy as np
import pandas as pd
import fedcircuits as fc
_loans = fc.datasets.loans(seed=0).train.head(240).rename_axis("customer").reset_index()
bank = _loans[["customer", "income", "balance", "late_payments", "default"]]
shop = _loans[["customer", "purpose", "channel", "age"]]
table = _loans.drop(columns="customer")
bank.to_csv("bank.csv", index=False)
bank.to_parquet("bank.parquet")
shop.to_csv("shop.csv", index=False)
"""
# Pages whose blocks start an engine, and pages that need what this machine may not have.
ENGINES = {"ray.md", "howto/cluster.md"}
SLOW = {"tutorial.md", "einet.md", "howto/own-data.md", "howto/scikit-learn.md"}
NOT_RUN = {
    "nvflare.md": "its blocks are steps on several machines; tests/engines runs them",
    "federation-toml.md": "its file is checked by tests/test_first_hour.py",
}
PAGES = sorted(
    path.relative_to(DOCS).as_posix()
    for path in DOCS.rglob("*.md")
    if "benchmarks" not in path.parts and BLOCK.search(path.read_text(encoding="utf-8"))
)


def marked(page: str) -> Any:
    if page in ENGINES:
        return pytest.param(page, marks=[pytest.mark.engine, pytest.mark.slow])
    return pytest.param(page, marks=pytest.mark.slow) if page in SLOW else page


@pytest.mark.parametrize("page", [marked(page) for page in PAGES if page not in NOT_RUN])
def test_blocks_of_a_page_run(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if page == "einet.md" or page == "howto/gpu.md":
        pytest.importorskip("torch")
    if page in ENGINES:
        pytest.importorskip("ray")
    monkeypatch.chdir(tmp_path)
    text = (DOCS / page).read_text(encoding="utf-8")
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(TABLES, names)
    for at, (kind, title, code) in enumerate(BLOCK.findall(text)):
        file = re.search(r'title="([^"]+)"', title)
        if file is not None:
            (tmp_path / file[1]).write_text(code, encoding="utf-8")
        if kind == "python":
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                exec(compile(code, f"{page}, block {at + 1}", "exec"), names)
        elif kind == "console":
            for command, shown in commands(code):
                check(command, shown, page)


def commands(code: str) -> list[tuple[str, list[str]]]:
    """Commands of a console block, each with the lines shown below it."""
    found: list[tuple[str, list[str]]] = []
    for line in code.splitlines():
        if line.startswith("$ "):
            found.append((line[2:], []))
        elif found and found[-1][0].endswith("\\"):
            found[-1] = (found[-1][0][:-1] + line.strip(), [])
        elif line.strip():
            found[-1][1].append(line.strip())
    return found


def check(command: str, shown: list[str], page: str) -> None:
    """Run a command as a user types it, and look for the lines that the page shows."""
    words = shlex.split(command.partition("  #")[0])
    if words[0] == "fedcircuits":
        answer = CliRunner().invoke(app, words[1:])
        said, code = answer.output, answer.exit_code
    else:
        words = [sys.executable if word == "python" else word for word in words]
        done = subprocess.run(words, capture_output=True, text=True, timeout=300)
        said, code = done.stdout + done.stderr, done.returncode
    assert code == 0, f"{page}: {command}\n{said}"
    plain = without_numbers(said)
    for line in shown:
        pattern = re.escape(without_numbers(line)).replace(r"\.\.\.", ".*")
        assert re.search(pattern, plain), f"{page}: {command}\nshown: {line}\nfound: {said}"


def without_numbers(text: str) -> str:
    """Text in one line with 0 for every number."""
    return " ".join(re.sub(r"\d+(?:[.,]\d+)*", "0", text).split())


def test_console_blocks_are_read_as_they_are_typed() -> None:
    code = "$ fedcircuits learn a.csv \\\n    -o a.fc\nsaved to a.fc\n$ fedcircuits inspect a.fc\n"
    assert commands(code) == [
        ("fedcircuits learn a.csv -o a.fc", ["saved to a.fc"]),
        ("fedcircuits inspect a.fc", []),
    ]

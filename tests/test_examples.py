"""Every script of examples/ runs and prints what it is there to show."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
# What a script must print; numbers are checked by `figure` below.
SHOWS = {
    "one_table.py": "the loaded model gives the same densities: True",
    "rows_split.py": "setting: horizontal; rule: product",
    "columns_split.py": "setting: vertical; rule: product",
    "both_split.py": "setting: hybrid",
    "own_learner.py": "three clients:",
    "unlearn_client.py": "after: ('client-1', 'client-2')",
    "synthetic_data.py": "mean proline given class 2:",
}


def printed(name: str, capsys: pytest.CaptureFixture[str]) -> str:
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    return capsys.readouterr().out


def figure(words: str, text: str) -> float:
    """The number that follows some words."""
    found = re.search(re.escape(words) + r"\s*(-?[\d.]+(?:e-?\d+)?)", text)
    assert found is not None, text
    return float(found[1])


def test_every_script_is_run_and_listed() -> None:
    scripts = {path.name for path in EXAMPLES.glob("*.py")}
    assert scripts == set(SHOWS)
    listed = (EXAMPLES / "README.md").read_text()
    assert {name for name in scripts if f"({name})" not in listed} == set()


@pytest.mark.parametrize("name", sorted(set(SHOWS) - {"one_table.py", "unlearn_client.py"}))
def test_script_runs(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert SHOWS[name] in printed(name, capsys)


def test_one_table_predicts_also_from_two_columns(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed("one_table.py", capsys)
    assert SHOWS["one_table.py"] in text
    assert figure("accuracy", text) > 0.9
    assert figure("alone", text) > 0.7


def test_client_that_left_is_as_one_that_never_came(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed("unlearn_client.py", capsys)
    assert SHOWS["unlearn_client.py"] in text
    assert figure("a run without it:", text) < 1e-9

"""Every script and notebook of examples/ runs and prints what it is there to show."""

from __future__ import annotations

import ast
import json
import re
import runpy
import warnings
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
# What a script must print; numbers are checked by `figure` below.
SHOWS = {
    "one_table.py": "the loaded model gives the same densities: True",
    "rows_split.py": "setting: horizontal; rule: product",
    "columns_split.py": "setting: vertical; rule: product",
    "both_split.py": "setting: hybrid",
    "own_learner.py": "three clients:",
    "federated_images.py": "known pixels stay as they are: True",
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


BY_THEMSELVES = {"one_table.py", "unlearn_client.py", "federated_images.py"}


@pytest.mark.parametrize("name", sorted(set(SHOWS) - BY_THEMSELVES))
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


def test_images_at_four_clients_are_scored_painted_and_drawn(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    pytest.importorskip("torch")
    runpy.run_path(str(EXAMPLES / "federated_images.py"))["main"](["--pictures", str(tmp_path)])
    text = capsys.readouterr().out
    assert SHOWS["federated_images.py"] in text
    together, alone = figure("together", text), figure("alone [", text)
    assert alone < together < 0.0
    assert figure("('east', 'north', 'south'),", text) < together
    assert {path.name for path in tmp_path.iterdir()} == {"painted.png", "samples.png"}


# --- notebooks ------------------------------------------------------------------------------------

# Words and the least number behind them that a notebook must print.
NOTEBOOKS = {
    "bank_and_shop.ipynb": {"together": 0.7},
    "branches_and_register.ipynb": {"hybrid product": None, "all": 0.7},
    "images_inpainting.ipynb": {"a uniform guess has": None, "mean error": 1.0},
    "synthetic_data.ipynb": {"on synthetic rows": 0.9, "membership AUC": 0.4},
}


def test_every_notebook_is_run_and_listed() -> None:
    found = {path.name for path in EXAMPLES.glob("*.ipynb")}
    assert found == set(NOTEBOOKS)
    listed = (EXAMPLES / "README.md").read_text()
    assert {name for name in found if f"({name})" not in listed} == set()


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(NOTEBOOKS))
def test_notebook_runs(
    name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cells in order in a folder of their own; what ends a cell is shown as a notebook shows it."""
    if name.startswith("images"):
        pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    cells = json.loads((EXAMPLES / name).read_text(encoding="utf-8"))["cells"]
    names: dict[str, Any] = {"__name__": "__main__"}
    for at, cell in enumerate(cells):
        assert not cell.get("outputs")  # figures of one machine are not kept
        if cell["cell_type"] == "code":
            run_cell("".join(cell["source"]), f"{name}, cell {at + 1}", names)
    text = capsys.readouterr().out
    for words, least in NOTEBOOKS[name].items():
        assert words in text
        if least is not None:
            assert figure(words, text) > least


def run_cell(code: str, place: str, names: dict[str, Any]) -> None:
    """Run a cell; where it ends with an expression, ask its value for its HTML or its picture."""
    body = ast.parse(code).body
    last = body.pop() if isinstance(body[-1], ast.Expr) else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exec(compile(ast.Module(body, []), place, "exec"), names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), place, "eval"), names)
            for show in ("_repr_html_", "_repr_png_", "__repr__"):
                if hasattr(value, show):
                    assert value is None or getattr(value, show)()

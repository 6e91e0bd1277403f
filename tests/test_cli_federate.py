"""`fedcircuits federate` and `demo` as a user meets them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import fedcircuits as fc
from contracts.engine import table
from contracts.federations import ID, LABEL, split
from fedcircuits.cli.app import app
from fedcircuits.cli.federation_file import read_federation
from fedcircuits.errors import FederationError

SETTINGS = f'''
label = "{LABEL}"
id = "{ID}"
agreement = "latent"
learner = "factorised"
output = "model.fc"

[clients]
a = "a.csv"
b = {{ data = "b.parquet", learner = "mixture" }}
c = "sub/c.csv"

[options]
n_clusters = 3

[kinds]
size = "continuous"
'''


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    """`fedcircuits ...` in a process of its own."""
    command = [sys.executable, "-m", "fedcircuits", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shares = split("vertical")
    (tmp_path / "sub").mkdir()
    shares["a"].to_csv(tmp_path / "a.csv", index=False)
    shares["b"].to_parquet(tmp_path / "b.parquet")
    shares["c"].to_csv(tmp_path / "sub" / "c.csv", index=False)
    (tmp_path / "federation.toml").write_text(SETTINGS)
    return tmp_path


def test_federate_writes_a_model_that_answers(folder: Path) -> None:
    answer = run("federate", folder / "federation.toml", "--json")
    assert answer.returncode == 0, answer.stderr
    told = json.loads(answer.stdout)
    assert told["setting"] == "vertical"
    assert told["rule"] == "latent"
    assert told["clients"] == {"a": 120, "b": 120, "c": 115}
    assert told["bytes"] == sum(row["bytes"] for row in told["ledger"])
    assert told["reveals"]
    fed: Any = fc.load(folder / "model.fc")
    assert fed.clients == ("a", "b", "c")
    assert fed.ledger.n_bytes == told["bytes"]
    rows = table(n=20)[["height", "visits"]]
    assert fed.predict_proba(rows, LABEL).sum(axis=1).to_numpy() == pytest.approx(1.0)


@pytest.mark.slow
def test_federate_for_people_shows_bytes_and_what_leaves(folder: Path) -> None:
    answer = run(
        "federate", folder / "federation.toml", "-o", folder / "x.fc", "--engine", "processes"
    )
    assert answer.returncode == 0, answer.stderr
    for words in (
        "setting: vertical",
        "bounded codes",
        "bytes that crossed",
        "SplitNN",
        "saved to",
    ):
        assert words in answer.stdout
    assert (folder / "x.fc").is_file()
    inspected = json.loads(run("inspect", folder / "x.fc", "--json").stdout)
    assert inspected["clients"] == ["a", "b", "c"]
    assert inspected["reveals"]
    shown = run("query", folder / "x.fc", "--predict", LABEL, "--given", "visits=5", "--json")
    assert json.loads(shown.stdout)["rows"][0]["yes"] > 0.5


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        (f'label = "{LABEL}"', 'label = "age"', "no client holds the label 'age'"),
        ('agreement = "latent"', 'agreement = "magic"', "no agreement rule 'magic'"),
        ('learner = "factorised"', 'learner = "magic"', "no learner 'magic'"),
        ('learner = "factorised"', "learner = 3", "learner has a value of the wrong type.*found 3"),
        ('a = "a.csv"', 'a = "nowhere.csv"', "client 'a': no such file"),
        ('a = "a.csv"', "a = 3", "client 'a' needs data"),
        ('a = "a.csv"', "a = {data = 'a.csv', colour = 1}", "client 'a' has no setting 'colour'"),
        ("[clients]", "[people]", "no setting 'people'"),
        ('output = "model.fc"', "", "say where the model goes"),
        ('output = "model.fc"', 'output = "no/where/m.fc"', "cannot write"),
        ('output = "model.fc"', 'placement = "remote"\noutput = "m.fc"', "gathered densities"),
    ],
)
def test_a_bad_file_is_told(folder: Path, old: str, new: str, told: str) -> None:
    from fedcircuits.cli.federate import run as federate
    from fedcircuits.cli.output import Output

    assert old in SETTINGS
    (folder / "federation.toml").write_text(SETTINGS.replace(old, new, 1))
    with pytest.raises(fc.FedcircuitsError, match=told):
        federate(Output(True), folder / "federation.toml", None, None)


def test_a_file_that_is_not_there_or_no_toml(tmp_path: Path) -> None:
    with pytest.raises(FederationError, match="cannot read"):
        read_federation(tmp_path / "nowhere.toml")
    (tmp_path / "bad.toml").write_text("label =")
    answer = run("federate", tmp_path / "bad.toml")
    assert answer.returncode == 1
    assert "is not a TOML file" in answer.stderr
    assert "Traceback" not in answer.stderr


@pytest.mark.slow
def test_demo_shows_the_mission(tmp_path: Path) -> None:
    answer = run("demo", "--json", "--report", tmp_path / "report.html")
    assert answer.returncode == 0, answer.stderr
    told = json.loads(answer.stdout)
    assert told["n_clients"] == 4
    assert [told[s]["setting"] for s in ("rows", "columns", "both")] == [
        "horizontal", "vertical", "hybrid",
    ]  # fmt: skip
    for setting in ("rows", "columns", "both"):
        assert told[setting]["bytes"] > 0
        assert told[setting]["auc"] > told["centralised"]["auc"] - 0.06
        best = max(alone["auc"] for alone in told[setting]["alone"].values())
        assert told[setting]["auc"] > best + 0.01  # a federation is worth it in every split
    assert len(told["rows"]["alone"]) == len(told["both"]["alone"]) == 4
    assert told["missing silo"]["auc"] > 0.75
    assert len(told["sample"]) == 3
    assert told["mpe"]  # values for every column of the missing silo
    assert None not in told["mpe"].values()
    assert told["report"] == str(tmp_path / "report.html")
    assert "One model from 4 clients" in (tmp_path / "report.html").read_text(encoding="utf-8")


@pytest.mark.slow
def test_demo_with_a_table_of_your_own(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    n = 240
    table = pd.DataFrame(
        {
            "ref": [f"r{i:04d}" for i in range(n)],
            "kind": rng.choice(["a", "b", "c"], n),
            "width": rng.normal(size=n),
            "height": rng.normal(size=n),
        }
    )
    table["grade"] = np.where(table["width"] + table["height"] > 0, "good", "poor")
    table.to_csv(tmp_path / "mine.csv", index=False, sep=";")
    to = tmp_path / "mine.html"
    answer = run("demo", "--data", tmp_path / "mine.csv", "--label", "grade", "--report", to)
    assert answer.returncode == 0, answer.stderr
    assert "left out column 'ref'" in answer.stderr
    assert f"{to} shows the model" in answer.stdout
    assert to.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "say which column is predicted: --label COLUMN"),
        (["--label", "gradee"], "did you mean 'grade'"),
        (["--label", "width"], "the demo predicts classes, and 'width' holds 20 different"),
        (["--label", "grade"], "the demo needs 100 rows"),
        (["--label", "grade", "--report", "none/a.html"], "cannot write none/a.html"),
    ],
)
def test_demo_says_what_it_needs(tmp_path: Path, arguments: list[str], message: str) -> None:
    table = pd.DataFrame({"width": np.arange(20) / 7, "grade": ["good", "poor"] * 10})
    table.to_csv(tmp_path / "mine.csv", index=False)
    answer = CliRunner().invoke(app, ["demo", "--data", str(tmp_path / "mine.csv"), *arguments])
    assert answer.exit_code == 1
    assert message in answer.stderr

"""The command line as a user meets it: real files, exit codes, JSON; some in a real process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import fedcircuits as fc
from fedcircuits.cli import held_out
from fedcircuits.cli.app import app


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    """`fedcircuits ...` in this process: its start takes longer than most commands."""
    words = [*map(str, arguments)]
    found = CliRunner().invoke(app, words)
    return subprocess.CompletedProcess(words, found.exit_code, found.stdout, found.stderr)


def run_alone(*arguments: object) -> subprocess.CompletedProcess[str]:
    """`fedcircuits ...` in a process of its own."""
    command = [sys.executable, "-m", "fedcircuits", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table of 300 rows and a model learned from it on the command line."""
    at = tmp_path_factory.mktemp("cli")
    rng = np.random.default_rng(3)
    colour = rng.choice(["red", "green"], 300, p=[0.3, 0.7])
    frame = pd.DataFrame(
        {
            "height": rng.normal(np.where(colour == "red", 1.0, 4.0), 0.5),
            "colour": colour,
            "visits": rng.poisson(2.0, 300),
        }
    )
    frame.to_csv(at / "rows.csv", index=False)
    frame.to_parquet(at / "rows.parquet")
    learned = run_alone("learn", at / "rows.csv", "-o", at / "m.fc", "--label", "colour", "--json")
    assert learned.returncode == 0, learned.stderr
    assert json.loads(learned.stdout)["rows"] == 300
    return at


def test_log_prob_of_a_file_equals_the_library(folder: Path) -> None:
    answer = run("query", folder / "m.fc", "--log-prob", folder / "rows.parquet", "--json")
    rows = json.loads(answer.stdout)["rows"]
    expected = fc.load(folder / "m.fc").log_prob(folder / "rows.csv")
    assert [row["log_prob"] for row in rows] == pytest.approx(expected.tolist(), abs=1e-12)


def test_predict_given_values_equals_the_library(folder: Path) -> None:
    answer = run("query", folder / "m.fc", "--predict", "colour", "--given", "height=1.2", "--json")
    row = json.loads(answer.stdout)["rows"][0]
    model = fc.load(folder / "m.fc")
    expected = model.predict_proba(pd.DataFrame({"height": [1.2]}), "colour").iloc[0]
    assert row["red"] == pytest.approx(expected["red"], abs=1e-12)
    assert row["red"] + row["green"] == pytest.approx(1.0)


def test_expectation_given_a_category(folder: Path) -> None:
    answer = run("query", folder / "m.fc", "--expect", "height", "--given", "colour=red", "--json")
    mean = json.loads(answer.stdout)["rows"][0]["mean"]
    expected = fc.load(folder / "m.fc").expectation("height", {"colour": "red"})
    assert mean == pytest.approx(expected)


def test_sample_writes_a_file_with_the_evidence_kept(folder: Path) -> None:
    out = folder / "drawn.csv"
    answer = run("query", folder / "m.fc", "--sample", 7, "--given", "visits=3", "-o", out)
    assert answer.returncode == 0, answer.stderr
    drawn = pd.read_csv(out)
    assert list(drawn.columns) == ["height", "colour", "visits"]
    assert drawn["visits"].tolist() == [3] * 7


def test_mpe_fills_the_gaps_and_keeps_the_rest(folder: Path) -> None:
    (folder / "gaps.csv").write_text("height,colour,visits\n1.0,,2\n,green,\n")
    answer = run("query", folder / "m.fc", "--mpe", folder / "gaps.csv", "--json")
    rows = json.loads(answer.stdout)["rows"]
    assert rows[0]["height"] == 1.0
    assert rows[0]["colour"] in ("red", "green")
    assert rows[1]["colour"] == "green"
    assert rows[1]["height"] is not None


def test_inspect_tells_sizes_and_variables(folder: Path) -> None:
    answer = json.loads(run("inspect", folder / "m.fc", "--json").stdout)
    model = fc.load(folder / "m.fc")
    assert answer["parameters"] == model.n_parameters
    assert [v["name"] for v in answer["variables"]] == ["height", "colour", "visits"]


def test_inspect_for_people_is_a_table(folder: Path) -> None:
    answer = run("inspect", folder / "m.fc")
    assert "variables" in answer.stdout
    assert "height" in answer.stdout


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["query", "{m}", "--predict", "weight"], "no variable 'weight'"),
        (["query", "{m}", "--predict", "colour", "--given", "colour2=x"], "no variable 'colour2'"),
        (["query", "{m}", "--sample", "1", "--given", "colour=blue"], "one of 'green', 'red'"),
        (["query", "{m}", "--sample", "1", "--given", "height=tall"], "expected a number"),
        (["query", "{m}", "--sample", "-1"], "whole number"),
        (["query", "{m}"], "ask one question"),
        (["query", "{m}", "--log-prob", "nowhere.csv"], "no such file"),
        (["query", "nowhere.fc", "--sample", "1"], "cannot read nowhere.fc"),
        (["query", "{csv}", "--sample", "1"], "not a fedcircuits file"),
        (["learn", "{csv}", "-o", "/no/such/folder/m.fc"], "cannot write"),
        (["learn", "{csv}", "-o", "{m}2", "--label", "size"], "no column 'size'"),
        (["learn", "{csv}", "-o", "{m}2", "--learner", "magic"], "no learner 'magic'"),
        (["learn", "{csv}", "-o", "{m}2", "--kind", "height=round"], "found 'round'"),
        (["learn", "{m}", "-o", "{m}2"], "neither CSV nor Parquet"),
    ],
)
def test_bad_input_is_told_and_ends_with_code_one(
    folder: Path, arguments: list[str], told: str
) -> None:
    places = {"m": folder / "m.fc", "csv": folder / "rows.csv"}
    answer = run(*(a.format(**places) for a in arguments))
    assert answer.returncode == 1
    assert told in answer.stderr
    assert "Traceback" not in answer.stderr


def test_a_process_of_its_own_answers_and_fails_alike(folder: Path) -> None:
    for asked in (("--version",), ("query", folder / "m.fc", "--predict", "weight", "--json")):
        here, alone = run(*asked), run_alone(*asked)
        assert (here.returncode, here.stdout) == (alone.returncode, alone.stdout)


def test_an_error_in_json_mode_is_json(folder: Path) -> None:
    answer = run("query", folder / "m.fc", "--predict", "weight", "--json")
    assert answer.returncode == 1
    assert "no variable 'weight'" in json.loads(answer.stdout)["error"]


def test_advice_is_in_the_words_of_the_command_line(folder: Path) -> None:
    asked = ("query", folder / "m.fc", "--expect", "height", "--given", "colour=mauve")
    refused = run(*asked)
    assert refused.returncode == 1
    assert "--unknown missing" in " ".join(refused.stderr.split())
    assert run(*asked, "--unknown", "missing").returncode == 0


def test_an_unknown_option_is_a_usage_error() -> None:
    assert run("query", "--no-such-option").returncode == 2


def test_help_names_every_command() -> None:
    answer = run("--help").stdout
    for command in ("learn", "query", "inspect", "demo"):
        assert command in answer


def test_version_is_that_of_the_package() -> None:
    answer = run("--version")
    assert (answer.returncode, answer.stdout) == (0, f"fedcircuits {fc.__version__}\n")


@pytest.mark.parametrize("command", ["federate", "provision"])
def test_help_shows_an_example_file_as_it_is_written(command: str) -> None:
    lines = [line.strip() for line in run(command, "--help").stdout.splitlines()]
    assert "[clients]" in lines


def test_no_progress_bar_when_not_a_terminal(folder: Path) -> None:
    answer = run("learn", folder / "rows.csv", "-o", folder / "again.fc")
    assert answer.returncode == 0
    assert "━" not in answer.stderr


def test_a_file_beyond_memory_is_learned_in_batches(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=21_000)
    frame = pd.DataFrame({"x": x, "y": np.where(x + rng.normal(size=x.size) > 0, "a", "b")})
    folder = tmp_path / "rows"
    folder.mkdir()
    frame.iloc[:9_000].to_parquet(folder / "0.parquet")
    frame.iloc[9_000:].to_parquet(folder / "1.parquet")
    learned = run(
        *("learn", folder, "-o", tmp_path / "m.fc", "--rows-in-memory", 1_000, "--holdout", 0),
        "--json",
    )
    assert learned.returncode == 0, learned.stderr
    assert "learned in batches" in learned.stderr
    found = json.loads(learned.stdout)
    assert found["rows"] == 21_000
    assert found["fit_report"]["sizes"]["training rows"] == 21_000
    expected = fc.learn(frame, rows_in_memory=1_000).log_prob(frame)
    np.testing.assert_array_equal(fc.load(tmp_path / "m.fc").log_prob(frame), expected)


def test_learn_finds_texts_that_mean_missing_and_says_so(tmp_path: Path) -> None:
    rows = pd.DataFrame({"age": [str(20 + i % 30) for i in range(120)], "y": ["a", "b"] * 60})
    rows.loc[::10, "age"] = "?"
    rows.to_csv(tmp_path / "rows.csv", index=False)
    rows.to_csv(tmp_path / "test.csv", index=False)
    options = ("--label", "y", "-o", str(tmp_path / "m.fc"), "--test", str(tmp_path / "test.csv"))
    found = run("learn", str(tmp_path / "rows.csv"), *options)
    assert found.returncode == 0, found.stderr
    assert "read as missing: '?'" in found.stderr
    assert fc.load(tmp_path / "m.fc").schema["age"].kind == "count"


def test_a_number_is_predicted_by_its_mean_and_range(folder: Path) -> None:
    asked = ("query", folder / "m.fc", "--predict", "height")
    answer = json.loads(run(*asked, "--given", "colour=red", "--json").stdout)["rows"]
    assert list(answer[0]) == ["mean", "5% lie below", "95% lie below"]
    assert answer[0]["5% lie below"] < answer[0]["mean"] < answer[0]["95% lie below"]
    (folder / "one.csv").write_text("height,colour\n1.5,red\n")
    again = json.loads(run(*asked, "--rows", folder / "one.csv", "--json").stdout)["rows"]
    assert again == answer  # its own value is no evidence about it


def test_the_baseline_counts_cells_that_are_missing_as_the_model_does(
    rng: np.random.Generator,
) -> None:
    """Where a third of the cells is empty, a value has two thirds of its probability in both."""
    rows = pd.DataFrame({"a": rng.normal(size=600), "b": rng.choice(["u", "v"], 600)})
    rows = rows.mask(rng.random(rows.shape) < 0.33)
    learned = fc.learn(rows[:450], seed=0)
    assert all(variable.missing_state for variable in learned.schema)
    (found,) = held_out.scores(learned, rows[450:], None, rows[:450]).values()
    assert found[0] == pytest.approx(found[1], abs=0.1)

"""Every file that is written: a disk that fails gives an error of ours, and nothing old is lost."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import fedcircuits as fc
from contracts.bad_disks import bad_disks, full_disk
from contracts.bad_lines import ResumedLine
from contracts.engine import table
from contracts.federations import ID, LABEL
from contracts.runs import bits, run, specs_of
from fedcircuits.cli.app import app
from fedcircuits.errors import FedcircuitsError
from fedcircuits.federation.policy.audit import AuditLog
from fedcircuits.federation.policy.policy import PolicyError
from fedcircuits.federation.policy.run import earlier_runs

ROWS = table().drop(columns=ID)


def model() -> Any:
    return fc.learn(ROWS, learner="factorised")


def federated() -> Any:
    parts = {"a": ROWS.iloc[:60], "b": ROWS.iloc[60:]}
    return fc.federate(parts, label=LABEL, learner="factorised", agreement="independent")


def ensemble() -> Any:
    parts = {"a": ROWS.iloc[:60], "b": ROWS.iloc[60:]}
    return fc.federate(parts, label=LABEL, learner="factorised", operation="vote")


SAVED: dict[str, Callable[[], Callable[[Path], object]]] = {
    "a model": lambda: model().save,
    "a federated model": lambda: federated().save,
    "an ensemble": lambda: ensemble().save,
    "a report": lambda: fc.learn(ROWS[["visits", "bought"]], learner="factorised").report,
}


@pytest.mark.parametrize("what", SAVED)
def test_a_file_is_written_whole_or_the_old_one_stays(what: str, tmp_path: Path) -> None:
    save, path = SAVED[what](), tmp_path / "file"
    save(path)
    before = path.read_bytes()
    told = 0
    for disk in bad_disks(tmp_path, lambda: save(path)):
        with disk:
            try:
                save(path)
            except FedcircuitsError as error:
                told += f"cannot write {path}: " in str(error)
        assert path.read_bytes() == before
        assert [found.name for found in tmp_path.iterdir()] == ["file"]  # and nothing half done
    assert told >= 3  # a folder that cannot be made though it is there stops nobody


def test_a_checkpoint_that_cannot_be_written_is_said_and_the_old_one_stays(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    path = tmp_path / "run.safetensors"

    def train(n_epochs: int) -> Any:
        options = {"checkpoint": path, "epochs": n_epochs, "width": 4, "batch": 64}
        return fc.learn(ROWS[["height", "size"]].dropna(), learner="einet", seed=1, **options)

    train(1)
    before = path.read_bytes()
    with full_disk(10), pytest.raises(FedcircuitsError, match=r"cannot write .*run\.safetensors"):
        train(2)
    assert path.read_bytes() == before
    assert [found.name for found in tmp_path.iterdir()] == [path.name]
    resumed = train(2)
    path.unlink()
    rows = ROWS[["height", "size"]].head(10)
    assert resumed.log_prob(rows).tolist() == train(2).log_prob(rows).tolist()


def test_a_message_that_cannot_be_noted_is_not_answered(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "audit.jsonl", "a")
    for disk in bad_disks(tmp_path, lambda: log.write("fit", 3, "server", None)):
        before = log.path.read_bytes() if log.path else b""
        with disk, pytest.raises(PolicyError, match="audit file cannot be written"):
            log.write("fit", 3, "server", None)
        assert log.path is not None
        assert log.path.read_bytes() == before  # no half line


def test_a_line_of_the_audit_file_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    """A disk that is full in the middle of a line, and a line cut short by a power cut."""
    path = tmp_path / "audit.jsonl"
    log = AuditLog(path, "a")
    facts: dict[str, Any] = {"run": "r", "reply": "x", "step": 0, "bits": 2.0, "epsilon": 0.0}
    log.write("fit", 3, "server", None, request="one", **facts)
    before = path.read_bytes()
    for n_bytes in (len(before), len(before) + 1, len(before) + 40):
        with full_disk(n_bytes), pytest.raises(PolicyError, match="cannot be written"):
            log.write("fit", 3, "server", None, request="two", **facts)
        assert path.read_bytes() == before
    path.write_bytes(before + before[:30])
    log.write("fit", 3, "server", None, request="three", **facts)
    spent = earlier_runs(path, "a")["r"]
    assert spent.requests == {"one", "three"}
    assert spent.bits == 4.0


@pytest.mark.filterwarnings("ignore::fedcircuits.errors.FedcircuitsWarning")
@pytest.mark.slow
def test_a_run_whose_state_cannot_be_kept_says_so_and_goes_on_later(tmp_path: Path) -> None:
    case, state = "columns, latent", tmp_path / "state"
    expected = bits(run(case, ResumedLine(specs_of(case), state, None)))

    def again() -> Any:
        for kept in state.iterdir():
            kept.unlink()
        return run(case, ResumedLine(specs_of(case), state, None))

    told = 0
    for disk in bad_disks(tmp_path, again):
        for kept in state.iterdir():
            kept.unlink()
        engine = ResumedLine(specs_of(case), state, None)
        with disk:
            try:
                run(case, engine)
            except FedcircuitsError as error:
                told += "cannot write" in str(error)
        assert bits(run(case, ResumedLine(specs_of(case), state, None))) == expected
    assert told >= 5


def rows_file(folder: Path) -> Path:
    path = folder / "rows.csv"
    ROWS.to_csv(path, index=False)
    return path


@pytest.mark.parametrize("output", ["drawn.csv", "drawn.parquet"])
def test_commands_say_that_the_disk_is_full(output: str, tmp_path: Path) -> None:
    model().save(tmp_path / "model.fc")
    (tmp_path / "out").mkdir()
    command = ["query", str(tmp_path / "model.fc"), "--sample", "200", "--output"]
    with full_disk(100):
        result = CliRunner().invoke(app, [*command, str(tmp_path / "out" / output)])
    assert result.exit_code == 1, result.output
    assert "cannot write" in result.output
    assert "Traceback" not in result.output


def test_a_draft_of_a_federation_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    source = tmp_path / "in"
    source.mkdir()
    files = []
    for at, part in enumerate(np.array_split(np.arange(len(ROWS)), 2)):
        files.append(str(source / f"{at}.csv"))
        pd.DataFrame(ROWS.iloc[part]).to_csv(files[-1], index=False)
    with warnings.catch_warnings(), full_disk(10):
        result = CliRunner().invoke(app, ["init", *files, "-o", str(tmp_path / "federation.toml")])
    assert result.exit_code == 1, result.output
    assert "cannot write" in result.output
    assert not (tmp_path / "federation.toml").exists()

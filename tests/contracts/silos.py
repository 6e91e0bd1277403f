"""A federation of three silos, each a process with its own files, and the commands of its parties.

`Place.mend` puts right what a test has ended, stopped or changed: one federation serves many tests.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
import psutil

import fedcircuits as fc
from contracts.engine import table
from contracts.faults import model_bytes
from contracts.federations import ID, LABEL, split
from contracts.held import hold, let_go
from fedcircuits.federation.policy.policy import Policy

POLICY = """
min_rows = 1
rare_categories = "offered"
errors = "sent"
max_message_bytes = 1_000_000
"""
NAMES = ("a", "b", "c")
RULE = ("n_clusters",)  # options of an agreement rule


def shares(setting: str) -> dict[str, pd.DataFrame]:
    """Tables of the parties; the hybrid ones share two columns by pairs, and some of the rows."""
    if setting != "hybrid":
        return split(setting)
    rows = table()
    return {
        "a": rows.iloc[:80][[ID, "height", "colour", LABEL]],
        "b": rows.iloc[30:][[ID, "height", "visits", LABEL]],
        "c": rows.iloc[20:100][[ID, "visits", "size", LABEL]],
    }


@dataclass
class Place:
    """One federation on disk and its silos."""

    folder: Path
    port: int
    silos: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    coordinators: list[subprocess.Popen[str]] = field(default_factory=list)

    def write(self, setting: str, **options: Any) -> dict[str, Any]:
        """Data and federation files of a setting; options of the same run in this process."""
        given = {"id": ID, "label": LABEL, "learner": "factorised", **options}
        return self.write_tables(shares(setting), given)

    def write_tables(self, tables: dict[str, pd.DataFrame], told: dict[str, Any]) -> dict[str, Any]:
        """The same with other tables and nothing but what is told."""
        for name, rows in tables.items():
            rows.to_csv(self.folder / f"{name}.csv", index=False)
        plain = {k: v for k, v in told.items() if k not in RULE}
        lines = [f"{key} = {json.dumps(value)}" for key, value in plain.items()]
        parties = sorted(tables)
        lines += ['output = "model.fc"', "[coordinator]", f"port = {self.port}", "[clients]"]
        lines += [f"{name} = {{}}" for name in parties]
        lines += ["[options]", *(f"{k} = {json.dumps(v)}" for k, v in told.items() if k in RULE)]
        self.file.write_text("\n".join(lines))
        clients = {name: self.folder / f"{name}.csv" for name in parties}
        return {"clients": clients, **told}

    @property
    def file(self) -> Path:
        return self.folder / "federation.toml"

    @property
    def kits(self) -> Path:
        return self.folder / "kits"

    def start(self, name: str) -> None:
        """A party types its command."""
        self.silos[name] = silo(self.kits / name, self.folder / f"{name}.csv", self.folder)

    def mend(self) -> None:
        """End what a failed test left running, start silos that have ended, restore the policy."""
        for one in self.coordinators:
            if one.poll() is None:
                for process in reversed(family(one.pid)):
                    process.kill()
                one.communicate()
        self.coordinators.clear()
        (self.folder / "policy.toml").write_text(POLICY)
        for name in NAMES:
            let_go(self.kits / name)
            one = self.silos.get(name)
            if one is None or one.poll() is not None:
                self.start(name)
            else:
                for process in family(one.pid):
                    process.resume()

    def end(self) -> None:
        """End every process that was started here, whatever state it is in."""
        for one in (*self.coordinators, *self.silos.values()):
            if one.poll() is None:
                for process in reversed(family(one.pid)):
                    process.kill()
                one.wait()

    def hold(self, name: str, where: str) -> None:
        """Have a silo's client stop at a message of the next run."""
        said = self.kits / name / "said.txt"
        self.wait_until(lambda: "waiting for work" in said.read_text(), f"{name} does not start")
        hold(self.kits / name, where)

    def wait_until(self, holds: Callable[[], bool], words: str) -> None:
        """Wait for something that comes for certain, however busy the machine is."""
        deadline = time.monotonic() + 240
        while not holds():
            ended = [one for one in self.coordinators if one.poll() is not None]
            assert not ended, f"{words}: {ended[0].communicate(timeout=10)}"
            assert time.monotonic() < deadline, words
            time.sleep(0.05)

    def progress(self) -> list[dict[str, Any]]:
        """What the coordinator has written down so far."""
        path = self.kits / "coordinator" / "progress.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [json.loads(line) for line in lines]

    def n_answers(self) -> int:
        """How many replies are on the coordinator's disk."""
        folder = self.kits / "coordinator" / "answers"
        return len([p for p in folder.iterdir() if not p.name.startswith(".")])

    def families(self) -> list[psutil.Process]:
        """All processes of the silos."""
        return [p for one in self.silos.values() if one.poll() is None for p in family(one.pid)]


def family(pid: int) -> list[psutil.Process]:
    process = psutil.Process(pid)
    return [process, *process.children(recursive=True)]


def fedcircuits(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "fedcircuits", *map(str, arguments)]


def silo(kit: Path, data: Path, folder: Path) -> subprocess.Popen[bytes]:
    command = fedcircuits("silo", kit, "--data", data, "--policy", folder / "policy.toml")
    paths = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    with (kit / "said.txt").open("wb") as said:
        return subprocess.Popen(
            command, stdout=said, stderr=subprocess.STDOUT, env={**os.environ, "PYTHONPATH": paths}
        )


def coordinate(place: Place) -> subprocess.Popen[str]:
    (place.kits / "coordinator" / "progress.jsonl").unlink(missing_ok=True)
    command = fedcircuits("coordinate", place.file, "--wait", 240, "--json")
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    place.coordinators.append(running)
    return running


def told(running: subprocess.Popen[str]) -> dict[str, Any]:
    """The result of a command."""
    out, errors = running.communicate(timeout=500)
    assert out, errors
    answer: dict[str, Any] = json.loads(out)
    assert "error" not in answer, answer["error"]
    return answer


def federated_here(place: Place, options: dict[str, Any]) -> Any:
    """The model of the same run in this process: a policy says which values leave, here too."""
    return fc.federate(policies=Policy.from_toml(place.folder / "policy.toml"), **options)


def same_bits(place: Place, options: dict[str, Any]) -> bool:
    """Whether the model that was fetched is, byte for byte, that of this process."""
    here = model_bytes(federated_here(place, options), place.folder / "here.fc")
    return here == (place.folder / "model.fc").read_bytes()

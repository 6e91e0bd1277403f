"""An ensemble in a file answers as the one that was saved."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import fedcircuits as fc
from contracts.engine import table
from contracts.federations import ID, LABEL, split
from fedcircuits import encoding
from fedcircuits.errors import FederationError, StorageError
from fedcircuits.federation.model.ensemble import FederatedEnsemble

TEST = table(seed=3, n=60).drop(columns=ID)
LEARNERS = {"a": "forest", "b": "tree", "c": "factorised"}


def ensemble(**options: Any) -> Any:
    clients = split("horizontal", table(n=240))
    options = {"operation": "average", "learner": LEARNERS, **options}
    return fc.federate(clients, id=ID, label=LABEL, **options)


@pytest.mark.parametrize("operation", ["average", "vote"])
def test_what_is_saved_comes_back(operation: str, tmp_path: Path) -> None:
    fed = ensemble(operation=operation, weighting="equal", rebase=False)
    fed.save(tmp_path / "e.fc")
    again = fc.load(tmp_path / "e.fc")
    assert isinstance(again, FederatedEnsemble)
    assert again.predict_proba(TEST).equals(fed.predict_proba(TEST))
    for name in ("clients", "label", "setting", "id", "weighting", "rebase", "dropped", "psi"):
        assert getattr(again, name) == getattr(fed, name), name
    assert again.operation.name == operation
    assert again.ledger.table().equals(fed.ledger.table())
    assert again.n_parameters == fed.n_parameters
    rest = again.without("b")
    assert rest.predict_proba(TEST).equals(fed.without("b").predict_proba(TEST))


def test_models_that_stay_at_their_clients_are_in_no_file(tmp_path: Path) -> None:
    with ensemble(placement="remote") as fed, pytest.raises(FederationError, match="'a' stays"):
        fed.save(tmp_path / "e.fc")
    assert not (tmp_path / "e.fc").exists()


@pytest.mark.parametrize(
    "spoil",
    [
        {"operation": "sum"},
        {"setting": "diagonal"},
        {"label": "nobody"},
        {"models": [{"client": "a"}]},
        {"models": []},
        {"ledger": 3},
    ],
)
def test_a_file_that_makes_no_sense_is_refused(spoil: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "e.fc"
    ensemble().save(path)
    record = encoding.unpack(path.read_bytes())
    path.write_bytes(encoding.pack(replace(record, header={**record.header, **spoil})))
    with pytest.raises(StorageError):
        fc.load(path)


def test_a_density_does_not_pass_for_an_ensemble(tmp_path: Path) -> None:
    fed = fc.federate(split("horizontal"), id=ID, label=LABEL, learner="factorised")
    fed.save(tmp_path / "d.fc")
    again = fc.load(tmp_path / "d.fc")
    np.testing.assert_array_equal(again.log_prob(TEST), fed.log_prob(TEST))


@pytest.mark.slow
def test_the_command_line_shows_and_asks_an_ensemble(tmp_path: Path) -> None:
    def run(*arguments: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "fedcircuits", *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)

    path = tmp_path / "e.fc"
    fed = ensemble()
    fed.save(path)
    TEST.drop(columns=LABEL).to_csv(tmp_path / "rows.csv", index=False)
    shown = run("inspect", path)
    assert shown.returncode == 0, shown.stderr
    assert "average" in shown.stdout
    files = ("--rows", tmp_path / "rows.csv", "--output", tmp_path / "p.csv")
    asked = run("query", path, "--predict", LABEL, *files)
    assert asked.returncode == 0, asked.stderr
    proba = pd.read_csv(tmp_path / "p.csv")[["no", "yes"]]
    np.testing.assert_allclose(proba, fed.predict_proba(TEST), rtol=0, atol=1e-6)
    refused = run("query", path, "--sample", 3)
    assert refused.returncode != 0
    assert "answers --predict alone" in refused.stderr + refused.stdout

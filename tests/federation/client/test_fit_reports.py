"""What learners say about their fits reaches the federation, by client."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import fedcircuits as fc
from contracts.engine import table
from contracts.federations import ID, LABEL, split
from fedcircuits.federation.model.federated_circuit import FederatedCircuit
from fedcircuits.learners.hclt.learner import Mixture

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("setting", "rule"),
    [("horizontal", "product"), ("vertical", "latent"), ("horizontal", "joint")],
)
def test_every_client_s_fits_are_reported_and_kept_in_the_file(
    setting: str, rule: str, tmp_path: Path
) -> None:
    fed = fc.federate(
        split(setting, table(n=200)),
        id=ID,
        label=LABEL,
        agreement=rule,
        learner=Mixture(n_states=3),
    )
    assert isinstance(fed, FederatedCircuit)
    reports = fed.fit_reports
    assert set(reports) == set(fed.clients)
    every = [report for jobs in reports.values() for made in jobs.values() for report in made]
    assert every
    assert {report.learner for report in every} == {"mixture"}
    assert all(len(report.curve) > 0 for report in every)
    fed.save(tmp_path / "f.fc")
    again = fc.load(tmp_path / "f.fc").fit_reports
    for client, jobs in reports.items():
        for job, made in jobs.items():
            assert [r.curve for r in again[client][job]] == [r.curve for r in made]
            assert [r.sizes for r in again[client][job]] == [r.sizes for r in made]


def test_reports_of_a_leaver_leave_with_it() -> None:
    fed = fc.federate(split("horizontal"), id=ID, label=LABEL, learner="factorised")
    assert set(fed.without("b").fit_reports) == {"a", "c"}


def test_time_does_not_change_the_bytes() -> None:
    """A report is the same in every run; how long it took is told in a field of fixed width."""
    runs = [
        fc.federate(split("horizontal"), id=ID, label=LABEL, learner="factorised") for _ in range(2)
    ]
    assert runs[0].ledger.totals() == runs[1].ledger.totals()
    assert all(
        np.isnan(report.seconds)
        for jobs in runs[0].fit_reports.values()
        for made in jobs.values()
        for report in made
    )

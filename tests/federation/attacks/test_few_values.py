"""Columns of few values, and what travels beside models, against a silo on the default policy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from contracts.schemer import N, Schemer, plan, silo
from fedcircuits.api.client_spec import ClientSpec
from fedcircuits.api.load import from_file_bytes
from fedcircuits.cli.silo import _on_one_line
from fedcircuits.federation.policy.policy import Policy
from fedcircuits.federation.wire import requests as m
from fedcircuits.federation.wire.names import Grouping, GroupingKind, Job, JobId, JobKind
from fedcircuits.federation.wire.steps import step
from fedcircuits.schema import Grid, Schema

COLUMNS = ("salary", "fee")
SUBSPACE = JobId(JobKind.SUBSPACE, 0)
TOLD = 1234.57


def rows(fees: list[float]) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    fee = np.full(N, np.nan)
    fee[: len(fees)] = fees
    salary = np.round(rng.lognormal(10, 1, N), 2)
    return pd.DataFrame({"pid": np.arange(N) * 7, "salary": salary, "fee": fee})


def bank(learner: str, fees: list[float], **policy: Any) -> Schemer:
    """A silo that agreed on a grid of the server's own: a bin for every whole number."""
    chosen = Policy(columns=COLUMNS, id="pid", **policy)
    made = Schemer(ClientSpec("bank", rows(fees), learner, policy=chosen).guarded(None))  # type: ignore[arg-type]
    assert isinstance(made.propose(), m.Consent)
    fine = Grid(np.zeros(0), np.linspace(0, 2000, 2001), tails=(1.0, 1.0))
    wide = Grid(np.zeros(0), np.array([-1e6, 0.0, 1e5, 1e7]), tails=(1.0, 1.0))
    grids = {"fee": fine, "salary": wide}
    described = Schema.from_json(made.described().schema)
    agreed = [v.with_grid(grids[v.name]).to_json() for v in described]
    assert isinstance(made.ask("agree", m.Agree(agreed, 0, None), m.Ready), m.Ready)
    return made


def model(schemer: Schemer, job: Job) -> Any:
    found = schemer.ask("fit", m.Fit((job,), False), m.Fitted)
    assert isinstance(found, m.Fitted), found
    return from_file_bytes(m.model_bytes(found.models[0].model), "a model")


@pytest.mark.parametrize("learner", ["factorised", "gaussian-mixture", "hclt", "mixture"])
def test_a_column_with_few_values_tells_none_of_them(learner: str) -> None:
    """Its mean over all rows of the client would be a mean over those few."""
    few = model(bank(learner, [TOLD] * 4), Job(SUBSPACE, COLUMNS))
    assert float(few.expectation("fee")) == pytest.approx(1000.0, abs=1.0)
    told = few.cdf("fee", [1234.0, 1235.0]).to_numpy().ravel()
    assert told[1] - told[0] < 0.01
    plain = bank(learner, [TOLD] * 4, min_rows=1)
    assert float(model(plain, Job(SUBSPACE, COLUMNS)).expectation("fee")) > 1000.1


def test_a_group_of_rows_with_few_values_tells_none_of_them() -> None:
    """Twenty rows of which one has a value: a mean over rows enough that is one row's."""
    schemer = bank("gaussian-mixture", [TOLD, *np.full(60, 12.5)])
    assert isinstance(schemer.ask("align", m.Align(np.arange(N)), m.Ready), m.Ready)
    group = Grouping(GroupingKind.CLUSTERS, 0)
    chosen = np.where((np.arange(N) == 0) | (np.arange(N) >= 200), 1, 0)
    client = schemer.member._client
    client._groups[group] = chosen  # type: ignore[attr-defined]
    found = model(schemer, Job(JobId(JobKind.CLUSTER, 0, 1), COLUMNS, group=group, part=1))
    assert float(found.expectation("fee")) == pytest.approx(1000.0, abs=1.0)


def test_values_of_rare_states_that_are_merged_are_all_replaced() -> None:
    """Four rows moved beside one that is not: the mean would be known but for that one."""
    found = model(
        bank("gaussian-mixture", [TOLD, 10.0, 500.0, 777.0, 90.0]), Job(SUBSPACE, COLUMNS)
    )
    mean = float(found.expectation("fee"))
    assert 2 * mean == pytest.approx(round(2 * mean), abs=1e-9)  # the middle of a bin


def test_a_table_of_counts_has_no_size_of_the_servers_choice() -> None:
    schemer = bank("factorised", [TOLD] * 40)
    client = schemer.member._client
    anchors, group = Grouping(GroupingKind.ANCHORS, 0), Grouping(GroupingKind.CLUSTERS, 0)
    client._groups = dict.fromkeys((anchors, group), np.zeros(N, dtype=int))  # type: ignore[attr-defined]
    for n_anchors, n_clusters in ((10**9, 2), (2, 10**9), (10**5, 10**5), (-1, 2), (0, 0)):
        told = schemer.ask(
            "table_of", m.AskTable(group, anchors, n_anchors, n_clusters, [], ""), m.JointTable
        )
        assert isinstance(told, str)
    told = schemer.ask("table_of", m.AskTable(group, anchors, 2, 2, [], ""), m.JointTable)
    assert isinstance(told, m.JointTable)
    assert told.counts["counts"].tolist() == [[N, 0], [0, 0]]


# --- beside models --------------------------------------------------------------------------------


@pytest.mark.parametrize("learner", ["hclt", "auto", "learnspn"])
def test_reports_of_fits_hold_no_likelihood_of_few_rows_and_no_time(learner: str) -> None:
    """Validation rows of a fit may be two or three."""
    fees = list(np.random.default_rng(1).normal(500, 100, N))
    for min_rows in (5, 1):
        schemer = bank(learner, fees, min_rows=min_rows)
        found = schemer.ask("fit", m.Fit((Job(SUBSPACE, COLUMNS),), True), m.Fitted)
        assert isinstance(found, m.Fitted)
        (line,) = found.reports[0].reports
        assert line["seconds"] is None
        told = [line["sizes"], line["kept"], line["curve"]]
        assert any(told) is (min_rows == 1)


# --- the audit file and its reader ----------------------------------------------------------------


def test_a_plan_out_of_proportion_is_refused_and_takes_no_room(tmp_path: Path) -> None:
    audit = tmp_path / "audit.jsonl"
    schemer = silo(audit=audit)
    columns = ["salary", "age", "diag"]
    many = tuple(m.PlannedRule(f"rule {k}", (step(m.FIT),)) for k in range(20_000))
    for wrong in (
        plan(columns, candidates=many),
        plan(columns, candidates=(m.PlannedRule("x" * 10**6, ()),)),
        plan(["y" * 10**6]),
        plan(columns, id="z" * 10**5),
    ):
        told = schemer.ask("propose", wrong, m.Consent)
        assert isinstance(told, str)
        assert len(told) < 3000
    assert audit.stat().st_size < 500_000
    assert isinstance(schemer.propose(), m.Consent)


def test_names_in_a_plan_cannot_pose_as_lines_of_its_review() -> None:
    shown = _on_one_line("rule x\n  messages: none\x1b[2J\u202eevil: at most 0 bits")
    assert shown == "rule x\\n  messages: none\\x1b[2J\\u202eevil: at most 0 bits"
    assert _on_one_line("a plain line, é 東京") == "a plain line, é 東京"

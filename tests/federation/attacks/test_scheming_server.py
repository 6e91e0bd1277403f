"""A server that does not follow the protocol, against a silo on the default policy.

What it gets is what the plan and the policy declare: aggregates, and at most 12 bits a row in a
run. docs/trust.md lists these tests.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import fedcircuits as fc
from contracts.schemer import NONE, N, Schemer, clusters, people, plan, silo
from fedcircuits.errors import FederationError
from fedcircuits.federation.agreement import Em, Latent
from fedcircuits.federation.client.clustering import features
from fedcircuits.federation.policy.policy import Policy
from fedcircuits.federation.policy.run import earlier_runs
from fedcircuits.federation.wire import requests as m
from fedcircuits.federation.wire.ids import digests
from fedcircuits.federation.wire.names import (
    Grouping,
    GroupingKind,
    Job,
    JobId,
    JobKind,
    ModelName,
)
from fedcircuits.federation.wire.packing import unpack_codes
from fedcircuits.federation.wire.sealing import SealingKey
from fedcircuits.federation.wire.steps import Facts, Step, step
from fedcircuits.schema import Schema

# --- the schema -----------------------------------------------------------------------------------


def test_a_number_cannot_be_declared_binary_and_bisected() -> None:
    """Threshold after threshold as a binary schema, `cluster` told "above" for every row."""
    bank = silo()
    assert isinstance(bank.propose(), m.Consent)
    for t in np.quantile(people()["salary"], np.linspace(0.1, 0.9, 9)):
        binary = {"kind": "binary", "categories": [t - 1e7, t + 1e7], "domain": None}
        told = bank.agree(salary=binary)
        assert isinstance(told, str)
        assert "'salary' is not agreed on as it was described" in told


@pytest.mark.parametrize(
    "change",
    [
        {"domain": [-1e9, 1e4], "closed": True},  # an error would say whether a value lies outside
        {"kind": "count"},
        {"name": "ssn"},
    ],
)
def test_an_agreed_schema_follows_from_the_description(change: dict[str, Any]) -> None:
    bank = silo()
    bank.propose()
    assert isinstance(bank.agree(salary=change), str)
    assert isinstance(bank.agree(diag={"categories": ["ill"]}), str)
    subset = [v for v in bank.described().schema if v["name"] != "age"]
    assert isinstance(bank.ask("agree", m.Agree(subset, 0, None), m.Ready), str)
    assert isinstance(bank.ask("agree", m.Agree(bank.described().schema, 1, None), m.Ready), str)
    assert isinstance(bank.agree(), m.Ready)  # the right one still works


def test_codes_are_about_no_single_column_and_a_second_schema_is_refused() -> None:
    bank = silo()
    bank.propose()
    assert isinstance(bank.agree(), m.Ready)
    assert isinstance(bank.ask("align", m.Align(np.arange(N)), m.Ready), m.Ready)
    for column in ("salary", "age", "diag"):
        assert isinstance(clusters(bank, [column], 2), str)
    assert isinstance(bank.agree(diag={"categories": ["ill", "unknown", "well"]}), str)
    told = clusters(bank, ["salary", "age", "diag"], 16)
    assert isinstance(told, m.Clustered)
    for k in range(2, 40):  # the budget of 12 bits holds however often it is asked
        clusters(bank, ["salary", "age", "diag"], k)
    assert bank.member._run is not None
    assert 0 < bank.member._run.spent.bits <= 12


# --- the label ------------------------------------------------------------------------------------


def test_the_label_cannot_be_passed_off_as_another_column() -> None:
    named = Policy(label_column="diag", columns=("salary", "age", "diag"))
    for label in (None, "age"):
        told = silo(named).propose(label=label)
        assert isinstance(told, str)
        assert "the label here is 'diag'" in told
    never = Policy(label="no", label_column="diag", columns=("salary", "age", "diag"))
    assert isinstance(silo(never).propose(label="diag"), str)


def test_a_label_that_is_used_is_told_of_no_row() -> None:
    bank = silo(Policy(columns=("salary", "age", "diag")), label="diag")
    bank.label = "diag"
    strata = m.PlannedRule("strata", (step(m.SEND_LABEL),))
    within = m.PlannedRule("within", (step(m.CLUSTER, within_label=True),))
    private = Latent(label_private=True).steps(Facts("vertical", "some"))
    told = bank.propose(label="diag", candidates=(strata, within, m.PlannedRule("p", private)))
    assert isinstance(told, m.Consent)
    assert set(told.struck) == {"strata", "within"}
    assert isinstance(bank.agree(), m.Ready)
    bank.ask("align", m.Align(np.arange(N)), m.Ready)
    ask = m.AskLabel(NONE, SealingKey().public, "label/0")  # the server's own key
    assert isinstance(bank.ask("send_label", ask, m.Sealed), str)
    assert isinstance(clusters(bank, ["diag"], 2), str)
    assert isinstance(clusters(bank, ["salary", "age"], 2, within_label=True), str)
    codes = clusters(bank, ["salary", "age", "diag"], 2)  # the label is left out of the clusters
    assert isinstance(codes, m.Clustered)
    assert codes.rows.size == 2
    found = unpack_codes(codes.indices, N, 2)
    ill = (people()["diag"] == "ill").to_numpy()
    right = max((found == ill).mean(), (found != ill).mean())
    assert right <= max(ill.mean(), 1 - ill.mean()) + 0.03


def test_likelihoods_of_rows_are_struck_whatever_the_server_claims() -> None:
    bank = silo(Policy(columns=("salary", "age", "diag")), label="diag")
    for private, words in ((True, "row evidence"), (False, "the label of single rows")):
        em = Em(label_private=private).steps(Facts("vertical", "some"))
        told = bank.propose(label="diag", candidates=(m.PlannedRule("em", em),))
        assert isinstance(told, str)
        assert words in told
    bank.propose(label="diag")
    bank.label = "diag"
    bank.agree()
    job = Job(JobId(JobKind.SUBSPACE, 0), ("age", "diag"))
    bank.ask("fit", m.Fit((job,), True), m.Fitted)
    bank.ask("name_rows", m.NameRows("v", NONE), m.Ready)
    for what in ("log_prob", "label"):
        for with_label, words in ((False, "row evidence"), (True, "the label of single rows")):
            told = bank.ask("ask", m.Ask(ModelName(job.id), what, "v", N, with_label), m.Answer)
            assert isinstance(told, str)
            assert words in told


def test_evidence_is_sealed_for_clients_of_the_run_alone() -> None:
    """A server that names its own key gets no ciphertext that it could open."""
    bank = silo(Policy(columns=("salary", "age", "diag"), label="sent"), label="diag")
    bank.label = "diag"
    bank.propose(label="diag", optional=(m.PlannedRule("label", (step(m.SEND_LABEL),)),))
    bank.agree()
    bank.ask("align", m.Align(np.arange(N)), m.Ready)
    everybody = np.full(-(-N // 8), 255, dtype=np.uint8)
    told = bank.ask("send_label", m.AskLabel(everybody, SealingKey().public, "label/0"), m.Sealed)
    assert isinstance(told, str)


# --- the id ---------------------------------------------------------------------------------------


def test_the_coordinator_cannot_name_a_hidden_column_as_the_id() -> None:
    hidden = Policy(columns=("age",))
    bank = silo(hidden, id="ssn")
    assert [v["name"] for v in bank.described().schema] == ["age"]
    bank.propose(id="ssn")
    bank.agree()
    assert isinstance(bank.ask("digests", m.AskDigests("salt", "bank", ""), m.Digests), str)
    other = silo(Policy(columns=("age",), id="pid"), id="ssn")
    assert isinstance(other.propose(id="ssn"), str)


def test_digests_of_a_small_space_are_not_inverted_without_the_clients_secret() -> None:
    """Even where every column is offered and the server names the id, and knows the salt."""
    rows = people()
    bank = silo(Policy(), rows=rows[["pid", "age"]], id="pid")
    bank.propose(id="pid")
    bank.agree()
    told = bank.ask("digests", m.AskDigests("salt", "bank", ""), m.Digests)
    assert isinstance(told, m.Digests)
    every = pd.Series(rows["pid"].to_numpy())  # the server's guesses: all right
    known = {each.tobytes() for each in digests(every, "salt")}
    assert not any(each.tobytes() in known for each in told.digests)


# --- many slightly different requests -------------------------------------------------------------


def test_sketches_do_not_subtract_to_single_values() -> None:
    bank = silo()
    told = [bank.described(min_rows).to_bytes() for min_rows in range(1, 40)]
    assert len(set(told)) == 1


def test_a_spelling_of_missing_values_is_the_policys() -> None:
    value = float(people()["salary"][7])
    plain, counted = silo(), silo(missing_values=(value,))
    assert plain.described().n_missing == counted.described().n_missing


def test_one_row_is_no_group_of_twenty() -> None:
    bank = silo()
    bank.propose()
    bank.agree()
    for rows in ([7] * 20, [10**9], [-1] * 10, [7, 8, 9]):
        assert isinstance(bank.ask("align", m.Align(np.array(rows)), m.Ready), str)


def test_a_made_up_label_counts_no_cells() -> None:
    bank = silo()
    bank.propose()
    t = float(people()["salary"].median())
    binary = {"kind": "binary", "categories": [t - 1e7, t + 1e7]}
    schema = [{**v, **(binary if v["name"] == "salary" else {})} for v in bank.described().schema]
    assert isinstance(bank.ask("agree", m.Agree(schema, 0, "salary"), m.Ready), str)


def test_a_plane_that_slides_over_the_rows_isolates_none() -> None:
    """`centres` with two centres whose border moves in small steps, 1,000 times."""
    bank = silo()
    bank.propose()
    bank.agree()
    columns = ["salary", "age", "diag"]
    offered = Policy(columns=tuple(columns), id="pid").apply(people()).drop(columns="pid")
    schema = Schema.from_json(bank.schema())
    X = features(schema.encode(offered, missing_as_state=True).columns(columns))
    width = X.shape[1]
    w = np.random.default_rng(0).normal(size=width)
    w /= np.linalg.norm(w)
    group, seen = Grouping(GroupingKind.ANCHORS, 0), []
    for tau in np.linspace(-1.5, 1.5, 1000):
        pair = np.stack([0.5 + (tau - 1) * w, 0.5 + (tau + 1) * w])
        centres = np.column_stack([[0, 0], pair])
        ask = m.AskCentres(group, columns, centres, False, [], "")
        told = bank.ask("centres", ask, m.CentreSums)
        if isinstance(told, m.CentreSums):
            seen.append(np.column_stack([told.sums["rows"], told.sums["sums"]]))
    assert len(seen) > 100
    flat = np.unique(np.round(np.concatenate(seen), 9), axis=0)
    apart = (flat[:, None] - flat[None]).reshape(-1, 1 + width)
    alone = apart[apart[:, 0] == 1, 1:]  # guesses: what two sums differ by, where by one row
    exact = [guess for guess in alone if (np.abs(X - guess).max(axis=1) < 1e-6).any()]
    assert not exact
    (cells,) = bank.member._client._cells._cells.values()  # type: ignore[attr-defined]
    assert np.unique(cells, return_counts=True)[1].min() >= 5


# --- what is noted, and what a run costs ----------------------------------------------------------


def test_refusals_are_noted_and_cost_nothing(tmp_path: Path) -> None:
    audit = tmp_path / "audit.jsonl"
    bank = silo(audit=audit)
    em, columns = Em().steps(Facts("vertical", "some")), ["salary", "age", "diag"]
    wrong: list[dict[str, Any]] = [
        {"candidates": (m.PlannedRule("em", em),)},
        {"columns": ["salary"]},
        {"id": "ssn"},
        {"common": (Step("rows", 1),)},
    ]
    for changes in wrong:
        told = bank.ask("propose", plan(**{"columns": columns, **changes}), m.Consent)
        assert isinstance(told, str)
    assert earlier_runs(audit, "bank") == {}
    lines = [json.loads(line) for line in audit.read_text().splitlines()]
    assert [line["allowed"] for line in lines if line["verb"] == "propose"] == [False] * 4
    assert isinstance(bank.propose(), m.Consent)


def test_runs_are_counted_over_restarts_and_a_repeat_is_none(tmp_path: Path) -> None:
    audit = tmp_path / "audit.jsonl"
    policy = Policy(columns=("salary", "age", "diag"), id="pid", runs=2)

    def begin(seed: int) -> Schemer:
        bank = silo(policy, audit)
        bank.told = bank.propose(seed=seed)  # type: ignore[attr-defined]
        return bank

    for seed in (0, 0, 1, 0, 1):  # two plans, each again after a restart
        assert isinstance(begin(seed).told, m.Consent)  # type: ignore[attr-defined]
    assert "2 runs were answered, and 2 are allowed" in begin(2).told  # type: ignore[attr-defined]


def test_a_repeat_gets_the_same_reply_and_costs_nothing(tmp_path: Path) -> None:
    audit = tmp_path / "audit.jsonl"

    def run() -> tuple[bytes, float]:
        bank = silo(audit=audit)
        bank.propose()
        bank.agree()
        bank.ask("align", m.Align(np.arange(N)), m.Ready)
        told = [clusters(bank, ["salary", "age", "diag"], 16) for _ in range(3)]
        assert all(isinstance(each, m.Clustered) for each in told)
        assert len({each.to_bytes() for each in told}) == 1  # type: ignore[union-attr]
        assert bank.member._run is not None
        return told[0].to_bytes(), bank.member._run.spent.bits  # type: ignore[union-attr]

    first, again = run(), run()  # the second after a restart
    assert first == again
    assert first[1] == pytest.approx(4.0)
    assert sum(spent.bits for spent in earlier_runs(audit, "bank").values()) == pytest.approx(4.0)


def test_epsilon_is_added_over_runs(tmp_path: Path) -> None:
    audit = tmp_path / "audit.jsonl"
    policy = Policy(columns=("salary", "age", "diag"), id="pid", epsilon=2.5)
    answers = []
    for seed in range(3):
        bank = silo(policy, audit)
        bank.propose(seed=seed)
        bank.ask("agree", m.Agree(bank.schema(), seed, None), m.Ready)
        bank.ask("align", m.Align(np.arange(N)), m.Ready)
        answers.append(clusters(bank, ["salary", "age", "diag"], 4, epsilon=1.0))
    assert [isinstance(each, m.Clustered) for each in answers] == [True, True, False]
    assert "epsilon 1 after 2 over all runs" in str(answers[2])


def test_a_rule_with_row_evidence_needs_one_owner() -> None:
    rows = people().drop(columns="ssn")
    halves = {"a": rows[["pid", "salary", "diag"]], "b": rows[["pid", "age"]]}
    for rule in ("em", "joint"):
        with pytest.raises(FederationError, match="trust='one owner'"):
            fc.federate(halves, id="pid", label="diag", agreement=rule, learner="mixture")


def test_epsilon_that_was_spent_is_not_given_back(tmp_path: Path) -> None:
    bank = silo(Policy(columns=("salary", "age", "diag"), id="pid", epsilon=1.5), tmp_path / "log")
    bank.propose()
    bank.agree()
    bank.ask("align", m.Align(np.arange(N)), m.Ready)
    told = [clusters(bank, ["salary", "age", "diag"], 4, epsilon=e) for e in (1.0, -5.0, 1.2)]
    assert [isinstance(each, m.Clustered) for each in told] == [True, False, False]
    assert "epsilon = -5, expected a number from 0 on" in str(told[1])
    assert "epsilon 1.2 after 1 over all runs" in str(told[2])


ODD_STEPS = [
    Step("cluster", 1, {"no such field": 3}),
    Step("cluster", 1, {"columns": 3}),
    Step("cluster", 1, {"n_clusters": "many", "epsilon": []}),
    Step("cluster", 1, {"n_clusters": {}}),
    Step("cluster", -1000, {"n_clusters": 4}),
    Step("fit", -1),
]


@pytest.mark.parametrize("at", range(len(ODD_STEPS)))
def test_an_odd_plan_admits_nothing_and_the_next_one_works(at: int) -> None:
    bank = silo()
    columns = ["salary", "age", "diag"]
    odd = m.PlannedRule("odd", (ODD_STEPS[at],))
    told = bank.ask("propose", plan(columns, candidates=(odd,)), m.Consent)
    if isinstance(told, m.Consent):
        bank.agree()
        bank.ask("align", m.Align(np.arange(N)), m.Ready)
        assert "refuses 'cluster'" in str(clusters(bank, columns, 4))
    for tries in (0, -3):
        assert "negative number" in str(bank.propose(tries=tries))
    assert isinstance(bank.propose(), m.Consent)

"""Clients that leave and come back, and a server that asks each set of them the same.

Another set of clients is another plan: it counts as a run at every silo that takes part, and sums
over one set are not followed by sums over another (`test_differencing.py`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedcircuits as fc
from contracts.engine import table
from contracts.federations import ID, LABEL, split
from fedcircuits.api.client_spec import ClientSpec
from fedcircuits.engines import LocalEngine
from fedcircuits.errors import FedcircuitsError, FederationError
from fedcircuits.federation.policy.policy import Policy
from fedcircuits.federation.policy.run import earlier_runs
from recorder import Recorder

PROBES = table(seed=9, n=12).drop(columns=ID)
KEYS = {name: name.encode().hex() * 32 for name in "abc"}  # of silos, which keep theirs


def federate(
    folder: Path, over: str, setting: str = "vertical", learner: str = "factorised",
    policy: Policy | None = None, rows: Any = None, **settings: Any,
) -> tuple[Any, Recorder]:  # fmt: skip
    frames = split(setting, rows)
    policy = policy or Policy(label="sent")
    members = {
        c: ClientSpec(
            c, frames[c], learner, id=ID, kinds={LABEL: "categorical"}, label=LABEL, policy=policy,
            key=KEYS[c],
        ).guarded(folder / f"{c}.jsonl") for c in over if c in frames
    }  # fmt: skip
    engine = Recorder(LocalEngine(members))
    aligned = None if setting == "horizontal" else ID
    given = {"learner": learner, "id": aligned, "label": LABEL, **settings}
    return fc.federate(engine=engine, **given), engine


def runs(folder: Path, client: str) -> int:
    return len(earlier_runs(folder / f"{client}.jsonl", client))


def test_every_set_of_clients_and_every_learner_is_a_run_of_its_own(tmp_path: Path) -> None:
    first, _ = federate(tmp_path, "abc")
    for over, learner, counted in (
        ("ab", "factorised", 2),  # c left
        ("abc", "factorised", 2),  # and came back: the first run once more
        ("abc", "hclt", 3),
        ("ac", "factorised", 4),
    ):
        fed, _ = federate(tmp_path, over, learner=learner)
        assert fed.clients == tuple(over)
        assert runs(tmp_path, "a") == counted
    again, _ = federate(tmp_path, "abc")
    assert (again.log_prob(PROBES) == first.log_prob(PROBES)).all()
    assert runs(tmp_path, "b") == 3  # it was not asked in the last one


@pytest.mark.slow
@pytest.mark.parametrize("label", ["used", "sent"])
@pytest.mark.parametrize("setting", ["horizontal", "vertical", "hybrid"])
def test_a_run_that_is_begun_again_sends_the_same_and_costs_nothing(
    setting: str, label: Any, tmp_path: Path
) -> None:
    """Sealed values are the same bytes again; else `take_label` would pass for another request."""
    sent, answers, costs = [], [], []
    for _ in range(2):
        fed, engine = federate(
            tmp_path, "abc", setting, "hclt", Policy(label=label), rows=table(n=320)
        )
        sent.append([(e.verb, e.client, e.data) for e in engine.messages if e.to_client])
        answers.append(fed.log_prob(PROBES))
        costs.append({c: earlier_runs(tmp_path / f"{c}.jsonl", c) for c in fed.clients})
    assert sent[0] == sent[1]
    assert (answers[0] == answers[1]).all()
    assert costs[0] == costs[1]


def test_sets_of_clients_are_tried_as_often_as_runs_are_allowed(tmp_path: Path) -> None:
    policy = Policy(label="sent", runs=2)
    for over in ("abc", "ab"):
        federate(tmp_path, over, policy=policy)
    with pytest.raises(FederationError, match="2 runs were answered, and 2 are allowed"):
        federate(tmp_path, "ac", policy=policy)
    federate(tmp_path, "abc", policy=policy)


@pytest.mark.parametrize("setting", ["horizontal", "vertical"])
def test_leaving_asks_nobody_and_a_reader_of_both_models_has_what_the_first_held(
    setting: str, tmp_path: Path
) -> None:
    """`without` differencing: the difference is the parts of the client, which the model shows."""
    fed, engine = federate(tmp_path, "abc", setting, agreement="product", learner="hclt")
    sent, lines = len(engine.messages), (tmp_path / "b.jsonl").read_bytes()
    left = fed.without("b")
    left.log_prob(PROBES)
    assert len(engine.messages) == sent
    assert (tmp_path / "b.jsonl").read_bytes() == lines
    fed.save(tmp_path / "all.fc")
    left.save(tmp_path / "rest.fc")
    derived = fc.load(tmp_path / "all.fc").without("b")  # by anybody who has the first file
    rest = fc.load(tmp_path / "rest.fc")
    assert (derived.log_prob(PROBES) == rest.log_prob(PROBES)).all()
    mine, theirs = derived.to_record().arrays, rest.to_record().arrays
    assert all(np.array_equal(mine[name], theirs[name], equal_nan=True) for name in theirs)


def test_a_model_of_masked_sums_has_no_part_that_could_leave(tmp_path: Path) -> None:
    fed, _ = federate(tmp_path, "abc", "horizontal", agreement="joint", learner="hclt")
    with pytest.raises(FedcircuitsError):
        fed.without("b")


def test_questions_that_are_asked_again_and_in_other_company_say_the_same(tmp_path: Path) -> None:
    """Models that stay: answers are of the model and the row alone; there is nothing to average."""
    fed, engine = federate(tmp_path, "abc", placement="remote", agreement="product")
    first = fed.log_prob(PROBES)
    orders = [np.random.default_rng(at).permutation(len(PROBES)) for at in range(5)]
    for order in orders:
        for size in (1, 5, len(PROBES)):
            rows = PROBES.iloc[order[:size]]
            np.testing.assert_allclose(fed.log_prob(rows), first.iloc[order[:size]], rtol=1e-12)
    before = {c: earlier_runs(tmp_path / f"{c}.jsonl", c) for c in "abc"}
    assert all(each.bits <= 12 for runs in before.values() for each in runs.values())
    asked = {each.verb for each in engine.messages}
    assert "ask" not in asked  # likelihoods of rows that clients hold


def test_rows_that_clients_hold_are_looked_up_for_nobody_by_default(tmp_path: Path) -> None:
    """Questions by id over changing sets of clients would add a client's columns at a time."""
    rows = split("vertical")["a"][[ID, "height"]].iloc[:3]
    for over in ("abc", "ab", "ac"):
        fed, _ = federate(tmp_path, over, placement="remote", agreement="product")
        with pytest.raises(FedcircuitsError, match="rows looked up by id"):
            fed.log_prob(rows)

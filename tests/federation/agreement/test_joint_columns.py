"""`joint` over split columns: one latent tree, its branches at the clients."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

import fedcircuits as fc
from contracts.federations import ID, LABEL, Breaking, local, split
from contracts.plans import everything
from contracts.rule import RuleContract, both_split, columns_split, small_table
from fedcircuits.circuits import Circuit
from fedcircuits.engines import LocalEngine
from fedcircuits.errors import FederationError
from fedcircuits.federation.agreement import Joint
from fedcircuits.federation.agreement.joint_columns import worth_sending
from fedcircuits.federation.policy.guard import Guarded
from fedcircuits.federation.policy.policy import Policy
from fedcircuits.federation.server.server import Server
from fedcircuits.federation.server.settings import ServerSettings
from fedcircuits.federation.wire import requests as m
from fedcircuits.federation.wire.names import JobId, JobKind, ModelName
from fedcircuits.federation.wire.packing import pack_codes
from fedcircuits.learners.hclt.learner import Hclt
from leakage import Leak, recover_label
from recorder import Recorder

# The rules here send the server row evidence, or are compared with such as do.
federate = functools.partial(fc.federate, trust="one owner")

pytestmark = pytest.mark.slow


class OfTrees(RuleContract):
    """The contract with a learner that goes on from where it was."""

    @classmethod
    def federate(cls, **options: Any) -> Any:
        return super().federate(**{"learner": Hclt(), **options})


class TestColumnsSplit(OfTrees):
    rule, clients = Joint(3, n_classes=4, n_clusters=4, head=False), staticmethod(columns_split)


class TestBothSplit(OfTrees):
    rule, clients = Joint(3, n_classes=4, n_clusters=4, head=False), staticmethod(both_split)


class TestWithoutALabel(OfTrees):
    rule, label = Joint(2, n_classes=3, n_clusters=4), None

    @staticmethod
    def clients() -> dict[str, pd.DataFrame]:
        return {
            name: frame.drop(columns="y", errors="ignore")
            for name, frame in columns_split().items()
        }


def linked(n: int, seed: int) -> pd.DataFrame:
    """Four columns in two pairs; what is on the left goes with what is on the right."""
    rng = np.random.default_rng(seed)
    z, w = rng.integers(6, size=n), rng.integers(3, size=n)
    return pd.DataFrame(
        {
            "left": z.astype(str),
            "left size": rng.normal(w, 0.4),
            "right": np.where(rng.random(n) < 0.9, z, rng.integers(6, size=n)).astype(str),
            "right size": rng.normal(-w, 0.4),
            "id": np.arange(n),
        }
    )


def apart(table: pd.DataFrame) -> dict[str, pd.DataFrame]:
    return {"a": table[["id", "left", "left size"]], "b": table[["id", "right", "right size"]]}


def test_most_of_what_a_product_of_clients_loses_comes_back() -> None:
    table, test = linked(4000, 0), linked(2000, 1).drop(columns="id")
    whole = fc.learn(table.drop(columns="id"), seed=0)
    options: dict[str, Any] = {"id": "id", "schema": whole.schema}
    alone = federate(
        apart(table), agreement="independent", glueing="naive", n_clusters=1, **options
    )
    joint = federate(apart(table), agreement="joint", **options)
    low, high = alone.mean_log_prob(test), whole.mean_log_prob(test)
    assert high - low > 1.0
    assert joint.mean_log_prob(test) > low + 0.75 * (high - low)
    # One circuit that has every branch once, and no message with a model but the last.
    assert len(joint.parts) == 1
    assert isinstance(joint.parts[0], Circuit)


def test_rounds_end_when_rows_that_nobody_fits_on_gain_no_more() -> None:
    fed = federate(apart(linked(2000, 0)), id="id", agreement=Joint(60), learner=Hclt())
    by_verb = fed.ledger.table(["verb", "direction"])
    steps = by_verb[(by_verb["verb"] == "branch") & (by_verb["direction"] == "to client")]
    assert 2 * 3 <= steps["messages"].sum() < 2 * 40


def test_more_rounds_are_better_than_none() -> None:
    """Over four tables: EM ends in a local optimum, so gains of single tables vary by a tenth."""
    gains = []
    for seed in range(0, 8, 2):
        table, test = linked(3000, seed), linked(2000, seed + 1).drop(columns="id")
        found = []
        for n in (0, 8):
            rule = Joint(n, n_classes=18, n_clusters=4)  # clusters that say little, to start from
            fed = federate(apart(table), id="id", agreement=rule, learner=Hclt())
            found.append(fed.mean_log_prob(test))
        gains.append(found[1] - found[0])
    assert np.mean(gains) > 0.1
    assert min(gains) > -0.02  # an optimum may be no better than the start


def test_a_leaver_is_summed_out_and_its_branch_is_gone() -> None:
    fed = federate(columns_split(), id="id", label="y", agreement=Joint(2), learner=Hclt())
    rest = fed.without("b")
    rows = small_table(50, seed=2)
    assert set(rest.schema.names) == {"x0", "x1", "x2", "y"}
    np.testing.assert_allclose(
        rest.log_prob(rows[["x0", "x1", "x2", "y"]]),
        fed.log_prob(rows[["x0", "x1", "x2", "y"]]),
        atol=1e-9,
    )


def test_the_label_is_predicted_as_under_latent() -> None:
    """Its tables and trees are the same: the rules differ in the density alone."""
    rows = small_table(50, seed=2).drop(columns=["id", "y"])
    for options in ({}, {"head": False}):
        joint, latent = (
            federate(columns_split(), id="id", label="y", learner=Hclt(), agreement=rule, **options)
            for rule in ("joint", "latent")
        )
        np.testing.assert_allclose(
            joint.predict_proba(rows, "y"), latent.predict_proba(rows, "y"), atol=1e-9
        )


def test_learners_of_two_kinds_meet_in_one_tree() -> None:
    learners = {"a": "hclt", "b": "learnspn"}
    fed = federate(
        columns_split(), id="id", label="y", learner=learners,
        agreement=Joint(1, n_classes=4, n_clusters=4),
    )  # fmt: skip
    rows = small_table(200, seed=2).drop(columns="id")
    alone = federate(
        columns_split(), id="id", label="y", learner=learners,
        agreement="independent", glueing="naive", n_clusters=1,
    )  # fmt: skip
    assert fed.mean_log_prob(rows) > alone.mean_log_prob(rows)


def test_processes_make_the_same_model() -> None:
    rule = Joint(2, n_classes=4, n_clusters=4)
    test = small_table(60, seed=3).drop(columns="id")
    here, there = (
        federate(columns_split(), id="id", label="y", agreement=rule, engine=e, learner=Hclt())
        for e in ("local", "processes")
    )
    assert here.log_prob(test).tolist() == there.log_prob(test).tolist()
    assert here.ledger.totals() == there.ledger.totals()


def told_of(options: dict[str, Any], learner: str) -> tuple[Leak, Leak]:
    """How well a label that has nothing to do with the columns is told: server, other client."""
    rng = np.random.default_rng(0)
    table = linked(600, 0)
    table["y"] = np.where(rng.random(600) < 0.5, "yes", "no")
    clients = apart(table)
    clients["a"] = clients["a"].assign(**{LABEL: table["y"]})
    clients = {name: frame.rename(columns={"id": ID}) for name, frame in clients.items()}
    engine = Recorder(local(clients, learner))
    federate(engine=engine, id=ID, label=LABEL, agreement="joint", **options)
    truth = (table["y"] == "yes").to_numpy().astype(int)
    order = next(
        x for x in engine.messages if x.verb == "align" and x.client == "a" and x.to_client
    )
    truth = truth[m.Align.from_bytes(order.data).rows]
    up = [x.data for x in engine.messages if x.client == "a" and not x.to_client]
    down = [x.data for x in engine.messages if x.client == "b" and x.to_client]
    return recover_label(up, truth), recover_label(down, truth)


@pytest.mark.parametrize("learner", ["hclt", "factorised"])
def test_a_private_label_is_in_no_evidence_and_in_no_share(learner: str) -> None:
    options: dict[str, Any] = {"n_classes": 4, "n_clusters": 4, "n_rounds": 2}
    open_, shared = told_of({**options, "tilt": False}, learner)
    assert open_.accuracy > 0.95
    assert shared.accuracy > 0.9
    for leak in told_of({**options, "label_use": "used"}, learner):
        assert leak.accuracy < 0.62, leak


def test_classes_of_too_few_rows_are_given_up() -> None:
    rng = np.random.default_rng(0)
    share = rng.dirichlet(np.full(6, 0.3), size=50)
    share[:, 5] *= 0.01
    share[7] = 0.0
    told = worth_sending(share, 5)
    rows = told.sum(axis=0)
    assert ((rows == 0) | (rows >= 5)).all()
    assert rows[5] == 0
    np.testing.assert_allclose(np.delete(told, 7, axis=0).sum(axis=1), 1.0)
    assert (told[7] == 0).all()
    assert (worth_sending(share, 1000) > 0).any(axis=0).sum() == 1  # one is left in any case


@pytest.mark.parametrize("setting", ["vertical", "hybrid"])
@pytest.mark.parametrize("learner", ["hclt", "factorised"])
def test_a_policy_with_a_smallest_group_lets_it_through(setting: str, learner: str) -> None:
    policy = Policy(
        min_rows=5, label="sent", rare_categories="offered", row_evidence="server", bits=64.0
    )
    members = {
        name: Guarded(member, policy)
        for name, member in local(split(setting), learner)._clients.items()
    }
    fed = federate(engine=LocalEngine(members), id=ID, label=LABEL, agreement=Joint(2))
    assert fed.rule.name == "joint"


def test_a_class_of_one_row_is_refused() -> None:
    """A server that puts single rows into classes of their own would read them from the models."""
    frames = {"a": columns_split()["a"].rename(columns={"id": ID, "y": LABEL})}
    client = local(frames, "hclt")._clients["a"]
    guarded = Guarded(client, Policy(min_rows=5, label="sent", row_evidence="server"))
    server = Server.start(LocalEngine({"a": guarded}), ServerSettings(label=LABEL), everything)
    rows = np.arange(20, dtype=np.int32)
    server.call(m.ALIGN, {"a": m.Align(rows)})
    classes = np.r_[0, np.ones(19, dtype=np.int64)]
    branch = m.BranchJob(JobId(JobKind.BRANCH, 0), ("x0", "x1"))
    asked = m.Branch(
        0, (branch,), np.zeros(0, dtype=np.uint8), 2,
        pack_codes(np.ones(20, dtype=np.int64), 3), pack_codes(classes, 2),
        np.ones(20, dtype=np.float32), True, False, True,
    )  # fmt: skip
    with pytest.raises(FederationError, match="rows of a class"):
        server.call(m.BRANCH, {"a": asked})


def test_rows_that_some_but_not_all_clients_hold_are_learned_from() -> None:
    table = small_table(600)
    frames = {
        "a": table[["id", "x0", "x1", "y"]],
        "b": table[["id", "x2", "x3"]],
        "c": table[:60][["id", "x4"]],
    }
    fed = federate(
        frames, id="id", label="y", learner=Hclt(), agreement=Joint(1, n_classes=2, n_clusters=3)
    )
    assert fed.fitted is not None
    rows = {key.client: count for key, count in fed.fitted.rows.items()}
    assert rows["a"] == pytest.approx(600, abs=1)
    assert rows["b"] == pytest.approx(600, abs=1)
    assert rows["c"] == pytest.approx(60, abs=1)


@pytest.mark.parametrize("placement", ["gathered", "remote"])
def test_one_class_is_the_product_of_the_clients(placement: str) -> None:
    rule = Joint(1, n_classes=1, n_clusters=1, label_private=True)
    options: dict[str, Any] = {"id": "id", "label": "y", "learner": Hclt()}
    fed = federate(columns_split(), agreement=rule, placement=placement, **options)
    rows = small_table(50, seed=2)
    left, right = rows[["x0", "x1", "x2", "y"]], rows[["x3", "x4"]]
    np.testing.assert_allclose(
        fed.log_prob(rows.drop(columns="id")),
        fed.log_prob(left) + fed.log_prob(right),
        atol=1e-9,
    )


def test_a_client_left_alone_has_a_model_of_its_own() -> None:
    def spoil(verb: str, client: str, reply: bytes) -> bytes | Exception:
        return RuntimeError("boom") if (verb, client) == ("branch", "b") else reply

    frames = {
        name: frame.rename(columns={"id": ID, "y": LABEL})
        for name, frame in columns_split().items()
    }
    engine = Breaking(local(frames, "learnspn"), spoil)
    with pytest.raises(FederationError, match=r"client 'b'.*boom"):
        federate(engine=engine, id=ID, label=LABEL, agreement="joint")
    fed = federate(engine=engine, id=ID, label=LABEL, agreement="joint", allow_missing=True)
    assert fed.clients == ("a",)
    assert "boom" in fed.dropped["b"]


def test_spoilt_replies_name_the_client() -> None:
    frames = {
        name: frame.rename(columns={"id": ID, "y": LABEL})
        for name, frame in columns_split().items()
    }

    def faulty(change: Any) -> Any:
        def spoil(verb: str, client: str, reply: bytes) -> bytes | Exception:
            if verb != "branch" or client != "b":
                return reply
            return change(m.BranchDone.from_bytes(reply)).to_bytes()

        return Breaking(local(frames, "hclt"), spoil)

    def evidence(change: Any) -> Any:
        return lambda reply: replace(
            reply,
            evidence=tuple(
                replace(each, log_probs=change(each.log_probs)) for each in reply.evidence
            ),
        )

    def models(change: Any) -> Any:
        return lambda reply: replace(reply, models=tuple(map(change, reply.models)))

    changes = [
        evidence(lambda array: np.full_like(array, np.nan)),
        evidence(lambda array: np.full_like(array, np.inf)),
        evidence(lambda array: array[:-1]),
        lambda reply: replace(reply, class_rows=reply.class_rows[:-1]),
        lambda reply: replace(reply, class_rows=-reply.class_rows),
        models(lambda each: replace(each, name=replace(each.name, cls=99))),
        models(lambda each: replace(each, rows=-1.0)),
        models(lambda each: replace(each, name=ModelName(JobId(JobKind.BRANCH, 9)))),
        models(lambda each: replace(each, model=each.model[:-3])),
    ]
    for change in changes:
        with pytest.raises(FederationError, match="client 'b'"):
            federate(
                engine=faulty(change), id=ID, label=LABEL,
                agreement=Joint(1, n_classes=3, n_clusters=3),
            )  # fmt: skip

"""`joint` over split rows is centralised training: the same model, however rows are split."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import fedcircuits as fc
from contracts.federations import Breaking, local
from contracts.rule import LEARNER, RuleContract, rows_split, small_table
from fedcircuits.errors import FederationError
from fedcircuits.federation.agreement import Joint
from fedcircuits.federation.client.rounds import Session, add_up
from fedcircuits.federation.model.federated_circuit import FederatedCircuit
from fedcircuits.federation.wire.seeds import named_rng
from fedcircuits.learners.hclt.learner import Hclt, Mixture

pytestmark = pytest.mark.slow

SAME = 1e-6  # nats, of the mean test log-likelihood


def mixed_table(n: int = 900, seed: int = 0) -> pd.DataFrame:
    """Numbers, categories and gaps that hang together; a label of three classes."""
    rng = np.random.default_rng(seed)
    z = rng.integers(3, size=n)
    frame = pd.DataFrame(
        {
            "size": rng.normal(z, 0.7),
            "visits": rng.poisson(2.0 + 3 * z),
            "colour": np.array(["red", "green", "blue"])[(z + (rng.random(n) < 0.2)) % 3],
            "weight": np.where(rng.random(n) < 0.05, np.nan, rng.normal(-z, 1.0)),
        }
    )
    frame["kind"] = np.array(["a", "b", "c"])[np.where(rng.random(n) < 0.8, z, 0)]
    return frame


def unevenly(table: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Three clients: one large, one of a single class, one small."""
    one_class = table[table["kind"] == "b"].index[:150]
    rest = table.drop(index=one_class)
    parts = {"large": rest[:600], "one class": table.loc[one_class], "small": rest[600:]}
    return {name: part.reset_index(drop=True) for name, part in parts.items()}


def train(clients: dict[str, pd.DataFrame], label: str | None, learner: Any, **more: Any) -> Any:
    kinds = {"kind": "categorical"}
    return fc.federate(
        clients,
        label=label,
        agreement="joint",
        learner=learner,
        kinds=kinds,
        trust="one owner",  # of a single client there is nothing to mask with
        **more,
    )


@pytest.mark.parametrize("label", [None, "kind"])
@pytest.mark.parametrize("learner", [Hclt(n_states=4), Mixture(n_states=6), Mixture()])
def test_three_clients_make_the_model_of_one_that_holds_all_rows(label: Any, learner: Any) -> None:
    table, test = mixed_table(), mixed_table(500, seed=1)
    whole = train({"all": table}, label, learner)
    apart = train(unevenly(table), label, learner, schema=whole.fitted.schema)
    assert apart.setting == "horizontal"
    assert apart.mean_log_prob(test) == pytest.approx(whole.mean_log_prob(test), abs=SAME)
    np.testing.assert_allclose(apart.log_prob(test), whole.log_prob(test), rtol=0, atol=1e-5)


def test_it_is_the_plain_learner_under_the_same_schedule() -> None:
    table, test = mixed_table(), mixed_table(500, seed=1)
    fed = train(unevenly(table), "kind", Hclt(n_states=4))
    schema = fed.fitted.schema
    rows = schema.encode(table, missing_as_state=True)
    learner = Hclt(label="kind", n_states=4, agreed_schema=True)
    session = Session(learner.in_rounds(rows, named_rng(0, "rounds", "R")))
    terms = session.begin()
    while session.model is None:
        terms = session.go_on(terms)  # the sums are one's own
    alone = session.model
    assert fed.mean_log_prob(test) == pytest.approx(alone.mean_log_prob(test), abs=SAME)


def test_the_label_is_learned_from_clients_of_one_class_each() -> None:
    """Where a mixture of client models must compare densities across clients, this need not."""
    table, test = mixed_table(1500), mixed_table(800, seed=1)
    clients = {str(k): part.reset_index(drop=True) for k, part in table.groupby("kind")}
    fed = train(clients, "kind", Hclt(n_states=4))
    whole = train({"all": table}, "kind", Hclt(n_states=4), schema=fed.fitted.schema)
    rows = test.drop(columns="kind")
    assert (fed.predict(rows, "kind") == whole.predict(rows, "kind")).all()
    assert (fed.predict(rows, "kind") == test["kind"]).mean() > 0.7


def test_it_learns_what_the_learner_learns() -> None:
    """The other schedule (no batches, no rows as a start) costs nothing that one would notice."""
    table, test = mixed_table(2000), mixed_table(2000, seed=1)
    fed = train(unevenly(table), "kind", Hclt(n_states=4))
    plain = fc.learn(table, label="kind", learner=Hclt(n_states=4), kinds={"kind": "categorical"})
    rows = test.drop(columns="kind")

    def right(model: Any) -> float:
        return float((model.predict(rows, "kind") == test["kind"]).mean())

    assert right(fed) > right(plain) - 0.02


class TestJointRowsSplit(RuleContract):
    """The contract, with a learner that learns in rounds."""

    rule, clients, align = Joint(), staticmethod(rows_split), False

    @classmethod
    def federate(cls, **options: Any) -> FederatedCircuit:
        made: FederatedCircuit = super().federate(**{"learner": Mixture(n_states=3), **options})
        return made


def test_processes_make_the_same_model_bit_for_bit() -> None:
    test = small_table(50, seed=3)
    here, there = (
        fc.federate(
            rows_split(), label="y", learner=Mixture(n_states=3), agreement="joint", engine=engine
        )
        for engine in ("local", "processes")
    )
    assert here.log_prob(test).tolist() == there.log_prob(test).tolist()


def test_everyone_is_a_client_and_nobody_can_be_taken_out(tmp_path: Path) -> None:
    fed = fc.federate(rows_split(), label="y", learner=Mixture(n_states=3), agreement="joint")
    assert fed.clients == ("a", "b", "c")
    with pytest.raises(FederationError, match="made by all clients together"):
        fed.without("b")
    fed.save(tmp_path / "joint.fc")
    again: Any = fc.load(tmp_path / "joint.fc")
    assert again.clients == fed.clients
    test = small_table(50, seed=3)
    assert again.log_prob(test).tolist() == fed.log_prob(test).tolist()


def test_a_copy_at_any_client_answers() -> None:
    fed = fc.federate(
        rows_split(), label="y", learner=Mixture(n_states=3), agreement="joint", placement="remote"
    )
    test = small_table(20, seed=3)
    whole = fed.log_prob(test)
    rest = fed.without_parts({"a": "away", "b": "away"})
    np.testing.assert_allclose(rest.log_prob(test), whole, rtol=0, atol=1e-12)


def test_a_client_that_fails_on_the_way_is_left_out_and_the_rest_begin_again() -> None:
    def broken(verb: str, client: str, reply: bytes) -> bytes | Exception:
        seen = sum(1 for x in engine.messages if x.verb == "round" and x.client == "b")
        return RuntimeError("power cut") if (verb, client) == ("round", "b") and seen > 8 else reply

    frames = rows_split()
    engine = Breaking(local(frames, Mixture(n_states=3)), broken)
    fed = fc.federate(engine=engine, agreement="joint")
    assert set(fed.dropped) == {"b"}
    assert "power cut" in fed.dropped["b"]
    rest = {name: frames[name] for name in ("a", "c")}
    schema = fed.fitted.schema
    alone = fc.federate(rest, learner=Mixture(n_states=3), agreement="joint", schema=schema)
    test = small_table(50, seed=3)
    assert len(fed.log_prob(test)) == 50
    assert fed.clients == alone.clients == ("a", "c")


def test_learners_that_do_not_fit_are_named() -> None:
    with pytest.raises(FederationError, match="cannot learn in rounds"):
        fc.federate(rows_split(), learner=LEARNER, agreement="joint")
    other = {"a": Mixture(n_states=3), "b": Mixture(n_states=4), "c": Mixture(n_states=3)}
    with pytest.raises(FederationError, match=r"client 'b'.*same learner"):
        fc.federate(rows_split(), learner=other, agreement="joint")


def test_the_label_must_be_at_every_client() -> None:
    frames = rows_split()
    frames["b"] = frames["b"].drop(columns="y")
    with pytest.raises(FederationError, match="'b' lack"):
        fc.federate(frames, label="y", learner=Mixture(n_states=3), agreement="joint")


def test_sums_are_the_same_in_any_order() -> None:
    told = {"b": {"x": np.array([0.1])}, "a": {"x": np.array([0.2])}, "c": {"x": np.array([0.3])}}
    backwards = dict(reversed(told.items()))
    assert add_up(told)["x"].tolist() == add_up(backwards)["x"].tolist() == [0.2 + 0.1 + 0.3]

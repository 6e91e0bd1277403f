"""Clients leave, join, and models come back from files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import fedcircuits as fc
from contracts.engine import table
from contracts.federations import ID, LABEL, split
from fedcircuits import encoding
from fedcircuits.errors import ClientError, FederationError, StorageError
from fedcircuits.federation.model.federated_circuit import FederatedCircuit

ROWS = table(seed=9, n=30).drop(columns=ID)
VERTICAL = {"agreement": "latent", "n_clusters": 3}


def federate(clients: Any, **options: Any) -> Any:
    return fc.federate(clients, id=ID, label=LABEL, **{"learner": "factorised", **options})


def model_bytes(fed: FederatedCircuit) -> bytes:
    """The model alone: parts, structure, owners; not the ledger and not who dropped out."""
    record = fed.to_record()
    header = {**record.header, "owners": list(fed.owners), "federation": None}
    arrays = {name: a for name, a in record.arrays.items() if not name.startswith("table.")}
    return encoding.pack(encoding.Record(record.kind, header, arrays))


@pytest.mark.parametrize(
    ("agreement", "learner"), [("product", "factorised"), ("independent", "mixture")]
)
def test_without_equals_one_pass_training_of_the_others_bit_for_bit(
    agreement: str, learner: str
) -> None:
    clients = split("horizontal")
    fed = federate(clients, agreement=agreement, learner=learner)
    left = fed.without("b")
    others = {name: rows for name, rows in clients.items() if name != "b"}
    alone = federate(others, agreement=agreement, learner=learner, schema=fed.schema)
    assert model_bytes(left) == model_bytes(alone)
    assert left.clients == ("a", "c")
    assert "agreed categories and grids stays ('height'" in left.dropped["b"]


def test_without_everyone_but_one_is_that_client_alone() -> None:
    clients = split("horizontal")
    fed = federate(clients, agreement="product")
    alone = federate({"c": clients["c"]}, agreement="product", schema=fed.schema)
    assert model_bytes(fed.without("a").without("b")) == model_bytes(alone)


@pytest.mark.filterwarnings("ignore:ignored")
def test_without_in_a_vertical_federation_marginalises_exactly() -> None:
    fed = federate(split("vertical"), **VERTICAL)
    left = fed.without("b")
    assert left.clients == ("a", "c")
    assert "visits" not in left.schema
    names = [name for name in fed.schema.names if name != "visits"]
    np.testing.assert_allclose(left.log_prob(ROWS), fed.marginal(names).log_prob(ROWS), atol=1e-10)


def test_without_in_a_hybrid_federation_keeps_what_others_hold() -> None:
    fed = federate(split("hybrid"), agreement="product")
    left = fed.without("a")
    assert set(left.schema.names) == {"visits", "size", LABEL}
    assert left.predict_proba(ROWS[["size"]], LABEL).sum(axis=1).to_numpy() == pytest.approx(1.0)


def test_who_is_not_there_or_is_the_last_cannot_leave() -> None:
    fed = federate(split("hybrid"), agreement="product")
    with pytest.raises(FederationError, match=r"no client 'z'.*has a, b"):
        fed.without("z")
    with pytest.raises(FederationError, match="only client"):
        fed.without("a").without("b")


def test_rebuilding_the_grid_trains_the_others_again() -> None:
    clients = split("horizontal")
    clients["b"] = clients["b"].assign(size=lambda t: t["size"] * 100)
    fed = federate(clients, agreement="product", placement="remote")
    anew = fed.without("b", rebuild_grid=True)
    expected = federate({n: clients[n] for n in "ac"}, agreement="product")
    np.testing.assert_allclose(anew.log_prob(ROWS), expected.log_prob(ROWS), atol=1e-10)
    assert fed.without("b").schema["size"].grid != anew.schema["size"].grid
    gathered = federate(clients, agreement="product")
    with pytest.raises(FederationError, match="call federate again"):
        gathered.without("b", rebuild_grid=True)


@pytest.mark.parametrize("agreement", ["product", "independent"])
@pytest.mark.parametrize("placement", ["gathered", "remote"])
def test_a_client_joins_and_the_others_are_not_trained_again(
    agreement: str, placement: str
) -> None:
    clients = split("horizontal")
    whole = federate(clients, agreement=agreement)
    two = federate(
        {n: clients[n] for n in "ab"}, agreement=agreement, schema=whole.schema, placement=placement
    )
    joined = two.with_client("c", clients["c"])
    assert joined.clients == ("a", "b", "c")
    np.testing.assert_allclose(joined.log_prob(ROWS), whole.log_prob(ROWS), atol=1e-10)
    new = joined.ledger.entries[len(two.ledger.entries) :]
    told = [e for e in new if e.phase != "query"]
    assert {entry.client for entry in told} == {"c"}
    if placement == "gathered":
        assert model_bytes(joined) == model_bytes(whole)
        assert model_bytes(joined.without("c")) == model_bytes(two)


def test_joining_is_refused_where_it_would_not_be_exact() -> None:
    clients = split("horizontal")
    fed = federate({n: clients[n] for n in "ab"}, agreement="product")
    with pytest.raises(ClientError, match=r"client 'c'.*lacks columns of the federation: 'size'"):
        fed.with_client("c", clients["c"].drop(columns="size"))
    with pytest.raises(ClientError, match=r"client 'c'.*'purple'"):
        fed.with_client("c", clients["c"].assign(colour="purple"))
    with pytest.raises(ClientError, match=r"client 'c'.*'weight' is not in the agreed schema"):
        fed.with_client("c", clients["c"].assign(weight=1.5))
    vertical = federate(split("vertical"), **VERTICAL)
    with pytest.raises(FederationError, match="vertical"):
        vertical.with_client("d", clients["c"])


@pytest.mark.parametrize("agreement", ["product", "independent"])
def test_other_rows_of_a_client_are_those_it_would_have_been_trained_with(agreement: str) -> None:
    clients = split("horizontal")
    before = federate({**clients, "b": clients["b"].iloc[:20]}, agreement=agreement)
    whole = federate(clients, agreement=agreement, schema=before.schema)
    after = before.with_client("b", clients["b"])
    assert after.clients == before.clients
    assert model_bytes(after) == model_bytes(whole)
    alone = federate({"a": clients["a"]}, agreement=agreement)
    with pytest.raises(FederationError, match="'a' is the only client"):
        alone.with_client("a", clients["b"])


def test_a_client_joins_a_loaded_federation_that_has_an_engine(tmp_path: Path) -> None:
    clients = split("horizontal")
    two = federate({n: clients[n] for n in "ab"}, agreement="product")
    two.save(tmp_path / "two.fc")
    loaded = fc.load(tmp_path / "two.fc", FederatedCircuit, engine="local", learner="factorised")
    joined = two.with_client("c", clients["c"])
    assert model_bytes(loaded.with_client("c", clients["c"])) == model_bytes(joined)
    fc.learn(clients["a"].drop(columns=ID), learner="factorised").save(tmp_path / "one.fc")
    with pytest.raises(FederationError, match=r"for a federation of densities; .*a Circuit"):
        fc.load(tmp_path / "one.fc", engine="local")


# --- files --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("setting", "options"),
    [
        ("horizontal", {"agreement": "product"}),
        ("vertical", {"agreement": "latent", "n_clusters": 3}),
        ("hybrid", {"agreement": "product"}),
    ],
)
@pytest.mark.filterwarnings("ignore:ignored")
def test_a_loaded_federation_answers_and_remembers(
    setting: str, options: dict[str, Any], tmp_path: Path
) -> None:
    fed = federate(split(setting), **options)
    fed.save(tmp_path / "fed.fc")
    again: Any = fc.load(tmp_path / "fed.fc")
    assert isinstance(again, FederatedCircuit)
    assert (again.setting, again.owners, again.rule) == (setting, fed.owners, fed.rule)
    assert again.ledger.n_bytes == fed.ledger.n_bytes
    pd.testing.assert_frame_equal(again.ledger.table(), fed.ledger.table())
    np.testing.assert_array_equal(again.log_prob(ROWS), fed.log_prob(ROWS))
    np.testing.assert_array_equal(again.predict_proba(ROWS, LABEL), fed.predict_proba(ROWS, LABEL))
    np.testing.assert_array_equal(
        again.without("b").log_prob(ROWS), fed.without("b").log_prob(ROWS)
    )
    again.save(tmp_path / "again.fc")
    assert (tmp_path / "again.fc").read_bytes() == (tmp_path / "fed.fc").read_bytes()
    with pytest.raises(FederationError, match=r"loaded|vertical|hybrid"):
        again.with_client("new", table())


@pytest.mark.parametrize(
    "spoil",
    [
        lambda told: told.pop("owners"),
        lambda told: told.update(owners=["a"]),
        lambda told: told.update(setting="diagonal"),
        lambda told: told.update(rule={"kind": "Server", "options": {}}),
        lambda told: told.update(ledger=[[1]]),
        lambda told: told["fitted"].update(models=[{"key": ["a"], "rows": 1}]),
    ],
)
def test_a_spoilt_file_is_refused(spoil: Any, tmp_path: Path) -> None:
    record = federate(split("horizontal"), agreement="product").to_record()
    spoil(record.header["federation"])
    encoding.write(tmp_path / "bad.fc", encoding.pack(record))
    with pytest.raises(StorageError):
        fc.load(tmp_path / "bad.fc")

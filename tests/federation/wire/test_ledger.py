"""The ledger counts what was really sent, and the paper's formulas stand beside it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fedcircuits as fc
from contracts.federations import ID, LABEL, local, split
from fedcircuits.federation.wire import ledger as paper
from fedcircuits.federation.wire.ledger import Ledger
from recorder import Recorder

RULES: dict[str, dict[str, Any]] = {
    "horizontal": {"agreement": "product"},
    "vertical": {"agreement": "latent", "n_clusters": 3},
    "hybrid": {"agreement": "product"},
}


@pytest.mark.parametrize("setting", list(RULES))
def test_ledger_equals_what_travelled(setting: str) -> None:
    engine = Recorder(local(split(setting)))
    fed = fc.federate(id=ID, label=LABEL, engine=engine, **RULES[setting])
    assert fed.ledger.n_bytes == sum(len(x.data) for x in engine.messages)
    assert fed.ledger.n_messages == len(engine.messages)
    table = fed.ledger.table()
    assert list(table.columns) == [
        "client",
        "phase",
        "direction",
        "messages",
        "bytes",
        "level",
        "bits a row",
    ]
    assert table["bytes"].sum() == fed.ledger.n_bytes
    for client in fed.clients:
        mine = [x for x in engine.messages if x.client == client]
        assert table.loc[table["client"] == client, "bytes"].sum() == sum(len(x.data) for x in mine)
        sent = table[(table["client"] == client) & (table["direction"] == "to server")]
        assert sent["bytes"].sum() == sum(len(x.data) for x in mine if not x.to_client)
    by_phase = fed.ledger.table(["phase"])
    assert by_phase["bytes"].sum() == fed.ledger.n_bytes
    assert fed.ledger.of_phase("training") > 0


def test_one_pass_is_one_round_trip_for_training() -> None:
    fed = fc.federate(split("horizontal"), id=ID, agreement="independent", learner="factorised")
    training = fed.ledger.table()
    training = training[training["phase"] == "training"]
    assert (training["messages"] == 1).all()
    assert set(fed.ledger.table()["phase"]) == {"schema", "training"}


def test_totals_come_back() -> None:
    ledger = Ledger()
    for _ in range(3):
        ledger.add("a", "to client", "schema", "describe", b"12345")
    ledger.add("b", "to server", "query", "ask", b"1")
    again = Ledger.from_totals(ledger.totals())
    assert (again.n_bytes, again.n_messages) == (16, 4)
    assert again.table().equals(ledger.table())
    assert Ledger().table().empty


def test_formulas_by_hand() -> None:
    assert paper.fed_pc_horizontal(1000, 5) == 5005
    assert paper.fed_pc_vertical(1000, 2, 3, 9) == 6009
    assert paper.fed_pc_hybrid([10.0, 20.0], [5.0]) == 35
    assert paper.fed_avg(1000, 5, 50) == 250_000
    assert paper.split_nn(100, 64, 2, 50) == 640_000


@pytest.mark.parametrize("setting", list(RULES))
def test_formulas_beside_the_measurement(setting: str) -> None:
    fed = fc.federate(split(setting), id=ID, label=LABEL, learner="factorised", **RULES[setting])
    table = fed.communication(rounds=50, epochs=50, rival_parameters=10_000, activation=64)
    values = table.set_index("what")["bytes"]
    assert values.iloc[0] == fed.ledger.n_bytes
    n = len(fed.clients)
    assert values.iloc[3] == 4 * 10_000 * n * 50
    assert values.iloc[4] == pytest.approx(4 * 50 * n * 64 * _most_rows(fed))
    sizes = [model.n_parameters for model in fed.fitted.models.values()]
    assert values.iloc[2] >= 8 * sum(sizes)
    if setting == "horizontal":
        assert values.iloc[2] == 8 * (sum(sizes) + n)
    if setting == "vertical":
        products = int((~fed.structure.is_sum).sum())
        assert values.iloc[2] == pytest.approx(8 * (sum(sizes) + products))
    assert np.isfinite(table["times measured"]).all()


def _most_rows(fed: Any) -> int:
    sizes = {"horizontal": 40, "vertical": 120, "hybrid": 84}
    return sizes[fed.setting]

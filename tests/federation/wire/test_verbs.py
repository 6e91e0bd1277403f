"""One declaration a message: what is declared once is dispatched, guarded, logged and replayed."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from contracts.engine import table
from contracts.federations import ID, LABEL
from contracts.plans import everything
from fedcircuits.api.client_spec import ClientSpec
from fedcircuits.engines import LocalEngine
from fedcircuits.engines.replay import Keeper, Replay
from fedcircuits.errors import ClientError
from fedcircuits.federation.client.client import Client
from fedcircuits.federation.client.dispatch import HANDLERS, handles
from fedcircuits.federation.policy.guard import Guarded
from fedcircuits.federation.policy.policy import Policy
from fedcircuits.federation.server.server import Server
from fedcircuits.federation.server.settings import ServerSettings
from fedcircuits.federation.wire import requests as m
from fedcircuits.federation.wire.verbs import (
    VERBS,
    Asked,
    Level,
    Reveals,
    Terms,
    Verb,
    declare,
    markdown_table,
)

PAGE = Path(__file__).parents[3] / "docs" / "policy.md"


@dataclass(frozen=True)
class AskMean(m.Message):
    """A made-up request: the mean of a column, after adding a number."""

    columns: list[str]
    plus: float


@dataclass(frozen=True)
class Mean(m.Message):
    value: float
    n_rows: int


def _asks(request: AskMean, terms: Terms, _: str | None) -> Asked:
    fault = "too much" if request.plus > 100 * terms.min_rows else None
    return Asked(tuple(request.columns), fault)


@pytest.fixture
def mean() -> Iterator[Verb[AskMean, Mean]]:
    verb = declare(
        Verb(
            "mean",
            AskMean,
            Mean,
            "validation",
            (Reveals("server", Level.AGGREGATES, "the mean of a column"),),
            costly=True,
            changes_state=True,
            asks=_asks,
            groups={"rows of a mean": lambda reply: [reply.n_rows]},
        )
    )

    @handles(verb)
    def _mean(client: Client, request: AskMean) -> Mean:
        column = client._have().columns(request.columns).values[:, 0]
        counts = vars(client).setdefault("asked", [])
        counts.append(request.plus)
        return Mean(float(column[np.isfinite(column)].mean()) + sum(counts), len(column))

    yield verb
    del VERBS["mean"], HANDLERS["mean"]


def client(rows: pd.DataFrame | None = None) -> Client:
    kinds: dict[str, Any] = {LABEL: "categorical"}
    found = table() if rows is None else rows
    id = ID if ID in found else None
    return ClientSpec("a", found, "factorised", id=id, kinds=kinds).make()


def test_a_declared_verb_is_dispatched_logged_and_answered_once(
    mean: Verb[AskMean, Mean],
) -> None:
    server = Server.start(LocalEngine({"a": client()}), ServerSettings(label=LABEL))
    first, second = (server.call(mean, {"a": AskMean(["height"], 1.0)})["a"] for _ in range(2))
    assert first == second  # costly: the reply is kept
    assert server.call(mean, {"a": AskMean(["height"], 2.0)})["a"].value == first.value + 2.0
    entries = [entry for entry in server.ledger.entries if entry.verb == "mean"]
    assert {entry.phase for entry in entries} == {"validation"}
    assert len(entries) == 6


def test_a_declared_verb_is_guarded_and_audited(mean: Verb[AskMean, Mean], tmp_path: Path) -> None:
    audit = tmp_path / "audit.jsonl"
    policy = Policy(columns=("height", LABEL), min_rows=5)
    guarded = Guarded(client(policy.apply(table())), policy, audit=audit)
    server = Server.start(LocalEngine({"a": guarded}), ServerSettings(label=LABEL), everything)
    assert server.call(mean, {"a": AskMean(["height"], 0.0)})["a"].n_rows == len(table())
    with pytest.raises(ClientError, match="'size' is not offered"):
        server.call(mean, {"a": AskMean(["size"], 0.0)})
    with pytest.raises(ClientError, match="it asks for too much"):
        server.call(mean, {"a": AskMean(["height"], 501.0)})
    many = dataclasses.replace(policy, min_rows=len(table()) + 1)
    guarded._policy = many
    with pytest.raises(ClientError, match="rows of a mean below the smallest group"):
        server.call(mean, {"a": AskMean(["height"], 1.0)})
    closed = Guarded(guarded._client, Policy(requests=("describe",)))
    assert "no such request" in m.Failed.from_bytes(closed.handle("mean", b"")).error
    lines = [json.loads(line) for line in audit.read_text().splitlines()]
    assert [line["allowed"] for line in lines if line["verb"] == "mean"] == [
        True,
        False,
        False,
        False,
    ]


def test_a_declared_verb_is_replayed_to_a_client_started_anew(
    mean: Verb[AskMean, Mean],
) -> None:
    keepers = {"a": Keeper(client, "a")}
    replay = Replay()

    class Engine:
        def members(self) -> list[str]:
            return ["a"]

        def call(self, verb: str, payloads: Any, timeout: float | None = None) -> Any:
            def send(parcels: Any, _: float | None) -> Any:
                return {name: keepers[name].answer(parcel) for name, parcel in parcels.items()}

            return replay.call(send, verb, payloads, timeout)

        def close(self) -> None:
            """Nothing is held."""

    server = Server.start(Engine(), ServerSettings(label=LABEL))
    first = server.call(mean, {"a": AskMean(["height"], 1.0)})["a"]
    keepers["a"] = Keeper(client, "a")
    again = server.call(mean, {"a": AskMean(["height"], 2.0)})["a"]
    assert again.value == first.value + 2.0  # the first request was repeated to the new client
    assert replay.brought_back == {"a": 1}


def test_a_name_is_declared_once() -> None:
    with pytest.raises(ValueError, match="'fit' is declared twice"):
        declare(m.FIT)


def test_every_verb_says_what_the_server_learns_or_reveals_nothing() -> None:
    for verb in VERBS.values():
        recipients = [entry.to for entry in verb.reveals]
        assert len(set(recipients)) == len(recipients), verb.name
        if verb.reply is not m.Ready:
            assert "server" in recipients, verb.name


def test_the_table_of_messages_in_the_docs_is_generated_from_the_declarations() -> None:
    page = PAGE.read_text(encoding="utf-8")
    begin, end = "<!-- messages -->\n", "<!-- end of messages -->"
    assert page[page.index(begin) + len(begin) : page.index(end)] == markdown_table()

"""Requests that would single rows out: repeated, in small groups, or with weak secrets."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

import fedcircuits as fc
from contracts.engine import table
from contracts.federations import ID, LABEL, local, split
from contracts.plans import everything
from fedcircuits.api.client_spec import ClientSpec
from fedcircuits.engines import LocalEngine
from fedcircuits.errors import FederationError
from fedcircuits.federation.client.federated_kmeans import LEAST_ROWS
from fedcircuits.federation.client.rounds import add_up
from fedcircuits.federation.policy.guard import Guarded
from fedcircuits.federation.policy.policy import Policy
from fedcircuits.federation.server.server import Server
from fedcircuits.federation.server.settings import ServerSettings
from fedcircuits.federation.wire import requests as m
from fedcircuits.federation.wire.names import CLUSTERS
from recorder import Recorder


def error_of(reply: bytes) -> str:
    return m.Failed.from_bytes(reply).error


def guarded(policy: Policy) -> Guarded:
    """A client behind a policy that has agreed on a schema with a server."""
    spec = ClientSpec("a", table(n=60), "factorised", id=ID, kinds={LABEL: "categorical"})
    member = Guarded(spec.make(), policy)
    Server.start(LocalEngine({"a": member}), ServerSettings(label=LABEL), everything)
    return member


def test_every_sum_of_k_means_is_over_five_rows_or_more() -> None:
    """Without any policy; a class with fewer rows is left out of the sums."""
    rows = table(n=60)
    rare = rows.index[rows[LABEL] == "yes"][3:]
    rows = rows.drop(index=rare).reset_index(drop=True)  # three rows of one class
    clients = {
        "a": rows[[ID, "height", "size", LABEL]],
        "b": rows[[ID, "height", "visits", LABEL]].iloc[::-1].reset_index(drop=True),
    }
    engine = Recorder(local(clients))
    fed = fc.federate(
        engine=engine, id=ID, label=LABEL, agreement="anchors", n_anchors=16, n_clusters=2
    )
    replies = [x.data for x in engine.messages if x.verb == "centres" and not x.to_client]
    terms = [m.CentreSums.from_bytes(reply).sums for reply in replies]
    pairs = zip(terms[::2], terms[1::2], strict=True)  # what the two sent in a round
    found = [add_up({"a": a, "b": b}, masked=True) for a, b in pairs]
    assert found
    for sums in found:
        rows_ = np.asarray(sums["rows"])
        assert (rows_[rows_ > 0] >= LEAST_ROWS).all()
        assert (np.asarray(sums["sums"])[rows_ == 0] == 0).all()
    replies = [x.data for x in engine.messages if x.verb == "anchor_rows" and not x.to_client]
    assert replies
    for counts in map(m.AnchorRows.from_bytes, replies):
        assert (counts.rows[counts.rows > 0] >= LEAST_ROWS).all()
    starts = [x.data for x in engine.messages if x.verb == "start" and not x.to_client]
    for reply in starts:
        assert (m.Start.from_bytes(reply).rows >= LEAST_ROWS).all()
    common = rows.loc[rows[LABEL] == "no", ["height", "size", "visits", LABEL]]
    assert np.isfinite(fed.log_prob(common)).all()


def test_a_single_row_around_a_planted_centre_is_not_summed() -> None:
    """A server that puts a centre on a value it suspects learns no sum over its row."""
    rows = table(n=60)[["height", "size"]]
    client = ClientSpec("a", rows, "factorised").make()
    Server.start(LocalEngine({"a": client}), ServerSettings())
    start = m.Start.from_bytes(
        client.handle("start", m.AskStart(["height", "size"], 3, False, 1).to_bytes())
    )
    assert (start.rows >= LEAST_ROWS).all()
    centre = start.centres[0].copy()
    far = centre.copy()
    far[1:] += 50.0
    for planted in (np.stack([centre, far]), np.stack([far, centre])):
        ask = m.AskCentres(CLUSTERS, ["height", "size"], planted, False, [], "")
        sums = m.CentreSums.from_bytes(client.handle("centres", ask.to_bytes())).sums
        assert set(sums["rows"].tolist()) <= {0.0, 60.0}
        assert sums["rows"].sum() == 60


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        (np.full(20, 7), "distinct"),
        (np.arange(50, 70), "from 0 to 59"),
        (np.arange(-1, 20), "from 0 to 59"),
    ],
)
def test_aligned_rows_are_distinct_and_in_range(rows: Any, why: str) -> None:
    member = guarded(Policy(errors="sent"))
    reply = member.handle("align", m.Align(rows.astype(np.int32)).to_bytes())
    assert why in error_of(reply)


def test_aligned_rows_are_no_small_group() -> None:
    member = guarded(Policy())
    reply = member.handle("align", m.Align(np.arange(4, dtype=np.int32)).to_bytes())
    assert "4 aligned row(s); the smallest group is 5" in error_of(reply)
    reply = member.handle("align", m.Align(np.arange(5, dtype=np.int32)).to_bytes())
    assert m.Ready.from_bytes(reply).n_rows == 60


@pytest.mark.parametrize("min_rows", [0, -1])
def test_a_smallest_group_has_a_row(min_rows: int) -> None:
    with pytest.raises(FederationError, match="min_rows is a whole number >= 1"):
        fc.federate(split("horizontal"), label=LABEL, min_rows=min_rows)
    client = ClientSpec("a", table(n=60), "factorised", id=ID).make()
    reply = client.handle("describe", m.Describe(min_rows).to_bytes())
    assert "min_rows is a whole number >= 1" in error_of(reply)


def test_a_short_secret_is_refused() -> None:
    with pytest.raises(FederationError, match=r"id_secret has 11 characters.*12 random"):
        fc.federate(split("vertical"), id=ID, id_secret="x" * 11)
    with pytest.raises(FederationError, match="id_secret has 1 characters"):
        ClientSpec("a", table(n=60), "factorised", id=ID, id_secret="x").make()
    assert ClientSpec("a", table(n=60), "factorised", id=ID, id_secret="x" * 12).make()


def with_key(key: Any, n: int = 40) -> dict[str, pd.DataFrame]:
    rows = table(n=2 * n)[["height", "size"]].assign(key=key(2 * n))
    return {"a": rows.iloc[:n], "b": rows.iloc[n:].reset_index(drop=True)}


@pytest.mark.parametrize(
    "key",
    [
        lambda n: [f"person {i}" for i in range(n)],
        lambda n: pd.Categorical([f"person {i}" for i in range(n)]),
        lambda n: np.arange(5000, 5000 + n),
    ],
    ids=["text", "category dtype", "numbers"],
)
def test_a_column_unique_to_each_row_stops_a_federation_without_id(key: Any) -> None:
    with pytest.raises(
        FederationError, match=r"column 'key' holds .*name it as the id, leave it out"
    ):
        fc.federate(with_key(key), learner="factorised")
    assert "key" not in fc.federate(with_key(key), id="key", learner="factorised").schema


def test_a_kind_of_a_column_that_nobody_has_is_an_error() -> None:
    kinds: Any = {"hieght": "continuous"}
    with pytest.raises(FederationError, match=r"kinds: no column 'hieght'.*did you mean 'height'"):
        fc.federate(split("horizontal"), id=ID, label=LABEL, kinds=kinds, learner="factorised")

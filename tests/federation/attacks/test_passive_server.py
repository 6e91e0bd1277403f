"""A server that follows the protocol and keeps what it sees: sums of k-means, noise, secrets."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pandas as pd
import pytest

import fedcircuits as fc
from contracts.engine import table
from contracts.federations import ID, LABEL, local, split
from fedcircuits.errors import FederationError
from fedcircuits.federation.agreement.latent_table import _counted
from fedcircuits.federation.client.clustering import features
from fedcircuits.federation.wire import requests as m
from fedcircuits.federation.wire.ids import digests, stretched
from fedcircuits.federation.wire.masking import UNIT, _stream
from fedcircuits.federation.wire.noise import KeyedNoise
from fedcircuits.federation.wire.sealing import SealingKey, checked_peers, key_fingerprint
from fedcircuits.federation.wire.seeds import named_rng
from fedcircuits.schema import Schema
from recorder import Recorder


def test_no_row_follows_from_the_sums_of_k_means() -> None:
    """Differences of the sums of any two rounds, by any two centres, against every row."""
    rows = table(n=600).drop(columns=[ID, LABEL])
    clients = {
        "a": rows[["height", "size", "colour"]][:300],
        "b": rows[["height", "size", "visits"]][300:].reset_index(drop=True),
    }
    engine = Recorder(local(clients))
    fc.federate(engine=engine, agreement="anchors")
    for client, frame in clients.items():
        sent = [x for x in engine.messages if x.client == client]
        agreed = next(m.Agree.from_bytes(x.data) for x in sent if x.verb == "agree" and x.to_client)
        asked = next(x.data for x in sent if x.verb == "centres" and x.to_client)
        columns = m.AskCentres.from_bytes(asked).columns
        encoded = Schema.from_json(agreed.schema).encode(frame, missing_as_state=True)
        X = features(encoded.columns(columns))
        told = [x.data for x in sent if x.verb == "centres" and not x.to_client]
        sums = [m.CentreSums.from_bytes(data) for data in told]
        start = next(x.data for x in sent if x.verb == "start" and not x.to_client)
        first = m.Start.from_bytes(start)
        seen = [(rows, vector) for each in sums for rows, vector in zip(each.rows, each.sums)]  # noqa: B905
        seen += [(n, n * centre) for n, centre in zip(first.rows, first.centres[:, 1:])]  # noqa: B905
        assert min(rows for rows, _ in seen if rows) >= 5
        assert len(sums) == 11
        exact = 0
        for (n, one), (k, other) in itertools.combinations(seen, 2):
            if abs(n - k) == 1:
                guess = (one - other) * (n - k)
                exact += bool((np.abs(X - guess).max(axis=1) < 1e-6).any())
        assert exact == 0


def test_noise_does_not_follow_from_the_seed() -> None:
    indices = np.random.default_rng(0).integers(0, 4, (500, 2))
    counts = np.zeros((4, 4))
    np.add.at(counts, tuple(indices.T), 1)
    drawn = [_counted(indices, [4, 4], 0.1) for _ in range(2)]
    assert drawn[0][1].tolist() != drawn[1][1].tolist()
    noise = named_rng(0, "latent-table").laplace(scale=2 / 0.1, size=16).reshape(4, 4)
    tuples, noisy = drawn[0]
    assert not np.isclose(noisy - noise[tuple(tuples.T)], counts[tuple(tuples.T)]).any()


def test_randomised_answers_are_the_same_after_a_restart() -> None:
    """Another draw would average the noise away; the silo's key decides it."""
    key = SealingKey(bytes(range(32)))
    draws = [
        KeyedNoise(SealingKey(bytes(range(32))).own("noise")).uniforms((3,), b"x") for _ in "ab"
    ]
    assert draws[0].tolist() == draws[1].tolist()
    assert KeyedNoise(key.own("other")).uniforms((3,), b"x").tolist() != draws[0].tolist()


def test_a_guessed_id_secret_unmasks_nothing() -> None:
    """Masks are drawn from the clients' keys, each purpose from its own."""
    secret = "hospital4242"
    engine = Recorder(local(split("horizontal"), "mixture", id_secret=secret))
    fc.federate(engine=engine, label=LABEL, agreement="joint")
    sent = [x for x in engine.messages if x.verb == "round" and x.client == "a"]
    sums = m.RoundDone.from_bytes(sent[1].data).sums
    for guess in (secret.encode(), stretched(secret), bytes(32)):
        plain = sums["rows"].view(np.uint64)
        for _ in ("b", "c"):
            plain = plain - _stream(guess, "", "rows", sums["rows"].shape)
        assert np.abs(plain.view(np.int64) * UNIT).min() > 1e3
    one, two = SealingKey(), SealingKey()
    assert one.pair(two.public, "masks") == two.pair(one.public, "masks")
    assert one.pair(two.public, "masks") != one.pair(two.public, "ids")


def test_a_typed_secret_is_stretched_and_refused_when_short() -> None:
    ids = pd.Series([1, 2, 3])
    keyed = digests(ids, "salt", "a long enough secret")
    assert keyed.tolist() != digests(ids, "salt").tolist()
    assert len(stretched("a long enough secret")) == 64
    with pytest.raises(FederationError, match="id_secret has 10 characters"):
        fc.federate(split("vertical"), id=ID, id_secret="hospital42")


def test_digests_differ_from_those_anybody_can_compute() -> None:
    engine = Recorder(local(split("vertical")))
    fc.federate(engine=engine, id=ID, agreement="independent")
    asked = [x for x in engine.messages if x.verb == "digests"]
    salt = m.AskDigests.from_bytes(asked[0].data).salt
    guesses = {d.tobytes() for d in digests(table()[ID], salt)}
    told = [m.Digests.from_bytes(x.data).digests for x in asked if not x.to_client]
    assert not any(row.tobytes() in guesses for each in told for row in each)


def test_a_substituted_key_is_refused() -> None:
    keys = {name: SealingKey() for name in "abc"}
    public: dict[str, str] = {name: key.public for name, key in keys.items()}
    pins = {name: key_fingerprint(public[name]) for name in "bc"}
    assert checked_peers(public, "a", public["a"], pins) == {n: public[n] for n in "bc"}
    own = SealingKey().public  # the server's
    wrong: list[dict[str, Any]] = [{**public, "b": own}, {**public, "z": own}, {**public, "a": own}]
    for sent in wrong:
        with pytest.raises(fc.FedcircuitsError, match=r"fingerprint|another key"):
            checked_peers(sent, "a", public["a"], pins)
    with pytest.raises(fc.FedcircuitsError, match="one key for two clients"):
        checked_peers({**public, "b": public["c"]}, "a", public["a"], None)

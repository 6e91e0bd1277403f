"""A server that follows the protocol and keeps what it sees: sums of k-means, noise, secrets."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pandas as pd
import pytest

import fedcircuits as fc
from contracts.engine import table
from contracts.federations import ID, LABEL, Breaking, local, split
from fedcircuits.errors import FederationError
from fedcircuits.federation.agreement.latent_table import _counted
from fedcircuits.federation.client.clustering import features
from fedcircuits.federation.client.mailbox import Mailbox
from fedcircuits.federation.client.rounds import add_up
from fedcircuits.federation.wire import requests as m
from fedcircuits.federation.wire.ids import digests, stretched
from fedcircuits.federation.wire.masking import UNIT, _stream
from fedcircuits.federation.wire.names import CLUSTERS
from fedcircuits.federation.wire.noise import KeyedNoise
from fedcircuits.federation.wire.sealing import SealingKey, checked_peers, key_fingerprint
from fedcircuits.federation.wire.seeds import named_rng
from fedcircuits.schema import Schema
from recorder import Recorder


def test_the_server_sees_totals_of_k_means_and_no_row_follows_from_them() -> None:
    """Three clients: terms are noise, and differences of totals of any two rounds are no row."""
    rows = table(n=900).drop(columns=[ID, LABEL])
    clients = {
        "a": rows[["height", "size", "colour"]][:300],
        "b": rows[["height", "size", "visits"]][300:600].reset_index(drop=True),
        "c": rows[["height", "size"]][600:].reset_index(drop=True),
    }
    engine = Recorder(local(clients))
    fc.federate(engine=engine, agreement="anchors")
    terms: dict[bytes, dict[str, Any]] = {}
    X = []
    for client, frame in clients.items():
        sent = [x for x in engine.messages if x.client == client]
        agreed = next(m.Agree.from_bytes(x.data) for x in sent if x.verb == "agree" and x.to_client)
        asked = [x.data for x in sent if x.verb == "centres" and x.to_client]
        told = [x.data for x in sent if x.verb == "centres" and not x.to_client]
        columns = m.AskCentres.from_bytes(asked[0]).columns
        encoded = Schema.from_json(agreed.schema).encode(frame, missing_as_state=True)
        X.append(features(encoded.columns(columns)))
        for question, answer in zip(asked, told, strict=True):
            terms.setdefault(question, {})[client] = m.CentreSums.from_bytes(answer).sums
        # Nobody's sums are sent another way: what else is of a client are its first centres.
        assert {x.verb for x in sent if not x.to_client} >= {"start", "centres", "anchor_rows"}
    assert len(terms) == 10
    assert all(sorted(of) == ["a", "b", "c"] for of in terms.values())
    totals, every = [add_up(of, masked=True) for of in terms.values()], np.concatenate(X)
    for of in terms.values():
        for some in itertools.combinations(of, 2):
            with pytest.raises(FederationError, match="masks do not cancel"):
                add_up({client: of[client] for client in some}, masked=True)
        for one in of.values():  # a term looks like noise: its numbers are beyond all sums
            assert np.abs(one["sums"] * UNIT).max() > 1e9
    assert all(np.isclose(total["rows"].sum(), 900, atol=40) for total in totals)
    seen = [each for t in totals for each in zip(t["rows"], t["sums"], strict=True)]
    assert min(n for n, _ in seen if n) >= 5
    exact = 0
    for (n, one), (k, other) in itertools.combinations(seen, 2):
        if abs(n - k) == 1:
            guess = (one - other) * (n - k)
            exact += bool((np.abs(every - guess).max(axis=1) < 1e-6).any())
    assert exact == 0


def test_the_same_masks_do_not_serve_two_answers() -> None:
    """A request once more, when the client's answer is another one by now, is refused."""
    boxes = {name: Mailbox(name, SealingKey(), None) for name in "ab"}
    said = {name: box.public_key() for name, box in boxes.items()}
    peers = m.Peers({n: s.key for n, s in said.items()}, {n: s.nonce for n, s in said.items()})
    for box in boxes.values():
        box.meet(peers)
    ask = m.AskTable(CLUSTERS, CLUSTERS, 1, 2, ["a", "b"], "nonce")
    one = boxes["a"].mask({"counts": np.array([[3.0, 4.0]])}, ask, ask.masked_with)
    again = boxes["a"].mask({"counts": np.array([[3.0, 4.0]])}, ask, ask.masked_with)
    assert one["counts"].tolist() == again["counts"].tolist()
    with pytest.raises(fc.FedcircuitsError, match="masked for a request before"):
        boxes["a"].mask({"counts": np.array([[3.0, 5.0]])}, ask, ask.masked_with)


def test_k_means_goes_on_without_a_lost_client() -> None:
    """Masks of the others do not cancel without it: they begin again, and it is named."""
    rows = table(n=600).drop(columns=[ID, LABEL])
    clients = {
        "a": rows[["height", "size", "colour"]][:200],
        "b": rows[["height", "size", "visits"]][200:400].reset_index(drop=True),
        "c": rows[["height", "size"]][400:].reset_index(drop=True),
    }
    asked = 0

    def lost(verb: str, client: str, answer: bytes) -> bytes | Exception:
        nonlocal asked
        asked += verb == "centres" and client == "c"
        return TimeoutError("away") if client == "c" and asked >= 4 else answer

    engine = Breaking(local(clients), lost)
    with pytest.warns(fc.FedcircuitsWarning, match="without the client 'c'"):
        fed = fc.federate(engine=engine, agreement="anchors")
    assert list(fed.dropped) == ["c"]
    assert np.isfinite(fed.log_prob(rows[:50])).all()


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

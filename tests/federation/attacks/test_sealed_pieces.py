"""A server that relays sealed pieces and tampers with them: forged, swapped, replayed, misused."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

import fedcircuits as fc
from contracts.federations import ID, LABEL, local, split
from contracts.rule import small_table
from fedcircuits.errors import FedcircuitsError
from fedcircuits.federation.client.label.tilting import packed_scores
from fedcircuits.federation.client.mailbox import Expected, Mailbox
from fedcircuits.federation.wire import requests as m
from fedcircuits.federation.wire.sealing import Header, SealingKey
from fedcircuits.federation.wire.transport import Transport
from fedcircuits.learners import Mixture
from recorder import Recorder

Tamper = Callable[["Relay", str, m.FitTilt], m.FitTilt]


class Relay(Recorder):
    """Passes messages on, requests of turns of a tilt as `tamper` leaves them."""

    def __init__(self, inner: Transport, tamper: Tamper) -> None:
        super().__init__(inner)
        self.tamper = tamper
        self.turns: list[tuple[str, m.FitTilt]] = []
        self.refusals: list[str] = []

    def call(
        self, verb: str, payloads: Mapping[str, bytes], timeout: float | None = None
    ) -> dict[str, bytes | Exception]:
        if verb != "fit_tilt":
            return super().call(verb, payloads, timeout)
        ((client, payload),) = payloads.items()
        asked = m.FitTilt.from_bytes(payload)
        sent = self.tamper(self, client, asked)
        self.turns.append((client, asked))
        answers = super().call(verb, {client: sent.to_bytes()}, timeout)
        if sent.to_bytes() != payload:
            answer = answers[client]
            assert isinstance(answer, bytes)
            self.refusals.append(m.Failed.from_bytes(answer).error)
        return answers


def forged(relay: Relay, client: str, asked: m.FitTilt) -> m.FitTilt:
    """Scores of the server's own, sealed with all that it knows of the run."""
    del relay
    if len(asked.pieces) < 2:
        return asked
    first = asked.pieces[0]
    header = Header(
        "run", first.piece.sender, client, "tilt", m.piece_step(asked.step, 0), first.rows
    )
    values = packed_scores(np.ones((first.n_rows, asked.n_classes)))
    mine = replace(first.piece, values=SealingKey().seal(values, asked.key, header))
    return replace(asked, pieces=(replace(first, piece=mine), *asked.pieces[1:]))


def swapped(relay: Relay, client: str, asked: m.FitTilt) -> m.FitTilt:
    """What one client said passed off as what the other said."""
    del relay, client
    if len(asked.pieces) < 2:
        return asked
    one, two = asked.pieces
    return replace(asked, pieces=(replace(one, piece=two.piece), replace(two, piece=one.piece)))


def renamed(relay: Relay, client: str, asked: m.FitTilt) -> m.FitTilt:
    """One client's piece under the name of another."""
    del relay, client
    if len(asked.pieces) < 2:
        return asked
    one, two = asked.pieces
    mine = replace(one.piece, sender=two.piece.sender)
    return replace(asked, pieces=(replace(one, piece=mine), two))


def replayed(relay: Relay, client: str, asked: m.FitTilt) -> m.FitTilt:
    """Pieces of an earlier turn of the same client in a later one, under the later step."""
    before = [x for c, x in relay.turns if c == client and len(x.pieces) == len(asked.pieces) == 2]
    return replace(asked, pieces=before[0].pieces) if before else asked


def repeated_step(relay: Relay, client: str, asked: m.FitTilt) -> m.FitTilt:
    """An earlier turn's step and pieces, its first ones already used, with one piece left out."""
    before = [x for c, x in relay.turns if c == client and len(x.pieces) == len(asked.pieces) == 2]
    if not before:
        return asked
    return replace(asked, step=before[0].step, pieces=before[0].pieces[:1])


def other_rows(relay: Relay, client: str, asked: m.FitTilt) -> m.FitTilt:
    """A piece said to be about other rows than those it was sealed for."""
    del relay, client
    if len(asked.pieces) < 2:
        return asked
    two = asked.pieces[1]
    return replace(asked, pieces=(replace(asked.pieces[0], rows="0" * 16), two))


def clients() -> dict[str, pd.DataFrame]:
    table = small_table(400)
    return {
        "a": table[["id", "x0", "x1", "y"]],
        "b": table[["id", "x2", "y"]],
        "c": table[["id", "x3", "x4", "y"]],
    }


@pytest.mark.parametrize(
    ("tamper", "said"),
    [
        (forged, "cannot be opened as 'tilt' from"),
        (swapped, "cannot be opened as 'tilt' from"),
        (renamed, "cannot be opened as 'tilt' from"),
        (replayed, "cannot be opened as 'tilt' from"),
        (repeated_step, "not taken twice"),
        (other_rows, "no rows of the name|cannot be opened"),
    ],
)
def test_a_tampered_piece_is_refused(tamper: Tamper, said: str) -> None:
    """The run ends with an error; no model is made of what the server put in."""
    frames = {name: frame.rename(columns={"id": "customer"}) for name, frame in clients().items()}
    relay = Relay(local(frames, Mixture(n_states=2, n_iterations=2)), tamper)
    with pytest.raises(FedcircuitsError, match=said):
        fc.federate(engine=relay, id="customer", label="y", agreement="product")
    assert len(relay.refusals) == 1


def test_codes_are_sealed_for_clients_of_the_run_alone() -> None:
    """A server that names its own key as that of the label's owner is refused."""
    frames = {
        "a": small_table(300)[["id", "x0", "x1", "y"]],
        "b": small_table(300)[["id", "x2", "x3"]],
    }
    seen: list[str] = []

    class Nosy(Recorder):
        def call(
            self, verb: str, payloads: Mapping[str, bytes], timeout: float | None = None
        ) -> dict[str, bytes | Exception]:
            if verb == "codes":
                own = SealingKey().public
                payloads = {
                    c: replace(m.AskCodes.from_bytes(p), key=own).to_bytes()
                    for c, p in payloads.items()
                }
                seen.append(verb)
            return super().call(verb, payloads, timeout)

    frames = {n: frame.rename(columns={"id": "customer"}) for n, frame in frames.items()}
    engine = Nosy(local(frames, "hclt"))
    with pytest.raises(FedcircuitsError, match="clients of the run alone"):
        fc.federate(engine=engine, id="customer", label="y", agreement="latent", label_use="used")
    assert seen


def test_a_piece_of_another_run_is_refused() -> None:
    """Same clients, keys and step; the table of the recipient has changed since."""
    boxes = {name: Mailbox(name, SealingKey(name.encode() * 32), None) for name in "ab"}

    def run(rows: bytes) -> None:
        for name, box in boxes.items():
            box.begin(b"agreed", rows if name == "b" else b"")
        said = {name: box.public_key() for name, box in boxes.items()}
        peers = m.Peers({n: s.key for n, s in said.items()}, {n: s.nonce for n, s in said.items()})
        for box in boxes.values():
            box.meet(peers)

    run(b"rows")
    sealed = boxes["a"].seal(np.arange(3.0), boxes["b"].key.public, "tilt", "s/0", "rows")
    expected = [Expected(m.Piece(sealed.values, "a"), "tilt", "rows")]
    assert boxes["b"].open("s", expected)[0].tolist() == [0.0, 1.0, 2.0]
    run(b"rows")  # a repeat of the handshake changes nothing
    assert boxes["b"].open("s", expected)[0].tolist() == [0.0, 1.0, 2.0]
    run(b"other rows")
    with pytest.raises(FedcircuitsError, match="another client, run"):
        boxes["b"].open("s", expected)


def test_lengths_of_sealed_pieces_say_nothing_of_cells() -> None:
    """The cells of every column in another order: no length of a sealed piece differs."""

    def lengths(seed: int | None) -> set[tuple[str, str, int]]:
        clients = split("vertical")
        rng = np.random.default_rng(seed)
        for client, frame in clients.items():
            mixed = {n: rng.permutation(frame[n]) for n in frame.columns if n != ID}
            clients[client] = frame if seed is None else frame.assign(**mixed)
        engine = Recorder(local(clients))
        fc.federate(engine=engine, id=ID, label=LABEL, agreement="product")
        sealed = {name for name, verb in m.VERBS.items() if verb.reply is m.Sealed}
        return {
            (x.verb, x.client, len(x.data))
            for x in engine.messages
            if not x.to_client and x.verb in sealed
        }

    found = lengths(None)
    assert found
    assert lengths(1) == found

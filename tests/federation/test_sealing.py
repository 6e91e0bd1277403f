"""A message counts once: not in another run, not a second time, not out of order."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import fedcircuits as fc
from contracts.federations import ID, LABEL, local, split
from fedcircuits.engines import LocalEngine
from fedcircuits.federation.policy.guard import Guarded
from fedcircuits.federation.policy.policy import Policy
from fedcircuits.federation.policy.replay_guard import Sealed, Unsealed, opened, seal
from fedcircuits.federation.wire import requests as m
from recorder import Recorder

POLICY = Policy(label="sent", min_rows=1, errors="sent")


class Counting:
    """Says which call it was."""

    name = "a"

    def __init__(self) -> None:
        self.calls = 0

    def handle(self, verb: str, payload: bytes) -> bytes:
        del verb, payload
        self.calls += 1
        return m.Description([], self.calls, {}, {}).to_bytes()


def error_of(reply: bytes) -> str:
    return m.Failed.from_bytes(reply).error


def greet(member: Unsealed) -> tuple[str, int]:
    return opened(member.handle("hello", b""))[:2]


REQUEST = m.Describe(5).to_bytes()


def test_a_replayed_message_is_refused_and_the_next_one_is_answered() -> None:
    inner = Counting()
    member = Unsealed(inner)
    nonce, number = greet(member)
    first, second = (seal(nonce, number + at, REQUEST) for at in (1, 2))
    assert m.Description.from_bytes(member.handle("describe", first)).n_rows == 1
    assert m.Description.from_bytes(member.handle("describe", second)).n_rows == 2
    assert "a replayed message: its number is 1, the last 2" in error_of(
        member.handle("describe", first)
    )
    assert "replayed" in error_of(member.handle("digests", second))  # the number under another verb
    assert inner.calls == 2
    assert m.Description.from_bytes(member.handle("describe", seal(nonce, 9, REQUEST))).n_rows == 3


def test_an_engine_may_try_the_last_message_again() -> None:
    inner = Counting()
    member = Unsealed(inner)
    nonce, _ = greet(member)
    message = seal(nonce, 1, REQUEST)
    assert member.handle("describe", message) == member.handle("describe", message)
    assert inner.calls == 1


def test_a_message_of_another_run_is_refused() -> None:
    old, new = (Unsealed(Counting()) for _ in range(2))
    message = seal(greet(old)[0], 1, REQUEST)
    assert "another run" in error_of(new.handle("describe", message))
    assert "expected one that is sealed" in error_of(new.handle("describe", REQUEST))
    assert greet(new)[1] == 0  # and hello itself changes nothing
    assert m.Description.from_bytes(old.handle("describe", message)).n_rows == 1


def members() -> dict[str, Unsealed]:
    plain = local(split("vertical"))
    return {name: Unsealed(Guarded(member, POLICY)) for name, member in plain._clients.items()}


def test_a_sealed_federation_gives_the_same_model_bit_for_bit(tmp_path: Path) -> None:
    saved = []
    for at, engine in enumerate((local(split("vertical")), Sealed(LocalEngine(members())))):
        fed = fc.federate(
            id=ID, label=LABEL, engine=engine, agreement="latent", n_clusters=2, min_rows=1
        )
        fed.save(tmp_path / f"{at}.fc")
        saved.append((tmp_path / f"{at}.fc").read_bytes())
    assert saved[0] == saved[1]


def test_every_recorded_message_is_refused_afterwards() -> None:
    clients = members()
    recorder = Recorder(LocalEngine(clients))
    fc.federate(
        id=ID, label=LABEL, engine=Sealed(recorder), agreement="latent", n_clusters=2, min_rows=1
    )
    sent = [x for x in recorder.messages if x.to_client and x.verb != "hello"]
    assert len(sent) > 10
    latest = {x.client: x for x in sent}
    for message in sent:
        if message is not latest[message.client]:
            told = error_of(clients[message.client].handle(message.verb, message.data))
            assert "a replayed message" in told, message.verb


def test_a_client_started_anew_and_a_new_coordinator_are_greeted() -> None:
    clients: dict[str, Unsealed] = {"a": Unsealed(Counting())}

    class Engine:
        def members(self) -> list[str]:
            return ["a"]

        def call(
            self, verb: str, payloads: Mapping[str, bytes], timeout: float | None = None
        ) -> dict[str, bytes | Exception]:
            del timeout
            return {name: clients[name].handle(verb, data) for name, data in payloads.items()}

        def close(self) -> None:
            pass

    def calls(engine: Sealed) -> int:
        reply = engine.call("describe", {"a": REQUEST})["a"]
        assert isinstance(reply, bytes)
        return m.Description.from_bytes(reply).n_rows

    first = Sealed(Engine())
    assert [calls(first), calls(first)] == [1, 2]
    assert calls(Sealed(Engine())) == 3  # a coordinator that was started again
    clients["a"] = Unsealed(Counting())
    assert calls(first) == 1  # a client that was started again

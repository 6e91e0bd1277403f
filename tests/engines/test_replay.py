"""Clients that end and servers that end: nothing is told twice that matters, nothing done twice."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

import fedcircuits as fc
from contracts.engine import table
from contracts.federations import ID, LABEL, split
from fedcircuits.api.client_spec import ClientSpec, client_from_spec
from fedcircuits.engines import LocalEngine
from fedcircuits.engines.replay import Answers, Keeper, Replay
from fedcircuits.errors import ClientError, StorageError
from fedcircuits.federation.wire import requests as m
from fedcircuits.federation.wire.envelope import unwrap

# The rules here send the server row evidence, or are compared with such as do.
federate = functools.partial(fc.federate, trust="one owner")

OPTIONS: dict[str, Any] = {"id": ID, "label": LABEL, "n_clusters": 3}


def specs(setting: str = "vertical", learner: str = "factorised") -> dict[str, bytes]:
    return {
        name: ClientSpec(name, rows, learner, id=ID, key=name.encode().hex()).to_bytes()
        for name, rows in split(setting).items()
    }


class Counting:
    """A client that counts what it is asked, over all its lives."""

    def __init__(self, spec: bytes, counts: dict[str, int]) -> None:
        self._client = client_from_spec(spec)
        self._counts = counts

    def handle(self, verb: str, payload: bytes) -> bytes:
        self._counts[verb] = self._counts.get(verb, 0) + 1
        return self._client.handle(verb, payload)


class Here:
    """An engine in this process whose clients can be started anew."""

    def __init__(self, specs: Mapping[str, bytes], answers: Path | None = None) -> None:
        self.specs = dict(specs)
        self.counts: dict[str, int] = {}
        self.keepers = {name: self._keeper(name) for name in specs}
        self.replay = Replay(None if answers is None else Answers(answers))
        self.before: Callable[[str], None] = lambda _: None
        self.spoil: Callable[[bytes], bytes] = lambda parcel: parcel

    def _keeper(self, name: str) -> Keeper:
        spec = self.specs[name]
        return Keeper(lambda: Counting(spec, self.counts), spec.hex()[-64:])

    def restart(self, name: str) -> None:
        self.keepers[name] = self._keeper(name)

    def members(self) -> list[str]:
        return sorted(self.keepers)

    def call(
        self, verb: str, payloads: Mapping[str, bytes], timeout: float | None = None
    ) -> dict[str, bytes | Exception]:
        self.before(verb)
        return self.replay.call(self._send, verb, payloads, timeout)

    def _send(self, parcels: Mapping[str, bytes], _: float | None) -> dict[str, bytes | Exception]:
        return {name: self.spoil(self.keepers[name].answer(p)) for name, p in parcels.items()}

    def close(self) -> None:
        """Nothing to let go of."""


def train(engine: Any, **options: Any) -> Any:
    return federate(None, engine=engine, **{**OPTIONS, "agreement": "latent"} | options)


def saved(fed: Any, path: Path) -> bytes:
    fed.save(path)
    return path.read_bytes()


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    engine = LocalEngine({name: client_from_spec(spec) for name, spec in specs().items()})
    return saved(train(engine), tmp_path_factory.mktemp("local") / "m.fc")


@pytest.mark.parametrize("verb", ["describe", "agree", "digests", "align", "cluster", "fit"])
@pytest.mark.parametrize("everyone", [False, True])
def test_clients_started_anew_before_a_request_give_the_same_model(
    verb: str, everyone: bool, expected: bytes, tmp_path: Path
) -> None:
    engine = Here(specs())

    def before(asked: str) -> None:
        if asked == verb:
            for name in engine.members() if everyone else ["b"]:
                engine.restart(name)

    engine.before = before
    assert saved(train(engine), tmp_path / "m.fc") == expected
    assert engine.counts["fit"] == 3
    if verb not in ("describe", "agree", "digests"):
        assert engine.replay.brought_back["b"] == 1


@pytest.mark.slow
@pytest.mark.parametrize(("setting", "verb"), [("vertical", "branch"), ("horizontal", "round")])
def test_a_client_started_anew_between_rounds_takes_up_where_it_was(
    setting: str, verb: str, tmp_path: Path
) -> None:
    """Rounds build on each other: earlier ones are done again at the client, as they were told."""
    made = specs(setting, "mixture")
    options: dict[str, Any] = {"agreement": "joint", "id": ID, "label": LABEL}
    plain = LocalEngine({name: client_from_spec(spec) for name, spec in made.items()})
    wanted = saved(federate(None, engine=plain, **options), tmp_path / "plain.fc")
    engine, asked = Here(made), list[str]()

    def before(said: str) -> None:
        asked.append(said)
        if asked.count(verb) == 3 and said == verb:
            engine.restart("b")

    engine.before = before
    found = saved(federate(None, engine=engine, **options), tmp_path / "again.fc")
    assert found == wanted
    assert engine.replay.brought_back["b"] == 1


def test_client_started_anew_has_its_models_again_when_they_are_asked() -> None:
    engine = Here(specs())
    fed = train(engine, placement="remote")
    rows = table(n=20)[["height", "visits", "size"]]
    first = fed.log_prob(rows)
    fits = engine.counts["fit"]
    engine.restart("b")
    assert (fed.log_prob(rows) == first).all()
    assert engine.counts["fit"] == fits + 1  # of b alone
    assert (fed.log_prob(rows) == first).all()
    assert engine.counts["fit"] == fits + 1  # and once


def test_fits_that_are_not_asked_for_are_not_repeated() -> None:
    engine = Here(specs())
    engine.before = lambda verb: engine.restart("b") if verb == "fit" else None
    train(engine)
    fits = engine.counts["fit"]
    engine.before = lambda verb: engine.restart("b") if verb == "align" else None
    train(engine)
    assert engine.counts["fit"] == fits + 3  # this run's own


def test_killed_server_asks_only_for_what_is_new(expected: bytes, tmp_path: Path) -> None:
    engine = Here(specs(), tmp_path / "answers")

    def die(verb: str) -> None:
        if verb == "fit":
            raise KeyboardInterrupt

    engine.before = die
    with pytest.raises(KeyboardInterrupt):
        train(engine)
    again = Here(specs(), tmp_path / "answers")  # clients were ended, too
    assert saved(train(again), tmp_path / "m.fc") == expected
    fresh = {"describe": 3, "public_key": 3, "group_secret": 1, "digests": 3}  # never kept
    assert again.replay.asked == {**fresh, "fit": 3}
    third = Here(specs(), tmp_path / "answers")
    assert saved(train(third), tmp_path / "m.fc") == expected
    assert "fit" not in third.replay.asked
    assert "fit" not in third.counts


def test_reply_is_kept_as_it_comes_though_the_call_never_ends(tmp_path: Path) -> None:
    engine = Here(specs(), tmp_path)
    send = engine._send

    def dies_after_a(
        parcels: Mapping[str, bytes], timeout: float | None
    ) -> dict[str, bytes | Exception]:
        answers = send(parcels, timeout)
        if "fit" in engine.replay.asked:
            engine.replay.received("a", answers["a"])
            raise KeyboardInterrupt
        return answers

    engine._send = dies_after_a  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        train(engine)
    again = Here(specs(), tmp_path)
    train(again)
    assert again.replay.asked["fit"] == 2  # of b and c


def test_answers_of_other_data_seeds_or_settings_are_not_taken(tmp_path: Path) -> None:
    train(Here(specs(), tmp_path))
    other = dict(specs())
    changed = split("vertical")["b"].assign(visits=lambda t: t["visits"] + 1)
    other["b"] = ClientSpec("b", changed, "factorised", id=ID, key=b"b".hex()).to_bytes()
    engine = Here(other, tmp_path)
    train(engine)
    assert engine.replay.asked["fit"] == 3  # rows of b make another run, with keys of its own
    engine = Here(specs(), tmp_path)
    train(engine, seed=1)
    assert engine.replay.asked["fit"] == 3


def test_damaged_answer_on_disk_is_asked_again(expected: bytes, tmp_path: Path) -> None:
    train(Here(specs(), tmp_path / "answers"))
    for path in (tmp_path / "answers").iterdir():
        data = path.read_bytes()
        path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    engine = Here(specs(), tmp_path / "answers")
    assert saved(train(engine), tmp_path / "m.fc") == expected
    assert engine.replay.asked["fit"] == 3


def test_answers_are_for_their_owner_only(tmp_path: Path) -> None:
    Answers(tmp_path / "answers").put("k", b"reply")
    assert (tmp_path / "answers").stat().st_mode & 0o77 == 0
    assert Answers(tmp_path / "answers").get("k") == b"reply"
    assert Answers(tmp_path / "answers").get("other") is None


def test_client_that_comes_back_with_other_data_is_refused_by_name() -> None:
    engine = Here(specs())

    def before(verb: str) -> None:
        if verb == "align":
            rows = split("vertical")["b"].iloc[:50]
            engine.specs["b"] = ClientSpec(
                "b", rows, "factorised", id=ID, key=b"b".hex()
            ).to_bytes()
            engine.restart("b")

    engine.before = before
    with pytest.raises(ClientError, match="client 'b': it came back with other data"):
        train(engine)


def test_message_played_back_changes_nothing_and_is_noted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    engine = Here({"b": specs()["b"]})
    sent: list[bytes] = []
    keeper = engine.keepers["b"]
    answer = keeper.answer
    keeper.answer = lambda parcel: (sent.append(parcel), answer(parcel))[1]  # type: ignore[method-assign]
    described = engine.call("describe", {"b": m.Describe(5).to_bytes()})["b"]
    assert isinstance(described, bytes)
    schema = m.Description.from_bytes(described).schema
    for seed in (0, 1):
        engine.call("agree", {"b": m.Agree(schema, seed, None).to_bytes()})
    before = engine.counts["agree"]
    header, _ = unwrap(answer(sent[-2]))  # the first agree, recorded on its way
    assert header["behind"]
    assert engine.counts["agree"] == before
    assert "'agree' is for another state" in caplog.text


@pytest.mark.parametrize(
    "spoil",
    [
        lambda parcel: parcel[:10],
        lambda _: b"",
        lambda parcel: b"XXXX" + parcel[4:],
        lambda parcel: parcel + b"x",
        lambda parcel: parcel[:12] + b"\xff" + parcel[13:],
    ],
)
def test_damaged_parcel_is_an_error_by_name(spoil: Callable[[bytes], bytes]) -> None:
    engine = Here({"b": specs()["b"]})
    engine.spoil = spoil
    answer = engine.call("describe", {"b": m.Describe(5).to_bytes()})["b"]
    assert isinstance(answer, ClientError)
    assert "client 'b': a reply that cannot be read" in str(answer)
    with pytest.raises(StorageError, match="parcel"):
        unwrap(spoil(engine.keepers["b"].answer(b"garbage")))


def test_garbage_is_answered_with_an_error_and_the_client_lives_on() -> None:
    keeper = Keeper(lambda: client_from_spec(specs()["b"]), "b")
    for garbage in (b"", b"garbage", b"FCP1" + bytes(8), b"FCP1" + b"\xff" * 30):
        header, _ = unwrap(keeper.answer(garbage))
        assert "StorageError" in str(header["error"])
    assert unwrap(keeper.answer(_first()))[0]["behind"]


def _first() -> bytes:
    """The parcel of a server that does not know the client yet."""
    taken: list[bytes] = []
    Replay().call(
        lambda parcels, _: taken.extend(parcels.values()) or {},  # type: ignore[func-returns-value]
        "describe",
        {"b": m.Describe(5).to_bytes()},
    )
    return taken[0]

"""What leaves a client: canaries planted in the tables are searched for in every message."""

from __future__ import annotations

import contextlib
import functools
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import fedcircuits as fc
from contracts.engine import table
from contracts.federations import ID as CUSTOMER
from contracts.federations import LABEL, local, split
from fedcircuits import encoding
from fedcircuits.api.client_spec import ClientSpec
from fedcircuits.api.federate import LABEL_STAYS
from fedcircuits.errors import StorageError
from fedcircuits.federation.wire import requests as m
from fedcircuits.federation.wire.message import PACKED, model_array, model_bytes
from fedcircuits.federation.wire.names import LATENT_CLASSES
from fedcircuits.federation.wire.packing import pack_choice, pack_codes
from leakage import Leak, named_choices, recover_label
from recorder import Recorder

# The rules here send the server row evidence, or are compared with such as do.
federate = functools.partial(fc.federate, trust="one owner")

pytestmark = pytest.mark.slow

# Values of single rows: the largest, the smallest and one in the middle of their column.
CANARIES = {"height": (71.2345678901234, -63.9876543210987), "size": (0.1234567890123456,)}
IDS = ("canary-held-by-all", "canary-held-by-a-alone")


def planted(setting: str) -> dict[str, pd.DataFrame]:
    rows = table(n=160)
    rows[CUSTOMER] = [f"person-{i}-canary" for i in range(len(rows))]
    rows.loc[20, CUSTOMER] = IDS[0]
    for name, values in CANARIES.items():
        for at, value in enumerate(values):
            rows.loc[30 + at, name] = value
    rows[LABEL] = rows[LABEL].replace({"yes": "zebra-yes", "no": "zebra-no"})
    clients = split(setting, rows)
    clients["a"] = clients["a"].assign(
        **{CUSTOMER: clients["a"][CUSTOMER].replace("person-2-canary", IDS[1])}
    )
    return clients


RULES: list[tuple[str, str, dict[str, Any]]] = [
    ("horizontal", "independent", {}),
    ("horizontal", "product", {}),
    ("horizontal", "joint", {}),
    ("vertical", "independent", {"n_clusters": 2}),
    ("vertical", "latent", {"n_clusters": 3, "n_classes": 3}),
    ("vertical", "latent", {"n_clusters": 3, "n_classes": 3, "table": True}),
    ("vertical", "em", {"n_clusters": 3}),
    ("vertical", "joint", {"n_clusters": 3, "n_classes": 3}),
    ("vertical", "auto", {}),
    ("hybrid", "product", {}),
    ("hybrid", "anchors", {"n_clusters": 3, "n_anchors": 3}),
]


def run(setting: str, rule: str, options: dict[str, Any], **more: Any) -> tuple[Any, Recorder]:
    engine = Recorder(
        local(planted(setting), "mixture" if rule in ("joint", "em") else "factorised")
    )
    if setting == "vertical" and rule == "auto":
        engine = Recorder(local(planted(setting), "mixture"))
    fed = federate(id=CUSTOMER, label=LABEL, engine=engine, agreement=rule, **options, **more)
    return fed, engine


def test_the_search_looks_into_packed_models() -> None:
    record = encoding.Record("m", {}, {"model": model_array(b"a canary" * 10)})
    data = encoding.pack(record)
    assert b"canary" not in data
    assert b"canary" in inside(data)


@pytest.mark.parametrize(("setting", "rule", "options"), RULES)
def test_no_value_of_a_single_row_and_no_id_leaves_a_client(
    setting: str, rule: str, options: dict[str, Any]
) -> None:
    _, engine = run(setting, rule, options)
    assert any(message.verb in ("fit", "round", "branch") for message in engine.messages)
    for message in engine.messages:
        where, data = f"{message.verb} {message.client}", inside(message.data)
        assert b"canary" not in data, where
        for value in (v for values in CANARIES.values() for v in values):
            for form in (struct.pack("<d", value), struct.pack("<f", value), repr(value).encode()):
                assert form not in data, f"{value} in {where}"


@pytest.mark.parametrize("label_use", ["used", "no"])
@pytest.mark.parametrize(("rule", "options"), [each[1:] for each in RULES if each[0] == "vertical"])
def test_a_label_that_is_not_sent_does_not_reach_other_clients(
    rule: str, options: dict[str, Any], label_use: str
) -> None:
    fed, engine = run("vertical", rule, options, label_use=label_use)
    assert (LABEL in fed.schema) is (label_use == "used")
    assert not [x for x in engine.messages if x.verb in ("send_label", "take_label")]
    for message in engine.messages:
        if message.client != "a":  # no category of the label
            assert b"zebra" not in inside(message.data), message.verb


@pytest.mark.parametrize(("rule", "options"), [each[1:] for each in RULES if each[0] == "vertical"])
def test_a_label_that_is_sent_reaches_other_clients_in_one_message_and_by_rules_that_need_it(
    rule: str, options: dict[str, Any]
) -> None:
    _, engine = run("vertical", rule, options)  # sent is the default
    needed = rule not in LABEL_STAYS
    verbs = [(x.verb, x.client) for x in engine.messages if x.to_client]
    for client in ("b", "c"):
        assert verbs.count(("take_label", client)) == needed
    assert verbs.count(("send_label", "a")) == 2 * needed  # once for each of the others
    assert not {("send_label", "b"), ("send_label", "c"), ("take_label", "a")} & set(verbs)
    for message in engine.messages:
        if message.to_client and message.client != "a" and message.verb != "take_label":
            assert b"zebra" not in inside(message.data), message.verb


def inside(data: bytes) -> bytes:
    """A message with the models in it unpacked: what a reader of the wire can search."""
    found = [data]
    for array in encoding.unpack(data).arrays.values():
        if array.dtype == np.uint8 and array[:1].tobytes() == PACKED:
            with contextlib.suppress(StorageError):  # some other array that begins so
                found.append(model_bytes(array))
    return b"".join(found)


def audit(engine: Recorder, party: str) -> Leak:
    """How well a party can tell the label, by an auditor who sees the tables of all clients.

    The server is judged by what the owner and b tell it: c holds fewer of the aligned rows.
    """
    clients = planted("vertical")
    labels = clients["a"].set_index(CUSTOMER)[LABEL] == "zebra-yes"
    reader = "a" if party == "server" else party
    mine = [x for x in engine.messages if x.client == reader]
    told = next(x for x in mine if x.verb == "align" and x.to_client)
    ids = clients[reader][CUSTOMER].iloc[m.Align.from_bytes(told.data).rows]
    truth = labels.reindex(ids).to_numpy().astype(int)
    named = named_choices([x.data for x in mine if x.to_client], truth.size)
    read = [x.data for x in mine if x.to_client is (party != "server")]
    return recover_label(read, truth, named)


def test_with_a_label_that_is_used_nobody_receives_the_partition_of_the_label() -> None:
    options = {"n_clusters": 3, "n_classes": 3}
    _, open_ = run("vertical", "latent", options)
    _, private = run("vertical", "latent", {**options, "label_use": "used"})
    for engine, told in ((open_, True), (private, False)):
        leak = audit(engine, "server")
        assert (leak.accuracy == 1.0) is told, leak
        other = audit(engine, "b")
        assert (other.accuracy > 0.95) is told, other


def test_likelihoods_for_em_leave_out_a_label_that_is_used() -> None:
    """With the models in hand a server finds the label in likelihoods that include it."""
    fed, engine = run("vertical", "em", {"n_clusters": 3}, label_use="used")
    rows = planted("vertical")["a"].set_index(CUSTOMER)
    mine = [x for x in engine.messages if x.client == "a"]
    aligned = m.Align.from_bytes(next(x.data for x in mine if x.verb == "align" and x.to_client))
    (chosen,) = named_choices([x.data for x in mine if x.to_client], aligned.rows.size)
    asked = rows.iloc[aligned.rows[chosen]]
    whole = asked.notna().all(axis=1).to_numpy()  # what is missing may be a state to the client
    assert whole.sum() > 100
    models = {key.name: model for key, model in fed.fitted.models.items() if key.client == "a"}
    exchanged = [x.data for x in mine if x.verb == "ask"]
    assert len(exchanged) == 2 * len(models) == 6
    for request, reply in zip(exchanged[::2], exchanged[1::2], strict=True):
        model = models[m.Ask.from_bytes(request).model]
        assert LABEL in model.schema
        told = m.Answer.from_bytes(reply).values
        expected = model.log_prob(asked.drop(columns=LABEL)).to_numpy()
        np.testing.assert_allclose(told[whole], expected[whole], atol=1e-9)


def test_independent_tells_nothing_of_single_rows() -> None:
    _, engine = run("vertical", "independent", {"n_clusters": 2})
    for party in ("server", "b", "c"):
        assert audit(engine, party).source == ""


def test_recovery_finds_a_label_in_indices_and_in_numbers() -> None:
    rng = np.random.default_rng(0)
    codes = rng.integers(2, size=200)
    renamed = m.Clustered(np.ones(4), np.zeros(4, np.int64), pack_codes(codes * 2 + 1, 4))
    noise = m.Clustered(np.ones(4), np.zeros(4, np.int64), pack_codes(rng.integers(4, size=200), 4))
    assert recover_label([renamed.to_bytes()], codes).accuracy == 1.0
    assert recover_label([noise.to_bytes()], codes).accuracy < 0.62
    scores = m.Answer(codes + rng.normal(0, 0.1, 200))
    assert recover_label([scores.to_bytes()], codes).accuracy > 0.97


def test_recovery_finds_a_label_of_some_rows() -> None:
    rng = np.random.default_rng(0)
    codes = rng.integers(2, size=200)
    chosen = rng.random(200) < 0.5
    name = m.NameRows("v", pack_choice(chosen))
    named = named_choices([name.to_bytes()], 200)
    scores = m.Answer(codes[chosen] + rng.normal(0, 0.1, int(chosen.sum())))
    assert recover_label([scores.to_bytes()], codes).source == ""
    assert recover_label([scores.to_bytes()], codes, named).accuracy > 0.97
    choice = pack_choice(chosen)
    classes = pack_codes(1 - codes[chosen], 2)
    assign = m.Assign(LATENT_CLASSES, None, choice, classes, np.zeros((0, 2), np.float32))
    assert recover_label([assign.to_bytes()], codes).accuracy == 1.0
    per_row = pack_codes(np.ones(int(chosen.sum()), dtype=np.int64), 3)
    ones = np.ones(int(chosen.sum()), np.float32)
    share = m.Branch(1, (), choice, 2, per_row, classes, ones, False, False, False)
    assert recover_label([share.to_bytes()], codes).accuracy == 1.0


def test_sketches_say_nothing_that_fewer_rows_share() -> None:
    _, engine = run("horizontal", "product", {})
    for message in engine.messages:
        if message.verb == "describe" and not message.to_client:
            told = m.Description.from_bytes(message.data)
            for key, array in told.sketches.items():
                if key.endswith("_rows"):
                    assert (array >= 5).all(), key
            assert all(v["domain"] is None for v in told.schema)


def test_a_secret_changes_every_digest_and_no_answer() -> None:
    clients = planted("vertical")
    plain = federate(clients, id=CUSTOMER, agreement="latent", n_clusters=3, learner="factorised")
    secret = federate(
        clients,
        id=CUSTOMER,
        agreement="latent",
        n_clusters=3,
        learner="factorised",
        id_secret="only clients know",
    )
    rows = table(n=10)[["height", "visits", "size"]]
    np.testing.assert_allclose(secret.log_prob(rows), plain.log_prob(rows), atol=1e-10)


def test_rows_asked_by_id_need_the_secret_too() -> None:
    clients = planted("vertical")
    fed = federate(
        clients, id=CUSTOMER, agreement="latent", n_clusters=3, learner="factorised",
        placement="remote", id_secret="only clients know",
    )  # fmt: skip
    asked = pd.DataFrame({CUSTOMER: [IDS[0]]})
    assert fed.log_prob(asked).iloc[0] != 0.0


@pytest.mark.parametrize("placement", ["gathered", "remote"])
def test_a_secret_is_in_no_file_and_not_shown(placement: Any, tmp_path: Path) -> None:
    typed = "only clients know"
    fed = federate(
        planted("vertical"), id=CUSTOMER, learner="factorised", placement=placement,
        id_secret=typed,
    )  # fmt: skip
    for shown in (repr(fed), str(fed), repr(fed.run), str(fed.reveals)):
        assert typed not in shown
    spec = ClientSpec("a", planted("vertical")["a"], "factorised", id=CUSTOMER, id_secret=typed)
    assert typed not in repr(spec)
    if placement == "gathered":
        fed.save(tmp_path / "model.fc")
        assert typed.encode() not in (tmp_path / "model.fc").read_bytes()


def test_every_rule_says_what_leaves_a_client() -> None:
    from fedcircuits.federation.agreement import RULES as KNOWN

    for kind in KNOWN.values():
        assert kind().reveals
        assert all(isinstance(line, str) for line in kind().reveals)

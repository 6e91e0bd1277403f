"""Bad input and failing clients: each a clear error that names the client, the rest kept."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import fedcircuits as fc
from contracts.engine import table
from contracts.federations import ID, LABEL, Breaking, local, split
from fedcircuits import encoding
from fedcircuits.errors import (
    ClientError,
    FedcircuitsWarning,
    FederationError,
    LearningError,
    SchemaConflictError,
)
from fedcircuits.federation.wire import requests as m
from fedcircuits.federation.wire.names import CLUSTERS, Job, JobId, JobKind, ModelName
from fedcircuits.learners import Factorised
from fedcircuits.schema import Table

ROWS = table(seed=4, n=30).drop(columns=ID)


def federate(clients: Any, **options: Any) -> Any:
    return fc.federate(clients, id=ID, label=LABEL, **{"learner": "factorised", **options})


def test_one_name_with_two_kinds_names_both_clients() -> None:
    clients = split("horizontal")
    clients["b"] = clients["b"].assign(size="large")
    with pytest.raises(SchemaConflictError, match=r"'size': client 'a' .*client 'b'.*categorical"):
        federate(clients)


def test_duplicate_ids_name_the_client_and_the_row_but_not_the_id() -> None:
    clients = split("vertical")
    clients["b"] = pd.concat([clients["b"], clients["b"].iloc[[3]]], ignore_index=True)
    with pytest.raises(
        ClientError, match=r"client 'b'.*1 id\(s\) appear more than once.*row 120"
    ) as e:
        federate(clients)
    assert str(clients["b"][ID].iloc[3]) not in str(e.value)


def test_no_common_id_names_the_clients() -> None:
    clients = split("vertical")
    for at, name in enumerate("abc"):
        clients[name] = clients[name].assign(**{ID: lambda t, at=at: t[ID] + 10_000 * at})
    with pytest.raises(FederationError, match="no id is held by two clients of 'a', 'b', 'c'"):
        federate(clients)


def test_disjoint_columns_without_an_id_are_refused() -> None:
    clients = {name: rows.drop(columns=ID) for name, rows in split("vertical").items()}
    with pytest.raises(FederationError, match=r"'a', 'b', 'c' share no column.*pass id="):
        fc.federate(clients, label=LABEL, learner="factorised")


def test_an_id_that_one_client_lacks_names_it() -> None:
    clients = split("vertical")
    clients["c"] = clients["c"].drop(columns=ID)
    with pytest.raises(ClientError, match="client 'c': has no id column"):
        federate(clients)


def test_ids_may_be_strings_integers_or_floats_and_may_be_missing() -> None:
    clients = split("vertical")
    whole = federate(clients, agreement="latent", n_clusters=3)
    clients["a"] = clients["a"].assign(**{ID: lambda t: t[ID].astype(str)})
    clients["b"] = clients["b"].assign(**{ID: lambda t: t[ID].astype(float)})
    again = federate(clients, agreement="latent", n_clusters=3)
    np.testing.assert_array_equal(again.log_prob(ROWS), whole.log_prob(ROWS))
    clients["b"].loc[[0, 1], ID] = np.nan  # two rows that belong to nobody else's
    federate(clients, agreement="latent", n_clusters=3)


def test_an_empty_client_is_left_out_and_said() -> None:
    clients = split("horizontal")
    without = {n: clients[n] for n in "ac"}
    clients["b"] = clients["b"].iloc[:0]
    with pytest.warns(FedcircuitsWarning, match=r"without the client 'b': it has no rows; variab"):
        fed = federate(clients)
    assert fed.dropped == {"b": "it has no rows"}
    np.testing.assert_array_equal(fed.log_prob(ROWS), federate(without).log_prob(ROWS))


def test_only_empty_clients_are_an_error() -> None:
    with pytest.raises(FederationError, match=r"no client is left.*'a'"):
        federate({"a": table().iloc[:0]})


def test_a_client_with_one_class_speaks_for_that_class() -> None:
    rows = table(n=240)
    yes = rows[LABEL] == "yes"
    clients = {"a": rows[yes], "b": rows[~yes], "c": rows.iloc[:40]}
    fed = federate({n: c.reset_index(drop=True) for n, c in clients.items()})
    assert fed.clients == ("a", "b", "c")
    assert (fed.predict(ROWS, LABEL) == ROWS[LABEL]).mean() > 0.75
    only = federate({"a": clients["a"], "b": clients["a"]})
    assert only.predict_proba(ROWS.head(2), LABEL).to_numpy() == pytest.approx(1.0)


def test_a_label_nobody_holds_names_the_clients() -> None:
    with pytest.raises(FederationError, match=r"no client holds the label 'age'.*'a', 'b', 'c'"):
        fc.federate(split("horizontal"), id=ID, label="age")


def test_a_missing_file_and_a_missing_learner_name_the_client(tmp_path: Path) -> None:
    with pytest.raises(FederationError, match=r"client 'a': no such file: .*nowhere\.csv"):
        federate({"a": tmp_path / "nowhere.csv"})
    with pytest.raises(FederationError, match="no learner is named for client 'b'"):
        federate(split("horizontal"), learner={"a": "factorised"})
    with pytest.raises(FederationError, match="no engine 'rocket'; there are local, processes"):
        federate(split("horizontal"), engine="rocket")
    with pytest.raises(FederationError, match="placement is gathered or remote"):
        federate(split("horizontal"), placement="nowhere")
    with pytest.raises(FederationError, match="at least one client"):
        federate({})


# --- clients that fail ----------------------------------------------------------------------------


class Fails:
    """A learner with a fault that is none of ours."""

    def fit(self, table: Table, rng: np.random.Generator) -> Any:
        del table, rng
        raise RuntimeError("out of paper")


def test_a_client_that_raises_is_dropped_where_others_hold_its_columns() -> None:
    clients = split("horizontal")
    learner = {"a": "factorised", "b": Fails(), "c": "factorised"}
    said = r"without the client 'b': RuntimeError: out of paper; no variable left the model"
    with pytest.warns(FedcircuitsWarning, match=said):
        fed = federate(clients, learner=learner, agreement="product")
    assert "client 'b': RuntimeError: out of paper" in fed.dropped["b"]
    whole = federate(clients, agreement="product")
    np.testing.assert_allclose(fed.log_prob(ROWS), whole.without("b").log_prob(ROWS), atol=1e-12)


@pytest.mark.filterwarnings("ignore:ignored")
def test_a_client_that_alone_holds_columns_is_an_error_and_the_rest_is_kept() -> None:
    learner = {"a": "factorised", "b": Fails(), "c": "factorised"}
    options: dict[str, Any] = {"learner": learner, "agreement": "latent", "n_clusters": 3}
    with pytest.raises(
        FederationError, match=r"client 'b'.*out of paper.*alone holds 'visits'"
    ) as e:
        federate(split("vertical"), **options)
    rest: Any = e.value.rest
    assert rest.clients == ("a", "c")
    assert np.isfinite(rest.log_prob(ROWS)).all()
    said = r"without the client 'b': .*out of paper.*left the model with it: 'visits'"
    with pytest.warns(FedcircuitsWarning, match=said):
        allowed = federate(split("vertical"), **options, allow_missing=True)
    assert "visits" not in allowed.schema
    assert "out of paper" in allowed.dropped["b"]
    np.testing.assert_array_equal(allowed.log_prob(ROWS), rest.log_prob(ROWS))


def test_the_label_does_not_leave_the_model_unsaid() -> None:
    """Its only holder fails: an error with allow_missing too, which says what to do."""
    learner = {"a": Fails(), "b": "factorised", "c": "factorised"}
    options: dict[str, Any] = {"learner": learner, "agreement": "latent", "n_clusters": 3}
    options["label_use"] = "used"  # a label that was sent is still there
    with pytest.raises(FederationError, match=r"'a' is lost .* label 'bought'.*pass label=None"):
        federate(split("vertical"), **options, allow_missing=True)


def test_auto_keeps_a_label_that_anchors_would_leave_out() -> None:
    """Label and columns at two clients with different rows, other columns at a third."""
    rows = table(n=240)
    first, second = rows[[ID, "height", LABEL]].iloc[:120], rows[[ID, "height", LABEL]].iloc[120:]
    clients = {"a": first, "b": second.reset_index(drop=True), "c": rows[[ID, "size"]]}
    assert LABEL in federate(clients).schema
    with pytest.raises(FederationError, match=r"leave the label 'bought' out.*label_use='sent'"):
        federate(clients, agreement="anchors", label_use="used")


def test_every_client_failing_is_an_error_by_name() -> None:
    with pytest.raises(FederationError, match=r"client 'a'.*out of paper"):
        federate({"a": table()}, learner=Fails())


@pytest.mark.parametrize("client", ["a", "b"])
@pytest.mark.parametrize(
    "spoil",
    [
        lambda reply: reply[:-3],
        lambda _: b"",
        lambda _: b"hello",
        lambda _: m.AskKey().to_bytes(),
        lambda reply: reply.replace(b'\\"version\\": 2', b'\\"version\\": 7'),
        lambda _: ConnectionError("the line is dead"),
    ],
)
@pytest.mark.parametrize("verb", ["describe", "agree", "digests", "cluster", "fit"])
def test_a_reply_that_is_no_reply_names_the_client(
    verb: str, spoil: Callable[[bytes], Any], client: str
) -> None:
    def wrong(said: str, name: str, reply: bytes) -> Any:
        return spoil(reply) if (said, name) == (verb, client) else reply

    engine = Breaking(local(split("vertical")), wrong)
    with pytest.raises(FederationError, match=f"client '{client}'"):
        fc.federate(id=ID, label=LABEL, engine=engine, agreement="latent", n_clusters=3)


def test_a_reply_of_another_version_says_so() -> None:
    def wrong(said: str, name: str, reply: bytes) -> Any:
        if (said, name) != ("describe", "b"):
            return reply
        changed = reply.replace(b'\\"version\\": 2', b'\\"version\\": 7')
        assert changed != reply
        return changed

    with pytest.raises(ClientError, match=r"client 'b'.*version 7"):
        fc.federate(id=ID, engine=Breaking(local(split("vertical")), wrong))


WRONG_SHAPES: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "digests": ("digests", lambda _: m.Digests(np.zeros((120, 8), np.uint8)).to_bytes()),
    "strata": (
        "cluster",
        lambda r: _changed(m.Clustered.from_bytes(r), strata=np.zeros(9, np.int64)),
    ),
    "indices": (
        "cluster",
        lambda r: _changed(m.Clustered.from_bytes(r), indices=np.zeros(3, np.uint8)),
    ),
    "another model": ("fit", lambda r: _renamed(m.Fitted.from_bytes(r))),
    "a list for a number": ("agree", lambda r: _changed(m.Ready.from_bytes(r), n_rows=[1])),
}


def _renamed(reply: m.Fitted) -> bytes:
    from dataclasses import replace

    other = ModelName(JobId(JobKind.SUBSPACE, 9))
    return _changed(reply, models=tuple(replace(each, name=other) for each in reply.models))


def _changed(message: Any, **values: Any) -> bytes:
    from dataclasses import replace

    changed: bytes = replace(message, **values).to_bytes()
    return changed


@pytest.mark.parametrize("case", list(WRONG_SHAPES))
def test_a_reply_of_the_wrong_shape_names_the_client(case: str) -> None:
    verb, spoil = WRONG_SHAPES[case]

    def wrong(said: str, name: str, reply: bytes) -> Any:
        return spoil(reply) if (said, name) == (verb, "b") else reply

    engine = Breaking(local(split("vertical")), wrong)
    with pytest.raises(FederationError, match="client 'b'"):
        fc.federate(id=ID, label=LABEL, engine=engine, agreement="latent", n_clusters=3)


def test_a_reply_of_another_client_or_to_an_earlier_request_is_refused() -> None:
    """Rows are split, so that any client's reply to `describe` would do for any other's."""
    earlier: dict[str, bytes] = {}

    def of_another(verb: str, _: str, reply: bytes) -> bytes:
        earlier.setdefault(verb, reply)
        return earlier[verb] if verb == "describe" else reply

    with pytest.raises(ClientError, match=r"client 'b'.*answers another request, or is of another"):
        fc.federate(label=LABEL, engine=Breaking(local(split("horizontal")), of_another))

    def late(verb: str, name: str, reply: bytes) -> bytes:
        return earlier.setdefault(f"{verb} {name}", reply)

    engine = Breaking(local(split("horizontal")), late)
    fc.federate(label=LABEL, engine=engine, agreement="product", seed=0)  # replies are kept
    with pytest.raises(ClientError, match=r"client 'a'.*answers another request"):
        fc.federate(label=LABEL, engine=engine, agreement="product", seed=1)


# --- the same request twice -----------------------------------------------------------------------


class Counting(Factorised):
    """Counts its fits."""

    fits = 0

    def fit(self, table: Table, rng: np.random.Generator) -> Any:
        Counting.fits += 1
        return super().fit(table, rng)


def test_the_same_request_twice_gives_the_same_reply_and_does_not_fit_twice() -> None:
    client = local({"a": table()}, Counting())._clients["a"]
    told = m.Description.from_bytes(client.handle("describe", m.Describe(5).to_bytes()))
    client.handle("agree", m.Agree(told.schema, 0, LABEL).to_bytes())
    cluster = m.Cluster(CLUSTERS, ["size", "visits"], 3, False, False).to_bytes()
    assert client.handle("cluster", cluster) == client.handle("cluster", cluster)
    job = Job(JobId(JobKind.SUBSPACE, 0), ("size",), CLUSTERS, 0)
    fit = m.Fit((job,), False).to_bytes()
    Counting.fits = 0
    first = client.handle("fit", fit)
    assert client.handle("fit", fit) == first
    assert client.handle("cluster", cluster)
    assert client.handle("fit", fit) == first
    assert Counting.fits == 1
    # Something else was told in between: then it is another request, whatever its bytes.
    client.handle("cluster", m.Cluster(CLUSTERS, ["size"], 2, False, False).to_bytes())
    assert client.handle("fit", fit) != first
    assert Counting.fits == 2


def test_a_failed_request_is_not_remembered() -> None:
    client = local({"a": table()})._clients["a"]
    fit = m.Fit((), False).to_bytes()
    job = m.Fit((Job(JobId(JobKind.SUBSPACE, 0), ("size",)),), False).to_bytes()
    assert "not sent the agreed schema" in m.Failed.from_bytes(client.handle("fit", job)).error
    told = m.Description.from_bytes(client.handle("describe", m.Describe(5).to_bytes()))
    client.handle("agree", m.Agree(told.schema, 0, LABEL).to_bytes())
    assert m.Fitted.from_bytes(client.handle("fit", fit)).models == ()


def test_no_pickle_in_what_travels() -> None:
    with pytest.raises(LearningError, match="no learner"):
        federate(split("horizontal"), learner="magic")
    assert not hasattr(encoding, "pickle")


def test_a_misspelt_rule_is_said_before_anybody_is_asked() -> None:
    asked: list[str] = []

    def note(verb: str, client: str, reply: bytes) -> bytes:
        asked.append(f"{verb} {client}")
        return reply

    engine = Breaking(local(split("horizontal")), note)
    with pytest.raises(FederationError, match="no agreement rule 'jont'; there are auto"):
        fc.federate(engine=engine, label=LABEL, agreement="jont")
    assert asked == []


def test_tables_too_small_to_sketch_say_which_column_and_what_to_do() -> None:
    few = pd.DataFrame({"size": [1.5, 2.5], "kind": ["x", "y"]})
    with pytest.raises(FederationError, match=r"variable 'size'.*min_rows = 5.*pass min_rows="):
        fc.federate({"a": few, "b": few}, learner="factorised")

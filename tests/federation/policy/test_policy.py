"""A policy holds whoever asks and whatever is asked; where it allows all, it changes nothing."""

from __future__ import annotations

import dataclasses
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import fedcircuits as fc
from contracts.engine import table
from contracts.federations import ID, LABEL, split
from contracts.guarded import KINDS, OPEN, client, engine, error_of, filled, guarded, ready
from fedcircuits.api.client_spec import ClientSpec
from fedcircuits.errors import FedcircuitsWarning, FederationError
from fedcircuits.federation.agreement import Latent
from fedcircuits.federation.client.client import Client
from fedcircuits.federation.client.rows.parts import Parts
from fedcircuits.federation.policy.policy import Policy, PolicyError
from fedcircuits.federation.wire import requests as m
from fedcircuits.federation.wire.names import CLUSTERS, Job, JobId, JobKind, ModelName
from fedcircuits.federation.wire.verbs import VERBS

# --- what a policy allows goes on unchanged -------------------------------------------------------


@pytest.mark.parametrize(
    ("setting", "options"),
    [
        ("horizontal", {"agreement": "independent"}),
        ("horizontal", {"agreement": "product"}),
        ("horizontal", {"agreement": "joint"}),
        ("vertical", {"agreement": "product"}),
        ("vertical", {"agreement": "latent", "n_clusters": 3, "n_classes": 3}),
        ("hybrid", {"agreement": "anchors", "n_clusters": 3, "n_anchors": 3}),
    ],
)
@pytest.mark.slow
def test_an_open_policy_gives_the_same_model_bit_for_bit(
    setting: str, options: dict[str, Any], tmp_path: Path
) -> None:
    saved = []
    learner = "mixture" if options["agreement"] == "joint" else "factorised"
    rows = split(setting, table(n=160))
    for at, members in enumerate(
        (
            {name: _bare(name, frame, learner) for name, frame in rows.items()},
            guarded(setting, OPEN, learner),
        )
    ):
        fed = fc.federate(id=ID, label=LABEL, engine=engine(members), min_rows=1, **options)
        fed.save(tmp_path / f"{at}.fc")
        saved.append((tmp_path / f"{at}.fc").read_bytes())
    assert saved[0] == saved[1]


def _bare(name: str, frame: pd.DataFrame, learner: str) -> Client:
    kinds = {key: kind for key, kind in KINDS.items() if key in frame.columns}
    return ClientSpec(name, frame, learner, id=ID, kinds=kinds).make()


# --- columns --------------------------------------------------------------------------------------


def test_a_column_not_offered_is_in_no_message() -> None:
    policy = Policy(columns=("height", "visits", LABEL), min_rows=1)
    rows = {name: f.assign(secret=71.2345678901234) for name, f in split("horizontal").items()}
    members = {name: client(name, frame, policy) for name, frame in rows.items()}
    recorder = engine(members)
    fed = fc.federate(id=ID, label=LABEL, engine=recorder, min_rows=1)
    assert set(fed.schema.names) == {"height", "visits", LABEL}
    for message in recorder.messages:
        assert b"secret" not in message.data
        assert struct.pack("<d", 71.2345678901234) not in message.data


JOB = JobId(JobKind.SUBSPACE, 0)
NAMES_A_COLUMN: dict[str, dict[str, Any]] = {
    "agree": {"schema": [{"name": "size"}]},
    "cluster": {"columns": ["height", "size"]},
    "start": {"columns": ["size"]},
    "centres": {"columns": ["size"]},
    "anchor_rows": {"columns": ["size"]},
    "fit": {"jobs": (Job(JOB, ("size",)),)},
    "round": {"columns": ["size"]},
    "branch": {"jobs": (m.BranchJob(JOB, ("size",)),)},
    "fit_tilt": {"columns": ["size"]},
    "fit_head": {"columns": ["size"]},
    "fit_code_trees": {"columns": ["size"]},
    "fit_trees_on_codes": {"columns": ["size"]},
    "score_heads": {"columns": ["size"]},
    "codes": {"columns": ["size"], "n_codes": 8},
    "fit_by_codes": {"columns": ["size"]},
    "spread_codes": {"columns": ["size"]},
    "fit_classifier": {"columns": ["size", LABEL]},
    "query": {"columns": ["size"]},
    "take_label": {"schema": [{"name": "size"}]},
}


@pytest.mark.parametrize("verb", NAMES_A_COLUMN)
def test_a_request_for_a_column_not_offered_is_refused(verb: str) -> None:
    member = ready(Policy(columns=("height", "visits", LABEL)))
    told = error_of(member.handle(verb, filled(verb, NAMES_A_COLUMN[verb])))
    assert "'a' refuses" in told
    assert "'size' is not offered; offered are 'height', 'visits', 'bought'" in told


def test_every_request_that_names_columns_is_in_the_list_above() -> None:
    named = {
        verb
        for verb, kind in m.VERBS.items()
        if {"columns", "jobs", "schema"}
        & {entry.name for entry in dataclasses.fields(kind.request)}
    }
    assert named - {"propose"} == set(NAMES_A_COLUMN)


def test_a_policy_cannot_offer_what_the_table_does_not_have() -> None:
    with pytest.raises(PolicyError, match=r"'income', which client 'a' does not have; it has .*"):
        Policy(columns=("income",)).apply(table(), client="a")


def test_rare_categories_are_hidden_and_common_ones_stay() -> None:
    rows = table()
    rows.loc[[3, 4], "colour"] = "ultraviolet"
    hidden = Policy(min_rows=3).apply(rows, id=ID)
    assert set(hidden["colour"].dropna()) == {"red", "green", "blue"}
    assert hidden["colour"].isna().sum() == rows["colour"].isna().sum() + 2
    told = Policy(min_rows=2).apply(rows, id=ID)
    assert (told["colour"] == "ultraviolet").sum() == 2
    pd.testing.assert_frame_equal(OPEN.apply(rows, id=ID), rows)


# --- the label ------------------------------------------------------------------------------------


def test_a_label_that_is_used_is_not_told() -> None:
    members = guarded("vertical", Policy(min_rows=1))
    with pytest.raises(FederationError, match=r"the label of single rows.*label = 'used'"):
        fc.federate(id=ID, label=LABEL, engine=engine(members), agreement="product", min_rows=1)
    options = {"agreement": "latent", "n_clusters": 3, "n_classes": 3, "min_rows": 1}
    with pytest.warns(FedcircuitsWarning, match=r"'bought' is used and not sent .*label = 'used'"):
        fc.federate(id=ID, label=LABEL, engine=engine(members), **options)
    # The refusals did no harm: the same clients train in a way their policy allows.
    fed = fc.federate(id=ID, label=LABEL, engine=engine(members), label_use="used", **options)
    assert np.isfinite(fed.log_prob(table(n=10).drop(columns=ID))).all()


@pytest.mark.parametrize("learner", ["factorised", "mixture"])
@pytest.mark.parametrize("rule", ["latent", "joint", "em"])
@pytest.mark.slow
def test_where_a_policy_refuses_to_send_the_label_the_run_goes_on_with_one_that_is_used(
    rule: str, learner: str
) -> None:
    members = guarded("vertical", dataclasses.replace(OPEN, label="used"), learner)
    asked: dict[str, Any] = {"id": ID, "label": LABEL, "min_rows": 1, "trust": "one owner"}
    transport = engine(members)
    with pytest.warns(FedcircuitsWarning, match=r"'bought' is used and not sent"):
        fed = fc.federate(engine=transport, agreement=rule, n_clusters=3, **asked)
    assert not [x for x in transport.messages if x.verb in ("send_label", "take_label")]
    assert np.isfinite(fed.log_prob(table(n=10).drop(columns=ID))).all()


def test_a_label_that_is_not_offered_as_one_is_not_used() -> None:
    member = client("a", table(), Policy(label="no"))
    with pytest.raises(FederationError, match=f"{LABEL!r} as the label"):
        fc.federate(id=ID, label=LABEL, engine=engine({"a": member}))
    assert LABEL in fc.federate(id=ID, engine=engine({"a": member})).schema.names


def test_label_requests_of_few_rows_are_refused() -> None:
    member = ready(Policy(label="used", min_rows=5))
    key = m.PublicKey.from_bytes(member.handle("public_key", m.AskKey().to_bytes())).key
    nothing = np.zeros(0)
    request = m.Judge("validation", 4, key, "s", (), (), *[nothing] * 7)
    assert "the label of 4 row(s)" in error_of(member.handle("judge", request.to_bytes()))
    tables = m.TiltTables(["height"], nothing, nothing, nothing, nothing)
    score = m.ScoreTilt(tables, "all", 4, key, "s")
    assert "scores of 4 row(s)" in error_of(member.handle("score_tilt", score.to_bytes()))
    fit = m.FitTilt(["height"], 2, "", 0, False, key, "s", (), False, 4, 3)
    assert "4 row(s) behind an entry" in error_of(member.handle("fit_tilt", fit.to_bytes()))
    model = ModelName(JobId(JobKind.SUBSPACE, 0), 0)
    ask = m.AskSealed((model,), "validation", 4, key, "s")
    assert "models on 4 row(s)" in error_of(member.handle("ask_sealed", ask.to_bytes()))


# --- small groups ---------------------------------------------------------------------------------


def test_sketches_are_of_the_policys_smallest_group_whatever_is_asked() -> None:
    member = client("a", table(), Policy(min_rows=20))
    told = [
        m.Description.from_bytes(member.handle("describe", m.Describe(rows).to_bytes()))
        for rows in (1, 5, 20, 21, 40)
    ]
    assert all(each.to_bytes() == told[0].to_bytes() for each in told)
    for key, array in told[0].sketches.items():
        if key.endswith("_rows"):
            assert (array >= 20).all(), key


def test_a_class_of_few_rows_is_not_counted() -> None:
    rows = table()
    rows[LABEL] = np.where(np.arange(len(rows)) < 4, "rare", "common")
    member = client("a", rows, Policy(min_rows=5, rare_categories="offered"))
    with pytest.raises(FederationError, match="rows of a class below the smallest group of 5"):
        fc.federate(label=LABEL, engine=engine({"a": member}))


def test_clusters_and_models_are_of_enough_rows() -> None:
    """The client merges clusters and leaves models out; the guard does not rely on it."""
    member = ready(Policy(min_rows=5))
    client: Any = member._client
    request = m.Cluster(CLUSTERS, ["height", "visits"], 100, False, False).to_bytes()
    found = m.Clustered.from_bytes(member.handle("cluster", request))
    assert found.rows.min() >= 5
    assert found.rows.sum() == 160
    codes = np.zeros(160, dtype=np.int64)
    codes[:4] = 1
    client._groups[CLUSTERS] = codes
    fits = [m.Fit((Job(JOB, ("height",), CLUSTERS, part),), False).to_bytes() for part in (0, 1)]
    told = [m.Fitted.from_bytes(member.handle("fit", fit)).models for fit in fits]
    assert [[each.rows for each in models] for models in told] == [[156.0], []]

    member = ready(Policy(min_rows=5))
    client = member._client
    client._least, client._parts, client._groups[CLUSTERS] = 0, Parts(), codes
    assert "rows behind a model below" in error_of(member.handle("fit", fits[1]))
    assert "rows of a cluster below the smallest" in error_of(member.handle("cluster", request))


def test_sums_by_cell_are_told_only_where_allowed() -> None:
    members = guarded("horizontal", Policy(), "mixture")
    fed = fc.federate(id=ID, engine=engine(members), agreement="joint")  # masked
    assert set(fed.ledger.table(["verb", "level"]).set_index("verb").loc["round", "level"]) == {
        "nothing", "masked sums",
    }  # fmt: skip
    stays = ready(Policy(row_evidence="server", placement="remote"), "mixture")
    asked = m.Round(JOB, ["height"], 0, True, [], "", {})
    assert "they stay here" in error_of(stays.handle("round", asked.to_bytes()))
    hidden = ready(Policy(), "mixture")
    assert "it asks for row evidence" in error_of(hidden.handle("round", asked.to_bytes()))


def test_a_table_of_few_rows_is_no_client() -> None:
    with pytest.raises(PolicyError, match=r"client 'a' has 4 row\(s\), fewer than min_rows = 5"):
        Policy().apply(table().iloc[:4], client="a")


# --- models and queries ---------------------------------------------------------------------------


def test_models_stay_where_the_policy_says_so() -> None:
    members = guarded("horizontal", Policy(placement="remote"))
    with pytest.raises(FederationError, match="placement='remote'"):
        fc.federate(id=ID, engine=engine({"a": members["a"]}), agreement="independent")
    fed = fc.federate(id=ID, engine=engine(members), agreement="independent", placement="remote")
    assert np.isfinite(fed.log_prob(table(n=5).drop(columns=ID))).all()


def test_queries_not_answered_are_refused_and_the_others_are_answered() -> None:
    rows = table(n=6).drop(columns=ID)
    asked = {"id": ID, "label": LABEL, "agreement": "independent", "placement": "remote"}
    five = dataclasses.replace(OPEN, min_rows=5)
    open_ = fc.federate(engine=engine(guarded("horizontal", five)), **asked)
    policy = Policy(queries=("log_prob", "posterior"), rare_categories="offered")
    fed = fc.federate(engine=engine(guarded("horizontal", policy)), **asked)
    with pytest.raises(
        FederationError, match="the query 'sample'; answered are 'log_prob', 'posterior'"
    ):
        fed.sample(3)
    np.testing.assert_array_equal(fed.log_prob(rows), open_.log_prob(rows))


def test_rows_are_looked_up_by_id_only_where_allowed() -> None:
    asked = pd.DataFrame({ID: [1003, 1010]})
    how = {
        "id": ID, "agreement": "latent", "n_clusters": 2, "placement": "remote", "min_rows": 1,
    }  # fmt: skip
    closed = fc.federate(engine=engine(guarded("vertical", Policy(min_rows=1))), **how)
    with pytest.raises(FederationError, match="rows looked up by id"):
        closed.log_prob(asked)
    may = Policy(min_rows=1, rows_by_id=True)
    open_ = fc.federate(engine=engine(guarded("vertical", may)), **how)
    assert (open_.log_prob(asked) != 0.0).all()


def test_a_label_is_not_inferred_from_rows_looked_up_by_id() -> None:
    member = ready(Policy(rows_by_id=True))
    cells = np.zeros((1, 1)), np.zeros((1, 1), dtype=bool)
    digests = np.zeros((1, 12), dtype=np.uint8)
    asked = (m.ModelQuestion(ModelName(JOB), "log_prob"),)
    shown = m.Query(asked, ["height"], *cells, digests=digests)
    hidden = m.Query(asked, ["height"], *cells, digests=digests, hidden=[LABEL])
    assert "by id with their label" in error_of(member.handle("query", shown.to_bytes()))
    assert "PolicyError" not in error_of(member.handle("query", hidden.to_bytes()))  # no model yet


# --- a rule that is refused -----------------------------------------------------------------------


def test_auto_passes_over_rules_that_a_policy_refuses() -> None:
    """The default policy and the default rule go together, with the label at one client or all."""
    rows = table(n=400)
    shared = {"a": rows[[ID, "height", LABEL]], "b": rows[[ID, "visits", "size", LABEL]]}
    owned = {"a": shared["a"], "b": shared["b"].drop(columns=LABEL)}
    for frames, compared in ((shared, {"product", "latent"}), (owned, set())):
        members = {name: client(name, frame, Policy()) for name, frame in frames.items()}
        with pytest.warns(FedcircuitsWarning, match=r"refuse:\n  - |is used and not sent"):
            fed = fc.federate(id=ID, label=LABEL, engine=engine(members))
        assert isinstance(fed.rule, Latent)
        assert fed.rule.label_private  # with the label in its clusters the policy refuses it
        assert fed.why is not None
        loss = {c.rule: c.log_loss for c in fed.why.candidates if c.log_loss is not None}
        assert set(loss) == compared
        assert not loss or loss["latent"] < loss["product"]
        levels = set(fed.ledger.table()["level"])
        assert "row evidence" not in levels
        assert "bounded codes" in levels
        assert LABEL in fed.schema
        assert fed.dropped == {}


def test_auto_names_a_refused_rule_once() -> None:
    rows = table(n=400)
    frames = {"a": rows[[ID, "height", LABEL]], "b": rows[[ID, "visits", "size", LABEL]]}
    no_clusters = dataclasses.replace(OPEN, requests=tuple(v for v in VERBS if v != "cluster"))
    members = {name: client(name, frame, no_clusters) for name, frame in frames.items()}
    with pytest.warns(FedcircuitsWarning, match="auto took the rule 'product'") as caught:
        fed = fc.federate(id=ID, label=LABEL, engine=engine(members))
    said = next(str(each.message) for each in caught if "auto took" in str(each.message))
    assert [c.rule for c in fed.why.candidates].count("latent") == 1
    assert said.count("- latent: ") == 1
    assert said.count("- latent, tilt=False: ") == 1


def test_where_every_rule_is_refused_one_error_lists_the_refusals() -> None:
    requests = ("agree", "public_key", "peers", "group_secret", "digests", "align", "use_rows")
    rows = table(n=400)
    frames = {"a": rows[[ID, "height", LABEL]], "b": rows[[ID, "visits", "size"]]}
    only = Policy(requests=requests)
    members = {name: client(name, frame, only) for name, frame in frames.items()}
    with pytest.raises(FederationError, match=r"allows none of the rules of the plan") as found:
        fc.federate(id=ID, label=LABEL, engine=engine(members), label_use="used")
    for name in ("latent", "independent"):
        assert name in str(found.value)
    assert "requests in its policy" in str(found.value)

"""Defaults do not collide: silos on the default policy and a run on defaults, in every split."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import fedcircuits as fc
from contracts.defaults import SPLITS, by_defaults
from contracts.engine import table
from contracts.federations import ID, LABEL, split
from fedcircuits.arrays import BoolArray
from fedcircuits.errors import FedcircuitsWarning, FederationError
from fedcircuits.federation.agreement import Anchors, Latent, ProductOfClasses
from fedcircuits.federation.agreement.auto import within_budget
from fedcircuits.federation.agreement.base import Rule
from fedcircuits.federation.agreement.latent import automatic_clusters
from fedcircuits.federation.client.clustering import clusters_per_stratum
from fedcircuits.federation.client.label.heads_across import HeadsAcross
from fedcircuits.federation.policy.policy import Policy
from fedcircuits.federation.wire import requests as m


@pytest.mark.parametrize("label", [LABEL, None])
@pytest.mark.parametrize("case", SPLITS)
def test_default_policies_and_default_settings_train(
    case: str, label: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    fed = by_defaults(case, label=label)
    assert not [line for line in caplog.messages if "refused" in line]  # nothing was asked in vain
    assert fed.dropped == {}
    held = {name for frame in SPLITS[case]().values() for name in frame} - {ID}
    assert set(fed.schema.names) == held
    rows = table(n=20, seed=1).drop(columns=ID)
    assert np.isfinite(fed.log_prob(rows[[n for n in rows if n in held]])).all()
    levels = set(fed.ledger.table()["level"])
    assert "row evidence" not in levels
    assert max(fed.ledger.bits(client) for client in fed.clients) <= Policy().bits


@pytest.mark.parametrize("case", ["columns, label at all", "both"])
def test_latent_serves_where_all_hold_a_label_that_is_not_sent(case: str) -> None:
    """Clusters within the classes are refused; those without them serve, with the same tilt."""
    if case != "both":  # in which too few rows are at both for a comparison
        fed = by_defaults(case)
        compared = {c.rule for c in fed.why.candidates if c.log_loss is not None}
        assert {"product", "latent"} <= compared
    asked = by_defaults(case, agreement=Latent(label_private=True))
    assert asked.fitted.tilts
    rows = table(n=30, seed=1).drop(columns=ID)[list(asked.schema.names)]
    proba = asked.predict_proba(rows.drop(columns=LABEL), LABEL)
    assert ((proba.sum(axis=1) - 1).abs() < 1e-9).all()
    messages = asked.ledger.table()
    assert "row evidence" not in set(messages["level"])
    assert max(asked.ledger.bits(client) for client in asked.clients) <= Policy().bits


def test_rows_that_a_head_leaves_out_count_nearly_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Named after clusters were asked for, few of them lie in parts of rows enough."""
    shares: list[float] = []
    counted_of = HeadsAcross._counted_of

    def seen(self: HeadsAcross, name: str) -> BoolArray:
        found = counted_of(self, name)
        shares.append(found.sum() / self._aligned.named(name).size)
        return found

    monkeypatch.setattr(HeadsAcross, "_counted_of", seen)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FedcircuitsWarning)
        rows, policy = table(n=2000), Policy(label="sent")
        fc.federate(split("vertical", rows), id=ID, label=LABEL, policies=policy)
    assert shares
    assert min(shares) > 0.9


@pytest.mark.parametrize("n_classes", [2, 10, 1000])
@pytest.mark.parametrize("n_rows", [100, 8_000, 35_000, 36_000, 1_000_000, 10**9])
def test_trials_of_auto_fit_the_default_budget(n_rows: int, n_classes: int) -> None:
    """Digests and every different clustering of a run, at any number of aligned rows."""
    first: list[Rule] = [ProductOfClasses(), Latent()]
    sent = within_budget([*first, Latent(tilt=False), Anchors()], n_rows, n_classes)
    n_clusters = automatic_clusters(n_rows)
    bits = 1 + np.log2(n_clusters)
    if Latent(tilt=False) in sent:
        bits += np.log2(max(n_clusters, n_classes + 1))
    assert bits <= Policy().bits == m.BITS
    assert [rule for rule in sent if rule in first] == first
    assert (Latent(tilt=False) in sent) is (n_clusters <= 45 and n_classes < 1000)
    private = [Latent(label_private=True), Latent(label_private=True, tilt=False)]
    assert within_budget(private, n_rows, n_classes) == private  # one clustering serves both


def test_clusters_within_classes_are_no_more_than_asked_for() -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        rows = rng.integers(0, 1000, rng.integers(1, 30)).astype(float)
        rows[0] = 5
        assert clusters_per_stratum(rows, 32).sum() <= 32
        assert (clusters_per_stratum(rows, 32)[rows > 0] >= 1).all()


@pytest.mark.slow
@pytest.mark.parametrize("case", SPLITS)
def test_default_policies_over_processes(case: str) -> None:
    there = by_defaults(case, engine="processes")
    here = by_defaults(case)
    rows = table(n=20, seed=1)[list(here.schema.names)]
    assert there.log_prob(rows).tolist() == here.log_prob(rows).tolist()


def test_a_policy_names_id_label_kinds_and_missing_values() -> None:
    frames = split("horizontal")
    kinds: Any = {"visits": "continuous"}
    policy = Policy(id=ID, label_column=LABEL, kinds=kinds, missing_values=("green",))
    fed = fc.federate(frames, label=LABEL, id=ID, policies=policy, learner="factorised")
    assert fed.schema["visits"].kind == "continuous"
    assert "green" not in fed.schema["colour"].categories
    with pytest.raises(FederationError, match=f"the label here is {LABEL!r}"):
        fc.federate(frames, label="colour", id=ID, policies=policy, learner="factorised")
    with pytest.raises(FederationError, match="policies: no client 'z'"):
        fc.federate(frames, id=ID, policies={"z": policy})


def test_kinds_that_a_policy_does_not_have_are_said() -> None:
    with pytest.raises(FederationError, match=r"'visits'.*kinds.*policy"):
        fc.federate(
            split("horizontal"),
            id=ID,
            policies=Policy(),
            kinds={"visits": "continuous"},
            learner="factorised",
        )


def test_a_plan_is_shown_in_words(tmp_path: Path) -> None:
    from fedcircuits.api.client_spec import ClientSpec
    from fedcircuits.engines import LocalEngine
    from fedcircuits.federation.policy.run import proposed

    audit = tmp_path / "audit.jsonl"
    members = {
        name: ClientSpec(name, frame, "factorised", id=ID, label=LABEL, policy=Policy()).guarded(
            audit
        )
        for name, frame in split("vertical").items()
    }
    with pytest.warns(FedcircuitsWarning):
        fc.federate(engine=LocalEngine(members), id=ID, label=LABEL)
    (plan,) = proposed(audit, "a")
    text = "\n".join(plan.words)
    assert plan.refusal is None
    assert f"id: {ID}; label: {LABEL}; seed: 0" in text
    assert "label_use='sent': at most" in text
    assert "STRUCK: it asks for the label of single rows" in text
    assert "rule latent(label_private=True): at most 8.1 bits a row to the server" in text


@pytest.mark.parametrize("setting", ["horizontal", "vertical", "branches"])
def test_a_label_that_is_a_number_trains(setting: str) -> None:
    """A policy took every label for categorical: all of its values were rare, and hidden."""
    rows = table(n=300)
    noise = np.random.default_rng(0).normal(size=len(rows))
    rows[LABEL] = (1000 + 50 * rows["height"].astype(float) + noise).round(2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FedcircuitsWarning)
        fed = fc.federate(split(setting, rows), id=ID, label=LABEL, policies=Policy())
    assert fed.schema[LABEL].kind == "continuous"
    assert fed.dropped == {}


def test_rows_that_too_few_share_are_not_aligned() -> None:
    """Three rows in common ended the run: no default policy lets so few be aligned."""
    rows = table(n=300)
    frames = {
        "a": rows[[ID, "height", "colour", "size", LABEL]].iloc[:152],
        "b": rows[[ID, "visits", "size", LABEL]].iloc[149:].reset_index(drop=True),
    }
    with pytest.warns(FedcircuitsWarning, match="are not aligned; .* 'a' 3, 'b' 3"):
        fed = fc.federate(frames, id=ID, label=LABEL, policies=Policy())
    assert set(fed.schema.names) == set(rows.columns) - {ID}


@pytest.mark.parametrize("case", ["rows", "columns, label at one", "both"])
def test_a_run_takes_the_smallest_group_of_the_strictest_policy(
    case: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Tables and trees with five rows behind an entry were asked for in vain."""
    fed = by_defaults(case, policies=Policy(min_rows=12))
    assert not [line for line in caplog.messages if "refused" in line]
    assert fed.dropped == {}


def test_a_class_that_a_holder_of_columns_has_not_seen_keeps_its_share() -> None:
    """It lost its mass without a word; now those columns say nothing about it."""
    fed = fc.federate(
        split("hybrid", table(n=20)), id=ID, label=LABEL, policies=Policy(), agreement="product"
    )
    assert (np.exp(fed.log_prob(pd.DataFrame({LABEL: ["no", "yes"]}))) > 0.05).all()

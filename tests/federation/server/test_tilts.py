"""One tilt for density and label: it is the model's own posterior, in every split and placement."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import fedcircuits as fc
from contracts.rule import LEARNER, small_table
from fedcircuits.circuits import build
from fedcircuits.density.tilt import Tilt, by_column
from fedcircuits.errors import StorageError, StructureError
from fedcircuits.federation.agreement import Latent, ProductOfClasses
from fedcircuits.federation.client.label.tilting import (
    packed_levels,
    packed_scores,
    unpacked_levels,
    unpacked_scores,
)
from fedcircuits.federation.client.label.validation import label_log_joint, log_posteriors
from fedcircuits.federation.model.federated_circuit import FederatedCircuit
from fedcircuits.federation.server.fitted_parts import FittedParts
from fedcircuits.federation.server.tilts import combined
from fedcircuits.learners import Hclt, Mixture
from fedcircuits.learners.hclt.tilt.additive import shared_entries

SAME = 1e-9
# Tables alone: trees have tests of their own.
MIXTURE = Mixture(n_states=3, n_iterations=5, head=False)


def split(setting: str, seed: int = 0) -> dict[str, pd.DataFrame]:
    """A small table by rows, unevenly by rows, by columns, or both."""
    table = small_table(900, seed)
    if setting == "rows":
        return {c: table[at::3].drop(columns="id") for at, c in enumerate("abc")}
    if setting == "skew":
        order = np.argsort((table["y"] == "yes") + np.random.default_rng(0).normal(0, 0.4, 900))
        parts = np.array_split(order, 3)
        return {c: table.iloc[p].drop(columns="id") for c, p in zip("abc", parts, strict=True)}
    if setting == "one class":
        return {y: table[table["y"] == y].drop(columns="id") for y in ("no", "yes")}
    if setting == "columns":
        return {"a": table[["id", "x0", "x1", "x2", "y"]], "b": table[["id", "x3", "x4"]]}
    return {
        "a": table[:700][["id", "x0", "x1", "x2", "y"]],
        "b": table[200:][["id", "x2", "x3", "x4", "y"]],
    }


def federated(setting: str, rule: Any = None, **options: Any) -> FederatedCircuit:
    id_ = "id" if setting in ("columns", "both") else None
    given = {"learner": MIXTURE, "label": "y", "id": id_, **options}
    return fc.federate(split(setting), agreement=rule or ProductOfClasses(), **given)


CASES = [
    ("rows", None),
    ("skew", None),
    ("one class", None),
    ("columns", None),
    ("columns", Latent(n_classes=3, n_clusters=3)),
    ("columns", Latent(n_classes=3, n_clusters=3, tilt=False)),
    ("both", None),
    ("both", Latent(n_classes=3, n_clusters=3)),
]


def check_law(fed: FederatedCircuit) -> None:
    """Every query's posterior of the label is that of the density, for several missing patterns."""
    names = list(fed.schema.names)
    categories = {v.name: list(v.categories) for v in fed.schema}
    worlds = pd.DataFrame(itertools.product(*categories.values()), columns=names)
    assert np.exp(fed.log_prob(worlds)).sum() == pytest.approx(1.0, abs=SAME)
    features = [name for name in names if name != "y"]
    for hidden in ([], features[:1], features[-1:], features[1:3]):
        kept = [name for name in features if name not in hidden]
        rows = worlds[kept].drop_duplicates().reset_index(drop=True)
        told = fed.predict_proba(rows, "y")
        log_x = fed.log_prob(rows)
        by_hand = pd.DataFrame(
            {y: np.exp(fed.log_prob(rows.assign(y=y)) - log_x) for y in told.columns}
        )
        np.testing.assert_allclose(told, by_hand, rtol=0, atol=SAME)
        marginal = fed.marginal([*kept, "y"]).predict_proba(rows, "y")
        np.testing.assert_allclose(told, marginal, rtol=0, atol=SAME)
        one = fed.condition(rows.iloc[-1].to_dict()).marginal(["y"])
        np.testing.assert_allclose(
            np.exp(one.log_prob(pd.DataFrame({"y": list(told.columns)}))), told.iloc[-1], atol=SAME
        )
        assert (fed.predict(rows, "y").to_numpy() == told.idxmax(axis=1).to_numpy()).all()


@pytest.mark.parametrize(("setting", "rule"), CASES)
def test_the_label_has_one_posterior(setting: str, rule: Any, tmp_path: Path) -> None:
    fed = federated(setting, rule)
    check_law(fed)
    path = tmp_path / "fed.safetensors"
    fed.save(path)
    loaded = fc.load(path)
    check_law(loaded)
    rows = small_table(20, 5).drop(columns=["id", "y"])
    np.testing.assert_array_equal(loaded.predict_proba(rows, "y"), fed.predict_proba(rows, "y"))
    if setting != "one class":
        check_law(fed.without(fed.clients[-1]))


@pytest.mark.parametrize(("setting", "rule"), CASES)
def test_models_that_stay_are_tilted_alike(setting: str, rule: Any) -> None:
    """Without a head, as models that stay have none."""
    rule = replace(rule or ProductOfClasses(), head=False)
    here = federated(setting, rule)
    there = federated(setting, rule, placement="remote")
    rows = small_table(40, 5).drop(columns="id")
    np.testing.assert_allclose(there.log_prob(rows), here.log_prob(rows), rtol=0, atol=SAME)
    x = rows.drop(columns="y")
    x.iloc[:10, 0] = None
    np.testing.assert_allclose(
        there.predict_proba(x, "y"), here.predict_proba(x, "y"), rtol=0, atol=SAME
    )


def test_who_leaves_where_rows_are_split_was_never_there() -> None:
    for setting in ("rows", "skew"):
        fed, frames = federated(setting), split(setting)
        schema = fed.fitted.schema if fed.fitted else None
        rest = fc.federate(
            {c: f for c, f in frames.items() if c != "b"}, label="y", learner=MIXTURE, schema=schema
        )
        rows = small_table(50, 7).drop(columns="id")
        np.testing.assert_array_equal(fed.without("b").log_prob(rows), rest.log_prob(rows))


def test_a_client_that_joins_is_one_of_all() -> None:
    frames = split("rows")
    two = fc.federate({c: frames[c] for c in "ab"}, label="y", learner=MIXTURE)
    assert two.fitted is not None
    joined = two.with_client("c", frames["c"])
    three = fc.federate(frames, label="y", learner=MIXTURE, schema=two.fitted.schema)
    rows = small_table(50, 7).drop(columns="id")
    np.testing.assert_allclose(joined.log_prob(rows), three.log_prob(rows), rtol=0, atol=1e-12)


def test_averaged_tables_by_hand() -> None:
    fed = federated("skew")
    assert fed.fitted is not None
    tilts = fed.fitted.tilts
    weight = {c: 2 / (1 / t.counts).sum() for c, t in tilts.items()}
    total = sum(t.counts for t in tilts.values())
    c = sum(w * (tilts[n].c - np.log(tilts[n].counts)) for n, w in weight.items())
    rows = small_table(60, 3).drop(columns=["id", "y"])
    table = fed.schema.select(list(rows)).encode(rows)
    scores = sum(w * tilts[n].scores(table) for n, w in weight.items())
    w = sum(weight.values())
    logits = (scores + c) / w + np.log(total)
    odds = logits[:, 1] - logits[:, 0]
    told = fed.predict_proba(rows, "y")
    np.testing.assert_allclose(np.log(told["yes"] / told["no"]), odds, rtol=0, atol=1e-9)


def test_classes_that_a_client_lacks_are_compared_by_others(rng: np.random.Generator) -> None:
    """Where clients agree on every difference that they have seen, so does the joined table."""
    truth, schema = rng.normal(size=(4, 6)), fc.Schema.infer(pd.DataFrame({"x": list("abcdef")}))
    counts = np.array([[50, 30, 0, 0], [0, 40, 60, 0], [0, 0, 20, 80], [0, 0, 0, 9]], dtype=float)
    tilts = {}
    for name, n in zip("abcd", counts, strict=True):
        table = np.where(n[:, None] > 0, truth + rng.normal(size=6), 0.0)
        with np.errstate(divide="ignore"):
            tilts[name] = Tilt(("x",), np.log(n / n.sum()), (table,), n)
    joined = combined(FittedParts(schema, "y", tilts=tilts))
    assert joined is not None
    apart = joined.of("x") - truth
    np.testing.assert_allclose(apart - apart.mean(axis=0), 0.0, atol=1e-9)
    np.testing.assert_allclose(joined.c, np.log(counts.sum(axis=0) / counts.sum()), atol=1e-9)
    del tilts["b"]  # nobody compares the first two classes with the others
    assert combined(FittedParts(schema, "y", tilts=tilts)) is None


def test_turns_end_near_the_tables_of_all_columns_in_one_place() -> None:
    table = small_table(3000, 1)
    apart = {"a": table[["id", "x0", "x1", "x2", "y"]], "b": table[["id", "x3", "x4", "y"]]}
    split_up = fc.federate(
        apart, id="id", label="y", learner=MIXTURE, agreement="product", head=False
    )
    schema = split_up.fitted.schema if split_up.fitted else None
    whole = fc.federate(
        {"all": table.drop(columns="id")}, label="y", learner=MIXTURE, schema=schema, head=False
    )
    test = small_table(500, 2).drop(columns=["id", "y"])
    here, there = (m.predict_proba(test, "y")["yes"] for m in (split_up, whole))
    assert np.abs(here - there).max() < 0.03


def test_the_server_relays_scores_as_ciphertext() -> None:
    fed = federated("columns")
    verbs = [entry.verb for entry in fed.ledger.entries]
    assert verbs.count("score_tilt") == 3 * 2  # one each way: three turns have someone to hear
    assert "calibrate" not in verbs


def test_tables_of_other_learners_are_not_needed() -> None:
    fed = federated("rows", learner=LEARNER)
    assert fed.fitted is not None
    assert not fed.fitted.tilts
    check_law(fed)


def test_a_tilted_circuit_is_the_product_normalised() -> None:
    schema = fc.Schema.infer(small_table(50).drop(columns="id"))
    model = Mixture(n_states=3).fit(
        schema.encode(small_table(200).drop(columns="id")), np.random.default_rng(0)
    )
    factors = {"x0": np.array([0.3, -1.0]), "x3": np.array([2.0, 0.1])}
    tilted, log_z = model.tilted(factors)  # type: ignore[attr-defined]
    names = list(schema.names)
    worlds = pd.DataFrame(itertools.product(*(v.categories for v in model.schema)), columns=names)
    table = model.schema.encode(worlds)
    added = sum(f[table.values[:, names.index(n)].astype(int)] for n, f in factors.items())
    raw = model.log_prob_table(table) + added
    assert np.logaddexp.reduce(raw) == pytest.approx(log_z, abs=1e-12)
    np.testing.assert_allclose(tilted.log_prob_table(table), raw - log_z, rtol=0, atol=1e-12)


def test_a_leaf_that_is_no_table_cannot_be_tilted() -> None:
    schema = fc.Schema.infer(pd.DataFrame({"x": [0.5, 1.5]}), {"x": "continuous"})
    model = build.circuit(schema, build.gaussian("x", 0.0, 1.0))
    with pytest.raises(StructureError, match="no table of 3 states"):
        model.tilted({"x": np.zeros(3)})


def test_scores_come_back_within_half_a_step(rng: np.random.Generator) -> None:
    scores = rng.normal(size=(50, 3)) * 4
    packed = packed_scores(scores)
    assert packed.size == 8 + 50 * 2
    centred = scores - scores.mean(axis=1, keepdims=True)
    step = np.abs(centred).max() / 127
    found = unpacked_scores(packed, (50, 3))
    assert np.abs(found - centred)[:, :2].max() <= step / 2 + 1e-12
    assert found.sum(axis=1) == pytest.approx(np.zeros(50))


def test_scores_of_three_bits_come_back_with_a_thirtieth_of_the_variance(
    rng: np.random.Generator,
) -> None:
    scores = rng.normal(size=(4000, 3)) * 3
    packed = packed_levels(scores)
    assert packed.size == 2 * (4 * 8 + 8 * -(-4000 // 21))
    centred = scores - scores.mean(axis=1, keepdims=True)
    away = (unpacked_levels(packed, (4000, 3)) - centred)[:, :2]
    assert (away**2).mean() < 0.04 * centred[:, :2].var()
    few = np.array([[0.0, 1.0], [2.0, 2.0], [0.0, 1.0]])  # no more values than levels: exact
    np.testing.assert_allclose(
        unpacked_levels(packed_levels(few), (3, 2)), few - few.mean(axis=1, keepdims=True)
    )
    with pytest.raises(StorageError, match="bytes for 3 rows"):
        unpacked_levels(packed_levels(few)[:-1], (3, 2))


def test_no_entry_has_fewer_rows_behind_it_than_allowed() -> None:
    counts = np.array([9, 1, 0, 2, 8, 3, 1, 0])
    for is_ordered in (True, False):
        entry = shared_entries(counts, is_ordered, 5)
        behind = np.bincount(entry[entry >= 0], counts[entry >= 0])
        assert behind.min() >= 5
        assert entry[0] != entry[4]
    assert (shared_entries(np.array([1, 2, 0]), False, 5) == -1).all()
    assert shared_entries(counts, True, 1).max() == 5


def test_additive_tilt_recovers_log_odds(rng: np.random.Generator) -> None:
    n = 20_000
    frame = pd.DataFrame({"u": rng.choice(list("abc"), n), "v": rng.normal(size=n)})
    effect = frame["u"].map({"a": -1.0, "b": 0.0, "c": 1.0}) + frame["v"]
    y = (rng.random(n) < 1 / (1 + np.exp(-effect))).astype(np.int64)
    schema = fc.Schema.infer(frame)
    table = schema.encode(frame)
    table = schema.with_grids(table).encode(frame)
    tilt = Hclt().fit_tilt(table, y, np.zeros((n, 2)))
    assert isinstance(tilt, Tilt)
    g = tilt.of("u")
    odds = g[1] - g[0]
    assert odds[2] - odds[0] == pytest.approx(2.0, abs=0.15)
    told = tilt.c + tilt.scores(table)
    assert np.corrcoef(told[:, 1] - told[:, 0], effect)[0, 1] > 0.98


def test_log_posteriors_by_hand() -> None:
    log_joint = np.log(np.array([[0.2, 0.6], [0.1, 0.1]]))
    found = log_posteriors(log_joint, np.array([1, 0]))
    assert found == pytest.approx(np.log([0.75, 0.5]))
    impossible = log_posteriors(np.array([[0.0, -np.inf], [0.0, -np.inf]]), np.array([1, 0]))
    assert impossible == pytest.approx([np.log(1 / 3), 0.0])


def test_columns_side_by_side_are_split_by_width() -> None:
    flat = np.arange(10.0).reshape(2, 5)
    assert [part.shape for part in by_column(flat, [2, 3])] == [(2, 2), (2, 3)]
    assert by_column(flat[:, :0], []) == []


@pytest.mark.slow
def test_a_trial_whose_rows_lack_classes_is_compared(rng: np.random.Generator) -> None:
    n = 700
    u = rng.normal(size=n)
    visits = np.where(rng.random(n) < 0.8 - 0.6 * (u < 1), rng.integers(1, 13, n), 0)
    branch = pd.DataFrame({"id": np.arange(n) + 1, "visits": visits, "u": u})
    branch.loc[0, "visits"], branch.loc[n - 1, "visits"] = 20, 21  # either half lacks a class
    register = pd.DataFrame({"id": np.arange(n) + 1, "age": rng.integers(20, 60, n)})
    clients = [branch[: n // 2], branch[n // 2 :], register]
    fed = fc.federate(clients, id="id", label="visits")
    assert fed.why.n_rows > 0
    assert all(np.isfinite(each.log_loss) for each in fed.why.candidates)
    tilted = fc.federate(clients, id="id", label="visits", agreement="product")
    often, seldom = (
        tilted.probability({"visits": fc.above(0)}, {"u": value}) for value in (2.0, -1.0)
    )
    assert often - seldom > 0.3


def test_label_log_joint_is_the_joint_for_every_class(rng: np.random.Generator) -> None:
    rows = pd.DataFrame({"x": rng.choice(["0", "1"], 50), "y": rng.choice(["a", "b"], 50)})
    model = fc.learn(rows, learner=LEARNER)
    table = model.schema.encode(rows)
    found = label_log_joint(model, table, "y")
    for code, value in enumerate(model.schema["y"].categories):
        asked = model.log_prob(rows.assign(y=value))
        np.testing.assert_allclose(found[:, code], asked, rtol=0, atol=1e-11)
    assert label_log_joint(model, table, None).shape == (50, 1)

"""Heads over clients with different columns: codes go across the border, sealed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import fedcircuits as fc
from contracts.coherence import check_coherence
from contracts.federations import ID, LABEL, Breaking, local
from fedcircuits.density.row_codes import LEVELS, N_LEAVES
from fedcircuits.errors import FedcircuitsWarning, StorageError
from fedcircuits.federation.client.label.heads_across import packed_row_codes, unpacked_row_codes
from fedcircuits.federation.server.heads import over
from fedcircuits.learners import Mixture
from fedcircuits.learners.hclt.head.trees.across_trees import AcrossTrees, levels
from fedcircuits.learners.hclt.head.trees.boosting import BoostOptions, boost

pytestmark = pytest.mark.slow

LEARNER = Mixture(n_states=4, n_iterations=8)
COLUMNS = ["a", "b", "c", "d"]
ROWS = 6000


def rows(n: int = ROWS, seed: int = 0, n_classes: int = 2) -> pd.DataFrame:
    """Three levels in each column; what one client's say depends on what the other's do."""
    rng = np.random.default_rng(seed)
    x = {name: rng.integers(0, 3, n) for name in COLUMNS}
    left, right = (x["a"] > x["b"]).astype(int), (x["c"] > x["d"]).astype(int)
    y = (left & right) + (n_classes > 2) * (left & ~right & 1)
    y = np.where(rng.random(n) < 0.3 + 0.1 * (n_classes - 2), rng.integers(0, n_classes, n), y)
    frame = pd.DataFrame({name: values.astype(str) for name, values in x.items()})
    return frame.assign(y=y.astype(str), id=[f"i{i}" for i in range(n)])


def frames(split: str, table: pd.DataFrame) -> dict[str, pd.DataFrame]:
    n = len(table)
    left, right = table[["id", "a", "b", "y"]], table[["id", "c", "d"]]
    if split == "columns":
        return {"u": left, "v": right}
    if split == "both":
        shared = table[["id", "b", "c", "d", "y"]]
        return {"u": left[: 3 * n // 4], "v": shared[n // 4 :]}
    return {"north": left[: n // 2], "south": left[n // 2 :], "v": right}


def federated(split: str, table: pd.DataFrame | None = None, **options: Any) -> Any:
    given = {"agreement": "product", "learner": LEARNER, **options}
    return fc.federate(
        frames(split, rows(2 * ROWS if split == "both" else ROWS) if table is None else table),
        id="id",
        label="y",
        **given,
    )


def log_loss(fed: Any, test: pd.DataFrame) -> float:
    told = fed.predict_proba(test[COLUMNS], "y")
    return -float(np.mean([np.log(told.at[at, y]) for at, y in test["y"].items()]))


@pytest.mark.parametrize("split", ["columns", "both", "register"])
def test_codes_of_others_are_seen_in_every_split_and_keep_the_law(
    split: str, tmp_path: Path
) -> None:
    fed = federated(split)
    assert not fed.is_exact
    assert all(head.codes_of for head in fed.fitted.heads.values())
    check_coherence(fed)
    test = rows(1000, 1)
    assert log_loss(fed, test) < log_loss(fed.exact_part, test) - 0.01
    fed.save(tmp_path / "model")
    loaded = fc.load(tmp_path / "model")
    np.testing.assert_array_equal(
        loaded.predict_proba(test[COLUMNS], "y"), fed.predict_proba(test[COLUMNS], "y")
    )
    np.testing.assert_allclose(  # m(x) is the circuit's
        fed.log_prob(test[COLUMNS]), fed.exact_part.log_prob(test[COLUMNS]), rtol=0, atol=1e-12
    )


def test_three_classes() -> None:
    table, test = rows(n_classes=3), rows(1000, 1, 3)
    fed = federated("columns", table)
    assert not fed.is_exact
    check_coherence(fed)
    assert log_loss(fed, test) < log_loss(fed.exact_part, test) - 0.01


@pytest.mark.parametrize("n_classes", [2, 3])
def test_the_owner_of_a_label_that_is_used_fits_a_head_alone(
    n_classes: int, tmp_path: Path
) -> None:
    """It sees what codes of the others add; they boost trees that say it, without a label."""
    table, test = rows(n_classes=n_classes), rows(1000, 1, n_classes)
    fed = federated("columns", table, agreement="latent", label_use="used")
    heads = fed.fitted.heads
    assert heads["u"].codes_of == ("v",)
    assert not heads["v"].codes_of
    assert not fed.is_exact
    check_coherence(fed)
    assert log_loss(fed, test) < log_loss(fed.exact_part, test) - 0.01
    fed.save(tmp_path / "model")
    np.testing.assert_array_equal(
        fc.load(tmp_path / "model").predict_proba(test[COLUMNS], "y"),
        fed.predict_proba(test[COLUMNS], "y"),
    )
    alone = fed.without("v")
    kept = test[["a", "b", "y"]]
    np.testing.assert_array_equal(alone.log_prob(kept), fed.marginal(list(kept)).log_prob(kept))
    assert federated("columns", table, agreement="latent", label_use="used", head=False).is_exact


def test_several_owners_of_a_label_that_is_used_fit_no_head() -> None:
    fed = federated("register", agreement="latent", label_use="used")
    assert not fed.fitted.heads
    check_coherence(fed)


def test_without_a_branch_the_others_keep_the_head() -> None:
    fed = federated("register")
    rest = fed.without("south")
    assert rest.clients == ("north", "v")
    assert not rest.is_exact
    assert set(rest.schema.names) == {*COLUMNS, "y"}
    check_coherence(rest)
    assert fed.without("v").is_exact  # the register's columns, and with them the head
    check_coherence(fed.without("v"))


def test_without_columns_of_a_head_across_is_the_marginal() -> None:
    fed = federated("columns")
    rest = fed.without("v")
    test = rows(60, 4)[["a", "b", "y"]]
    np.testing.assert_array_equal(rest.log_prob(test), fed.marginal(["a", "b", "y"]).log_prob(test))
    check_coherence(rest)


def test_trees_of_all_clients_have_min_rows_behind_a_leaf() -> None:
    fed = federated("columns", min_rows=100)
    for head in fed.fitted.heads.values():
        for trees in (
            head.trees,
            *((head.code_trees.trees, head.code_trees.leaf) if head.code_trees else ()),
        ):
            assert (np.diff(np.append(trees.roots, trees.feature.size)) < 2 * ROWS / 100).all()


def lost(client: str, verb: str, split: str) -> Any:
    """An engine whose client is away from its first message of a kind on."""
    gone: list[str] = []

    def spoil(said: str, name: str, reply: bytes) -> bytes | Exception:
        if (said, name) == (verb, client):
            gone.append(client)
        return RuntimeError("the line is dead") if name == client and gone else reply

    found = {
        name: frame.rename(columns={"id": ID, "y": LABEL})
        for name, frame in frames(split, rows()).items()
    }
    return Breaking(local(found, LEARNER), spoil)


@pytest.mark.parametrize(
    ("split", "client", "verb"),
    [
        ("columns", "v", "fit_code_trees"),
        ("columns", "v", "fit_trees_on_codes"),
        ("columns", "u", "pool_across"),
        ("register", "v", "pool_across"),
        ("register", "south", "fit_code_trees"),
        ("register", "south", "fit_trees_on_codes"),
    ],
)
def test_a_client_lost_while_heads_are_made_does_not_end_the_run(
    split: str, client: str, verb: str
) -> None:
    """Where others hold its columns it is left out; else its models stay without a head."""
    options: dict[str, Any] = {"id": ID, "label": LABEL, "agreement": "product"}
    engine = lost(client, verb, split)
    if client == "south":
        fed: Any = fc.federate(engine=engine, **options)
        assert fed.clients == ("north", "v")
        assert "the line is dead" in fed.dropped["south"]
        assert set(fed.fitted.heads) == {"north", "v"}
    else:
        with pytest.warns(FedcircuitsWarning, match="no trees for the label"):
            fed = fc.federate(engine=engine, **options)
        assert not fed.fitted.heads
        assert client in fed.clients
    check_coherence(fed)


@pytest.mark.parametrize("client", ["south", "v"])
@pytest.mark.parametrize("verb", ["fit_tilt", "score_tilt"])
def test_a_client_lost_in_a_turn_of_the_tilt_does_not_end_the_run(client: str, verb: str) -> None:
    """Where others hold its columns it is left out; else the model of the others is made."""
    options: dict[str, Any] = {"id": ID, "label": LABEL, "agreement": "product"}
    engine = lost(client, verb, "register")
    if client == "v":
        with pytest.warns(FedcircuitsWarning, match="variables that left the model"):
            fed: Any = fc.federate(engine=engine, allow_missing=True, **options)
        assert fed.clients == ("north", "south")
    else:
        fed = fc.federate(engine=engine, **options)
        assert fed.clients == ("north", "v")
        assert "the line is dead" in fed.dropped["south"]
    assert set(fed.fitted.tilts) == set(fed.clients)
    check_coherence(fed)


@pytest.mark.parametrize("n_classes", [2, 3])
def test_codes_of_rows_come_back(n_classes: int, rng: np.random.Generator) -> None:
    n = 1001
    scores = rng.integers(-LEVELS, LEVELS + 1, (n, n_classes - 1)).astype(float)
    leaves = rng.integers(0, N_LEAVES, n).astype(float)
    packed = packed_row_codes(scores, leaves)
    bits = n * ((n_classes - 1) * np.log2(2 * LEVELS + 1) + np.log2(N_LEAVES))  # all as frequent
    assert packed.size <= 1.25 * bits / 8 + 128  # 128: the code itself and the rest of a step
    found = unpacked_row_codes(packed, n, n_classes)
    np.testing.assert_array_equal(found, np.column_stack([scores, leaves]))
    with pytest.raises(StorageError):
        unpacked_row_codes(packed, n + 40, n_classes)


def test_lengths_of_codes_seldom_tell_one_row(rng: np.random.Generator) -> None:
    n = 1000
    scores = np.rint(rng.normal(0, LEVELS / 3, (n, 1))).clip(-LEVELS, LEVELS)
    leaves = rng.integers(0, N_LEAVES, n).astype(float)
    whole = packed_row_codes(scores, leaves).size
    without = [
        packed_row_codes(np.delete(scores, i, axis=0), np.delete(leaves, i)).size for i in range(n)
    ]
    assert whole % 64 == 0
    assert set(without) in ({whole}, {whole - 64})  # the same for every row that is left out


def test_two_layers_of_trees_by_bins_and_by_values(rng: np.random.Generator) -> None:
    n = 2000
    values = np.column_stack([rng.normal(size=n), rng.integers(0, 5, n), rng.normal(size=n)])
    values[rng.random(values.shape) < 0.1] = np.nan
    n_codes, ones = np.array([0, 5, 0]), np.ones(n)
    labels = ((np.nan_to_num(values[:, 0]) > 0) ^ (np.nan_to_num(values[:, 1]) > 2)).astype(int)
    options = BoostOptions(12, 0.3, 8, 10)
    said = boost(values, labels, ones, n_codes, options, 0)
    leaf = boost(values, labels, ones, n_codes, BoostOptions(1, 1.0, 4, 10), 0)
    ends = np.flatnonzero(leaf.feature < 0)
    leaf.value[ends] = np.arange(ends.size)
    leaf.baseline[:] = 0
    codes = np.column_stack([levels(said.outputs(values), 0.2), leaf.outputs(values)])
    seen = np.column_stack([values, codes])
    second = boost(seen, labels, ones, np.array([0, 5, 0, 0, N_LEAVES]), options, 1)
    first = over(said.beside(leaf), list("abc"), list("abc"), N_LEAVES)
    trees = AcrossTrees(first, np.array([0.2]), second)
    expected = second.outputs(seen)
    np.testing.assert_allclose(trees.outputs(values), expected, atol=1e-12)
    bins = np.stack([trees.column_bins(j, values[:, j]) for j in range(3)]).astype(np.uint16)
    np.testing.assert_allclose(trees.outputs_of_bins(bins), expected, atol=1e-12)

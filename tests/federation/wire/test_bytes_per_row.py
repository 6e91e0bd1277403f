"""What a row costs on the wire: packed numbers, and the bytes of a run as the ledger has them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

import fedcircuits as fc
from fedcircuits.errors import StorageError
from fedcircuits.federation.wire.packing import (
    pack_choice,
    pack_codes,
    packed_size,
    unpack_choice,
    unpack_codes,
)

N = 20_000


@pytest.mark.parametrize("n_codes", [1, 2, 3, 16, 17, 32, 33, 255, 256, 65_537, 2**31])
@pytest.mark.parametrize("n", [0, 1, 11, 12, 13, 1000])
def test_packed_numbers_come_back(n_codes: int, n: int) -> None:
    codes = np.random.default_rng(n).integers(n_codes, size=n)
    if n:
        codes[-1] = n_codes - 1
    packed = pack_codes(codes, n_codes)
    assert packed.size == packed_size(n, n_codes)
    assert unpack_codes(packed, n, n_codes).tolist() == codes.tolist()


@pytest.mark.parametrize("n_codes", [2, 5, 16, 17, 32, 33, 100, 256])
def test_packed_numbers_take_hardly_more_than_their_bits(n_codes: int) -> None:
    assert packed_size(64_000, n_codes) <= 1.12 * 64_000 * np.log2(n_codes) / 8


def test_packed_numbers_of_another_length_or_range_are_refused() -> None:
    packed = pack_codes(np.arange(100) % 10, 10)
    with pytest.raises(StorageError, match="expected"):
        unpack_codes(packed, 200, 10)
    with pytest.raises(StorageError, match="beyond"):
        unpack_codes(np.full(packed.size, 255, dtype=np.uint8), 100, 10)
    with pytest.raises(StorageError, match="expected"):
        unpack_choice(np.zeros(3, dtype=np.uint8), 100)


@pytest.mark.parametrize("n", [0, 1, 8, 9, 100])
def test_a_choice_comes_back(n: int) -> None:
    rng = np.random.default_rng(n)
    for chosen in (rng.random(n) < 0.5, np.ones(n, dtype=bool), np.zeros(n, dtype=bool)):
        assert unpack_choice(pack_choice(chosen), n).tolist() == chosen.tolist()


def two_clients(share: float = 1.0) -> dict[str, pd.DataFrame]:
    """Columns split over two clients; the first holds the label, the second a share of the rows."""
    rng = np.random.default_rng(0)
    z = rng.integers(5, size=N)
    table = pd.DataFrame({f"x{j}": rng.normal(z % (j + 2), 0.5) for j in range(6)})
    table["y"] = np.where(rng.random(N) < 0.2 + 0.1 * z, "yes", "no")
    table["id"] = np.arange(N)
    kept = table[rng.random(N) < share]
    return {"a": table[["id", "x0", "x1", "x2", "y"]], "b": kept[["id", "x3", "x4", "x5"]]}


def bytes_by_phase(fed: Any) -> dict[str, int]:
    return dict(zip(*fed.ledger.table(["phase"])[["phase", "bytes"]].to_numpy().T, strict=True))


@pytest.mark.parametrize(
    ("label", "share"), [(None, 1.0), ("y", 1.0), ("y", 0.7)], ids=["no label", "label", "part"]
)
def test_latent_moves_less_than_three_bytes_a_row_after_alignment(
    label: str | None, share: float
) -> None:
    clients = two_clients(share)
    fed = fc.federate(clients, id="id", label=label, agreement="latent", learner="factorised")
    phases = bytes_by_phase(fed)
    models = phases.pop("training")
    alignment = phases.pop("alignment")
    n = len(clients["b"])
    assert models > 0
    keys = 10_000  # of the clients, whatever the number of rows
    assert 0 <= alignment - 12 * (N + n) - 4 * 2 * n < 2 * keys  # on a line of its own
    phases.pop("schema")  # before alignment: sketches of columns, whatever the number of rows
    assert sum(phases.values()) < 3 * n, phases


def test_a_table_of_counts_moves_a_cluster_index_a_row() -> None:
    fed = fc.federate(two_clients(), id="id", agreement="latent", table=True, learner="factorised")
    assert bytes_by_phase(fed)["agreement"] < 1.5 * N


def test_rows_that_are_asked_about_often_are_named_once() -> None:
    clients = two_clients()
    fed = fc.federate(clients, id="id", label="y", agreement="auto", learner="factorised")
    by_verb = fed.ledger.table(["phase", "direction", "verb"])
    named = by_verb[(by_verb["verb"] == "name_rows") & (by_verb["direction"] == "to client")]
    asked = by_verb[(by_verb["verb"] == "ask_sealed") & (by_verb["direction"] == "to client")]
    assert named["messages"].sum() <= 4  # the rows of the trial and those of the fit
    assert named["bytes"].sum() < 4 * (N / 8 + 1000)
    assert asked["messages"].sum() >= 2  # for every candidate one of the client that is not asked
    assert (asked["bytes"] / asked["messages"]).max() < 2000  # names of models, no row in it


@pytest.mark.slow
def test_a_trial_sends_scores_of_its_own_rows_alone() -> None:
    """Scores of a tilt: two turns of all rows once, and once without those left out for a head."""
    clients = two_clients()
    fed = fc.federate(clients, id="id", label="y", agreement="auto")
    sent = fed.ledger.table(["verb", "direction"])
    scores = sent[(sent["verb"] == "score_tilt") & (sent["direction"] == "to server")][
        "bytes"
    ].sum()
    trial = 2 * 3 * 4000  # two rules, three scores
    assert scores < (3 + 0.8 * 3 + 0.2 * 2) * N + trial + 20_000

"""Rows that a client draws by itself, and classes sent by their rank within a cluster."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fedcircuits.errors import StorageError
from fedcircuits.federation.client.rows.aligned_rows import AlignedRows
from fedcircuits.federation.wire import requests as m
from fedcircuits.federation.wire.names import CLUSTERS, LATENT_CLASSES
from fedcircuits.federation.wire.packing import pack_choice, squeeze
from fedcircuits.federation.wire.seeds import drawn_order


@pytest.mark.parametrize("rest", [False, True])
def test_a_draw_chooses_the_rows_that_the_server_means(rest: bool) -> None:
    rows = np.array([5, 3, 8, 1, 9, 0, 2])
    aligned = AlignedRows("a")
    aligned.set(rows, 12)
    order = drawn_order(rows.size, 4, "head")
    assert sorted(order.tolist()) == list(range(7))
    draw = m.Draw(4, "head", 1, 4, rest)
    aligned.name("some", pack_choice(np.ones(7, dtype=bool)), draw)
    meant = order[1:4] if not rest else np.delete(order, [1, 2, 3])
    assert aligned.named("some").tolist() == rows[np.sort(meant)].tolist()


@pytest.mark.parametrize(("first", "last"), [(-1, 3), (4, 2), (0, 8)])
def test_places_that_are_none_are_refused(first: int, last: int) -> None:
    with pytest.raises(StorageError, match="of 7 rows"):
        m.Draw(0, "head", first, last, rest=False).of(7)


def test_an_order_is_the_same_on_every_machine() -> None:
    assert drawn_order(8, 0, "auto").tolist() == [6, 1, 3, 0, 4, 2, 5, 7]


def _assign(places: np.ndarray, ranks: np.ndarray) -> m.Assign:
    table = np.zeros((0, 4), dtype=np.float16)
    return m.Assign(LATENT_CLASSES, CLUSTERS, np.zeros(0, np.uint8), squeeze(places), table, ranks)


def test_a_class_is_known_by_its_rank_in_the_cluster(rng: np.random.Generator) -> None:
    ranks = np.argsort(rng.random((6, 4)), axis=1).astype(np.uint8)
    clusters, places = rng.integers(0, 6, 90), rng.integers(0, 4, 90).astype(np.uint8)
    found = _assign(places, ranks).classes_of(clusters)
    assert found.tolist() == ranks[clusters, places].tolist()


def test_ranks_that_do_not_fit_are_refused(rng: np.random.Generator) -> None:
    ranks = np.argsort(rng.random((6, 4)), axis=1).astype(np.uint8)
    clusters, places = np.arange(6), np.zeros(6, dtype=np.uint8)
    good = _assign(places, ranks)
    wrong = (
        replace(good, ranks=ranks[:5]),
        replace(good, ranks=ranks[:, :3]),
        replace(good, ranks=ranks + np.uint8(1)),
        _assign(places + np.uint8(4), ranks),
        _assign(places[:5], ranks),
    )
    for each in wrong:
        with pytest.raises(StorageError):
            each.classes_of(clusters)

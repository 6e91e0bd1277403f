"""The tree below a hidden Chow-Liu tree: as heavy as any spanning tree, whatever the diagonal."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from scipy.sparse.csgraph import connected_components, minimum_spanning_tree

pytest.importorskip("torch")

from fedcircuits.learners.einet.structures.hidden_tree import chow_liu_parents


def weight_of(parents: np.ndarray, information: np.ndarray) -> float:
    return float(sum(information[v, p] for v, p in enumerate(parents) if p >= 0))


@pytest.mark.parametrize("d", [2, 3, 5, 40])
def test_no_spanning_tree_is_heavier(d: int) -> None:
    rng = np.random.default_rng(d)
    information = rng.random((d, d))
    information = information + information.T
    np.fill_diagonal(information, 10.0)  # entropies exceed every pair
    parents = chow_liu_parents(information)
    assert (parents < 0).sum() == 1
    edges = np.zeros((d, d))
    for child, parent in enumerate(parents):
        if parent >= 0:
            edges[child, parent] = 1
    assert connected_components(edges, directed=False)[0] == 1
    cost = 5.0 - information
    np.fill_diagonal(cost, 0.0)
    tree = minimum_spanning_tree(cost)
    best = float(5.0 * (d - 1) - tree.sum())
    assert weight_of(parents, information) == pytest.approx(best, abs=1e-4)


def test_every_tree_of_four_is_beaten() -> None:
    rng = np.random.default_rng(0)
    information = rng.random((4, 4))
    information = information + information.T
    mine = weight_of(chow_liu_parents(information), information)
    pairs = list(combinations(range(4), 2))
    for chosen in combinations(pairs, 3):
        edges = np.zeros((4, 4))
        for a, b in chosen:
            edges[a, b] = 1
        if connected_components(edges, directed=False)[0] == 1:
            assert mine >= sum(information[a, b] for a, b in chosen) - 1e-5

"""Pairwise information and spanning trees against slow, obvious versions."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from fedcircuits import native
from fedcircuits.learners.hclt.tree import chow_liu
from fedcircuits.learners.hclt.tree.chow_liu import (
    chow_liu_tree,
    mutual_information,
    one_hot,
    root_tree,
    structure_rows,
)
from fedcircuits.learners.spanning_tree import maximum_spanning_tree


def slow_information(a: np.ndarray, b: np.ndarray, weights: np.ndarray) -> float:
    """Plug-in information minus the Miller-Madow term, cell by cell."""
    both = (a >= 0) & (b >= 0)
    a, b, weights = a[both], b[both], weights[both]
    joint = np.zeros((a.max() + 1, b.max() + 1))
    np.add.at(joint, (a, b), weights)
    p = joint / joint.sum()
    rows, columns = p.sum(1), p.sum(0)
    value = sum(
        p[i, j] * np.log(p[i, j] / (rows[i] * columns[j]))
        for i, j in zip(*np.nonzero(p), strict=True)
    )
    occupied = (p > 0).sum() - (rows > 0).sum() - (columns > 0).sum() + 1
    return float(value - occupied / (2 * joint.sum()))


@pytest.mark.parametrize("cards", [(2, 3, 2, 4), (40, 2, 60, 3)], ids=["dense", "sparse"])
def test_information_equals_the_cell_by_cell_sum_with_missing_cells(cards: tuple[int, ...]) -> None:
    rng = np.random.default_rng(3)
    codes = np.stack([rng.integers(-1, card, size=400) for card in cards], axis=1)
    codes[:, 1] = np.where(rng.random(400) < 0.7, codes[:, 0] % cards[1], codes[:, 1])
    information = mutual_information(codes, cards)
    np.testing.assert_allclose(information, information.T, atol=1e-12)
    for j, k in itertools.combinations(range(4), 2):
        expected = slow_information(codes[:, j], codes[:, k], np.ones(400))
        assert information[j, k] == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("missing", [0.0, 0.2])
@pytest.mark.parametrize("most", [1, 50, 2**22], ids=["sorted", "some sorted", "tables"])
def test_pairs_are_counted_alike_in_blocks_in_loops_and_by_sorting(
    missing: float, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if native.kernels() is None:
        pytest.skip("no compiled loops here")
    rng = np.random.default_rng(8)
    cards = (2, 30, 7, 5, 90)
    codes = np.stack([rng.integers(0, card, size=300) for card in cards], axis=1)
    codes[:, 2] = codes[:, 1] % 7
    codes[rng.random(codes.shape) < missing] = -1
    with native.numpy_only():
        expected = mutual_information(codes, cards)
    monkeypatch.setattr(chow_liu, "_MOST_CELLS", most)
    np.testing.assert_allclose(mutual_information(codes, cards), expected, atol=1e-12)


def test_structure_looks_at_fewer_rows_of_more_columns() -> None:
    rng = np.random.default_rng(0)
    for columns in (2, 500, 2_000, 20_000):
        rows = structure_rows(1_000_000, columns, rng)
        assert isinstance(rows, np.ndarray)
        assert np.unique(rows).size == rows.size
        pairs = columns * (columns - 1) // 2
        assert rows.size == chow_liu.MIN_STRUCTURE_ROWS or (
            rows.size <= chow_liu.MAX_STRUCTURE_ROWS
            and rows.size * pairs <= chow_liu.MAX_STRUCTURE_CELLS
        )
    assert structure_rows(900, 20_000, rng) == slice(None)


def test_integer_weights_equal_repeated_rows_up_to_the_bias_term() -> None:
    rng = np.random.default_rng(4)
    codes = rng.integers(0, 3, size=(300, 3))
    weights = rng.integers(1, 4, size=300).astype(float)
    repeated = np.repeat(codes, weights.astype(int), axis=0)
    n_effective = weights.sum() ** 2 / np.square(weights).sum()
    gap = 4 / 2 * (1 / n_effective - 1 / weights.sum())
    weighted = mutual_information(codes, (3, 3, 3), weights)
    np.testing.assert_allclose(
        weighted[0, 1] + gap, mutual_information(repeated, (3, 3, 3))[0, 1], atol=1e-6
    )


def test_independent_columns_have_no_information_on_average() -> None:
    rng = np.random.default_rng(5)
    values = [
        mutual_information(rng.integers(0, 12, size=(2000, 2)), (12, 12))[0, 1] for _ in range(60)
    ]
    # Uncorrected, the mean would be 121 / 4000 = .030; its standard error is about .0005.
    assert abs(np.mean(values)) < 0.002


def test_blocks_of_columns_agree_with_one_block(monkeypatch: pytest.MonkeyPatch) -> None:
    codes = np.random.default_rng(6).integers(0, 4, size=(200, 9))
    whole = mutual_information(codes, (4,) * 9)
    monkeypatch.setattr("fedcircuits.learners.hclt.tree.chow_liu._BLOCK_WIDTH", 10)
    np.testing.assert_allclose(mutual_information(codes, (4,) * 9), whole, atol=1e-6)


def test_spanning_tree_is_the_best_of_all() -> None:
    values = np.random.default_rng(7).random((5, 5))
    values = values + values.T
    pairs = list(itertools.combinations(range(5), 2))

    def spans(edges: tuple[tuple[int, int], ...]) -> bool:
        try:
            root_tree(5, list(edges), root=0)
        except ValueError:
            return False
        return True

    best = max(
        sum(values[edge] for edge in edges)
        for edges in itertools.combinations(pairs, 4)
        if spans(edges)
    )
    assert sum(values[edge] for edge in maximum_spanning_tree(values)) == pytest.approx(best)


def test_root_is_the_centre_and_the_order_is_topological() -> None:
    tree = root_tree(5, [(0, 1), (1, 2), (2, 3), (3, 4)])
    assert tree.parent[2] == -1
    position = {int(node): i for i, node in enumerate(tree.order)}
    assert all(position[int(tree.parent[n])] < position[n] for n in range(5) if tree.parent[n] >= 0)


def test_a_markov_chain_is_recovered() -> None:
    rng = np.random.default_rng(8)
    columns = [rng.integers(0, 3, size=4000)]
    for _ in range(4):
        columns.append(np.where(rng.random(4000) < 0.6, columns[-1], rng.integers(0, 3, size=4000)))
    tree = chow_liu_tree(np.stack(columns, axis=1), (3,) * 5)
    edges = {frozenset((n, int(p))) for n, p in enumerate(tree.parent) if p >= 0}
    assert edges == {frozenset((i, i + 1)) for i in range(4)}


def test_one_column_and_one_row() -> None:
    assert chow_liu_tree(np.zeros((5, 1), dtype=int), (1,)).parent.tolist() == [-1]
    assert len(chow_liu_tree(np.array([[0, 1, -1]]), (2, 2, 2)).order) == 3


def test_one_hot_leaves_missing_cells_empty() -> None:
    dense = one_hot(np.array([[1, -1], [0, 2]]), (2, 3)).toarray()
    np.testing.assert_array_equal(dense, [[0, 1, 0, 0, 0], [1, 0, 0, 0, 1]])

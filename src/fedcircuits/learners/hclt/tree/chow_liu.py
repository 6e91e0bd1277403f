"""Chow-Liu trees: pairwise mutual information of coded columns and its maximum spanning tree.

The structure of the hidden Chow-Liu tree is read off pairwise counts. Where rows have weights, or
columns few states, counts are taken in blocks of columns through (sparse or dense) one-hot
products; else compiled loops count pair by pair, whose cost does not depend on the states. Pairs
grow with the square of the columns, and ranking them needs far fewer rows than parameters do:
callers with very many rows or columns pass a subsample (see :func:`structure_rows`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import sparse

from fedcircuits.arrays import FloatArray, IntegerArray
from fedcircuits.learners.spanning_tree import maximum_spanning_tree
from fedcircuits.native import Kernels, kernels

# Widest block of one-hot columns on the left of a product; bounds memory at this times the width.
_BLOCK_WIDTH = 1024
# Above this share of non-zeros a dense product beats the sparse one.
_DENSE_SHARE = 0.04
# Rows that are enough to rank pairs of columns; a million rows give the same tree 10x slower.
MAX_STRUCTURE_ROWS = 100_000
# Cells that are counted at most, rows x pairs, and the rows that are looked at all the same.
MAX_STRUCTURE_CELLS, MIN_STRUCTURE_ROWS = 2**33, 1_000
# A pair of columns with more cells than this is counted by sorting.
_MOST_CELLS = 2**22


@dataclass(frozen=True)
class RootedTree:
    """A rooted spanning tree over D nodes.

    Attributes:
        parent: (D,) parent of every node, -1 at the root.
        order: (D,) topological order, parents before children.
    """

    parent: npt.NDArray[np.int64]
    order: npt.NDArray[np.int64]


def structure_rows(
    n_rows: int, n_columns: int, rng: np.random.Generator
) -> npt.NDArray[np.int64] | slice:
    """Rows to learn the structure from: all of them, or a random subset where they are many."""
    limit = MAX_STRUCTURE_CELLS // max(n_columns * (n_columns - 1) // 2, 1)
    limit = min(max(limit, MIN_STRUCTURE_ROWS), MAX_STRUCTURE_ROWS)
    if n_rows <= limit:
        return slice(None)
    return np.sort(rng.choice(n_rows, size=limit, replace=False))


def one_hot(
    codes: IntegerArray, cards: tuple[int, ...], dtype: npt.DTypeLike = np.float64
) -> sparse.csr_matrix:
    """Sparse (n, sum(cards)) indicator matrix; a missing cell (-1) has no entry.

    Args:
        codes: (n, D) states, -1 where missing.
        cards: Number of states of each column.
        dtype: Type of the stored ones.
    """
    n, n_columns = codes.shape
    offsets = np.concatenate(([0], np.cumsum(cards)[:-1])) if n_columns else np.zeros(0)
    observed = codes >= 0
    indices = (codes + offsets[None, :].astype(np.int32))[observed].astype(np.int32, copy=False)
    indptr = np.concatenate(([0], np.cumsum(observed.sum(axis=1)))).astype(np.int32)
    data = np.ones(len(indices), dtype=dtype)
    return sparse.csr_matrix((data, indices, indptr), shape=(n, int(np.sum(cards))))


def mutual_information(
    codes: IntegerArray, cards: tuple[int, ...], weights: FloatArray | None = None
) -> FloatArray:
    """Bias-corrected mutual information (nats) of every pair of columns.

    Every pair uses the rows in which both are observed. The plug-in estimate of independent columns
    is about (a - 1)(b - 1) / 2N too high for a x b occupied states; the Miller-Madow term removes
    that, otherwise columns with many states would attract all edges.

    Args:
        codes: (n, D) states, -1 where missing.
        cards: Number of states of each column.
        weights: (n,) row weights; the correction uses Kish's effective number of rows.

    Returns:
        (D, D) symmetric matrix with a zero diagonal; entries may be slightly negative.
    """
    if weights is not None and (weights == 1.0).all():
        weights = None
    native = kernels()
    if native is not None and weights is None and not _few_states(codes.shape, cards):
        return _counted_by_pair(native, codes, cards)
    return _counted_in_blocks(codes, cards, weights)


def _few_states(shape: tuple[int, ...], cards: tuple[int, ...]) -> bool:
    """Whether products of one-hot blocks take less time than counting every pair of columns.

    By measured times: a product takes .07 ns a row and pair of states and 25 ns a pair of states
    after it, counting 1 ns a row and pair of columns.
    """
    n_rows, n_columns = shape
    return bool((sum(cards) / n_columns) ** 2 * (0.07 * n_rows + 25) < n_rows)


def _counted_by_pair(native: Kernels, codes: IntegerArray, cards: tuple[int, ...]) -> FloatArray:
    """Mutual information of rows that count once, pair by pair."""
    n, D = codes.shape
    states = np.asarray(cards, dtype=np.int64)
    columns = np.ascontiguousarray(codes.T, dtype=np.int32)  # (D, n)
    whole = (columns >= 0).all(axis=1).astype(np.int8)
    order = np.sort(states)
    most = int(min(order[-2:].prod() if D > 1 else 0, _MOST_CELLS))
    information = np.zeros((D, D))
    native.call(
        "pair_information",
        *(n, D, columns, states, whole, _x_log_x(np.arange(n + 1)), most),
        *(np.zeros(most, dtype=np.int32), np.zeros(2 * int(order[-1]), dtype=np.int32)),
        *(np.empty(D), np.empty(D, dtype=np.int64), information),
    )
    for i, j in zip(*np.nonzero(np.triu(np.outer(states, states) > most, 1)), strict=True):
        information[i, j] = information[j, i] = _counted_by_sorting(columns[i], columns[j])
    return information


def _counted_by_sorting(a: npt.NDArray[np.int32], b: npt.NDArray[np.int32]) -> float:
    """Mutual information of two columns (n,) with very many states."""
    both = (a >= 0) & (b >= 0)
    total = int(both.sum())
    if total == 0:
        return 0.0
    key = a[both].astype(np.int64) * (int(b.max()) + 1) + b[both]
    joint, left, right = (np.unique(k, return_counts=True)[1] for k in (key, a[both], b[both]))
    entropies = _x_log_x(joint).sum() - _x_log_x(left).sum() - _x_log_x(right).sum()
    occupied = joint.size - left.size - right.size + 1
    return float((entropies + total * np.log(total)) / total - occupied / (2.0 * total))


def _x_log_x(counts: IntegerArray) -> FloatArray:
    return np.asarray(counts * np.log(np.maximum(counts, 1)))


def _counted_in_blocks(
    codes: IntegerArray, cards: tuple[int, ...], weights: FloatArray | None
) -> FloatArray:
    """Mutual information of weighted rows, block after block of columns."""
    n_columns = codes.shape[1]
    widths = np.asarray(cards, dtype=np.int64)
    starts = np.concatenate(([0], np.cumsum(widths)))
    indicator = one_hot(codes, cards)
    weighted = indicator
    rows_per_weight = 1.0
    if weights is not None:
        weighted = sparse.diags(weights) @ indicator
        rows_per_weight = float(weights.sum() / max(float(np.square(weights).sum()), 1e-300))
    dense = n_columns / max(int(starts[-1]), 1) > _DENSE_SHARE
    # float32 counts are exact up to 2^24 rows.
    right = indicator.astype(np.float32).toarray() if dense else indicator
    left = weighted.astype(np.float32).toarray().T.copy() if dense else weighted.tocsc()

    information = np.zeros((n_columns, n_columns))
    first = 0
    while first < n_columns:
        last = first + 1
        while last < n_columns and starts[last + 1] - starts[first] <= _BLOCK_WIDTH:
            last += 1
        # Pairs with an earlier column are known from that column's block.
        lo, hi = starts[first], starts[last]
        if dense:
            counts = np.asarray(left[lo:hi] @ right[:, lo:], dtype=np.float64)
        else:
            product = sparse.csr_matrix(left[:, lo:hi].T @ right[:, lo:])
            counts = np.asarray(product.toarray(), dtype=np.float64)
        block = information_of_counts(
            counts, starts[first:last] - lo, starts[first:-1] - lo, rows_per_weight
        )
        information[first:last, first:] = block
        information[first:, first:last] = block.T
        first = last
    np.fill_diagonal(information, 0.0)
    return information


def information_of_counts(
    counts: FloatArray,
    row_starts: IntegerArray,
    column_starts: IntegerArray,
    rows_per_weight: float,
) -> FloatArray:
    """Mutual information of the column pairs of one block of pair counts.

    Args:
        counts: (states of the block's columns, states of all columns from the block on).
        row_starts: (block columns,) first state of every block column.
        column_starts: (columns,) first state of every column.
        rows_per_weight: Effective rows per unit of weight.

    Returns:
        (block columns, columns) information in nats.
    """

    def log_or_zero(values: FloatArray) -> FloatArray:
        return np.log(np.where(values > 0, values, 1.0))

    def per_pair(values: FloatArray) -> FloatArray:
        return np.asarray(
            np.add.reduceat(np.add.reduceat(values, row_starts, axis=0), column_starts, axis=1)
        )

    by_row = np.add.reduceat(counts, column_starts, axis=1)
    by_column = np.add.reduceat(counts, row_starts, axis=0)
    total = np.add.reduceat(by_row, row_starts, axis=0)
    occupied = (
        per_pair((counts > 0).astype(np.float64))
        - np.add.reduceat((by_row > 0).astype(np.float64), row_starts, axis=0)
        - np.add.reduceat((by_column > 0).astype(np.float64), column_starts, axis=1)
        + 1.0
    )
    joint = per_pair(counts * log_or_zero(counts))
    left = np.add.reduceat(by_row * log_or_zero(by_row), row_starts, axis=0)
    right = np.add.reduceat(by_column * log_or_zero(by_column), column_starts, axis=1)
    safe_total = np.where(total > 0, total, 1.0)
    plug_in = (joint - left - right) / safe_total + np.log(safe_total)
    corrected = plug_in - occupied / (2.0 * safe_total * rows_per_weight)
    return np.where(total > 0, corrected, 0.0)


def root_tree(n_nodes: int, edges: list[tuple[int, int]], root: int | None = None) -> RootedTree:
    """Direct the edges of a tree away from a root.

    Args:
        n_nodes: Number of nodes D.
        edges: D - 1 undirected edges.
        root: The root; by default the centre of the tree, which keeps the passes shallow.
    """
    neighbours: list[list[int]] = [[] for _ in range(n_nodes)]
    for a, b in edges:
        neighbours[a].append(b)
        neighbours[b].append(a)
    start = _centre(neighbours) if root is None else root
    parent = np.full(n_nodes, -1, dtype=np.int64)
    order = [start]
    seen = {start}
    for node in order:  # grows while it is walked: breadth first
        for child in sorted(neighbours[node]):
            if child not in seen:
                seen.add(child)
                parent[child] = node
                order.append(child)
    if len(order) != n_nodes:
        raise ValueError(f"edges reach {len(order)} of {n_nodes} nodes: not a spanning tree")
    return RootedTree(parent=parent, order=np.asarray(order, dtype=np.int64))


def _centre(neighbours: list[list[int]]) -> int:
    """Centre of a tree by peeling leaves."""
    degree = np.asarray([len(near) for near in neighbours])
    remaining = len(neighbours)
    layer = [node for node in range(remaining) if degree[node] <= 1]
    while remaining > 2:
        remaining -= len(layer)
        following: list[int] = []
        for leaf in layer:
            for near in neighbours[leaf]:
                degree[near] -= 1
                if degree[near] == 1:
                    following.append(near)
        layer = following
    return layer[0]


def chow_liu_tree(
    codes: IntegerArray, cards: tuple[int, ...], weights: FloatArray | None = None
) -> RootedTree:
    """The Chow-Liu tree of coded data (see :func:`mutual_information` for the arguments)."""
    # Columns that say the same tie; how pairs were counted must not decide between them.
    information = mutual_information(codes, cards, weights).round(12)
    return root_tree(codes.shape[1], maximum_spanning_tree(information))

"""Rows compressed by subtree: what two rows share below a latent is computed once.

The evidence below a latent depends only on the cells in its subtree. Near the leaves a table has
few distinct cell patterns (two below a binary leaf, however many rows), so passes run over the
distinct patterns of every subtree instead of over rows, in both directions and exactly: upward, a
parent pattern looks up its children's patterns; downward, the flows of all parent patterns with
the same child pattern are added before the child's work begins. On wide binary tables this removes
most of the work. Repeated rows are the special case of the root.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from fedcircuits.arrays import IntArray, IntegerArray
from fedcircuits.learners.hclt.tree.latent_tree import LatentTree
from fedcircuits.native import Addresses, Kernels, Pointer, addresses, kernels, pointer

Index = npt.NDArray[np.int32]

# Keys up to this many per row are compacted by a table instead of a sort.
_TABLE_KEYS_PER_ROW = 8
_KEY_LIMIT = 2**60
# Rows compressed together, at most; less where many columns or states would take much memory.
BLOCK_ROWS = 16_384
_BLOCK_NUMBERS = 2**21  # evidence, messages and flows of a block, each


@dataclass(frozen=True)
class Patterns:
    """The distinct patterns of a block of rows below every latent of a tree.

    Attributes:
        codes: For every column, the codes of its latent's patterns (U,), -1 where missing.
        child_index: For every latent but the root, the pattern of this latent inside each of its
            parent's patterns (U of the parent,).
        sizes: Number of patterns of every latent.
        row_index: (n,) root pattern of every row.
        all_differ: whether every row has patterns of its own, numbered like the rows.
    """

    codes: list[Index]
    child_index: dict[int, Index]
    sizes: list[int]
    row_index: Index
    all_differ: bool = False

    @cached_property
    def size_array(self) -> IntArray:
        """(L,) number of patterns of every latent."""
        return np.array(self.sizes, dtype=np.int64)

    @cached_property
    def offset(self) -> IntArray:
        """(L,) first row of every latent's patterns in flat arrays over all patterns."""
        return np.cumsum(self.size_array) - self.size_array

    @cached_property
    def n_patterns(self) -> int:
        """Number of patterns of all latents together."""
        return int(self.size_array.sum())

    @cached_property
    def addresses(self) -> tuple[Addresses, Addresses]:
        """Where the codes of every column and the child index of every latent lie, for C."""
        index = [
            None if self.all_differ else self.child_index.get(latent)
            for latent in range(len(self.sizes))
        ]
        return addresses(self.codes), addresses(index)

    @cached_property
    def pointers(self) -> list[Pointer]:
        """Sizes, offsets, codes and child index, for C."""
        arrays = (self.size_array, self.offset, *self.addresses)
        return [pointer(array) for array in arrays]

    def rows_of(self, latent: int) -> slice:
        """Rows of a latent's patterns in flat arrays over all patterns."""
        start = int(self.offset[latent])
        return slice(start, start + self.sizes[latent])

    def index_of(self, latent: int) -> Index:
        """The latent's pattern inside each of its parent's patterns."""
        return self.child_index[latent]


def block_patterns(tree: LatentTree, codes: IntegerArray) -> Patterns:
    """Compress a block of coded rows (n, D), -1 where missing, for the structure of a tree."""
    cards, shape = tree.cards, tree.shape
    native = kernels()
    if native is not None and len(codes):
        return _compiled_patterns(native, tree, codes)
    columns_of, children_of, order = shape.columns_of, shape.children_of, shape.order
    n_rows = len(codes)
    columns = np.ascontiguousarray(codes.T)
    pattern_of_row: dict[int, npt.NDArray[np.int64]] = {}
    sizes = [0] * len(columns_of)
    kept_codes: list[Index] = [np.zeros(0, dtype=np.int32)] * len(cards)
    child_index: dict[int, Index] = {}
    for latent in map(int, order[::-1]):
        key, n_keys = np.zeros(n_rows, dtype=np.int64), 1
        parts = [(columns[j] + 1, cards[j] + 1) for j in columns_of[latent]]
        parts += [(pattern_of_row[child], sizes[child]) for child in children_of[latent]]
        for values, n_values in parts:
            if n_keys * n_values >= _KEY_LIMIT:
                _, key = _compact(key, n_keys)
                n_keys = n_rows
            key = key * n_values + values
            n_keys *= n_values
        first, inverse = _compact(key, n_keys)
        sizes[latent] = len(first)
        for j in columns_of[latent]:
            kept_codes[j] = columns[j][first].astype(np.int32)
        for child in children_of[latent]:
            child_index[child] = pattern_of_row.pop(child)[first].astype(np.int32)
        pattern_of_row[latent] = inverse
    return Patterns(
        codes=kept_codes,
        child_index=child_index,
        sizes=sizes,
        row_index=pattern_of_row[int(order[0])].astype(np.int32),
    )


def _compiled_patterns(native: Kernels, tree: LatentTree, codes: IntegerArray) -> Patterns:
    """The same by compiled loops, numbered alike."""
    shape, n, n_columns = tree.shape, len(codes), len(tree.cards)
    n_latents = len(shape.columns_of)
    most = _TABLE_KEYS_PER_ROW * n + 64
    columns = np.ascontiguousarray(codes.T, dtype=np.int32)  # (D, n)
    kept, index = np.empty((n_columns, n), np.int32), np.empty((n_latents, n), np.int32)
    numbers, sizes = np.empty((n_latents, n), np.int32), np.empty(n_latents, np.int64)
    order = np.asarray(shape.order[::-1], dtype=np.int64)
    native.call(
        "block_patterns",
        *(np.array([n, n_latents, most, _KEY_LIMIT]), order.copy(), columns),
        *(np.array(tree.cards, dtype=np.int64), *_flat(shape.columns_of, n_latents)),
        *(*_flat(shape.children_of, n_latents), np.empty(2 * n, np.int64)),
        *(np.empty(3 * n + max(most, 0), np.int32), numbers, kept, index, sizes),
    )
    found = sizes.tolist()
    owner = {int(j): latent for latent in range(n_latents) for j in shape.columns_of[latent]}
    above = {
        int(child): latent for latent in range(n_latents) for child in shape.children_of[latent]
    }
    return Patterns(
        codes=[kept[j, : found[owner[j]]].copy() for j in range(n_columns)],
        child_index={child: index[child, : found[up]].copy() for child, up in above.items()},
        sizes=found,
        row_index=numbers[int(shape.order[0])].copy(),
    )


def _flat(groups: Sequence[Sequence[int]], n_groups: int) -> tuple[IntArray, IntArray]:
    """Where each group starts (n + 1,), and all members one after another."""
    lists = [[int(member) for member in groups[at]] for at in range(n_groups)]
    starts = np.cumsum([0, *map(len, lists)], dtype=np.int64)
    return starts, np.array([member for group in lists for member in group], dtype=np.int64)


def _compact(
    key: npt.NDArray[np.int64], n_keys: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """First row of every distinct key, and the number of each row's key among the distinct ones."""
    if n_keys <= _TABLE_KEYS_PER_ROW * len(key) + 64:
        first_of_key = np.full(n_keys, -1, dtype=np.int64)
        first_of_key[key] = np.arange(len(key))
        used = np.flatnonzero(first_of_key >= 0)
        number = np.empty(n_keys, dtype=np.int64)
        number[used] = np.arange(len(used))
        return first_of_key[used], number[key]
    _, first, inverse = np.unique(key, return_index=True, return_inverse=True)
    return first, inverse.reshape(-1)


def identity_patterns(n_rows: int, n_columns: int, parent: npt.NDArray[np.int64]) -> Patterns:
    """Rows that share nothing: for passes whose factors are not gathered from codes."""
    every = np.arange(n_rows, dtype=np.int32)
    return Patterns(
        codes=[every] * n_columns,
        child_index={latent: every for latent, above in enumerate(parent) if above >= 0},
        sizes=[n_rows] * len(parent),
        row_index=every,
        all_differ=True,
    )


def row_blocks(n_rows: int, tree: LatentTree) -> Iterator[slice]:
    """Row slices: large enough to share patterns, small enough to bound memory."""
    size = _BLOCK_NUMBERS // (tree.n_states * tree.n_columns)
    size = int(np.clip(size, 256, BLOCK_ROWS))
    for start in range(0, n_rows, size):
        yield slice(start, min(start + size, n_rows))

"""Subtree patterns: every row is found again, and shared subtrees are stored once."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fedcircuits.learners.hclt.tree import patterns as module
from fedcircuits.learners.hclt.tree.patterns import block_patterns
from fedcircuits.learners.hclt.tree.shape import TreeShape, shape_of

# 0 is the root with children 1 and 2; 2 has the child 3. One column each.
SHAPE = shape_of(np.array([-1, 0, 0, 2]), np.arange(4), np.arange(4))
CARDS = (3, 4, 2, 5)


def tree_of(cards: tuple[int, ...], shape: TreeShape) -> Any:
    """All that patterns depend on: the structure, no parameters."""
    return SimpleNamespace(cards=cards, shape=shape)


@pytest.mark.parametrize("use_table", [True, False])
def test_rows_are_recovered_from_their_patterns(
    use_table: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not use_table:
        monkeypatch.setattr(module, "_TABLE_KEYS_PER_ROW", -10)
    rng = np.random.default_rng(0)
    codes = np.stack([rng.integers(-1, card, size=300) for card in CARDS], axis=1)
    found = block_patterns(tree_of(CARDS, SHAPE), codes)
    at_root = found.row_index
    np.testing.assert_array_equal(found.codes[0][at_root], codes[:, 0])
    np.testing.assert_array_equal(found.codes[1][found.child_index[1][at_root]], codes[:, 1])
    at_two = found.child_index[2][at_root]
    np.testing.assert_array_equal(found.codes[2][at_two], codes[:, 2])
    np.testing.assert_array_equal(found.codes[3][found.child_index[3][at_two]], codes[:, 3])
    assert found.sizes[1] == len(np.unique(codes[:, 1]))
    assert found.sizes[2] == len(np.unique(codes[:, 2:], axis=0))
    assert found.sizes[0] == len(np.unique(codes, axis=0))


def test_a_hub_with_very_many_children_does_not_overflow_its_keys() -> None:
    rng = np.random.default_rng(1)
    D = 60
    codes = rng.integers(0, 9, size=(200, D))
    shape = shape_of(np.append(-1, np.zeros(D - 1)), np.arange(D), np.arange(D))
    found = block_patterns(tree_of((9,) * D, shape), codes)
    rebuilt = np.stack(
        [found.codes[0][found.row_index]]
        + [found.codes[j][found.child_index[j][found.row_index]] for j in range(1, D)],
        axis=1,
    )
    np.testing.assert_array_equal(rebuilt, codes)

"""The narrow part of a tree is cut into whole subtrees, each from its lowest region up."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch")

from fedcircuits.learners.einet.kernels.launch_plan import levels_of
from fedcircuits.learners.einet.kernels.subtrees import is_tree, upper_part
from fedcircuits.learners.einet.network.layout import lay_out
from fedcircuits.learners.einet.structures.class_copies import class_copies
from fedcircuits.learners.einet.structures.hidden_tree import hidden_tree
from fedcircuits.learners.einet.structures.poon_domingos import poon_domingos


def random_parents(n: int, seed: int) -> np.ndarray:
    """Parents of a random tree: long paths with short branches."""
    rng = np.random.default_rng(seed)
    return np.array([-1, *(max(0, v - int(rng.choice([1, 1, 1, 5]))) for v in range(1, n))])


@pytest.mark.parametrize("n_tiles", [1, 4, 200])
@pytest.mark.parametrize("seed", range(4))
def test_every_upper_region_is_walked_once_after_its_children(n_tiles: int, seed: int) -> None:
    layout = lay_out(hidden_tree(random_parents(60, seed)))
    levels = levels_of(layout)
    found = upper_part(layout, levels, n_tiles)
    expected = [r for level in levels[found.below :] for r in range(*level.regions)]
    assert sorted(found.order.tolist()) == expected
    place = {int(region): at for at, region in enumerate(found.order)}
    part = np.searchsorted(found.starts, np.arange(len(found.order)), side="right")
    for row, owner in zip(layout.children, layout.owner.tolist(), strict=True):
        for child in (c for c in row.tolist() if c in place):
            assert place[child] < place[owner]
            assert part[place[child]] == part[place[owner]]


def test_a_long_path_is_walked_and_a_wide_tree_is_not() -> None:
    path = lay_out(hidden_tree(np.arange(-1, 39)))
    assert upper_part(path, levels_of(path), 4).below == 0
    star = lay_out(hidden_tree(np.array([-1] + [0] * 30)))
    found = upper_part(star, levels_of(star), 200)
    assert found.below == len(levels_of(star))
    assert len(found.order) == 0


def test_only_trees_are_trees() -> None:
    tree = hidden_tree(np.array([-1, 0, 0, 1]))
    assert is_tree(lay_out(tree))
    assert is_tree(lay_out(class_copies(tree, 3)))  # copies share leaves, not regions above them
    assert not is_tree(lay_out(poon_domingos(3, 3, 3)))

"""The heads of clients with different columns as one: two layers of trees, and one pool.

    q(y | x) = softmax(a log t(y | x) + sum_g b_g mean_{c in g} f_c(x, others' codes) + shift)

A group g has the clients that hold the same columns. Codes are functions of x: where all trees are
in one place they are worked out here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING

import numpy as np

from fedcircuits.density.tilt import Tilt
from fedcircuits.federation.server.heads import (
    ClientHead,
    gains_for_certain,
    over,
    scaled,
    shares_of,
)

if TYPE_CHECKING:
    from fedcircuits.learners.hclt.head.pool import Pool
    from fedcircuits.learners.hclt.head.trees.across_trees import AcrossTrees
    from fedcircuits.learners.hclt.head.trees.boosted_trees import BoostedTrees


def head_across(
    heads: Mapping[str, ClientHead], tilts: Mapping[str, Tilt], names: Sequence[str]
) -> tuple[BoostedTrees | AcrossTrees, Pool] | None:
    """Trees over all columns and the pool; None where left-out rows do not gain for certain.

    Nor is there one where a group has left.

    Args:
        heads: of the clients.
        tilts: of the clients.
        names: of the columns, in the order of the model.
    """
    from fedcircuits.learners.hclt.head.pool import Pool
    from fedcircuits.learners.hclt.head.trees.across_trees import AcrossTrees
    from fedcircuits.learners.hclt.head.trees.boosted_trees import BoostedTrees

    groups: dict[str, list[str]] = {}
    for client in sorted(heads):
        groups.setdefault(heads[client].group or client, []).append(client)
    pool = heads[min(heads)].pool
    assert pool is not None
    if len(groups) != heads[min(heads)].n_together:
        return None
    if not gains_for_certain(pool.gain, pool.error, pool.log_loss):
        return None
    n_classes = pool.shift.size
    codes = {g: [f"code {k} of {g}" for k in range(n_classes)] for g in sorted(groups)}
    shares = {c: w for mine in groups.values() for c, w in shares_of(mine, tilts).items()}
    every = [*names, *(code for g in codes for code in codes[g])]
    takes_codes = any(head.codes_of for head in heads.values())
    parts = [head.trees for head in heads.values()]
    parts += [
        tree
        for h in heads.values()
        if h.code_trees
        for tree in (h.code_trees.trees, h.code_trees.leaf)
    ]
    width = max(trees.known_categories.shape[1] for trees in parts)
    second = []
    for client, head in sorted(heads.items()):
        columns = [*head.columns, *(code for g in head.codes_of for code in codes[g])]
        assert head.pool is not None
        by = shares[client] * float(head.pool.trees[0])
        second.append(over(scaled(head.trees, by), columns, every if takes_codes else names, width))
    trees = reduce(BoostedTrees.plus, second)
    weights = Pool(pool.tilt, 1.0, pool.shift, np.arange(n_classes), pool.limit)
    if not takes_codes:
        return trees, weights
    first: list[BoostedTrees] = []
    widths = []
    for g in sorted(groups):
        made = [(heads[c].code_trees, heads[c].columns, shares[c]) for c in groups[g]]
        scores = [over(scaled(s.trees, w), at, names, width) for s, at, w in made if s is not None]
        kept, held, _ = made[0]
        assert kept is not None
        first += [reduce(BoostedTrees.plus, scores), over(kept.leaf, held, names, width)]
        widths.append(kept.width)
    return AcrossTrees(reduce(BoostedTrees.beside, first), np.array(widths), trees), weights

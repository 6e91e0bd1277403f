"""Growing the trees of a head, and finding columns that interact.

Trees are scikit-learn's, grown on ranks of states. A greedy tree does not see an interaction that
shows in no column alone (parity), so groups of two and three columns are scored by what is left of
the label after the model: cells of coarse bins whose residuals are larger than chance explains. The
best group gets trees of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from math import comb

import numpy as np
from numpy.typing import NDArray

from fedcircuits.arrays import FloatArray, IntegerArray
from fedcircuits.learners.hclt.head.forest import Forest

Codes = NDArray[np.int64]

# Rows a tree is grown on, and rows groups of columns are scored on.
MAX_GROW_ROWS, MAX_SCORE_ROWS = 200_000, 20_000
# Columns among which pairs and triples are looked for; all of them, but in wide tables.
MAX_PAIR_COLUMNS, MAX_TRIPLE_COLUMNS = 100, 32
_MAX_TRIPLES = 6_000  # times classes less one
_COARSE_BINS = 4
_LEAST_ROWS_IN_LEAF = 5
_PSEUDO_ROWS = 1.0


@dataclass(frozen=True)
class Trees:
    """A recipe.

    Attributes:
        n_trees: how many trees.
        max_leaves: of a tree.
        columns: which they may ask (None: all).
        fine: for labels that follow x closely: a leaf may hold as few as five rows, and a split
            looks at half the columns. Else a leaf holds a fifth of the root of all rows and a split
            looks at three columns in ten, which follows less noise.
    """

    n_trees: int
    max_leaves: int
    columns: tuple[int, ...] | None = None
    fine: bool = False


def state_ranks(
    codes: IntegerArray,
    cards: tuple[int, ...],
    ordered: NDArray[np.bool_],
    labels: IntegerArray,
    weights: FloatArray,
) -> tuple[Codes, ...]:
    """Rank of every state: its code on an axis, the share of the commonest class elsewhere."""
    is_common = labels == np.bincount(labels, weights).argmax()
    overall = float(weights @ is_common) / float(weights.sum())
    answer = []
    for j, card in enumerate(cards):
        rank = np.arange(card)
        if not ordered[j]:
            seen = codes[:, j] >= 0
            code, weight = codes[seen, j], weights[seen]
            count = np.bincount(code, weight, minlength=card)
            hits = np.bincount(code, weight * is_common[seen], minlength=card)
            share = (hits + 2.0 * overall) / (count + 2.0)
            rank = np.empty(card, dtype=np.int64)
            rank[np.argsort(share, kind="stable")] = np.arange(card)
        answer.append(rank.astype(np.int64))
    return tuple(answer)


def grow(
    recipe: Trees,
    ranks: tuple[Codes, ...],
    codes: IntegerArray,
    labels: IntegerArray,
    n_classes: int,
    weights: FloatArray,
    rng: np.random.Generator,
) -> Forest:
    """Grow one group of trees; each weighs the same, all together 1.

    A missing cell counts as the column's commonest state here; when the model is asked, it is
    summed out.

    Args:
        recipe: sizes and columns.
        ranks: of every column the rank of each state.
        codes: (n, D) states, -1 where missing.
        labels: (n,) classes.
        n_classes: Y.
        weights: (n,) row weights.
        rng: source of bootstrap samples and of the columns tried.
    """
    from sklearn.ensemble import RandomForestClassifier  # takes a second, and not all have a label

    seed = int(rng.integers(2**31))
    if len(codes) > MAX_GROW_ROWS:
        rows = rng.choice(len(codes), size=MAX_GROW_ROWS, replace=False)
        codes, labels, weights = codes[rows], labels[rows], weights[rows]
    columns = np.arange(len(ranks)) if recipe.columns is None else np.array(recipe.columns)
    x = np.empty((len(codes), columns.size), dtype=np.float32)
    for i, j in enumerate(columns):
        x[:, i] = _filled_ranks(codes[:, j], ranks[j])
    model = RandomForestClassifier(
        recipe.n_trees,
        max_leaf_nodes=recipe.max_leaves,
        max_features=None if recipe.columns is not None else 0.5 if recipe.fine else 0.3,
        min_samples_leaf=_least_rows(recipe, len(codes)),
        random_state=seed,
        n_jobs=1,
    )
    model.fit(x, labels, sample_weight=weights)
    prior = np.bincount(labels, weights, minlength=n_classes) / weights.sum()
    parts = [_as_arrays(tree.tree_, columns, model.classes_, prior) for tree in model.estimators_]
    starts = np.cumsum([0, *(len(part[0]) for part in parts)])
    column, cut, left, right, values = (np.concatenate(each) for each in zip(*parts, strict=True))
    shift = np.repeat(starts[:-1], np.diff(starts))
    return Forest(
        ranks=ranks,
        roots=starts[:-1].astype(np.int64),
        weights=np.full(len(parts), 1.0 / len(parts)),
        column=column,
        cut=cut,
        left=np.where(column >= 0, left + shift, -1),
        right=np.where(column >= 0, right + shift, -1),
        values=values,
    )


def _least_rows(recipe: Trees, n_rows: int) -> int:
    """Of a leaf."""
    return max(_LEAST_ROWS_IN_LEAF, 0 if recipe.fine else round(n_rows**0.5 / 5))


def _filled_ranks(codes: IntegerArray, ranks: Codes) -> Codes:
    """(n,) ranks, the commonest one in place of a missing cell."""
    seen = codes >= 0
    if seen.all():
        return ranks[codes]
    common = np.bincount(codes[seen], minlength=1).argmax() if seen.any() else 0
    return ranks[np.where(seen, codes, common)]


def _as_arrays(
    tree: object, columns: Codes, classes: IntegerArray, prior: FloatArray
) -> tuple[Codes, Codes, Codes, Codes, FloatArray]:
    """Column, cut, children and class shares of the nodes of a scikit-learn tree."""
    feature, left, right = (
        np.asarray(getattr(tree, name), dtype=np.int64)
        for name in ("feature", "children_left", "children_right")
    )
    inner = left >= 0
    column = np.where(inner, columns[np.maximum(feature, 0)], -1)
    threshold = np.where(inner, np.asarray(getattr(tree, "threshold")), 0.0)  # noqa: B009
    cut = np.where(inner, np.floor(threshold).astype(np.int64) + 1, 0)
    share = np.asarray(getattr(tree, "value"))[:, 0, :]  # noqa: B009
    count = np.asarray(getattr(tree, "weighted_n_node_samples"))[:, None]  # noqa: B009
    values = np.zeros((column.size, prior.size))
    values[:, classes] = share / share.sum(axis=1, keepdims=True)
    values = (values * count + _PSEUDO_ROWS * prior) / (count + _PSEUDO_ROWS)
    return column, cut, left, right, values / values.sum(axis=1, keepdims=True)


def joined(forests: list[Forest], shares: FloatArray) -> Forest:
    """One forest of several over the same ranks, the trees of each sharing its weight."""
    starts = np.cumsum([0, *(f.column.size for f in forests)])

    def shifted(name: str) -> Codes:
        moved = [
            np.where(getattr(f, name) >= 0, getattr(f, name) + start, -1)
            for f, start in zip(forests, starts, strict=False)
        ]
        return np.concatenate(moved)

    return Forest(
        ranks=forests[0].ranks,
        roots=shifted("roots"),
        weights=np.concatenate([s * f.weights for s, f in zip(shares, forests, strict=True)]),
        column=np.concatenate([f.column for f in forests]),
        cut=np.concatenate([f.cut for f in forests]),
        left=shifted("left"),
        right=shifted("right"),
        values=np.concatenate([f.values for f in forests]),
    )


def interacting(
    ranks: tuple[Codes, ...],
    codes: IntegerArray,
    target: FloatArray,
    proba: FloatArray,
    rng: np.random.Generator,
) -> tuple[tuple[int, ...], float]:
    """The pair or triple of columns whose cells hold the largest residuals, and its score.

    The score is a chi-square of the cells' residuals in standard deviations above what chance
    gives: below 5 there is nothing to find. In wide tables only columns that hold residuals of
    their own are combined.

    Args:
        ranks: of every column the rank of each state.
        codes: (n, D) states, -1 where missing.
        target: (n, Y) one at the class of each row.
        proba: (n, Y) what the model says.
        rng: source of the subsample of rows.
    """
    if len(codes) > MAX_SCORE_ROWS:
        rows = rng.choice(len(codes), size=MAX_SCORE_ROWS, replace=False)
        codes, target, proba = codes[rows], target[rows], proba[rows]
    residual = (target - proba)[:, 1:]
    spread = np.maximum(proba * (1 - proba), 1e-3)[:, 1:]
    bins = np.stack([_coarse(codes[:, j], r) for j, r in enumerate(ranks)], axis=1)
    n_bins = bins.max(axis=0) + 1
    live = np.flatnonzero(n_bins > 1)

    def score(group: tuple[int, ...]) -> float:
        key, size = np.zeros(len(bins), dtype=np.int64), 1
        for j in group:
            key, size = key * n_bins[j] + bins[:, j], size * int(n_bins[j])
        total = 0.0
        for y in range(residual.shape[1]):
            pull = np.bincount(key, residual[:, y], size)
            room = np.bincount(key, spread[:, y], size)
            total += float((pull**2 / (room + 1.0)).sum())
        n_cells = size * residual.shape[1]
        return float((total - n_cells) / np.sqrt(2 * n_cells))

    best: tuple[tuple[int, ...], float] = ((), 0.0)
    wide = live
    for size, limit in ((2, MAX_PAIR_COLUMNS), (3, MAX_TRIPLE_COLUMNS)):
        while size == 3 and comb(limit, size) * residual.shape[1] > _MAX_TRIPLES:
            limit -= 1  # many classes
        if wide.size > limit:
            alone = np.array([score((int(j),)) for j in wide])
            wide = np.sort(wide[np.argsort(-alone, kind="stable")[:limit]])
        if comb(int(wide.size), size) == 0:
            continue
        for group in combinations(map(int, wide), size):
            found = score(group)
            if found > best[1]:
                best = (group, found)
    return best


def _coarse(codes: IntegerArray, ranks: Codes) -> Codes:
    """(n,) a few bins of about equal counts, and one more for missing cells."""
    seen = codes >= 0
    counts = np.bincount(ranks[codes[seen]], minlength=ranks.size)
    before = np.cumsum(counts) - counts / 2
    of_rank = np.minimum(before * _COARSE_BINS // max(counts.sum(), 1), _COARSE_BINS - 1)
    _, of_rank = np.unique(of_rank, return_inverse=True)
    return np.where(seen, of_rank[ranks[np.maximum(codes, 0)]], of_rank.max() + 1)

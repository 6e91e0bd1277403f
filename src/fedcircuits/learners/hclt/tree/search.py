"""Structure, start, number of states and of trees of a latent tree, chosen on validation rows.

EM finds a local optimum, and another start finds another one that is about as good and errs
elsewhere. Where rows are few for what they have to determine (numbers that depend strongly on each
other, above all), the average of several such trees describes fresh rows much better than any of
them; where they are plenty it hardly does. That costs time and size, so it is tried only where the
first fit is clearly better on the rows it has seen, and stays only where validation rows gain for
certain, and enough of it: `PAYS` nats a column. Few validation rows cannot decide; there several
trees are averaged unasked, which costs little on few rows.

Both ways to start (see `starts.py`) are tried with half the states. Where twice as many are clearly
better, more are tried than the rule of `sizes.py` begins with.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from fedcircuits.arrays import BoolArray, FloatArray
from fedcircuits.learners.hclt.sample import Sample
from fedcircuits.learners.hclt.tree.chow_liu import chow_liu_tree, structure_rows
from fedcircuits.learners.hclt.tree.latent_tree import LatentTree
from fedcircuits.learners.hclt.tree.shape import shape_of
from fedcircuits.learners.hclt.tree.sizes import Sizes
from fedcircuits.learners.hclt.tree.starts import Beginning, Start
from fedcircuits.learners.hclt.tree.tree_em import (
    EmOptions,
    EmResult,
    column_marginals,
    fit_em,
)
from fedcircuits.learners.hclt.tree.tree_pass import TreePass

Progress = Callable[[float, str], None]

# Nats a column, and standard errors, by which two trees must be better than one.
PAYS, CERTAIN = 0.005, 2.0
# A second tree is tried where the first is better on its own rows by this, in nats a column.
SEEN_BETTER = 0.03
# Validation rows below which nothing is certain. Averaged trees were better by .1 to .9 nats a row
# on each of five tables of 150 to 300 rows (wine, iris; parts of cancer, housing, diabetes).
FEW_HELD = 40
# Trees averaged where that pays, and the most numbers of an edge over all trees and classes.
AVERAGED, MAX_EDGE_SIZE = 8, 2**17
# Multiplications of a pass over the rows, and numbers of an edge over all classes, up to which
# more states are tried.
GROWN_WORK, GROWN_EDGE = 2**31, 2**15
# With more rows than this neither starts nor more states are tried: on training rows of Adult and
# Credit it took a fifth to a half longer, and the label was told no better (AUC -.0024 on Credit).
START_ROWS = 20_000


@dataclass(frozen=True)
class Found:
    """The trees that a search has kept, and what it has tried.

    Attributes:
        result: The run of the first tree.
        trees: What is averaged: one tree, or several of the same structure where they pay.
        tried: Validation log-likelihood of every number of states tried.
        averaged: The same of every number of trees tried.
    """

    result: EmResult
    trees: tuple[LatentTree, ...]
    tried: dict[str, float]
    averaged: dict[str, float]


def search_tree(
    train: Sample,
    held: Sample,
    cards: tuple[int, ...],
    ordered: BoolArray,
    rng: np.random.Generator,
    sizes: Sizes,
    is_tree: bool,
    notify: Progress,
    n_classes: int = 1,
    n_trees: int | None = None,
) -> Found:
    """Structure, start and EM with early stop; states and trees that are best on validation.

    Args:
        train: Rows to learn from.
        held: Validation rows, possibly none.
        cards: Number of states of each column.
        ordered: (D,) whether neighbouring states of a column are neighbouring values.
        rng: Source of every random choice.
        sizes: The states to begin with, and whether others are tried.
        is_tree: Whether every column has a latent of its own.
        notify: Progress.
        n_classes: Copies of the tree that a label will need.
        n_trees: Trees to average; None tries whether that pays.
    """
    fits = _Fits(train, held, cards, ordered, rng, sizes, is_tree, notify)
    if not fits.has_validation:
        best = fits.fit(sizes.n_states)
        return Found(best, (best.tree,), {}, {})
    few = float(held.weights.sum()) < FEW_HELD
    # A tree that is copied once a class, or sent by a client, stays small.
    n_more = 0 if few or n_trees == 1 else 1 if n_classes > 1 else 2
    best, tried = fits.search_states(sizes, n_more, n_classes)
    seen_better = few or best.best_train_score - best.best_score > SEEN_BETTER * len(cards)
    may_be = is_tree and best.tree.n_states > 1
    if n_trees == 1 or not may_be or (n_trees is None and not seen_better):
        return Found(best, (best.tree,), tried, {})
    # Averaged trees overfit less and may be larger; not with a label, whose classes copy them.
    may_grow = few and sizes.halve and best.tree.n_states == sizes.n_states and n_classes == 1
    width = best.tree.n_states * (2 if may_grow else 1)
    most = n_trees
    if most is None:
        most = min(
            AVERAGED if n_classes == 1 else AVERAGED // 2, MAX_EDGE_SIZE // (n_classes * width**2)
        )
    if most < 2:
        return Found(best, (best.tree,), tried, {})
    first = fits.fit(width)
    rows, total = fits.row_scores(best.tree), fits.row_scores(first.tree)  # (n,)
    gain = np.logaddexp(rows, total) - np.log(2) - rows
    averaged = {"2": fits.mean(rows + gain)}
    if n_trees is None and not few and not fits.pays(gain):
        return Found(best, (best.tree,), tried, averaged)
    trees = [first.tree]
    if width == best.tree.n_states:
        trees, first, total = [best.tree, first.tree], best, np.logaddexp(rows, total)
    else:
        tried[str(width)] = first.best_score
    while len(trees) < most:
        trees.append(fits.fit(width).tree)
        total = np.logaddexp(total, fits.row_scores(trees[-1]))
        averaged[str(len(trees))] = fits.mean(total - np.log(len(trees)))
    return Found(first, tuple(trees), tried, averaged)


class _Fits:
    """EM from random starts under one structure."""

    def __init__(
        self,
        train: Sample,
        held: Sample,
        cards: tuple[int, ...],
        ordered: BoolArray,
        rng: np.random.Generator,
        sizes: Sizes,
        is_tree: bool,
        notify: Progress,
    ) -> None:
        D = len(cards)
        if is_tree:
            rows = structure_rows(len(train.codes), D, rng)
            found = chow_liu_tree(train.codes[rows], cards, train.weights[rows])
            shape = shape_of(found.parent, found.order, np.arange(D))
        else:
            shape = shape_of(np.array([-1]), np.array([0]), np.zeros(D, dtype=np.int64))
        if len(train.codes) > sizes.max_em_rows:
            train = train.take(rng.choice(len(train.codes), size=sizes.max_em_rows, replace=False))
        self._train, self._held, self._rng, self._notify = train, held, rng, notify
        marginals = column_marginals(train.codes, cards, train.weights)
        self._begin = Beginning(shape, marginals, ordered, train.codes)
        self._start = Start.PROTOTYPES
        self.has_validation = bool(held.weights.sum() > 0)
        options = EmOptions(
            n_iterations=sizes.n_iterations,
            n_warmup_epochs=sizes.n_warmup_epochs,
            batch_size=sizes.batch_size,
            smoothing=sizes.smoothing,
        )
        if not self.has_validation:
            # Nothing to stop on: few rows, few steps.
            options = replace(options, n_iterations=min(15, sizes.n_iterations))
        self._options = options

    def search_states(
        self, sizes: Sizes, n_more: int, n_classes: int
    ) -> tuple[EmResult, dict[str, float]]:
        """Choose the start and the number of states; the best fit, and the scores of all tried.

        Args:
            sizes: the states to begin with, and whether others are tried.
            n_more: how often half as many again may be tried.
            n_classes: copies of the tree that a label will need.
        """
        half = sizes.n_states // 2
        compares = half > 1 and len(self._train.codes) <= START_ROWS
        smaller = self._better_start(half) if compares else None
        if not sizes.halve:
            best = self.fit(sizes.n_states)
            return best, {str(sizes.n_states): best.best_score}
        best = self.fit(sizes.n_states, -np.inf if smaller is None else smaller.best_score)
        tried = {str(sizes.n_states): best.best_score}
        if smaller is None and half > 1:
            smaller = self.fit(half, best.best_score)
        while smaller is not None:
            tried[str(half)] = smaller.best_score
            if smaller.best_score <= best.best_score:
                break
            best, half, n_more = smaller, half // 2, 0
            smaller = self.fit(half, best.best_score) if half > 1 else None
        n, D = self._train.codes.shape
        while smaller is not None and compares and n_more > 0 and self._pays_to_have(best, smaller):
            width = 3 * best.tree.n_states // 2
            if n * D * width**2 > GROWN_WORK or n_classes * width**2 > GROWN_EDGE:
                break
            larger = self.fit(width, best.best_score)
            tried[str(width)] = larger.best_score
            if not self._pays_to_have(larger, best):
                break
            best, smaller, n_more = larger, best, n_more - 1
        return best, tried

    def _better_start(self, n_states: int) -> EmResult:
        """Compare both starts and keep the better; the fit from it."""
        local = self._fit(Start.LOCAL, n_states, -np.inf)
        other = self._fit(Start.PROTOTYPES, n_states, local.best_score)
        if local.best_score > other.best_score:
            self._start = Start.LOCAL
            return local
        return other

    def fit(self, n_states: int, worth: float = -np.inf) -> EmResult:
        """EM from a new start; it ends early where it will not reach a score."""
        return self._fit(self._start, n_states, worth)

    def _fit(self, start: Start, n_states: int, worth: float) -> EmResult:
        train, held = self._train, self._held
        return fit_em(
            self._begin.tree(start, n_states, self._rng),
            train.codes,
            train.weights,
            self._options,
            self._rng,
            (held.codes, held.weights) if self.has_validation else None,
            lambda fraction, text: self._notify(0.05 + 0.5 * fraction, text),
            worth,
        )

    def _pays_to_have(self, larger: EmResult, smaller: EmResult) -> bool:
        return self.pays(self.row_scores(larger.tree) - self.row_scores(smaller.tree))

    def row_scores(self, tree: LatentTree) -> FloatArray:
        """(n,) log-likelihood of the validation rows."""
        return TreePass(tree, self._options.dtype).log_likelihood(self._held.codes)

    def mean(self, scores: FloatArray) -> float:
        """Weighted mean of scores (n,) of the validation rows."""
        return float(np.average(scores, weights=self._held.weights))

    def pays(self, gain: FloatArray) -> bool:
        """Whether a gain (n,) on validation rows is certain, and enough of one."""
        weights = self._held.weights
        mean = self.mean(gain)
        spread = float(np.sqrt(np.average((gain - mean) ** 2, weights=weights)))
        error = spread / np.sqrt(max(weights.sum() - 1, 1.0))
        return bool(mean > PAYS * self._held.codes.shape[1] and mean > CERTAIN * error)

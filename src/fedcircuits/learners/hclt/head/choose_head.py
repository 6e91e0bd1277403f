"""Which trees a head gets, judged on validation rows.

Groups of trees are added one at a time: a forest over all columns, then trees over the columns that
interact most in what is left. A group stays if the log-loss of the validation rows falls by more
than one paired standard error (two where those rows are few); the shares of the groups are the
likeliest ones on these rows. The head as a whole stays if it gains .001 AUC on these rows and,
together with class-dependent transitions, more than .002 over the additive model.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from fedcircuits.arrays import FloatArray, IntegerArray
from fedcircuits.learners.hclt.head.forest import Forest
from fedcircuits.learners.hclt.head.grow import Trees, grow, interacting, joined, state_ranks
from fedcircuits.learners.hclt.sample import FEW_VALIDATION_ROWS, Sample

# What validation AUC must gain over the additive model, and by the head or a larger head alone.
LEAST_AUC_GAIN, LEAST_OWN_GAIN = 0.002, 0.001
SMALL, MIDDLE, LARGE = Trees(16, 128), Trees(30, 200), Trees(50, 400, fine=True)
_MAX_GROUPS = 3  # of interacting columns
_LEAST_SCORE = 5.0
_FORCED_SHARE = 0.5
_LEAST_OWN_SHARE, _LEAST_SHARE = 0.05, 0.02


@dataclass(frozen=True)
class HeadPlan:
    """A head to be grown: recipes, and (len(recipes),) the share of each, 1 - a in all."""

    recipes: tuple[Trees, ...]
    shares: FloatArray

    def grow(
        self,
        sample: Sample,
        cards: tuple[int, ...],
        ordered: NDArray[np.bool_],
        n_classes: int,
        rng: np.random.Generator,
    ) -> Forest:
        """The trees, grown on all rows."""
        assert sample.labels is not None
        ranks = state_ranks(sample.codes, cards, ordered, sample.labels, sample.weights)
        grown = [
            grow(recipe, ranks, sample.codes, sample.labels, n_classes, sample.weights, rng)
            for recipe in self.recipes
        ]
        return joined(grown, self.shares)

    def in_words(self, names: list[str]) -> str:
        """Sizes, columns and shares, for a report."""
        parts = []
        for recipe, share in zip(self.recipes, self.shares, strict=True):
            over = "all columns"
            if recipe.columns is not None:
                over = " and ".join(names[j] for j in recipe.columns)
            size = f"{recipe.n_trees} trees of up to {recipe.max_leaves} leaves"
            parts.append(f"{size} over {over} (weight {share:.2f})")
        return "; ".join(parts)


@dataclass(frozen=True)
class HeadTrial:
    """What was found on validation rows.

    Attributes:
        plan: the head, if it is kept.
        auc_gain: what the head gains.
        log_loss_gain: what it takes off the log-loss, nats a row.
        auc_gain_in_all: what head and class transitions gain over the additive model.
    """

    plan: HeadPlan | None
    auc_gain: float
    log_loss_gain: float
    auc_gain_in_all: float


class _Contest:
    """Groups of trees grown on the training rows, with what they say of the validation rows."""

    def __init__(
        self,
        proba: tuple[FloatArray, FloatArray],
        train: Sample,
        held: Sample,
        cards: tuple[int, ...],
        ordered: NDArray[np.bool_],
        rng: np.random.Generator,
    ) -> None:
        assert train.labels is not None
        assert held.labels is not None
        self._train, self._rng = train, rng
        self.labels, self._weights = held.labels, held.weights / held.weights.sum()
        self._codes = _commonest_in_gaps(held.codes, train.codes)
        self._train_codes = _commonest_in_gaps(train.codes, train.codes)
        self.ranks = state_ranks(train.codes, cards, ordered, train.labels, train.weights)
        self.n_classes = proba[0].shape[1]
        # Of the model itself and of every group: p(y | x) of training and of validation rows.
        self.parts: list[tuple[FloatArray, FloatArray]] = [proba]
        self.recipes: list[Trees] = []
        self.shares = np.ones(1)
        # AUC with the last group that was not taken, and its gain in log-loss.
        self.refused: tuple[float, float] | None = None

    def try_group(self, recipe: Trees, needed: float) -> bool:
        """Add a group if validation log-loss falls by `needed` paired standard errors."""
        train = self._train
        assert train.labels is not None
        forest = grow(
            recipe, self.ranks, train.codes, train.labels, self.n_classes, train.weights, self._rng
        )
        part = (forest.proba(self._train_codes), forest.proba(self._codes))
        shares = self._likeliest([*self.parts, part])
        gain = self._row_loss(self.parts, self.shares) - self._row_loss([*self.parts, part], shares)
        if float(gain.mean()) <= needed * float(gain.std()) / np.sqrt(gain.size):
            held = _mixed([p[1] for p in (*self.parts, part)], shares)
            self.refused = (mean_auc(held, self.labels), float(self._weights @ gain))
            return False
        self.parts.append(part)
        self.recipes.append(recipe)
        self.shares = shares
        return True

    def _likeliest(self, parts: list[tuple[FloatArray, FloatArray]]) -> FloatArray:
        """Shares of the parts by EM on the validation rows."""
        said = np.stack([p[1][np.arange(self.labels.size), self.labels] for p in parts], axis=1)
        shares = np.full(len(parts), 1.0 / len(parts))
        for _ in range(200):
            mine = said * shares
            total = np.maximum(mine.sum(axis=1, keepdims=True), 1e-300)
            shares = self._weights @ (mine / total)
        # The model keeps a part: it alone knows classes and states that no tree has seen.
        shares = np.maximum(shares / shares.sum(), [_LEAST_OWN_SHARE, *[0.0] * (len(parts) - 1)])
        return np.asarray(shares / shares.sum())

    def drop_idle(self) -> None:
        """Leave out groups that have all but no share."""
        busy = [at for at, share in enumerate(self.shares) if at == 0 or share >= _LEAST_SHARE]
        if len(busy) < len(self.parts):
            self.recipes = [self.recipes[at - 1] for at in busy[1:]]
            self.parts = [self.parts[at] for at in busy]
            self.shares = self._likeliest(self.parts)

    def _row_loss(
        self, parts: list[tuple[FloatArray, FloatArray]], shares: FloatArray
    ) -> FloatArray:
        held = _mixed([p[1] for p in parts], shares)
        return -np.log(np.maximum(held[np.arange(self.labels.size), self.labels], 1e-300))

    def held(self) -> FloatArray:
        """(n, Y) of the validation rows under the present mixture."""
        return _mixed([p[1] for p in self.parts], self.shares)

    def log_loss(self) -> float:
        """Of the validation rows, nats a row."""
        return float(self._weights @ self._row_loss(self.parts, self.shares))

    def auc(self) -> float:
        """Of the validation rows."""
        return mean_auc(self.held(), self.labels)

    def interacting(self) -> tuple[tuple[int, ...], float]:
        """Columns that interact most in what the mixture leaves of the training labels."""
        assert self._train.labels is not None
        said = _mixed([p[0] for p in self.parts], self.shares)
        target = np.zeros_like(said)
        target[np.arange(len(said)), self._train.labels] = 1.0
        return interacting(self.ranks, self._train.codes, target, said, self._rng)


def choose_head(
    proba: tuple[FloatArray, FloatArray],
    plain_auc: float,
    train: Sample,
    held: Sample,
    cards: tuple[int, ...],
    ordered: NDArray[np.bool_],
    forced: bool,
    rng: np.random.Generator,
) -> HeadTrial:
    """Try heads on validation rows.

    Args:
        proba: the model's p(y | x) of the training rows (n, Y) and of the validation rows.
        plain_auc: of the additive model on the validation rows.
        train: rows the trees are grown on.
        held: validation rows.
        cards: number of states of each column.
        ordered: (D,) ordered columns.
        forced: whether the best head is wanted even if it gains nothing.
        rng: source of every random choice.
    """
    needed = 2.0 if len(held.codes) < FEW_VALIDATION_ROWS else 1.0

    def contest(size: Trees) -> _Contest:
        found = _Contest(proba, train, held, cards, ordered, rng)
        # What interacts is looked for before a forest has learned the training rows by heart.
        for _ in range(_MAX_GROUPS):
            columns, score = found.interacting()
            if score < _LEAST_SCORE or not found.try_group(replace(size, columns=columns), needed):
                break
        found.try_group(size, needed)
        found.drop_idle()
        return found

    start = _Contest(proba, train, held, cards, ordered, rng)
    before, best = start.auc(), contest(MIDDLE)

    def gains(found: _Contest) -> bool:
        auc = found.auc()
        return auc - before > LEAST_OWN_GAIN and auc - plain_auc > LEAST_AUC_GAIN

    if gains(best):
        small = contest(SMALL)
        if gains(small) and best.auc() - small.auc() <= LEAST_OWN_GAIN:
            best = small
        else:
            large = contest(LARGE)
            best = large if large.auc() - best.auc() > LEAST_AUC_GAIN else best
    gain, loss_gain = best.auc() - before, start.log_loss() - best.log_loss()
    plan = None
    if best.recipes and (forced or (gains(best) and loss_gain > 0)):
        plan = HeadPlan(tuple(best.recipes), best.shares[1:])
    elif not best.recipes and best.refused is not None:
        gain, loss_gain = best.refused[0] - before, best.refused[1]
    if plan is None and forced:
        plan = forced_plan()
    return HeadTrial(plan, gain, loss_gain, before + gain - plain_auc)


def _mixed(parts: list[FloatArray], shares: FloatArray) -> FloatArray:
    """(n, Y) weighted mean of parts (n, Y)."""
    return np.asarray(np.tensordot(shares, np.stack(parts), axes=1))


def forced_plan() -> HeadPlan:
    """The head of a user who wants one although no validation row speaks for it."""
    return HeadPlan((SMALL,), np.array([_FORCED_SHARE]))


def mean_auc(proba: FloatArray, labels: IntegerArray) -> float:
    """Mean one-against-rest area under the ROC curve; one half where it is not defined."""
    found = []
    classes = range(1, 2) if proba.shape[1] == 2 else range(proba.shape[1])
    for y in classes:
        positive = labels == y
        n_positive = int(positive.sum())
        n_negative = labels.size - n_positive
        if n_positive and n_negative:
            ranks = stats.rankdata(proba[:, y])
            surplus = float(ranks[positive].sum()) - n_positive * (n_positive + 1) / 2
            found.append(surplus / (n_positive * n_negative))
    return float(np.mean(found)) if found else 0.5


def _commonest_in_gaps(codes: IntegerArray, known: IntegerArray) -> IntegerArray:
    """Codes with a column's commonest state in place of a missing cell, for the trials."""
    if (codes >= 0).all():
        return codes
    filled = codes.copy()
    for j in range(codes.shape[1]):
        seen = known[:, j] >= 0
        common = np.bincount(known[seen, j]).argmax() if seen.any() else 0
        filled[codes[:, j] < 0, j] = common
    return filled

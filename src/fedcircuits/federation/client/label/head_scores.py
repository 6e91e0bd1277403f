"""How a client scores the models of others on its own rows, and what it says of it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedcircuits.arrays import BoolArray, FloatArray, IntArray
from fedcircuits.density import LearnsForMixing, LearnsTilt
from fedcircuits.density.contracts import LearnsHead
from fedcircuits.density.tilt import Tilt, by_class
from fedcircuits.federation.client.dispatch import handles
from fedcircuits.federation.client.label.tilting import tables_of, tilt_of
from fedcircuits.federation.client.state import ClientState
from fedcircuits.federation.wire import requests as m
from fedcircuits.federation.wire.seeds import named_rng
from fedcircuits.schema import Table

# Groups of all classes together, and least rows of one: many more than the scores of a row, so
# that means and covariances do not say what the rows' scores were.
MOST_GROUPS, LEAST_ROWS = 32, 50


class ScoresHeads(ClientState):
    """The part of a client that scores other clients' tables and trees."""

    @handles(m.SCORE_HEADS)
    def _score_heads(self, request: m.ScoreHeads) -> m.HeadScores:
        """Means and covariances of the models' scores over groups of rows of one class."""
        codes, known = self._classes()
        rows = np.flatnonzero(known)
        table, labels = self._have().columns(request.columns).rows(rows), codes[rows]
        order = tilt_of(request.own).scores(table)[np.arange(rows.size), labels]
        least = max(LEAST_ROWS, request.min_rows)
        groups = grouped(labels, order, least, max(1, MOST_GROUPS // request.n_classes))
        scores = [each for model in request.models for each in _scores(table, model)]
        clients = [model.client for model in request.models]
        if request.has_trees:
            scores += self._own_scores(request, table, labels)
            clients.append(self.name)
        picked = np.concatenate([*groups, np.zeros(0, dtype=np.int64)])
        n_rows = np.array([group.size for group in groups], dtype=np.int64)
        starts = np.concatenate([[0], np.cumsum(n_rows)[:-1]]).astype(np.int64)[: n_rows.size]
        means, covariances = moments([each[picked] for each in scores], starts, n_rows)
        classes = np.array([labels[group[0]] for group in groups], dtype=np.int64)
        return m.HeadScores(clients, classes, n_rows, means, covariances)

    def _own_scores(
        self, request: m.ScoreHeads, table: Table, labels: IntArray
    ) -> list[FloatArray]:
        """(n, L) scores of every row under tables and trees of the half that it is not in."""
        learner = self._learner.of_densities(None)
        if isinstance(learner, LearnsForMixing):
            learner = learner.for_mixing()
        assert isinstance(learner, LearnsHead)
        assert isinstance(learner, LearnsTilt)
        rng = named_rng(self._seed, self.name, "halves of a head")
        half, seed = halves(labels, rng), int(rng.integers(2**31))
        found: list[FloatArray] = []
        for out in (half, ~half):
            mine, classes = table.rows(~out), labels[~out]
            offset = np.zeros((len(mine), request.n_classes))
            tilt = learner.fit_tilt(mine, classes, offset, request.min_rows)
            trees = learner.fit_head(mine, classes, request.min_rows, seed)
            made = _scores(table.rows(out), m.HeadModel(self.name, tables_of(tilt), trees))
            found = found or [np.empty((len(table), each.shape[1])) for each in made]
            for whole, each in zip(found, made, strict=True):
                whole[out] = each
        return found


def grouped(labels: IntArray, order: FloatArray, least: int, most: int) -> list[IntArray]:
    """Rows of every group: one class, neighbours in an order, `least` rows or more.

    Args:
        labels: (n,) classes.
        order: (n,) rows are put in order of this.
        least: rows of a group.
        most: groups of a class.
    """
    groups = []
    for label in np.unique(labels):
        mine = np.flatnonzero(labels == label)
        n_groups = min(most, mine.size // least)
        if n_groups:
            mine = mine[np.argsort(order[mine], kind="stable")]
            groups += np.array_split(mine, n_groups)
    return groups


def halves(labels: IntArray, rng: np.random.Generator) -> BoolArray:
    """(n,) which rows are in the first half; every class has half of its rows there."""
    order = np.lexsort((rng.random(labels.size), labels))
    answer = np.zeros(labels.size, dtype=bool)
    answer[order[::2]] = True
    return answer


def moments(
    scores: Sequence[FloatArray], starts: IntArray, n_rows: IntArray
) -> tuple[FloatArray, FloatArray]:
    """(G, L, S) means and (G, L, S, S) covariances of scores within groups of adjacent rows.

    Sums are taken score by score, so that they do not depend on which others there are.

    Args:
        scores: S arrays (n, L).
        starts: (G,) first row of every group.
        n_rows: (G,) rows of every group.
    """
    n_logits = scores[0].shape[1] if scores else 1
    means = np.zeros((starts.size, n_logits, len(scores)))
    covariances = np.zeros((starts.size, n_logits, len(scores), len(scores)))
    if not starts.size:
        return means, covariances
    away = []
    for s, each in enumerate(scores):
        means[:, :, s] = np.add.reduceat(each, starts) / n_rows[:, None]
        away.append(each - np.repeat(means[:, :, s], n_rows, axis=0))
    for s, first in enumerate(away):
        for t, second in enumerate(away[: s + 1]):
            found = np.add.reduceat(first * second, starts) / n_rows[:, None]
            covariances[:, :, s, t] = covariances[:, :, t, s] = found
    return means, covariances


def _scores(table: Table, model: m.HeadModel) -> list[FloatArray]:
    """(n, L) scores of a model's tables, first and later trees; class shares are taken out."""
    from fedcircuits.learners.hclt.head.headed.completions import as_features
    from fedcircuits.learners.hclt.head.trees.boosted_trees import BoostedTrees

    tilt = tilt_of(model.tables)
    n_classes = tilt.n_classes
    n_outputs = 1 if n_classes == 2 else n_classes
    made = BoostedTrees.from_arrays(model.trees, len(table.schema), n_outputs)
    values = as_features(table, list(range(len(table.schema))))
    first, later = (part.outputs(values) for part in made.parted())
    shares = log_shares_of(tilt)
    found = [tilt.c - shares + tilt.scores(table), by_class(first) - shares, by_class(later)]
    return [one_less(each) for each in found]


def log_shares_of(tilt: Tilt) -> FloatArray:
    """(Y,) logs of the class shares behind a tilt that has rows of every class."""
    return np.asarray(np.log(tilt.counts / tilt.counts.sum()))


def one_less(logits: FloatArray) -> FloatArray:
    """(n, L) the log-odds of two classes, or the logits of more with mean zero in each row."""
    if logits.shape[1] == 2:
        return logits[:, 1:] - logits[:, :1]
    return np.asarray(logits - logits.mean(axis=1, keepdims=True))

"""How a client scores the models of others on its own rows: slopes and curvatures of its loss."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedcircuits.arrays import BoolArray, FloatArray, IntArray
from fedcircuits.density import LearnsTilt
from fedcircuits.density.contracts import LearnsHead
from fedcircuits.density.tilt import StatesOfRows, by_class, log_softmax, one_less
from fedcircuits.federation.client.dispatch import handles
from fedcircuits.federation.client.label.heads import classes_with_rows, fit_trees
from fedcircuits.federation.client.label.tilting import tables_of, tilt_of
from fedcircuits.federation.client.state import ClientState
from fedcircuits.federation.plan.weights import known_log_shares
from fedcircuits.federation.wire import requests as m
from fedcircuits.federation.wire.requests import PARTS
from fedcircuits.federation.wire.seeds import named_rng
from fedcircuits.schema import Table

# Least rows behind sums: with eight models there are 2,808 sums, fewer than scores of so many rows
# (24 each). Weights of tables and trees about which the loss is expanded.
LEAST_ROWS, MOST_MODELS = 128, 8
WEIGHTS = np.array([0.5, 0.5, 0.5])
# Shares of these weights, of which the best for a client's rows is taken.
SURE = (1.0, 0.8, 0.6, 0.45, 0.35, 0.25)


class ScoresHeads(ClientState):
    """The part of a client that scores other clients' tables and trees."""

    @handles(m.SCORE_HEADS)
    def _score_heads(self, request: m.ScoreHeads) -> m.HeadScores:
        """Slopes and curvatures of the loss of the client's rows in the models' scores."""
        codes, known = self._classes()
        rows = np.flatnonzero(known)
        table, labels = self._have().columns(request.columns).rows(rows), codes[rows]
        clients = [model.client for model in request.models[:MOST_MODELS]]
        shares = known_log_shares(request.counts)
        least = max(LEAST_ROWS, request.min_rows)
        states: StatesOfRows = {}
        scores = [_scores(table, model, states) for model in request.models[:MOST_MODELS]]
        found = expanded(scores, labels, shares, least, self._least)
        if request.halves:
            mine = self._own_scores(request, table, labels)
            found = found.beside(expanded([mine[0]], mine[1], shares, least))
            clients.append(self.name)
        return m.HeadScores(clients, found.n_rows, found.losses, found.slopes, found.curvatures)

    def _own_scores(
        self, request: m.ScoreHeads, table: Table, labels: IntArray
    ) -> tuple[FloatArray, IntArray]:
        """(n, L, 3) scores of one half of the rows by tables and trees of the other; classes."""
        learner = self._learner.of_densities(None, mixed=True)
        assert isinstance(learner, LearnsHead)
        assert isinstance(learner, LearnsTilt)
        rng = named_rng(self._seed, self.name, "halves of a head")
        out, seed = halves(labels, rng), int(rng.integers(2**31))
        mine, classes = table.rows(~out), labels[~out]
        offset = np.zeros((len(mine), request.counts.size))
        tilt = learner.fit_tilt(mine, classes, offset, request.min_rows)
        several = classes_with_rows(labels, request.counts.size)
        trees = fit_trees(learner, mine, classes, several, request.min_rows, seed)
        made = m.HeadModel(self.name, tables_of(tilt), trees)
        return _scores(table.rows(out), made, {}), labels[out]


@dataclass(frozen=True)
class Expanded:
    """The fields of a `HeadScores` for some models."""

    n_rows: IntArray
    losses: FloatArray
    slopes: FloatArray
    curvatures: FloatArray

    def beside(self, other: Expanded) -> Expanded:
        """Return these and those of another set of rows and models, which share only shifts."""
        n_logits = other.slopes.shape[1] - PARTS
        n_mine = self.slopes.shape[1] - n_logits
        width = n_mine + PARTS + n_logits
        shifts = np.arange(n_mine + PARTS, width)
        slopes, curvatures = [], []
        for found, columns in (
            (self, np.concatenate([np.arange(n_mine), shifts])),
            (other, np.arange(n_mine, width)),
        ):
            slope = np.zeros((len(found.slopes), width))
            slope[:, columns] = found.slopes
            curvature = np.zeros((len(found.slopes), width, width))
            curvature[:, columns[:, None], columns] = found.curvatures
            slopes.append(slope)
            curvatures.append(curvature)
        return Expanded(
            np.concatenate([self.n_rows, other.n_rows]),
            np.concatenate([self.losses, other.losses]),
            np.concatenate(slopes),
            np.concatenate(curvatures),
        )


def expanded(
    scores: Sequence[FloatArray],
    labels: IntArray,
    log_shares: FloatArray,
    least: int,
    together: int = 0,
) -> Expanded:
    """Slopes and curvatures of the rows' loss where each model answers alone.

    Whoever makes up models can have them score a single row. Models are therefore left out, their
    sums zero, by which some combination of scores would be about fewer rows than `together`.

    Args:
        scores: of each model (n, L, 3).
        labels: (n,) classes.
        log_shares: (Y,) of the rows.
        least: rows; with fewer all sums are zero.
        together: rows that any combination of sums is about.
    """
    n_models, n_classes, n = len(scores), log_shares.size, labels.size
    shares = one_less(log_shares[None])[0]  # (L,)
    n_logits, n_scores = shares.size, PARTS * n_models
    taken = models_of_many_rows(scores, labels, shares, together)
    scores = [each if ok else np.zeros_like(each) for each, ok in zip(scores, taken, strict=True)]
    width = n_scores + n_logits
    losses, slopes = np.zeros(n_models), np.zeros((n_models, width))
    curvatures = np.zeros((n_models, width, width))
    if n < least or not n_models:
        return Expanded(np.zeros(n_models, dtype=np.int64), losses, slopes, curvatures)
    indicators = np.broadcast_to(np.eye(n_logits), (n, n_logits, n_logits))
    flat = [each.reshape(n * n_logits, -1) for each in (*scores, indicators)]
    ends = np.minimum(PARTS * np.arange(1, n_models + 2), width)
    ends[-1] = width
    place = [slice(PARTS * at, int(end)) for at, end in enumerate(ends)]
    first = n_classes - n_logits
    truth = np.eye(n_classes)[labels][:, first:]  # (n, L)
    for at in np.flatnonzero(taken):
        own = scores[at]
        tables = own[:, :, 0] + shares
        losses[at] = -log_softmax(whole(tables))[np.arange(n), labels].sum()
        logits = logits_alone(own, shares, labels)
        p = np.exp(log_softmax(whole(logits)))[:, first:]
        mean = (p * logits).sum(axis=1, keepdims=True)
        away = (p - truth - p * (logits - mean)).reshape(-1)
        weighted = [p.reshape(-1, 1) * each for each in flat]
        mixed = [each.reshape(n, n_logits, -1).sum(axis=1) for each in weighted]  # (n, 3) or (n, L)
        # Block by block, so that a block does not depend on which other models there are.
        for i, mine in enumerate(place):
            slopes[at, mine] = away @ flat[i]
            for j, theirs in enumerate(place[: i + 1]):
                block = weighted[i].T @ flat[j] - mixed[i].T @ mixed[j]
                curvatures[at, mine, theirs] = block
                curvatures[at, theirs, mine] = block.T
    return Expanded(np.where(taken, n, 0), losses, slopes, curvatures)


def logits_alone(scores: FloatArray, shares: FloatArray, labels: IntArray) -> FloatArray:
    """(n, L) logits of a model's scores (n, L, 3) alone, as sure of them as suits the rows.

    Models of few rows are far too sure of others' rows, and their mean is not: a step of Newton's
    method from there would end anywhere.
    """
    alone = scores @ WEIGHTS
    every = np.arange(labels.size)
    losses = [-log_softmax(whole(by * alone + shares))[every, labels].sum() for by in SURE]
    return np.asarray(SURE[int(np.argmin(losses))] * alone + shares)


def models_of_many_rows(
    scores: Sequence[FloatArray], labels: IntArray, shares: FloatArray, together: int
) -> BoolArray:
    """(M,) which models to take: every combination of their scores is about many rows.

    Of the squares of any combination of scores, and of any that is weighted by p (1 - p) of one of
    the models, a row has at most 1 / `together`: the most that it can have is its leverage.

    Args:
        scores: of each model (n, L, 3).
        labels: (n,) classes.
        shares: (L,) logits of the class shares.
        together: rows; with one or none all models are taken.
    """
    taken = np.ones(len(scores), dtype=bool)
    if together <= 1:
        return taken
    n, n_logits = scores[0].shape[:2] if scores else (0, 1)
    kept = [np.broadcast_to(np.eye(n_logits), (n, n_logits, n_logits))]
    weights = [np.ones((n, n_logits))]
    for at, each in enumerate(scores):
        p = np.exp(log_softmax(whole(logits_alone(each, shares, labels))))[:, -n_logits:]
        more, columns = [*weights, p * (1 - p)], np.concatenate([*kept, each], axis=2)
        taken[at] = all(_leverage(columns * np.sqrt(w)[:, :, None]) * together <= 1 for w in more)
        if taken[at]:
            weights, kept = more, [*kept, each]
    return taken


def _leverage(columns: FloatArray) -> float:
    """The largest share that one row has of the squares of a combination of columns (n, L, d)."""
    n, n_logits, width = columns.shape
    flat = columns.reshape(n * n_logits, width)
    scale = np.sqrt((flat**2).sum(axis=0))
    u, size, _ = np.linalg.svd(flat / np.where(scale > 0, scale, 1.0), full_matrices=False)
    u = u[:, size > size.max(initial=0.0) * 1e-7]
    return float((u**2).reshape(n, n_logits, -1).sum(axis=(1, 2)).max(initial=0.0))


def halves(labels: IntArray, rng: np.random.Generator) -> BoolArray:
    """(n,) which rows are in the first half; every class has half of its rows there."""
    order = np.lexsort((rng.random(labels.size), labels))
    answer = np.zeros(labels.size, dtype=bool)
    answer[order[::2]] = True
    return answer


def _scores(table: Table, model: m.HeadModel, states: StatesOfRows) -> FloatArray:
    """(n, L, 3) scores of a model's tables, first and later trees; class shares are taken out.

    Args:
        table: rows.
        model: that scores them.
        states: of the rows, as far as earlier models needed them.
    """
    from fedcircuits.learners.hclt.features import as_features
    from fedcircuits.learners.hclt.head.trees.boosted_trees import BoostedTrees

    tilt = tilt_of(model.tables)
    n_classes = tilt.n_classes
    n_outputs = 1 if n_classes == 2 else n_classes
    made = BoostedTrees.from_arrays(model.trees, len(table.schema), n_outputs)
    values = as_features(table, list(range(len(table.schema))))
    first, later = made.outputs_in_parts(values)
    shares = known_log_shares(tilt.counts)
    seen = tilt.counts > 0
    tables = np.where(seen, tilt.c - shares + tilt.scores(table, states), 0.0)
    # A class that the client has not seen is as likely as the others are on average.
    tables = np.where(seen, tables, tables.sum(axis=1, keepdims=True) / seen.sum())
    found = [tables, by_class(first) - shares, by_class(later)]
    return np.stack([one_less(each) for each in found], axis=2)


def whole(logits: FloatArray) -> FloatArray:
    """(..., Y) logits of all classes: a single one is that of the second of two."""
    if logits.shape[-1] > 1:
        return logits
    return np.concatenate([np.zeros_like(logits), logits], axis=-1)

"""The table learners in rounds of sums: rows stay apart, the model is the one of all rows together.

A learner in rounds is a generator. It yields arrays that its own rows add to a sum, is sent the sum
over everyone's rows, and makes the same update as everyone else; in the end it returns the model.
Alone it is sent back what it yielded, and that is centralised training under the same schedule:

    round 0         rows, counts of pairs of states, states by class: structure, sizes and a start
    one a step      expected counts under the current tree: the M-step; validation ends it
    two more        the same on all rows, validation rows among them
    one a trial     value and gradient of the tilt, where there is a label: L-BFGS

No row leaves its place: prototypes of the start are drawn from the Chow-Liu tree of the counts, and
which rows are held out for validation follows from their own values.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from scipy import sparse

from fedcircuits.arrays import BoolArray, FloatArray, IntegerArray
from fedcircuits.learners.hclt.fitted import FittedTree
from fedcircuits.learners.hclt.options import FitOptions
from fedcircuits.learners.hclt.rounds.tilt_in_rounds import ClassCounts, fit_tilt_in_rounds
from fedcircuits.learners.hclt.sample import Sample
from fedcircuits.learners.hclt.tilt.renormalise import renormalise
from fedcircuits.learners.hclt.tree.chow_liu import (
    RootedTree,
    information_of_counts,
    one_hot,
    root_tree,
)
from fedcircuits.learners.hclt.tree.class_tree import class_tree_of
from fedcircuits.learners.hclt.tree.latent_tree import Counts, LatentTree
from fedcircuits.learners.hclt.tree.marginals import with_marginals
from fedcircuits.learners.hclt.tree.sizes import automatic_sizes, for_categories
from fedcircuits.learners.hclt.tree.starts import initial_tree
from fedcircuits.learners.hclt.tree.tree_em import Smoothing, maximise
from fedcircuits.learners.hclt.tree.tree_pass import expected_counts
from fedcircuits.learners.hclt.tree.tree_pass import log_likelihood as tree_log_likelihood
from fedcircuits.learners.spanning_tree import maximum_spanning_tree

Sums = dict[str, npt.NDArray[np.float64]]
Rounds = Generator[Sums, Sums, FittedTree]

# There is no warm-up on small batches, so steps on all rows are more than elsewhere.
N_STEPS, TOLERANCE, PATIENCE = 100, 1e-3, 3
MIN_ROWS_FOR_VALIDATION = 40


@dataclass(frozen=True)
class Task:
    """What all clients know before the first round.

    Attributes:
        cards: number of states of each column.
        ordered: (D,) whether neighbouring states are neighbouring values.
        n_classes: number of label codes, 1 without a label.
        is_tree: hidden Chow-Liu tree, or a mixture of factorised components.
        options: overrides of sizes, and the share of validation rows.
    """

    cards: tuple[int, ...]
    ordered: BoolArray
    n_classes: int
    is_tree: bool
    options: FitOptions


def fit_in_rounds(sample: Sample, task: Task, rng: np.random.Generator) -> Rounds:
    """Yield what a client's rows add to each sum, be sent the sums, return the fitted tree.

    Args:
        sample: its own rows, possibly none of some class.
        task: the same everywhere.
        rng: the same everywhere, so that everyone draws the same start.
    """
    held = _held_out(sample, task.options.validation_share, rng)
    total = yield {**_first_counts(sample, task), "held": sample.weights[held].sum(keepdims=True)}
    counts = _PairCounts.of(total, task)
    # Equal rows are held out together: of few different rows it may be too many.
    if counts.n_rows < MIN_ROWS_FOR_VALIDATION or total["held"][0] > 0.5 * total["rows"][1]:
        held = np.zeros(len(held), dtype=bool)
    tree = _start(counts, task, rng)
    usual = automatic_sizes(counts.n_rows, task.cards).smoothing
    smoothing = task.options.smoothing or for_categories(usual, task.cards, task.ordered)
    smoothing = replace(smoothing, bins=task.options.bins)
    tree, curve, n_steps = yield from _em(tree, sample, held, counts.marginals, smoothing, task)
    report: dict[str, object] = {
        "learner": "hclt" if task.is_tree else "mixture",
        "n_rows": counts.n_rows,
        "n_states": tree.n_states,
        "em_steps": n_steps,
        "train_log_likelihood": curve,
        "n_parameters": tree.n_parameters,
    }
    if sample.labels is None or task.n_classes < 2:
        model = with_marginals(class_tree_of(tree), counts.marginals)
        return FittedTree(model, tree, None, None, report)
    classes = ClassCounts(total["class_cells"].reshape(task.n_classes, -1), total["class_rows"])
    tilted = yield from fit_tilt_in_rounds(
        tree, sample, classes, task.ordered, counts.marginals, task.options
    )
    report["n_parameters"] = tree.n_parameters + tilted.g.size
    model = with_marginals(renormalise(tilted), counts.marginals)
    return FittedTree(model, tree, tilted, None, report)


# --- structure and start --------------------------------------------------------------------------


def _first_counts(sample: Sample, task: Task) -> Sums:
    """What structure, sizes and start are made of, as sums over rows."""
    indicator = one_hot(sample.codes, task.cards)
    weighted = sparse.diags(sample.weights) @ indicator
    pairs = np.asarray((indicator.T @ weighted).todense())  # (W, W)
    sums = {
        "rows": np.array(
            [len(sample.codes), sample.weights.sum(), sample.weights @ sample.weights], dtype=float
        ),
        "pairs": pairs[np.triu_indices(len(pairs))],
    }
    if sample.labels is not None:
        target = np.zeros((len(sample.codes), task.n_classes))
        target[np.arange(len(sample.codes)), sample.labels] = sample.weights
        sums["class_rows"] = target.sum(axis=0)
        sums["class_cells"] = np.asarray(indicator.T @ target).T.ravel()
    return sums


@dataclass(frozen=True)
class _PairCounts:
    """Counts of pairs of states, summed over all clients.

    Attributes:
        n_rows: of all holders.
        pairs: (W, W) how often two states occur together; the diagonal counts states.
        starts: (D,) first state of each column.
        rows_per_weight: effective rows per unit of weight (Kish).
        marginals: D arrays (card_j,), one pseudo-row spread evenly.
    """

    n_rows: int
    pairs: FloatArray
    starts: IntegerArray
    rows_per_weight: float
    marginals: list[FloatArray]

    @staticmethod
    def of(total: Sums, task: Task) -> _PairCounts:
        width = int(np.sum(task.cards))
        pairs = np.zeros((width, width))
        pairs[np.triu_indices(width)] = total["pairs"]
        pairs = pairs + np.triu(pairs, 1).T
        starts = np.concatenate(([0], np.cumsum(task.cards)[:-1])).astype(np.int64)
        marginals = []
        for first, card in zip(starts, task.cards, strict=True):
            cells = np.diagonal(pairs)[first : first + card] + 1.0 / card
            marginals.append(cells / cells.sum())
        n_rows, weight, squares = map(float, total["rows"])
        per_weight = weight / squares if squares > 0 else 1.0
        return _PairCounts(int(n_rows), pairs, starts, per_weight, marginals)

    def information(self) -> FloatArray:
        """(D, D) mutual information of the columns, bias-corrected."""
        found = information_of_counts(self.pairs, self.starts, self.starts, self.rows_per_weight)
        np.fill_diagonal(found, 0.0)
        return found

    def draw(self, shape: RootedTree, n: int, rng: np.random.Generator) -> IntegerArray:
        """(n, D) rows drawn from the Chow-Liu tree of the counts: prototypes, nobody's rows."""
        D = len(self.marginals)
        rows = np.zeros((n, D), dtype=np.int64)
        for column in map(int, shape.order):
            above = int(shape.parent[column])
            first = self.starts[column]
            block = slice(first, first + len(self.marginals[column]))
            chances = np.tile(self.marginals[column], (n, 1))  # a trace of it where nothing is seen
            if above >= 0:
                chances += self.pairs[self.starts[above] + rows[:, above]][:, block]
            upto = np.cumsum(chances, axis=1)
            drawn = rng.random(n) * upto[:, -1]
            rows[:, column] = np.minimum(
                (drawn[:, None] >= upto).sum(axis=1), len(self.marginals[column]) - 1
            )
        return rows


def _start(counts: _PairCounts, task: Task, rng: np.random.Generator) -> LatentTree:
    """Structure from the counts, parameters from the counts and the generator."""
    D = len(task.cards)
    shape = root_tree(D, maximum_spanning_tree(counts.information()))
    if task.is_tree:
        parent, order, latent_of = shape.parent, shape.order, np.arange(D)
    else:
        parent, order = np.array([-1]), np.array([0])
        latent_of = np.zeros(D, dtype=np.int64)
    n_states = task.options.n_states or automatic_sizes(counts.n_rows, task.cards).n_states
    prototypes = counts.draw(shape, n_states, rng)
    return initial_tree(parent, order, latent_of, counts.marginals, n_states, prototypes, rng)


def _held_out(sample: Sample, share: float, rng: np.random.Generator) -> BoolArray:
    """(n,) validation rows, decided by a hash of a row's own values: the same rows anywhere."""
    columns = sample.codes.astype(np.int64)
    if sample.labels is not None:
        columns = np.column_stack([columns, sample.labels])
    factors = rng.integers(2**62, size=columns.shape[1]).astype(np.uint64) * 2 + 1
    mixed = ((columns + 2).astype(np.uint64) * factors).sum(axis=1, dtype=np.uint64)
    for shift in (33, 29):  # the high bits of a sum of products are not random enough alone
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(0x9E3779B97F4A7C15)
    return np.asarray((mixed >> np.uint64(11)).astype(float) / 2.0**53 < share)


# --- expectation maximisation ---------------------------------------------------------------------


def _em(
    tree: LatentTree,
    sample: Sample,
    held: BoolArray,
    marginals: list[FloatArray],
    smoothing: Smoothing,
    task: Task,
) -> Generator[Sums, Sums, tuple[LatentTree, list[float], int]]:
    """Steps until validation no longer gains, then a few on all rows.

    Returns:
        The tree, the mean training log-likelihood before each step, and the number of steps.
    """
    train, checked = (sample.take(np.flatnonzero(which)) for which in (~held, held))
    n_steps = task.options.n_iterations or N_STEPS
    best, best_score, stale, curve = tree, -np.inf, 0, []
    for _step in range(n_steps):
        sums = _expected(tree, train)
        sums["held"] = np.array(
            [checked.weights @ tree_log_likelihood(tree, checked.codes), checked.weights.sum()]
        )
        total = yield sums
        found = _counts(tree, total)
        curve.append(found.log_likelihood / found.weight)
        value, weight = total["held"]
        current = value / weight if weight > 0 else curve[-1]
        stale = 0 if current > best_score + TOLERANCE else stale + 1
        if current > best_score:
            best, best_score = tree, current
        if stale >= PATIENCE:
            break
        tree = maximise(found, tree, smoothing, marginals)
    tree = best
    for _step in range(automatic_sizes(1, task.cards).n_refit_steps):
        total = yield _expected(tree, sample)
        tree = maximise(_counts(tree, total), tree, smoothing, marginals)
    return tree, curve, len(curve)


def _expected(tree: LatentTree, sample: Sample) -> Sums:
    """Expected counts of rows, as arrays to be summed."""
    counts = expected_counts(tree, sample.codes, sample.weights)
    return {
        "root": counts.root,
        "edges": counts.pairs,
        "cells": np.concatenate([table.ravel() for table in counts.emissions]),
        "totals": np.array([counts.log_likelihood, counts.weight]),
    }


def _counts(tree: LatentTree, total: Sums) -> Counts:
    """Inverse of `_expected`."""
    ends = np.cumsum([table.size for table in tree.emissions])[:-1]
    parts = np.split(total["cells"], ends)
    emissions = [
        part.reshape(table.shape) for part, table in zip(parts, tree.emissions, strict=True)
    ]
    log_likelihood, weight = map(float, total["totals"])
    return Counts(total["root"], total["edges"], emissions, log_likelihood, weight)

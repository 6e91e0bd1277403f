"""Expectation maximisation for latent trees: initialisation, warm-up, full-batch steps, early stop.

Every step is a MAP step: the M-step adds Dirichlet pseudo-counts, so what never decreases is the
log-likelihood plus the log prior (:func:`log_prior`). The pseudo-counts of an emission are spread
like the column's own distribution, so a state used by few rows falls back to the marginal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from fedcircuits.arrays import FloatArray, IntArray, IntegerArray
from fedcircuits.learners.hclt.tree.along_axis import smoothed
from fedcircuits.learners.hclt.tree.compiled_em import CompiledEm
from fedcircuits.learners.hclt.tree.latent_tree import Counts, LatentTree
from fedcircuits.learners.hclt.tree.patterns import Patterns, block_patterns, row_blocks
from fedcircuits.learners.hclt.tree.tree_pass import TreePass
from fedcircuits.native import kernels
from fedcircuits.native.in_order import in_order

# Steps as good as the last one that a run may still hope for.
HOPEFUL_STEPS = 10


@dataclass(frozen=True)
class Smoothing:
    """Pseudo-counts of the MAP step.

    Attributes:
        emission: Pseudo-rows per latent state and column, spread like the column's marginal.
        transition: Pseudo-rows per parent state, spread evenly over the child's states.
        root: Pseudo-rows of the root distribution, spread evenly.
        bins: D arrays of states that are neighbouring bins, whose expected counts are spread over
            each other (`along_axis.py`); empty to spread none.
        columns: D least numbers of pseudo-rows of an emission, for columns that need more of them
            than others; empty where none does.
    """

    emission: float = 1.0
    transition: float = 1.0
    root: float = 1.0
    bins: tuple[IntArray, ...] = ()
    columns: tuple[float, ...] = ()

    def of_column(self, column: int) -> float:
        """Pseudo-rows per latent state of one column."""
        return max(self.emission, self.columns[column]) if self.columns else self.emission


@dataclass(frozen=True)
class EmOptions:
    """How long and how EM runs.

    Attributes:
        n_iterations: Most full-batch steps.
        n_warmup_epochs: Epochs of stepwise EM on mini-batches before them; 0 for none.
        batch_size: Rows of a warm-up batch.
        smoothing: Pseudo-counts.
        tolerance: Stop when validation improves by less than this many nats per row ...
        patience: ... for so many checks in a row.
        dtype: Float type of the expected counts.
    """

    n_iterations: int = 40
    n_warmup_epochs: int = 3
    batch_size: int = 1024
    smoothing: Smoothing = field(default_factory=Smoothing)
    tolerance: float = 1e-3
    patience: int = 3
    dtype: npt.DTypeLike = np.float32


@dataclass(frozen=True)
class EmResult:
    """What EM returns.

    Attributes:
        tree: The parameters with the best validation likelihood (the last ones without validation).
        train_curve: Mean training log-likelihood before every full-batch step.
        validation_curve: Mean validation log-likelihood, after the warm-up and every step.
        n_steps: Full-batch steps taken.
        converged: Whether the early stop ended the run.
    """

    tree: LatentTree
    train_curve: list[float]
    validation_curve: list[float]
    n_steps: int
    converged: bool

    @property
    def best_score(self) -> float:
        """Mean validation log-likelihood of `tree`."""
        return max(self.validation_curve)

    @property
    def best_train_score(self) -> float:
        """Mean training log-likelihood of `tree`, or of one step before it where it is the last."""
        best = int(np.argmax(self.validation_curve))
        return self.train_curve[min(best, len(self.train_curve) - 1)]


def state_counts(
    codes: IntegerArray, cards: tuple[int, ...], weights: FloatArray
) -> list[FloatArray]:
    """Weight of the rows in every state, D arrays (card_j,)."""
    counts: list[FloatArray] = []
    for column, card in enumerate(cards):
        cells = codes[:, column]
        seen = cells >= 0
        found = np.bincount(cells[seen], weights=weights[seen], minlength=card)
        counts.append(found.astype(np.float64, copy=False))
    return counts


def column_marginals(
    codes: IntegerArray, cards: tuple[int, ...], weights: FloatArray
) -> list[FloatArray]:
    """Marginals of the columns with one pseudo-row spread evenly, D arrays (card_j,)."""
    return _with_pseudo_row(state_counts(codes, cards, weights))


def _with_pseudo_row(counts: list[FloatArray]) -> list[FloatArray]:
    filled = [found + 1.0 / found.size for found in counts]
    return [found / found.sum() for found in filled]


def maximise(
    counts: Counts, tree: LatentTree, smoothing: Smoothing, priors: list[FloatArray]
) -> LatentTree:
    """The M-step: normalised counts plus pseudo-counts.

    Args:
        counts: Expected counts.
        tree: Gives the structure.
        smoothing: Pseudo-counts.
        priors: D distributions (card_j,) the emissions' pseudo-counts follow.
    """
    H = tree.n_states
    root = counts.root + smoothing.root / H
    transitions = counts.pairs + smoothing.transition / tree.block_size
    emissions = []
    for j, (table, prior) in enumerate(zip(counts.emissions, priors, strict=True)):
        spread = smoothed(table, smoothing.bins[j]) if smoothing.bins else table
        emissions.append(_normalised(spread + smoothing.of_column(j) * prior))
    return LatentTree(
        parent=tree.parent,
        order=tree.order,
        latent_of=tree.latent_of,
        root=_normalised(root),
        transitions=_normalised(transitions),
        emissions=tuple(emissions),
    )


def _normalised(values: FloatArray) -> FloatArray:
    """Rows scaled to sum to one; a row of zeros (no smoothing, unused state) becomes uniform."""
    total = values.sum(axis=-1, keepdims=True)
    return np.where(total > 0, values / np.where(total > 0, total, 1.0), 1.0 / values.shape[-1])


def log_prior(tree: LatentTree, smoothing: Smoothing, priors: list[FloatArray]) -> float:
    """Log of the unnormalised Dirichlet priors: what MAP adds to the log-likelihood."""
    H = tree.n_states
    inner = [latent for latent in range(len(tree.parent)) if tree.parent[latent] >= 0]
    total = smoothing.root / H * float(np.log(tree.root).sum())
    total += smoothing.transition / tree.block_size * float(np.log(tree.transitions[inner]).sum())
    for j, (table, prior) in enumerate(zip(tree.emissions, priors, strict=True)):
        total += smoothing.of_column(j) * float((np.log(table) @ prior).sum())
    return total


def fit_em(
    start: LatentTree,
    codes: IntegerArray,
    weights: FloatArray,
    options: EmOptions,
    rng: np.random.Generator,
    validation: tuple[IntegerArray, FloatArray] | None = None,
    progress: Callable[[float, str], None] | None = None,
    worth: float = -np.inf,
) -> EmResult:
    """Run EM from `start`.

    Args:
        start: Initial parameters (and structure).
        codes: (n, D) training rows, -1 where missing.
        weights: (n,) row weights.
        options: Steps, smoothing, early stop.
        rng: Order of the warm-up batches.
        validation: Held-out (rows, weights) for the early stop; none to run all steps.
        progress: Called with (fraction done, text).
        worth: Validation log-likelihood that the run is for: steps gain less and less, so it ends
            once `HOPEFUL_STEPS` more like the last one would not reach it.
    """
    priors = column_marginals(codes, start.cards, weights)
    tree = start
    if options.n_warmup_epochs > 0 and len(codes) >= 2 * options.batch_size:
        tree = _warm_up(tree, codes, weights, options, priors, rng, progress)

    blocks = _compressed(tree, codes, weights)
    held_out = [] if validation is None else _compressed(tree, *validation)
    train_curve: list[float] = []
    validation_curve: list[float] = []
    best, best_score = tree, -np.inf
    if validation is not None:
        best_score = _mean_log_likelihood(tree, held_out, options.dtype)
        validation_curve.append(best_score)
    stale = 0
    converged = False
    for step in range(options.n_iterations):
        counts = Counts.zeros(tree)
        for found in in_order(TreePass(tree, options.dtype).counts_of, blocks):
            counts.add(found)
        train_curve.append(counts.log_likelihood / counts.weight)
        tree = maximise(counts, tree, options.smoothing, priors)
        if validation is not None:
            current = _mean_log_likelihood(tree, held_out, options.dtype)
            validation_curve.append(current)
            stale = 0 if current > best_score + options.tolerance else stale + 1
            if current > best_score:
                best, best_score = tree, current
            gain = max(current - validation_curve[-2], 0.0)
            if best_score + HOPEFUL_STEPS * gain < worth:
                break
        if progress is not None:
            progress((step + 1) / options.n_iterations, f"EM step {step + 1}")
        if stale >= options.patience:
            converged = True
            break
    return EmResult(
        tree=tree if validation is None else best,
        train_curve=train_curve,
        validation_curve=validation_curve,
        n_steps=len(train_curve),
        converged=converged,
    )


def refit_over(
    trees: tuple[LatentTree, ...],
    every: Callable[[], Iterator[tuple[IntegerArray, FloatArray]]],
    smoothing: Smoothing,
    n_steps: int,
    dtype: npt.DTypeLike = np.float32,
) -> tuple[tuple[LatentTree, ...], list[FloatArray]]:
    """EM steps of trees on rows that come in batches, one pass over them for each step.

    Args:
        trees: Where to go on.
        every: Gives codes (n, D) and weights (n,) of all rows, batch by batch, at every call.
        smoothing: Pseudo-counts.
        n_steps: Steps.
        dtype: Float type of the expected counts.

    Returns:
        The trees, and the weight of the rows in every state, D arrays (card_j,).
    """
    priors: list[FloatArray] = []
    in_states: list[FloatArray] = []
    for _ in range(n_steps):
        counts = [Counts.zeros(tree) for tree in trees]
        passes = [TreePass(tree, dtype) for tree in trees]
        seen = [np.zeros(card) for card in trees[0].cards]
        for codes, weights in every():
            for rows in row_blocks(len(codes), trees[0]):
                patterns = block_patterns(trees[0], codes[rows])  # trees share their structure
                for tree_pass, found in zip(passes, counts, strict=True):
                    tree_pass.add_counts(patterns, weights[rows], found)
            if not priors:
                for total, more in zip(
                    seen, state_counts(codes, trees[0].cards, weights), strict=True
                ):
                    total += more
        if not priors:
            in_states, priors = seen, _with_pseudo_row(seen)
        trees = tuple(
            maximise(found, tree, smoothing, priors)
            for found, tree in zip(counts, trees, strict=True)
        )
    return trees, in_states


def _compressed(
    tree: LatentTree, codes: IntegerArray, weights: FloatArray
) -> list[tuple[Patterns, FloatArray]]:
    """Blocks of rows (n, D), compressed, with their weights."""
    parts = list(row_blocks(len(codes), tree))
    return list(in_order(lambda at: (block_patterns(tree, codes[at]), weights[at]), parts))


def _warm_up(
    tree: LatentTree,
    codes: IntegerArray,
    weights: FloatArray,
    options: EmOptions,
    priors: list[FloatArray],
    rng: np.random.Generator,
    progress: Callable[[float, str], None] | None,
) -> LatentTree:
    """Stepwise EM: every batch moves the running counts by a shrinking share.

    The first passes of full-batch EM only undo the random start; batches do that for a fraction of
    the cost.
    """
    total = float(weights.sum())
    shuffled = rng.permutation(len(codes))
    # The batches, not their order, stay the same in every epoch: they are compressed once.
    batches = []
    for first in range(0, len(codes) - options.batch_size + 1, options.batch_size):
        rows = shuffled[first : first + options.batch_size]
        batches.append((block_patterns(tree, codes[rows]), weights[rows]))
    native, compiled, smoothing = kernels(), None, options.smoothing
    if native is not None:
        pseudo = [smoothing.of_column(j) * prior for j, prior in enumerate(priors)]
        both = smoothing.transition, smoothing.root
        compiled = CompiledEm(tree, batches, both, smoothing.bins, pseudo, options.dtype)
    running = Counts.zeros(tree)
    step = 0
    for epoch in range(options.n_warmup_epochs):
        for number in rng.permutation(len(batches)):
            share = (step + 2.0) ** -0.6 if step else 1.0
            step += 1
            if native is not None and compiled is not None:
                compiled.step(native, number, share, total)
                continue
            counts = TreePass(tree, options.dtype).counts_of(batches[number])
            running.blend(counts, share, total / max(counts.weight, 1e-300))
            tree = maximise(running, tree, smoothing, priors)
        if progress is not None:
            progress(0.0, f"warm-up epoch {epoch + 1} of {options.n_warmup_epochs}")
    return tree if compiled is None else compiled.tree()


def _mean_log_likelihood(
    tree: LatentTree, blocks: list[tuple[Patterns, FloatArray]], dtype: npt.DTypeLike
) -> float:
    """Weighted mean log-likelihood of compressed rows."""
    scores = in_order(TreePass(tree, dtype).pattern_log_likelihood, [p for p, _ in blocks])
    total, weight = 0.0, 0.0
    for (_, weights), logs in zip(blocks, scores, strict=True):
        total += float(weights @ logs)
        weight += float(weights.sum())
    return total / weight

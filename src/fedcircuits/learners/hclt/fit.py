"""Fit the default table learners, `hclt` and `mixture`, to coded rows.

Steps: hold out validation rows; Chow-Liu structure (or a single latent); EM with early stop; with a
label the tilt, whose prior strengths are estimated per column and chosen on validation; class
transitions where they help; a head of boosted trees where it helps; a last few steps on all rows;
plain normalised per-class tables.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from fedcircuits.arrays import FloatArray, IntegerArray
from fedcircuits.learners.hclt.columns import CodedBatches
from fedcircuits.learners.hclt.features import Values
from fedcircuits.learners.hclt.fitted import FittedTree
from fedcircuits.learners.hclt.head.fit_head import Head
from fedcircuits.learners.hclt.label_fit import fit_label
from fedcircuits.learners.hclt.options import FitOptions
from fedcircuits.learners.hclt.sample import Sample, checked_sample, split_rows
from fedcircuits.learners.hclt.tilt.renormalise import renormalise
from fedcircuits.learners.hclt.tilt.tilt import TiltedTree
from fedcircuits.learners.hclt.tree.class_em import fit_class_trees
from fedcircuits.learners.hclt.tree.class_tree import class_tree_of
from fedcircuits.learners.hclt.tree.latent_tree import LatentTree, averaged
from fedcircuits.learners.hclt.tree.marginals import row_marginals, shares, with_marginals
from fedcircuits.learners.hclt.tree.search import search_tree
from fedcircuits.learners.hclt.tree.sizes import (
    MIN_CLASS_STATES,
    Sizes,
    automatic_sizes,
    for_categories,
    states_for_classes,
)
from fedcircuits.learners.hclt.tree.tree_em import EmOptions, fit_em, refit_over
from fedcircuits.native import using_threads
from fedcircuits.native.memory import return_freed
from fedcircuits.native.threads import one_thread

Progress = Callable[[float, str], None]

# Choices about the label see one cell a row, not D: they hold out more rows than the stop of EM.
_LABEL_TIMES, _MAX_LABEL_VALIDATION_ROWS = 2.5, 30_000


def fit_rows(
    codes: IntegerArray,
    cards: tuple[int, ...],
    ordered: npt.NDArray[np.bool_],
    labels: IntegerArray | None = None,
    n_classes: int = 1,
    weights: FloatArray | None = None,
    *,
    rng: np.random.Generator,
    options: FitOptions | None = None,
    validation: tuple[IntegerArray, IntegerArray | None] | None = None,
    values: Values | None = None,
    targets: FloatArray | None = None,
    progress: Progress | None = None,
    is_tree: bool = True,
    every: CodedBatches | None = None,
) -> FittedTree:
    """Fit a hidden Chow-Liu tree or a mixture to coded rows, tilted where there is a label.

    Args:
        codes: (n, D) states, -1 where a value is to be marginalised.
        cards: Number of states of each column.
        ordered: (D,) whether neighbouring states are neighbouring values.
        labels: (n,) classes 0 .. n_classes - 1, or none for a density over x alone.
        n_classes: Number of classes Y.
        weights: (n,) row weights.
        rng: Source of every random choice.
        options: Overrides.
        validation: Held-out (codes, labels) to use instead of a split; they are not trained on, and
            no head is tried.
        values: (n, D) values as boosted trees take them; without them no head is tried.
        targets: (n,) the label as a number, where its classes are the states of one.
        progress: Called with (fraction done, text).
        is_tree: Whether each column has a latent of its own; else one serves all (a mixture).
        every: All rows, where `codes` are some of them: for the last steps and the marginals.
    """
    sample = checked_sample(codes, cards, labels, n_classes, weights, values, targets)
    options = options or FitOptions()
    sizes = automatic_sizes(len(sample.codes), cards)
    sizes = replace(sizes, smoothing=for_categories(sizes.smoothing, cards, ordered))
    sizes = _overridden(sizes, options)
    if sample.labels is not None and options.n_states is None:
        most = states_for_classes(n_classes, cards) or MIN_CLASS_STATES
        sizes = replace(sizes, n_states=min(sizes.n_states, most))
    notify: Progress = progress if progress is not None else (lambda _fraction, _text: None)
    clock = time.process_time()
    if validation is None:
        train_rows, held_rows = split_rows(sample, options.validation_share, rng)
        train, held = sample.take(train_rows), sample.take(held_rows)
    else:
        train = sample
        held = Sample(validation[0], np.ones(len(validation[0])), validation[1])
    # The products are small: a second BLAS thread would mostly wait for the first.
    with one_thread(), using_threads(options.n_jobs):
        return_freed(sample.codes.size)
        notify(0.0, "structure")
        found = search_tree(
            train, held, cards, ordered, rng, sizes, is_tree, notify, n_classes, _n_trees(options)
        )
        result = found.result
        em_seconds = time.process_time() - clock
        report: dict[str, object] = {
            "learner": "hclt" if is_tree else "mixture",
            "n_rows": len(sample.codes),
            "n_validation_rows": len(held.codes),
            "n_states": result.tree.n_states,
            "validation_by_n_states": found.tried,
            "n_trees": len(found.trees),
            "validation_by_n_trees": found.averaged,
            "smoothing": sizes.smoothing.emission,
            "em_steps": result.n_steps,
            "em_converged": result.converged,
            "train_log_likelihood": result.train_curve,
            "validation_log_likelihood": result.validation_curve,
            "em_seconds": em_seconds,
        }
        # Validation rows held out here come back for the last steps; given ones never do.
        trees = found.trees
        marginals = row_marginals(sample.codes, cards, sample.weights, options.pseudo_rows)
        if every is not None:
            trees, counts = refit_over(trees, every, sizes.smoothing, sizes.n_refit_steps)
            marginals = shares(counts, options.pseudo_rows)
            report["n_rows_in_memory"] = len(sample.codes)
            report["n_rows"] = int(max(found.sum() for found in counts))
        elif validation is None and len(held.codes):
            trees = tuple(_refit(tree, sample, rng, sizes) for tree in trees)
        tree = averaged(trees)
        tilted: TiltedTree | None = None
        head: Head | None = None
        if sample.labels is None or n_classes < 2:
            model = class_tree_of(tree)
        elif options.aim == "density":
            notify(0.6, "classes")
            model, curve = fit_class_trees(result.tree, train, held, sample, sizes.smoothing)
            report["train_log_likelihood"] = curve
        else:
            n_unseen = len(held.codes)
            if validation is None:
                train, held = with_more_held(train, held, rng)
                report["n_label_validation_rows"] = len(held.codes)
            notify(0.6, "tilt")
            tilted, head, label_report = fit_label(
                result.tree,
                tree,
                train,
                held,
                n_unseen,
                sample,
                ordered,
                n_classes,
                options,
                rng,
                notify,
            )
            report.update(label_report)
            model = renormalise(tilted)
        model = with_marginals(model, marginals)
    return_freed(sample.codes.size)
    report["seconds"] = time.process_time() - clock
    report["n_parameters"] = tree.n_parameters + (0 if tilted is None else tilted.g.size)
    notify(1.0, "done")
    return FittedTree(model=model, tree=tree, tilted=tilted, head=head, report=report)


def with_more_held(train: Sample, held: Sample, rng: np.random.Generator) -> tuple[Sample, Sample]:
    """Return training and validation rows with more of the latter, for choices about the label.

    Validation rows that decide little stay as they are; `label_fit.py` cross-validates there.
    """
    n, n_held = len(train.codes) + len(held.codes), len(held.codes)
    wanted = min(_LABEL_TIMES * n_held, _MAX_LABEL_VALIDATION_ROWS, n / 2)
    if held.decides_little or wanted <= n_held:
        return train, held
    kept, moved = split_rows(train, (wanted - n_held) / len(train.codes), rng)
    return train.take(kept), held.joined(train.take(moved))


def _overridden(sizes: Sizes, options: FitOptions) -> Sizes:
    """Return automatic sizes with the caller's options in place of them."""
    given = {
        "n_states": options.n_states,
        "n_iterations": options.n_iterations,
        "smoothing": options.smoothing,
        "max_em_rows": options.max_em_rows,
    }
    overrides = {name: value for name, value in given.items() if value is not None}
    sizes = replace(sizes, halve=sizes.halve and options.n_states is None, **overrides)  # type: ignore[arg-type]
    return replace(sizes, smoothing=replace(sizes.smoothing, bins=options.bins))


def _n_trees(options: FitOptions) -> int | None:
    """How many trees are averaged, where that is not to be tried.

    Classes that have each a density of their own are many, and have one tree each.
    """
    return 1 if options.aim == "density" else options.n_trees


def _refit(tree: LatentTree, sample: Sample, rng: np.random.Generator, sizes: Sizes) -> LatentTree:
    """Return the tree after a few more EM steps on all rows."""
    options = EmOptions(
        n_iterations=sizes.n_refit_steps, n_warmup_epochs=0, smoothing=sizes.smoothing
    )
    return fit_em(tree, sample.codes, sample.weights, options, rng).tree

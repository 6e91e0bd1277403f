"""Automatic sizes: latent states, components, EM steps and smoothing from rows and columns.

The rule, tuned on validation parts of the twenty binary tables, Adult, Credit and Cancer:

* H, the states of every latent of a hidden Chow-Liu tree, and K, the components of a mixture:
  sqrt(n / 4), at least 2, at most 64. Half of it is tried too, and half again while that is better
  on validation rows: small tables end with a few states, wide and regular ones with many. Half as
  many again are tried where the last doubling clearly paid (see `search.py`).
* EM: at most 50 full-batch steps after 3 epochs on small batches; validation ends it sooner.
* Smoothing: a twentieth of a pseudo-row per state of a column, at most one in all, per latent state
  and table; it only has to keep zeros away, early stopping does the rest. More than twenty
  categories have a twentieth each: of thousands most have few rows, which say little each.
* Rows: EM looks at no more than 200,000 rows until the last steps, which see all.
* A label copies the tree once a class: with many classes it has fewer states, so that all copies
  together stay bounded; with very many the label is a column of the tree like any other.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from fedcircuits.learners.hclt.tree.tree_em import Smoothing

MAX_STATES = 64
MAX_EM_ROWS = 200_000
# With more rows than this the largest number of states is always the best one.
MAX_HALVING_ROWS = 150_000
# Numbers in the tables of all classes together; states below which copies are not worth having.
MAX_CLASS_NUMBERS, MIN_CLASS_STATES = 2**25, 4
# Rows x classes at which the tilt looks while its prior is chosen, and in its last fit.
MAX_TRIAL_CELLS, MAX_TILT_CELLS = 2**22, 2**24
# Rows of a class that the choices about the label see at least, on average.
MIN_CLASS_ROWS = 8
# Pseudo-rows per state of a column.
PSEUDO_ROWS = 0.05


@dataclass(frozen=True)
class Sizes:
    """Numbers of states, EM steps and rows of one fit, and pseudo-counts.

    Attributes:
        n_states: H of a tree or K of a mixture; the largest tried.
        halve: Whether smaller numbers of states are tried on validation rows.
        n_iterations: Most full-batch EM steps.
        n_warmup_epochs: Epochs of stepwise EM before them.
        batch_size: Rows of a warm-up batch.
        n_refit_steps: EM steps on all rows, validation rows included, at the end.
        smoothing: Pseudo-counts.
        max_em_rows: Rows EM looks at before the last steps.
    """

    n_states: int
    halve: bool
    n_iterations: int
    n_warmup_epochs: int
    batch_size: int
    n_refit_steps: int
    smoothing: Smoothing
    max_em_rows: int


def automatic_sizes(n_rows: int, cards: tuple[int, ...]) -> Sizes:
    """Sizes of a tree or mixture for n rows of columns with `cards` states."""
    n_states = int(np.clip(np.sqrt(n_rows / 4), 2, MAX_STATES))
    if len(cards) == 1:
        # A single column is a table; more than one state would only repeat it.
        n_states = 1
    pseudo = float(np.clip(PSEUDO_ROWS * np.mean(cards), 0.1, 1.0))
    return Sizes(
        n_states=n_states,
        halve=n_rows <= MAX_HALVING_ROWS,
        n_iterations=50,
        n_warmup_epochs=3,
        batch_size=512,
        n_refit_steps=2,
        smoothing=Smoothing(emission=pseudo, transition=pseudo, root=pseudo),
        max_em_rows=MAX_EM_ROWS,
    )


def for_categories(
    smoothing: Smoothing, cards: tuple[int, ...], ordered: npt.NDArray[np.bool_]
) -> Smoothing:
    """Smoothing with more pseudo-rows for columns (ordered: (D,) not) of many categories."""
    more = (
        0.0 if by_size else PSEUDO_ROWS * card for card, by_size in zip(cards, ordered, strict=True)
    )
    least = tuple(pseudo if pseudo > 1.0 else 0.0 for pseudo in more)
    return replace(smoothing, columns=least) if any(least) else smoothing


def states_for_classes(n_classes: int, cards: tuple[int, ...]) -> int | None:
    """Most states of a tree that is copied once a class; None if the label is to be a column.

    Args:
        n_classes: Y.
        cards: Number of states of every other column.
    """
    if n_classes * MIN_CLASS_ROWS > MAX_TRIAL_CELLS // n_classes:
        return None
    # The largest H with Y (D H^2 + W H) numbers in transitions and emissions.
    D, W = len(cards), sum(cards)
    most = int((np.sqrt(W**2 + 4 * D * MAX_CLASS_NUMBERS / n_classes) - W) / (2 * D))
    return None if most < MIN_CLASS_STATES else most

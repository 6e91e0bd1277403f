"""Automatic sizes: latent states, components, EM steps and smoothing from rows and columns.

The rule, tuned on validation parts of the twenty binary tables, Adult, Credit and Cancer:

* H, the states of every latent of a hidden Chow-Liu tree, and K, the components of a mixture:
  sqrt(n / 4), at least 2, at most 64. Half of it is tried too, and half again while that is better
  on validation rows: small tables end with a few states, wide and regular ones with many.
* EM: at most 50 full-batch steps after 3 epochs on small batches; validation ends it sooner.
* Smoothing: a twentieth of a pseudo-row per state of a column, at most one in all, per latent state
  and table; it only has to keep zeros away, early stopping does the rest.
* Rows: EM looks at no more than 200,000 rows until the last steps, which see all.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedcircuits.learners.hclt.tree.tree_em import Smoothing

MAX_STATES = 64
MAX_EM_ROWS = 200_000
# With more rows than this the largest number of states is always the best one.
MAX_HALVING_ROWS = 150_000


@dataclass(frozen=True)
class Sizes:
    """Sizes of one fit.

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
    pseudo = float(np.clip(0.05 * np.mean(cards), 0.1, 1.0))
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

"""Fitting the marginals of a class tree to those of the rows.

Smoothing and the tilt move the marginal distribution of a column away from the rows a little, most
of all on small tables; means and quantiles of the model move along. Multiplying all emissions of a
column by one factor a state, and normalising them again, brings the marginal back (iterative
proportional fitting) and leaves what the latents say about each other as it is.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fedcircuits.arrays import FloatArray, IntegerArray
from fedcircuits.learners.hclt.tree.class_tree import ClassTree
from fedcircuits.learners.hclt.tree.tree_em import state_counts

MAX_ROUNDS = 200
CLOSE = 1e-5  # of a state's mass to that of the rows: far less than a row of any table


def row_marginals(
    codes: IntegerArray, cards: tuple[int, ...], weights: FloatArray, pseudo_rows: float = 1.0
) -> list[FloatArray]:
    """Shares of the rows in every state, D arrays (card_j,); see `shares`."""
    return shares(state_counts(codes, cards, weights), pseudo_rows)


def shares(counts: list[FloatArray], pseudo_rows: float = 1.0) -> list[FloatArray]:
    """Shares of the rows in every state from their numbers, D arrays (card_j,).

    A state without rows has its part of the pseudo-rows; the others have none, or means would move
    towards those of all states alike.
    """
    filled = [np.where(found > 0, found, pseudo_rows / found.size) for found in counts]
    return [found / found.sum() for found in filled]


def with_marginals(model: ClassTree, marginals: list[FloatArray]) -> ClassTree:
    """The model with the given marginals of its columns, D arrays (card_j,), all positive."""
    weights = _latent_weights(model)
    emissions = []
    for j, (table, wanted) in enumerate(zip(model.emissions, marginals, strict=True)):
        weight = weights[model.latent_of[j]]  # (Y, H)
        for _ in range(MAX_ROUNDS):
            found = np.einsum("yh,yhs->s", weight, table)  # (card,)
            if np.abs(found - wanted).max() < CLOSE:
                break
            # A state no latent ever shows (all underflowed to 0) stays as it is.
            table = table * np.divide(wanted, found, out=np.ones_like(found), where=found > 0)
            table = table / table.sum(axis=2, keepdims=True)
        emissions.append(table)
    return replace(model, emissions=tuple(emissions))


def _latent_weights(model: ClassTree) -> list[FloatArray]:
    """(Y, H) p(y, state) of every latent."""
    weights: dict[int, FloatArray] = {}
    for latent in map(int, model.order):
        above = int(model.parent[latent])
        if above < 0:
            weights[latent] = np.exp(model.log_prior)[:, None] * model.root
        else:
            Y, H, W = model.transitions[:, latent].shape
            rows = model.transitions[:, latent].reshape(Y, H // W, W, W)
            here = np.einsum("ybh,ybhk->ybk", weights[above].reshape(Y, H // W, W), rows)
            weights[latent] = here.reshape(Y, H)
    return [weights[latent] for latent in range(len(model.parent))]

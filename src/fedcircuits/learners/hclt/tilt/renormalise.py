"""From tilted parameters to an ordinary circuit: per-class tables that each sum to one.

Every leaf over x_j is multiplied by e^{g_yj} and renormalised; what a leaf gains or loses moves
into the weights above it, bottom-up, and at the root into the class weights. The result holds the
same p(x, y) with no normaliser left.
"""

from __future__ import annotations

import numpy as np

from fedcircuits.arrays import FloatArray
from fedcircuits.learners.hclt.tilt.tilt import TiltedTree
from fedcircuits.learners.hclt.tree.class_tree import ClassTree


def renormalise(model: TiltedTree) -> ClassTree:
    """Turn tilted parameters into normalised per-class tables."""
    base = model.trees[0]
    Y, L, H, W = model.n_classes, len(base.parent), base.n_states, base.block_size
    starts = model.starts
    # Mass of every latent's subtree given its state, in logs: tilts can be large on wide tables.
    log_mass = np.zeros((L, Y, H))
    emissions: list[FloatArray] = []
    for j, table in enumerate(base.emissions):
        block = model.g[:, starts[j] : starts[j + 1]]
        top = block.max(axis=1)
        lifted = table[None] * np.exp(block - top[:, None])[:, None, :]  # (Y, H, card)
        mass = lifted.sum(axis=2)
        emissions.append(lifted / mass[:, :, None])
        log_mass[base.latent_of[j]] += np.log(mass) + top[:, None]
    transitions = np.zeros((Y, L, H, W))
    for latent in map(int, base.order[::-1]):
        above = int(base.parent[latent])
        if above < 0:
            continue
        top = log_mass[latent].max(axis=1)
        inside = np.exp(log_mass[latent] - top[:, None])  # (Y, H)
        for y in range(Y):
            below = np.repeat(inside[y].reshape(-1, W), W, axis=0)  # (H, W)
            lifted = model.tree_of(y).transitions[latent] * below
            mass = lifted.sum(axis=1)
            transitions[y, latent] = lifted / mass[:, None]
            log_mass[above, y] += np.log(mass) + top[y]
    top_latent = int(base.order[0])
    top = log_mass[top_latent].max(axis=1)
    lifted = model.root_weights() * np.exp(log_mass[top_latent] - top[:, None])
    mass = lifted.sum(axis=1)
    log_class = model.c + np.log(mass) + top
    return ClassTree(
        parent=base.parent,
        order=base.order,
        latent_of=base.latent_of,
        log_prior=log_class - np.logaddexp.reduce(log_class),
        root=lifted / mass[:, None],
        transitions=transitions,
        emissions=tuple(emissions),
    )

"""How coarse the codes of rows are that one client's trees make and another's take as inputs.

A score for every class but the last has `2 LEVELS + 1` levels, a leaf is one of `N_LEAVES`: at most
8 bits a row for two classes, 4 more for every further class.
"""

from __future__ import annotations

import numpy as np

from fedcircuits.arrays import FloatArray
from fedcircuits.density.tilt import by_class

LEVELS, N_LEAVES = 7, 16


def levels(outputs: FloatArray, width: float) -> FloatArray:
    """(n, Y - 1) coarse scores of every class but the last, each row centred.

    Args:
        outputs: (n, K) of boosted trees.
        width: of a level.
    """
    scores = by_class(outputs)
    centred = (scores - scores.mean(axis=1, keepdims=True))[:, :-1]
    return np.asarray(np.clip(np.round(centred / width), -LEVELS, LEVELS))


def level_width(outputs: FloatArray) -> float:
    """Width of a level that fits the outputs (n, K) of most rows."""
    scores = by_class(outputs)
    away = np.abs(scores - scores.mean(axis=1, keepdims=True))
    return max(float(np.quantile(away, 0.99)) / LEVELS, 1e-9) if away.size else 1.0

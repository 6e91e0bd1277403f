"""The feature set indicator matrix M (section 3.3, Algorithm 1, lines 1-2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

BoolMatrix = NDArray[np.bool_]


def feature_indicator(
    held: Mapping[str, Sequence[str]], clients: Sequence[str], features: Sequence[str]
) -> BoolMatrix:
    """(C, F) whether client i holds feature j.

    Args:
        held: names of the columns each client has.
        clients: the rows, in order.
        features: the columns, in order.
    """
    position = {name: j for j, name in enumerate(features)}
    M = np.zeros((len(clients), len(features)), dtype=bool)
    for i, client in enumerate(clients):
        M[i, [position[name] for name in held[client]]] = True
    return M

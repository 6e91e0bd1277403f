"""Random generators by name, so that the order of work cannot change a result."""

from __future__ import annotations

import hashlib

import numpy as np


def named_rng(seed: int, *names: object) -> np.random.Generator:
    """A generator that depends on the seed and the names alone (client, subspace, class, ...)."""
    text = "\x1f".join([str(int(seed)), *map(str, names)])
    digest = hashlib.sha256(text.encode()).digest()
    return np.random.default_rng(int.from_bytes(digest[:16], "little"))

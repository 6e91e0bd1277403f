"""Random generators by name, so that the order of work cannot change a result."""

from __future__ import annotations

import hashlib

import numpy as np

from fedcircuits.arrays import IntArray


def named_rng(seed: int, *names: object) -> np.random.Generator:
    """A generator that depends on the seed and the names alone (client, subspace, class, ...)."""
    text = "\x1f".join([str(int(seed)), *map(str, names)])
    digest = hashlib.sha256(text.encode()).digest()
    return np.random.default_rng(int.from_bytes(digest[:16], "little"))


def drawn_order(n: int, seed: int, what: str) -> IntArray:
    """(n,) the numbers below n in an order that follows from the seed and the purpose alone.

    It is the same with every version of NumPy, so that two machines may each work it out.
    """
    text = "\x1f".join((str(int(seed)), what, str(n)))
    draws = np.frombuffer(hashlib.shake_128(text.encode()).digest(8 * n), dtype="<u8")
    return np.argsort(draws, kind="stable")

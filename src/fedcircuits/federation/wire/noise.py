"""Noise that protects rows: from the operating system's generator, never from the run's seed.

A seed is known to the server, which could draw the same noise again and subtract it.
"""

from __future__ import annotations

import hashlib
import os

import numpy as np

from fedcircuits.arrays import FloatArray

KEY_BYTES = 32
_WIDTH = 8  # bytes of one draw, of which 52 bits are used


def system_bytes(n: int) -> bytes:
    """Return n bytes of the operating system's generator."""
    return os.urandom(n)


def laplace(scale: float, size: int) -> FloatArray:
    """Return (size,) Laplace noise: differences of two exponential variables."""
    u = _uniforms(system_bytes(2 * size * _WIDTH)).reshape(2, size)
    return np.asarray(scale * (np.log(u[0]) - np.log(u[1])))


class KeyedNoise:
    """Uniform numbers under a key that nobody else has.

    The same data draws the same numbers for as long as the key lives: whoever asks again gets the
    same noise again, which therefore does not average out.

    Args:
        key: of the client; by default a new one.
    """

    def __init__(self, key: bytes | None = None) -> None:
        self._key = system_bytes(KEY_BYTES) if key is None else key

    def uniforms(self, shape: tuple[int, ...], *about: bytes) -> FloatArray:
        """Return numbers in (0, 1) of a shape, a function of the key and `about` alone."""
        digest = hashlib.shake_256(self._key)
        for part in about:
            digest.update(len(part).to_bytes(8, "little") + part)
        n = int(np.prod(shape))
        return _uniforms(digest.digest(n * _WIDTH)).reshape(shape)


def _uniforms(data: bytes) -> FloatArray:
    """Numbers strictly between 0 and 1, of 52 bits each."""
    whole = np.frombuffer(data, dtype="<u8") >> np.uint64(12)
    return np.asarray((whole.astype(float) + 0.5) / 2.0**52)

"""Integrals of univariate densities by quadrature, sharing no code with the package.

A density is integrated over *pieces*: intervals on which it is smooth, infinite ends allowed. An
infinite piece is mapped to [0, 1) by x = end +- scale * t / (1 - t).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

Function = Callable[[np.ndarray], np.ndarray]
_T, _W = np.polynomial.legendre.leggauss(48)


@dataclass(frozen=True)
class Piece:
    """An open interval; `scale` matters only if one end is infinite."""

    low: float
    high: float
    scale: float = 1.0

    def cut(self, parts: int) -> list[Piece]:
        """The piece in equal parts (of the mapped variable, where it is infinite)."""
        shares = np.linspace(0, 1, parts + 1)
        if np.isfinite(self.low) and np.isfinite(self.high):
            ends = self.low + (self.high - self.low) * shares
        elif np.isfinite(self.low):
            ends = [self.low + self.scale * t / (1 - t) if t < 1 else np.inf for t in shares]
        else:
            ends = [self.high - self.scale * t / (1 - t) if t < 1 else -np.inf for t in shares]
            ends = ends[::-1]
        return [Piece(float(a), float(b), self.scale) for a, b in itertools.pairwise(ends)]


def integrate(f: Function, piece: Piece, panels: int = 8) -> float:
    """Integral of f over one piece, by Gauss-Legendre on panels."""
    finite = np.isfinite(piece.low) and np.isfinite(piece.high)
    starts = np.linspace(0, 1, panels + 1)
    t = (starts[:-1, None] + (0.5 + 0.5 * _T) / panels).reshape(-1)
    w = np.tile(0.5 * _W / panels, panels)
    if finite:
        width = piece.high - piece.low
        return float(np.sum(w * f(piece.low + width * t)) * width)
    jacobian = piece.scale / (1 - t) ** 2
    distance = piece.scale * t / (1 - t)
    x = piece.low + distance if np.isfinite(piece.low) else piece.high - distance
    return float(np.sum(w * f(x) * jacobian))


def integrate_all(f: Function, pieces: Sequence[Piece], panels: int = 8) -> float:
    """Integral of f over some pieces."""
    return float(sum(integrate(f, piece, panels) for piece in pieces))


def log_normal_mass(a: float, b: float) -> float:
    """log(Phi(b) - Phi(a)) by quadrature of the density relative to its highest point in [a, b]."""
    top = min(max(0.0, a), b)
    # Beyond this distance from the highest point the density is 90 nats lower.
    reach = 180.0 / (abs(top) + np.sqrt(top * top + 180.0))
    low, high = max(a, top - reach), min(b, top + reach)
    mass = integrate(lambda z: np.exp(-0.5 * (z - top) * (z + top)), Piece(low, high))
    return float(np.log(mass) - 0.5 * top * top - 0.5 * np.log(2 * np.pi))

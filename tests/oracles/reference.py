"""A tiny recursive circuit that shares no code with the package: plain floats and scipy.stats.

A specification is a tree (or DAG) of the three classes below. `density` evaluates it in linear
space, one row at a time, by the textbook recursion. `oracles.random_circuits.to_nodes` turns the
same specification into the package's nodes, so that both can be asked the same question.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from scipy import stats

TAIL_SHAPE = 4.0


@dataclass(frozen=True, eq=False)
class RefLeaf:
    """One distribution: family "table" (probability by value), "poisson", "gaussian",
    "truncated", "uniform" or "pieces" (a histogram; see `Piece`)."""

    variable: str
    family: str
    params: Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class RefSum:
    """A mixture."""

    children: tuple[RefNode, ...]
    weights: tuple[float, ...]


@dataclass(frozen=True, eq=False)
class RefProduct:
    """Independent factors."""

    children: tuple[RefNode, ...]


RefNode = RefLeaf | RefSum | RefProduct


@dataclass(frozen=True)
class Piece:
    """Part of a histogram: an atom at `low`, a bin [low, high), or a tail beyond an edge.

    A left tail has high = edge and low = -inf, a right tail low = edge and high = inf.
    """

    low: float
    high: float
    mass: float
    scale: float = field(default=0.0)

    @property
    def is_atom(self) -> bool:
        """Whether it is a point mass."""
        return self.low == self.high

    @property
    def is_tail(self) -> bool:
        """Whether one of its ends is open."""
        return math.isinf(self.low) or math.isinf(self.high)


def leaf_density(leaf: RefLeaf, x: Any) -> float:
    """Density or mass of one value."""
    p = leaf.params
    if leaf.family == "table":
        return float(p["probs"].get(x, 0.0))
    if leaf.family == "poisson":
        return float(stats.poisson.pmf(x, p["rate"]))
    if leaf.family == "gaussian":
        return float(stats.norm.pdf(x, p["mean"], p["sd"]))
    if leaf.family == "uniform":
        return float(stats.uniform.pdf(x, p["low"], p["high"] - p["low"]))
    if leaf.family == "truncated":
        a, b = ((end - p["mean"]) / p["sd"] for end in (p["low"], p["high"]))
        return float(stats.truncnorm.pdf(x, a, b, p["mean"], p["sd"]))
    if leaf.family == "pieces":
        return _pieces_density(p["pieces"], x)
    raise ValueError(leaf.family)


def _pieces_density(pieces: tuple[Piece, ...], x: float) -> float:
    for piece in pieces:
        if piece.is_atom and x == piece.low:
            return piece.mass
    for piece in pieces:
        if piece.is_atom or not piece.low <= x < piece.high:
            continue
        if math.isinf(piece.low):
            return piece.mass * float(stats.lomax.pdf(piece.high - x, TAIL_SHAPE, 0, piece.scale))
        if math.isinf(piece.high):
            return piece.mass * float(stats.lomax.pdf(x - piece.low, TAIL_SHAPE, 0, piece.scale))
        return piece.mass / (piece.high - piece.low)
    return 0.0


def density(root: RefNode, row: Mapping[str, Any]) -> float:
    """Density of a row; a variable that is absent or None is summed out (its leaf is 1)."""
    memo: dict[int, float] = {}

    def value(node: RefNode) -> float:
        if id(node) not in memo:
            if isinstance(node, RefLeaf):
                x = row.get(node.variable)
                memo[id(node)] = 1.0 if x is None else leaf_density(node, x)
            elif isinstance(node, RefSum):
                terms = zip(node.weights, node.children, strict=True)
                memo[id(node)] = math.fsum(w * value(child) for w, child in terms if w > 0)
            else:
                memo[id(node)] = math.prod(value(child) for child in node.children)
        return memo[id(node)]

    return value(root)


def leaves(root: RefNode) -> list[RefLeaf]:
    """All leaves, each once."""
    found: dict[int, RefLeaf] = {}
    seen: set[int] = set()

    def visit(node: RefNode) -> None:
        if id(node) in seen:
            return
        seen.add(id(node))
        if isinstance(node, RefLeaf):
            found[id(node)] = node
            return
        for child in node.children:
            visit(child)

    visit(root)
    return list(found.values())

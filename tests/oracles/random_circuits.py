"""Random smooth decomposable DAGs over mixed leaves, as a specification and as a package circuit.

`Chooser` hides where choices come from: `Drawn` asks hypothesis (and shrinks), `Seeded` a NumPy
generator. A variable's kind is the first letters of its name, see `KINDS`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
from hypothesis import strategies as st

from fedcircuits import Circuit, Schema, Variable, build
from fedcircuits.schema import Grid
from oracles.enumeration import Points, Worlds
from oracles.reference import Piece, RefLeaf, RefNode, RefProduct, RefSum, leaves

T = TypeVar("T")

COLOURS = ("red", "green", "blue")
DIAL = (4, 1, 9)  # numbers in an order that is not theirs
COUNTS = range(27)  # beyond, a Poisson of rate 2.5 has mass below 1e-17
GRID = Grid(np.array([-1.0, 2.0]), np.array([-1.0, 0.5, 2.0, 3.5]), tails=(0.7, 1.6))
TABLE = Grid(np.array([1.0, 4.0]), np.array([0.0, 3.0, 6.0]), tails=(0.0, 0.0), integer=True)

COMBINATIONS = (
    ("dial",),
    ("real",),
    ("hist",),
    ("dial", "flag", "count"),
    ("colour", "flag", "dial", "flag2"),
    ("real", "dial"),
    ("hist", "colour", "flag"),
    ("count", "hist"),
    ("real", "real2"),
    ("real", "hist", "flag"),
)
DISCRETE = tuple(c for c in COMBINATIONS if not any(n[:4] in ("real", "hist") for n in c))


def variable(name: str) -> Variable:
    """The variable of a name."""
    if name.startswith("colour"):
        return Variable(name, "categorical", COLOURS)
    if name.startswith("dial"):
        return Variable(name, "categorical", DIAL)
    if name.startswith("flag"):
        return Variable(name, "binary", (0, 1))
    return Variable(name, "count" if name.startswith("count") else "continuous")


class Chooser:
    """Where random choices come from."""

    def integer(self, low: int, high: int) -> int:
        """low..high, both included."""
        raise NotImplementedError

    def pick(self, options: Sequence[T]) -> T:
        """One of the options."""
        return options[self.integer(0, len(options) - 1)]

    def shuffled(self, items: Sequence[T]) -> list[T]:
        """The items in another order."""
        left, answer = list(items), []
        while left:
            answer.append(left.pop(self.integer(0, len(left) - 1)))
        return answer

    def shares(self, n: int) -> tuple[float, ...]:
        """n unequal numbers >= 0 that sum to one; some may be zero."""
        raw = [self.integer(0, 7) for _ in range(n)]
        if sum(raw) == 0:
            raw[self.integer(0, n - 1)] = 1
        return tuple(r / sum(raw) for r in raw)


class Drawn(Chooser):
    """Choices of hypothesis."""

    def __init__(self, draw: Callable[[Any], Any]) -> None:
        self.draw = draw

    def integer(self, low: int, high: int) -> int:
        return int(self.draw(st.integers(low, high)))


class Seeded(Chooser):
    """Choices of a generator."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def integer(self, low: int, high: int) -> int:
        return int(self.rng.integers(low, high + 1))


def _leaf(chooser: Chooser, name: str) -> RefLeaf:
    if name.startswith(("colour", "dial", "flag")):
        values = variable(name).categories
        probs = dict(zip(values, chooser.shares(len(values)), strict=True))
        return RefLeaf(name, "table", {"probs": probs})
    if name.startswith("count"):
        if chooser.integer(0, 1):
            return RefLeaf(name, "poisson", {"rate": chooser.pick((0.3, 1.1, 2.5))})
        masses = chooser.shares(4)
        return RefLeaf(name, "table", {"masses": masses, "probs": _count_probs(masses)})
    if name.startswith("hist"):
        shares = chooser.shares(7)
        ends = [(-np.inf, -1.0), (-1.0, -1.0), (-1.0, 0.5), (0.5, 2.0), (2.0, 2.0), (2.0, 3.5),
                (3.5, np.inf)]  # fmt: skip
        scales = [GRID.tails[0], 0, 0, 0, 0, 0, GRID.tails[1]]
        pieces = tuple(
            Piece(low, high, mass, scale)
            for (low, high), mass, scale in zip(ends, shares, scales, strict=True)
        )
        return RefLeaf(name, "pieces", {"pieces": pieces})
    family = chooser.pick(("gaussian", "truncated", "uniform"))
    mean, sd = chooser.pick((-1.3, 0.2, 1.9)), chooser.pick((0.8, 1.1, 1.4))
    low = chooser.pick((-2.5, -0.4, 1.0))
    high = low + chooser.pick((0.9, 2.2))
    params = {"mean": mean, "sd": sd, "low": low, "high": high}
    kept = {"gaussian": ("mean", "sd"), "uniform": ("low", "high")}.get(family, tuple(params))
    return RefLeaf(name, family, {key: params[key] for key in kept})


def _count_probs(masses: Sequence[float]) -> dict[int, float]:
    """Masses of the states of TABLE (bin 0, 2; atom 1; bin 3, 5, 6; atom 4) as a table."""
    low, one, high, four = masses
    return {0: low / 2, 2: low / 2, 1: one, 3: high / 3, 5: high / 3, 6: high / 3, 4: four}


def random_reference(chooser: Chooser, names: Sequence[str], depth: int = 3) -> RefNode:
    """A random specification over some variables."""
    pool: dict[frozenset[str], list[RefNode]] = {}

    def make(scope: list[str], depth: int) -> RefNode:
        known = pool.setdefault(frozenset(scope), [])
        if known and chooser.integer(0, 3) == 0:
            return chooser.pick(known)  # a shared node
        node = fresh(scope, depth)
        known.append(node)
        return node

    def fresh(scope: list[str], depth: int) -> RefNode:
        if len(scope) == 1 and (depth <= 0 or chooser.integer(0, 2) < 2):
            return _leaf(chooser, scope[0])
        if len(scope) > 1 and (depth <= 0 or chooser.integer(0, 2) == 0):
            order = chooser.shuffled(scope)
            cut = chooser.integer(1, len(order) - 1)
            return RefProduct((make(order[:cut], depth - 1), make(order[cut:], depth - 1)))
        n = chooser.integer(2, 4)
        if len(scope) > 1 and chooser.integer(0, 1):
            return layer(scope, depth, n)
        children = tuple(make(scope, depth - 1) for _ in range(n))
        return RefSum(children, chooser.shares(n))

    def layer(scope: list[str], depth: int, n: int) -> RefNode:
        """A sum of products whose first factors are sums over the same children (dense)."""
        order = chooser.shuffled(scope)
        cut = chooser.integer(1, len(order) - 1)
        below = tuple(make(order[:cut], depth - 2) for _ in range(chooser.integer(2, 3)))
        factors = [RefSum(below, chooser.shares(len(below))) for _ in range(n)]
        children = tuple(RefProduct((f, make(order[cut:], depth - 2))) for f in factors)
        return RefSum(children, chooser.shares(n))

    return make(list(names), depth)


def to_nodes(root: RefNode) -> Any:
    """The package's nodes for a specification; shared nodes stay shared."""
    memo: dict[int, Any] = {}

    def convert(node: RefNode) -> Any:
        if id(node) not in memo:
            if isinstance(node, RefLeaf):
                memo[id(node)] = _package_leaf(node)
            elif isinstance(node, RefSum):
                memo[id(node)] = build.sum([convert(c) for c in node.children], node.weights)
            else:
                memo[id(node)] = build.product([convert(c) for c in node.children])
        return memo[id(node)]

    return convert(root)


def _package_leaf(leaf: RefLeaf) -> Any:
    name, p = leaf.variable, leaf.params
    if leaf.family == "table" and "masses" in p:
        return build.histogram(name, TABLE, p["masses"])
    if leaf.family == "table":
        return build.categorical(name, [p["probs"][c] for c in variable(name).categories])
    if leaf.family == "poisson":
        return build.poisson(name, p["rate"])
    if leaf.family == "gaussian":
        return build.gaussian(name, p["mean"], p["sd"])
    if leaf.family == "uniform":
        return build.uniform(name, p["low"], p["high"])
    if leaf.family == "truncated":
        return build.truncated_gaussian(name, p["mean"], p["sd"], p["low"], p["high"])
    return build.histogram(name, GRID, [piece.mass for piece in p["pieces"]])


@dataclass(frozen=True)
class Case:
    """A specification, the package's circuit of it, and all its worlds."""

    reference: RefNode
    circuit: Circuit

    @cached_property
    def worlds(self) -> Worlds:
        """In the order of the schema."""
        return Worlds({name: self.points(name) for name in self.circuit.schema.names})

    def points(self, name: str) -> Points:
        """Points and weights of one variable."""
        if variable(name).is_coded:
            return Points.of_values(variable(name).categories)
        if name.startswith("count"):
            return Points.of_values(COUNTS)
        if name.startswith("hist"):
            return Points.of_grid(GRID.atoms, GRID.edges, GRID.tails)
        ends: list[float] = []
        for leaf in leaves(self.reference):
            if leaf.variable == name:
                p = leaf.params
                ends += [p["low"], p["high"]] if "low" in p else []
                if leaf.family == "gaussian":
                    ends += [p["mean"] - 8.5 * p["sd"], p["mean"] + 8.5 * p["sd"]]
        return Points.of_interval(ends, panel=1.6)


def random_case(chooser: Chooser, names: Sequence[str], depth: int = 3) -> Case:
    """A random circuit whose schema has the variables in another order than the nodes."""
    reference = random_reference(chooser, names, depth)
    schema = Schema(tuple(variable(name) for name in chooser.shuffled(names)))
    return Case(reference, build.circuit(schema, to_nodes(reference)))


@st.composite
def cases(draw: Callable[[Any], Any], combinations: Sequence[Sequence[str]] = COMBINATIONS) -> Case:
    """Hypothesis strategy of random circuits."""
    return random_case(Drawn(draw), draw(st.sampled_from(list(combinations))))


def seeded_case(seed: int, names: Sequence[str], depth: int = 3) -> Case:
    """The same random circuit for the same seed."""
    return random_case(Seeded(seed), names, depth)

"""Drawings of models: the tree of strongest dependences, and networks of sums and products."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedcircuits.arrays import FloatArray
from fedcircuits.errors import StorageError
from fedcircuits.report import figures
from fedcircuits.report.figures import shortened

MOST_VARIABLES = 40  # in a drawing of dependences
MOST_NODES = 150  # of a circuit that is drawn node by node
NAMES_IN_LEAF = 4
COLOURS = ("#0a7ea4", "#e07a1f", "#2a9d5c", "#8a5bc4", "#c8453b", "#8c7a1f", "#3f63c4", "#b34d8c")
ENDINGS = (".png", ".svg", ".pdf")
SERVER_COLOUR = "#7b8794"
SYMBOLS = "+ mixes models (of rows), \u00d7 multiplies them (of columns); (2x): two such nodes"


@dataclass(frozen=True)
class Tree:
    """The tree over some variables whose edges have the most mutual information in all.

    Attributes:
        names: of the variables.
        parent: number of each variable's parent, -1 of the root.
        strength: mutual information with the parent in nats, 0 of the root.
    """

    names: tuple[str, ...]
    parent: tuple[int, ...]
    strength: tuple[float, ...]


def dependence_tree(matrix: pd.DataFrame, root: str | None = None) -> Tree:
    """Returns the maximum spanning tree of a matrix of mutual information, from a root.

    Args:
        matrix: (D, D) mutual information in nats.
        root: name of the root; by default the variable that shares most with all others.
    """
    names = [str(name) for name in matrix.columns]
    values = matrix.to_numpy(dtype=float).copy()
    np.fill_diagonal(values, 0.0)
    start = names.index(root) if root in names else int(values.sum(axis=0).argmax())
    parent, strength = [-1] * len(names), [0.0] * len(names)
    reached, best, best_from = {start}, values[start].copy(), np.full(len(names), start)
    while len(reached) < len(names):
        outside = [at for at in range(len(names)) if at not in reached]
        nearest = max(outside, key=lambda at: best[at])
        parent[nearest], strength[nearest] = int(best_from[nearest]), float(best[nearest])
        reached.add(nearest)
        closer = values[nearest] > best
        best, best_from = (
            np.where(closer, values[nearest], best),
            np.where(closer, nearest, best_from),
        )
    return Tree(tuple(names), tuple(parent), tuple(strength))


def names_drawn(names: Sequence[str], label: str | None) -> list[str]:
    """Returns the variables of a drawing: the first ones, and the label."""
    chosen = list(names)[:MOST_VARIABLES]
    if label is not None and label not in chosen:
        chosen[-1] = label
    return chosen


def paint_tree(axes: Any, tree: Tree, label: str | None = None) -> None:
    """Draws a tree from left to right; thicker lines stand for more mutual information."""
    children: dict[int, list[int]] = {}
    for child, parent in enumerate(tree.parent):
        children.setdefault(parent, []).append(child)
    place = np.zeros((len(tree.names), 2))
    lines = 0

    def put(node: int, depth: int) -> float:
        nonlocal lines
        below = sorted(children.get(node, []), key=lambda at: -tree.strength[at])
        heights = [put(child, depth + 1) for child in below]
        if not heights:
            heights, lines = [float(lines)], lines + 1
        place[node] = depth, (heights[0] + heights[-1]) / 2
        return float(place[node, 1])

    put(children[-1][0], 0)
    most = max([*tree.strength, 1e-9])
    for child, parent in enumerate(tree.parent):
        if parent < 0:
            continue
        share = tree.strength[child] / most
        ends = place[[parent, child]]
        axes.plot(
            ends[:, 0], ends[:, 1], color=figures.REAL, linewidth=0.6 + 5 * share,
            alpha=0.35 + 0.6 * share, solid_capstyle="round", zorder=1,
        )  # fmt: skip
        middle = ends.mean(axis=0)
        axes.text(
            *middle, f"{tree.strength[child]:.2g}", fontsize=7, ha="center", va="center", zorder=3,
            bbox={"facecolor": figures.PAPER, "edgecolor": "none", "pad": 0.6},
        )  # fmt: skip
    for at, name in enumerate(tree.names):
        edge = figures.MODEL if name == label else figures.INK
        axes.text(
            *place[at], shortened(name, 18), fontsize=8, ha="center", va="center", zorder=4,
            bbox={"boxstyle": "round", "facecolor": figures.PAPER, "edgecolor": edge},
        )  # fmt: skip
    axes.set(xlim=(-0.45, place[:, 0].max() + 0.45), ylim=(lines - 0.3, -0.7))
    axes.axis("off")


def tree_size(tree: Tree) -> tuple[float, float]:
    """Returns width and height in inches that let every name be read."""
    depth = [0] * len(tree.names)
    for at in range(len(tree.names)):
        node = at
        while tree.parent[node] >= 0:
            node, depth[at] = tree.parent[node], depth[at] + 1
    leaves = len(set(range(len(tree.names))) - set(tree.parent))
    return 1.6 + 1.5 * max(depth), 0.8 + 0.34 * leaves


# --- networks of sums and products ----------------------------------------------------------------


@dataclass(frozen=True)
class Node:
    """One node of a drawing, which may stand for several that look alike.

    Attributes:
        kind: "sum", "product" or "leaf".
        text: of a leaf.
        colour: of a leaf.
        children: numbers of the nodes below.
        count: how many nodes it stands for.
    """

    kind: str
    text: str = ""
    colour: str = SERVER_COLOUR
    children: tuple[int, ...] = ()
    count: int = 1


def network(structure: Any, leaves: Sequence[tuple[str, str]], *, merge: bool) -> list[Node]:
    """Returns the nodes of a structure for drawing, children before parents, the root last.

    Args:
        structure: flat arrays of sums and products.
        leaves: text and colour of every leaf.
        merge: whether nodes that look alike, with all that is below them, become one.
    """
    nodes: list[Node] = []
    known: dict[tuple[Any, ...], int] = {}
    at_of: list[int] = []
    for number in range(structure.n_leaves + structure.is_sum.size):
        if number < structure.n_leaves:
            text, colour = leaves[number]
            node = Node("leaf", text, colour)
        else:
            inner = number - structure.n_leaves
            edges = structure.child[structure.first_edge[inner] : structure.first_edge[inner + 1]]
            below = tuple(dict.fromkeys(sorted(at_of[int(child)] for child in edges)))
            node = Node("sum" if structure.is_sum[inner] else "product", children=below)
        key = (node.kind, node.text, node.children)
        if merge and key in known:
            at = known[key]
            nodes[at] = Node(node.kind, node.text, node.colour, node.children, nodes[at].count + 1)
        else:
            at = known[key] = len(nodes)
            nodes.append(node)
        at_of.append(at)
    return nodes


def _places(nodes: Sequence[Node]) -> FloatArray:
    """Where nodes are drawn (n, 2): leaves side by side, parents above the middle of theirs."""
    place = np.zeros((len(nodes), 2))
    order: list[int] = []
    stack, seen = [len(nodes) - 1], set()
    while stack:
        at = stack.pop()
        if at in seen:
            continue
        seen.add(at)
        if not nodes[at].children:
            order.append(at)
        stack += sorted(nodes[at].children, reverse=True)
    for x, leaf in enumerate(order):
        place[leaf, 0] = x
    for at, node in enumerate(nodes):  # children come first
        if node.children:
            place[at, 1] = 1 + max(place[child, 1] for child in node.children)
            place[at, 0] = np.mean([place[child, 0] for child in node.children])
    for level in np.unique(place[:, 1]):
        if level > 0:
            row = [at for at in np.argsort(place[:, 0]) if place[at, 1] == level]
            for left, right in pairwise(row):
                place[right, 0] = max(place[right, 0], place[left, 0] + 0.5)
    return place


def paint_network(axes: Any, nodes: Sequence[Node]) -> None:
    """Draws nodes with the root on top: + for sums, x for products, boxes for leaves."""
    place = _places(nodes)
    small = sum(node.kind == "leaf" for node in nodes) > 20
    for at, node in enumerate(nodes):
        for child in node.children:
            axes.plot(
                place[[at, child], 0], place[[at, child], 1], color=figures.INK, linewidth=0.7,
                alpha=0.6, zorder=1,
            )  # fmt: skip
    for at, node in enumerate(nodes):
        many = f"({node.count}x)" if node.count > 1 else ""
        if node.kind == "leaf":
            models = f"\n{node.count} models" if many and node.colour != SERVER_COLOUR else ""
            axes.text(
                *place[at], node.text + models,
                fontsize=6 if small else 8, ha="center", va="top", zorder=3, linespacing=1.3,
                rotation=90 if small else 0, color="#ffffff",
                bbox={"boxstyle": "round", "facecolor": node.colour, "edgecolor": "none"},
            )  # fmt: skip
            continue
        axes.text(
            *place[at], "+" if node.kind == "sum" else "\u00d7", fontsize=12, ha="center",
            va="center", zorder=3,
            bbox={"boxstyle": "circle", "facecolor": figures.PAPER, "edgecolor": figures.INK},
        )  # fmt: skip
        if many:
            axes.text(place[at, 0] + 0.13, place[at, 1] + 0.12, many, fontsize=7, zorder=3)
    top, right = place[:, 1].max(), place[:, 0].max()
    axes.set(xlim=(-0.6, right + 0.6), ylim=(-1.2 if small else -0.75, top + 0.4))
    axes.axis("off")


def network_size(nodes: Sequence[Node]) -> tuple[float, float]:
    """Returns width and height in inches that let every leaf be read."""
    leaves = sum(node.kind == "leaf" for node in nodes)
    width = 0.35 if leaves > 20 else 1.5
    depth = float(_places(nodes)[:, 1].max())
    return max(4.0, 0.6 + width * leaves), 1.6 + 0.85 * depth


def leaf_text(owner: str, names: Sequence[str]) -> str:
    """Returns a client and its columns in a few short lines."""
    shown = [shortened(name, 16) for name in names[:NAMES_IN_LEAF]]
    if len(names) > NAMES_IN_LEAF:
        shown[-1] = f"+ {len(names) - NAMES_IN_LEAF + 1} more"
    return "\n".join([shortened(owner, 18), *shown])


def owner_colours(owners: Sequence[str], server: str) -> dict[str, str]:
    """Returns a colour for every client; the server's own nodes are grey."""
    clients = [owner for owner in dict.fromkeys(owners) if owner != server]
    found = {owner: COLOURS[at % len(COLOURS)] for at, owner in enumerate(sorted(clients))}
    return {**found, server: SERVER_COLOUR}


def save(path: str | Path, size: tuple[float, float], title: str, paint: Any) -> None:
    """Writes a drawing to a file: PNG, SVG or PDF by its ending.

    Args:
        path: of the file.
        size: width and height in inches.
        title: written above the drawing.
        paint: a function that draws on axes.
    """
    if not isinstance(path, str | Path):
        raise StorageError(f"draw takes the path of a file, found {type(path).__name__}")
    target = Path(path)
    if target.suffix.lower() not in ENDINGS:
        raise StorageError(
            f"the picture {target} cannot be written: its name ends in one of {', '.join(ENDINGS)}"
        )
    try:
        with figures.figure(size[0], size[1] + 0.3, title) as drawn:
            paint(drawn.axes)
            drawn.axes.set_title(title, fontsize=10, wrap=True)
            drawn.save(target)
    except (ValueError, OSError) as error:
        why = getattr(error, "strerror", None) or error
        raise StorageError(f"the picture {target} cannot be written: {why}") from None

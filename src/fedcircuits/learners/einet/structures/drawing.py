"""Drawings of region graphs: who splits into whom, and where on the image the regions lie."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from matplotlib.collections import LineCollection
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.offsetbox import AnnotationBbox, OffsetImage
from numpy.typing import NDArray

from fedcircuits.learners.einet.structures.regions import RegionGraph

Place = tuple[int, int, str]
# Regions up to which each is labelled by its variables.
LABELLED = 40
# Points along the longer side of a region's small picture of the image.
THUMBNAIL = 22.0
EDGE_COLOUR, MAP = "#5b6b7f", "viridis"
# Numbers of neighbouring colours that lie far apart, so that neighbouring regions do not blend.
COLOURS = "tab20"


@dataclass(frozen=True, eq=False)
class Picture:
    """What is drawn of one region graph.

    Attributes:
        graph: The region graph.
        names: Names of the variables.
        places: Row, column and channel of every variable of an image, else None.
    """

    graph: RegionGraph
    names: Sequence[str]
    places: Sequence[Place] | None = None

    @cached_property
    def edges(self) -> NDArray[np.int64]:
        """Pairs of a region and a child region, each once, (edges, 2)."""
        pairs = {(p.region, child) for p in self.graph.partitions for child in p.children}
        return np.array(sorted(pairs), dtype=np.int64).reshape(-1, 2)

    @cached_property
    def is_tree(self) -> bool:
        """Whether no region is a child of two."""
        return len(np.unique(self.edges[:, 1])) == len(self.edges)

    def positions(self) -> NDArray[np.float64]:
        """Where each region is drawn, (regions, 2): root on top."""
        return self._as_tree() if self.is_tree else self._by_level()

    def _as_tree(self) -> NDArray[np.float64]:
        """Leaves side by side in the order of a walk, parents above their middle."""
        children: list[list[int]] = [[] for _ in self.graph.scopes]
        for parent, child in self.edges.tolist():
            children[parent].append(child)
        at = np.zeros((len(children), 2))
        order = [self.graph.root]
        for region in order:  # parents before children
            at[children[region], 1] = at[region, 1] - 1
            order.extend(children[region])
        size = np.ones(len(children))  # leaf regions below
        for region in reversed(order):
            if children[region]:
                size[region] = size[children[region]].sum()
        left = np.zeros(len(children))
        for region in order:
            # Small subtrees first: chains then run along the side instead of crossing.
            start = left[region]
            for child in sorted(children[region], key=lambda c: (size[c], c)):
                left[child], start = start, start + size[child]
        for region in reversed(order):
            below = children[region]
            at[region, 0] = at[below, 0].mean() if below else left[region] + 0.5
        return at

    def _by_level(self) -> NDArray[np.float64]:
        """Levels as rows; within a row by shape and place, evenly spread."""
        levels = self.graph.levels
        at = np.zeros((len(levels), 2))
        rows: dict[int, list[int]] = {}
        for region, level in levels.items():
            rows.setdefault(level, []).append(region)
        for level, regions in rows.items():
            ordered = sorted(regions, key=lambda r: (self._shape(r), self.graph.scopes[r]))
            n = len(ordered)
            at[ordered, 0] = (np.arange(n) + 0.5) / n
            at[ordered, 1] = level
        return at

    def _shape(self, region: int) -> int:
        """Height less width of a region of an image; 0 elsewhere."""
        if self.places is None:
            return 0
        where = np.array([self.places[v][:2] for v in self.graph.scopes[region]])
        height, width = where.max(0) - where.min(0)
        return int(height - width)

    def label(self, region: int) -> str:
        """A region's variables, a few of them by name."""
        scope = [self.names[v] for v in self.graph.scopes[region]]
        return ", ".join(scope) if len(scope) <= 3 else f"{len(scope)} variables"


def draw(picture: Picture, title: str = "") -> Figure:
    """The region graph, and for images a second panel: the regions on the image.

    Args:
        picture: What to draw.
        title: Words above it.

    Returns:
        A figure; `savefig` writes it as PNG, SVG or PDF.
    """
    on_image = picture.places is not None
    figure = Figure(figsize=(13.5 if on_image else 9.5, 6.2), layout="constrained", dpi=150)
    widths = [1.25, 1.0] if on_image else [1.0]
    axes = figure.subplots(1, len(widths), width_ratios=widths, squeeze=False)[0]
    _draw_graph(axes[0], picture)
    if on_image:
        _draw_image(axes[1], picture)
    figure.suptitle(title or picture.graph.summary().partition("\n")[0], fontsize=12)
    return figure


def _draw_graph(ax: Any, picture: Picture) -> None:
    """Regions as dots, larger for more variables; lines to the regions they split into."""
    graph, at = picture.graph, picture.positions()
    n_edges = max(1, len(picture.edges))
    alpha = float(np.clip(900 / n_edges, 0.05, 0.8))
    lines = LineCollection(
        list(at[picture.edges]), colors=EDGE_COLOUR, linewidths=0.6, alpha=alpha, zorder=1
    )
    ax.add_collection(lines)
    share = np.array([len(scope) for scope in graph.scopes]) / graph.n_variables
    few = len(graph.scopes) <= LABELLED
    widest = np.unique(at[:, 1], return_counts=True)[1].max()
    base = float(np.clip((250 / widest) ** 2, 3.0, 40.0))  # points squared: dots stay apart
    dots = ax.scatter(
        at[:, 0], at[:, 1], s=base * (1 + 2 * np.sqrt(share)), c=share, cmap=MAP, zorder=2,
        edgecolors="white", linewidths=0.3, vmin=0, vmax=1,
    )  # fmt: skip
    if few:
        for region, spot in enumerate(at):
            _mark(ax, picture, region, spot)
    ax.margins(0.06, 0.1 if few else 0.04)
    ax.set_xticks([])
    for side in ("top", "right", "bottom"):
        ax.spines[side].set_visible(False)
    # Trees count steps below the root, other graphs the levels above the leaves.
    ax.set_ylabel("steps below the root" if picture.is_tree else "level above the leaf regions")
    ax.yaxis.get_major_locator().set_params(integer=True)
    if picture.is_tree:
        ax.yaxis.set_major_formatter(lambda y, _: f"{abs(y):.0f}")
    ax.set_title("regions and how they split", fontsize=10)
    if not few:
        bar = ax.figure.colorbar(dots, ax=ax, shrink=0.5, pad=0.01)
        bar.set_label("share of the variables", fontsize=8)
        bar.ax.tick_params(labelsize=7)


def _mark(ax: Any, picture: Picture, region: int, spot: NDArray[np.float64]) -> None:
    """A region's variables: where they lie on the image, or their names."""
    if picture.places is None:
        ax.annotate(
            picture.label(region), spot, xytext=(0, -9), textcoords="offset points", ha="center",
            va="top", fontsize=7, zorder=4,
            bbox={"boxstyle": "square,pad=0.1", "fc": "white", "ec": "none", "alpha": 0.85},
        )  # fmt: skip
        return
    top, bottom, left, right = _extent(picture.places)
    mask = np.zeros((bottom - top, right - left))
    for v in picture.graph.scopes[region]:
        row, column, _ = picture.places[v]
        mask[row - top, column - left] = 1.0
    small = OffsetImage(
        mask, zoom=THUMBNAIL / max(mask.shape), cmap="Blues", norm=Normalize(0, 1.5)
    )
    frame = {"edgecolor": EDGE_COLOUR, "linewidth": 0.6}
    ax.add_artist(AnnotationBbox(small, tuple(spot), pad=0.1, bboxprops=frame, zorder=4))


def _extent(places: Sequence[Place]) -> tuple[int, int, int, int]:
    """First and one past the last row and column."""
    where = np.array([place[:2] for place in places])
    (top, left), (bottom, right) = where.min(0), where.max(0) + 1
    return int(top), int(bottom), int(left), int(right)


def _draw_image(ax: Any, picture: Picture) -> None:
    """What the structure does on the image; a hidden tree's edges, or the leaf regions."""
    assert picture.places is not None
    if picture.graph.kind == "hclt":
        _draw_tree_on_pixels(ax, picture)
    else:
        _draw_leaf_regions(ax, picture)


def _owners(picture: Picture) -> dict[int, int]:
    """The variable whose message each region is: hidden trees have one leaf child a region."""
    graph = picture.graph
    owners = {}
    for partition in graph.partitions:
        leaf = next(c for c in partition.children if not graph.partitions_of[c])
        owners[partition.region] = graph.scopes[leaf][0]
    return owners


def _draw_tree_on_pixels(ax: Any, picture: Picture) -> None:
    """Lines between the pixels whose hidden states are linked, coloured by distance to the root."""
    places, graph, owners = picture.places, picture.graph, _owners(picture)
    assert places is not None
    depth = {graph.root: 0}
    pending = [graph.root]
    lines, depths = [], []
    # Channels of one pixel are drawn beside each other.
    channels = sorted({place[2] for place in places})
    shift = {c: (at - (len(channels) - 1) / 2) * 0.22 for at, c in enumerate(channels)}

    def spot(variable: int) -> tuple[float, float]:
        row, column, channel = places[variable]
        return column + shift[channel], float(row)

    for region in pending:
        for number in graph.partitions_of[region]:
            for child in graph.partitions[number].children:
                if child in owners:
                    depth[child] = depth[region] + 1
                    pending.append(child)
                    lines.append([spot(owners[region]), spot(owners[child])])
                    depths.append(depth[child])
    ends = np.array(lines).reshape(-1, 2, 2)
    # Links across the image (constant pixels hang anywhere) must not hide those of neighbours.
    far = np.linalg.norm(ends[:, 0] - ends[:, 1], axis=1) > 3
    drawn = LineCollection(
        list(ends), array=np.array(depths), cmap=MAP, linewidths=np.where(far, 0.3, 1.4)
    )
    ax.add_collection(drawn)
    spots = np.array([spot(v) for v in range(len(places))])
    ax.scatter(spots[:, 0], spots[:, 1], s=2.5, c="#333333", zorder=3, linewidths=0)
    root = spot(owners[graph.root])
    ax.scatter(*root, s=60, marker="*", c="crimson", zorder=4, label="root")
    ax.legend(loc="upper right", fontsize=8, frameon=True)
    top, bottom, left, right = _extent(places)
    ax.set(xlim=(left - 1, right), ylim=(bottom, top - 1), aspect="equal")
    ax.tick_params(labelsize=7)
    ax.set_title("hidden tree over the pixels", fontsize=10)
    bar = ax.figure.colorbar(drawn, ax=ax, shrink=0.5, pad=0.01)
    bar.set_label("links from the root", fontsize=8)
    bar.ax.tick_params(labelsize=7)


def _draw_leaf_regions(ax: Any, picture: Picture) -> None:
    """Pixels coloured by leaf region; a tile for each set of leaf regions that covers the image."""
    assert picture.places is not None
    top, bottom, left, right = _extent(picture.places)
    covers = _covers(picture.graph)
    n_wide = int(np.ceil(np.sqrt(len(covers))))
    n_tall = int(np.ceil(len(covers) / n_wide))
    height, width, gap = bottom - top, right - left, 1 if len(covers) > 1 else 0
    canvas = np.full((n_tall * (height + gap) - gap, n_wide * (width + gap) - gap), np.nan)
    for number, cover in enumerate(covers):
        row, column = divmod(number, n_wide)
        first = (row * (height + gap) - top, column * (width + gap) - left)
        for colour, region in enumerate(cover):
            for v in picture.graph.scopes[region]:
                y, x, _ = picture.places[v]
                canvas[first[0] + y, first[1] + x] = colour * 7 % 20
    ax.imshow(canvas, cmap=COLOURS, vmin=0, vmax=19, interpolation="nearest")
    ax.set_xticks([])
    ax.set_yticks([])
    for spine in ax.spines.values():
        spine.set_visible(False)
    n = len(picture.graph.leaf_regions)
    words = f"{n} leaf regions" + (f" in {len(covers)} repetitions" if len(covers) > 1 else "")
    ax.set_title(f"{words}, by colour", fontsize=10)


def _covers(graph: RegionGraph) -> list[list[int]]:
    """Leaf regions in sets of disjoint ones, each as large as can be."""
    covers: list[tuple[set[int], list[int]]] = []
    for region in graph.leaf_regions:
        scope = set(graph.scopes[region])
        for taken, found in covers:
            if not taken & scope:
                taken |= scope
                found.append(region)
                break
        else:
            covers.append((scope, [region]))
    return [found for _, found in covers]

"""Layout: a region graph laid out in flat arrays, level by level, for the tensor passes.

Leaf regions come first, then inner regions by level, the root last (it has one output per class
rather than K). Partitions follow the order of their regions, so that a group (regions of one
level with equally many partitions) is one slice of every array. The graph need not be kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fedcircuits.learners.einet.structures.regions import Partition, RegionGraph, Scope

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Group:
    """Regions of one level with equally many partitions of like arity; never the root.

    Attributes:
        regions: First and one past the last region.
        partitions: First and one past the last partition.
        n_splits: Partitions of each region.
        arity: Most children of a partition here.
        level: Level of the regions; groups of one level do not depend on each other.
    """

    regions: tuple[int, int]
    partitions: tuple[int, int]
    n_splits: int
    arity: int
    level: int


@dataclass(frozen=True, eq=False)
class Layout:
    """Index arrays of a region graph; the padding child is `n_regions`, a region of value one.

    Attributes:
        n_variables: Variables of the circuit.
        n_leaves: Leaf regions, numbered first.
        n_regions: Leaf and inner regions without the root.
        children: Child regions, padded with `n_regions`, shape (partitions, arity).
        owner: Region each partition belongs to, shape (partitions,).
        root_children: Child regions of the root's partitions, shape (root partitions, arity).
        slot_variable: Variable of each leaf slot; a slot is a variable in a leaf region, (slots,).
        slot_region: Leaf region of each slot, non-decreasing, (slots,).
        groups: The inner regions in evaluation order.
        kind: Name of the structure.
    """

    n_variables: int
    n_leaves: int
    n_regions: int
    children: Ints
    owner: Ints
    root_children: Ints
    slot_variable: Ints
    slot_region: Ints
    groups: tuple[Group, ...]
    kind: str

    @property
    def n_partitions(self) -> int:
        """Partitions of inner regions, the root's not counted."""
        return len(self.owner)

    @property
    def binary(self) -> bool:
        """Whether every partition has exactly two children, as a Tucker layer needs."""
        inner = self.children.shape[1] == 2 or not len(self.owner)
        padded = bool((self.children == self.n_regions).any())
        root = self.root_children.shape[1] == 2
        return inner and not padded and root and not (self.root_children == self.n_regions).any()

    @cached_property
    def slots_per_leaf(self) -> int | None:
        """Variables of each leaf region if all have equally many, else None."""
        counts = np.bincount(self.slot_region, minlength=self.n_leaves)
        return int(counts[0]) if (counts == counts[0]).all() else None

    @cached_property
    def parents(self) -> tuple[Ints, Ints]:
        """Where each region is used: offsets (regions + 1,) into flat partition-slot numbers.

        Slot number `p * arity + a` says that the region is child `a` of partition `p`. The root's
        partitions are not among them.
        """
        flat = self.children.ravel()
        order = np.argsort(flat, kind="stable")
        kept = order[flat[order] < self.n_regions]
        counts = np.bincount(flat[kept], minlength=self.n_regions)
        return np.concatenate([[0], np.cumsum(counts)]), kept


def lay_out(graph: RegionGraph) -> Layout:
    """Flat arrays of a region graph."""
    levels, splits = graph.levels, graph.partitions_of
    leaves = list(graph.leaf_regions)
    inner = [r for r in range(len(graph.scopes)) if splits[r] and r != graph.root]

    def key_of(region: int) -> tuple[int, int, int]:
        arity = max(len(graph.partitions[p].children) for p in splits[region])
        # Powers of two bound the padding where a hidden tree has a few very wide nodes.
        return levels[region], len(splits[region]), (arity - 1).bit_length()

    inner.sort(key=lambda r: (*key_of(r), r))
    new = {region: position for position, region in enumerate([*leaves, *inner])}
    n_regions = len(new)

    def padded(rows: list[tuple[int, ...]]) -> Ints:
        arity = max((len(row) for row in rows), default=2)
        table = np.full((len(rows), arity), n_regions, dtype=np.int64)
        for number, row in enumerate(rows):
            table[number, : len(row)] = [new[child] for child in row]
        return table

    rows = [graph.partitions[p].children for region in inner for p in splits[region]]
    owner = [new[region] for region in inner for _ in splits[region]]
    if splits[graph.root]:
        root_rows = [graph.partitions[p].children for p in splits[graph.root]]
    else:  # a root without a split: a mixture over the one leaf region
        root_rows = [(graph.root,)]

    groups: list[Group] = []
    first_partition, start = 0, 0
    while start < len(inner):
        key = key_of(inner[start])
        stop = start
        while stop < len(inner) and key_of(inner[stop]) == key:
            stop += 1
        last_partition = first_partition + (stop - start) * key[1]
        arity = max(len(row) for row in rows[first_partition:last_partition])
        regions = (len(leaves) + start, len(leaves) + stop)
        span = (first_partition, last_partition)
        groups.append(Group(regions, span, key[1], arity, key[0]))
        first_partition, start = last_partition, stop

    return Layout(
        n_variables=graph.n_variables,
        n_leaves=len(leaves),
        n_regions=n_regions,
        children=padded(rows),
        owner=np.asarray(owner, dtype=np.int64),
        root_children=padded(root_rows),
        slot_variable=np.asarray([v for r in leaves for v in graph.scopes[r]], dtype=np.int64),
        slot_region=np.asarray(
            [i for i, r in enumerate(leaves) for _ in graph.scopes[r]], dtype=np.int64
        ),
        groups=tuple(groups),
        kind=graph.kind,
    )


def region_graph(layout: Layout) -> RegionGraph:
    """The region graph of a layout: the inverse of `lay_out`, up to the numbering of regions.

    The root is the last region, unless it is itself the one leaf region.
    """
    scopes: list[Scope] = []
    for leaf in range(layout.n_leaves):
        scopes.append(tuple(sorted(layout.slot_variable[layout.slot_region == leaf].tolist())))
    partitions: list[Partition] = []

    def real(row: Ints) -> tuple[int, ...]:
        return tuple(int(child) for child in row if child < layout.n_regions)

    for number, region in enumerate(layout.owner.tolist()):
        children = real(layout.children[number])
        if region == len(scopes):
            scopes.append(tuple(sorted(v for child in children for v in scopes[child])))
        partitions.append(Partition(region, children))
    tops = [real(row) for row in layout.root_children]
    root = len(scopes)
    if tops == [(0,)] and root == 1:
        return RegionGraph(layout.n_variables, tuple(scopes), (), 0, layout.kind)
    scopes.append(tuple(range(layout.n_variables)))
    partitions += [Partition(root, children) for children in tops]
    return RegionGraph(layout.n_variables, tuple(scopes), tuple(partitions), root, layout.kind)

"""Region graphs: which sets of variables a tensorised circuit has nodes for, and how they split.

A region is a set of variables; a partition splits one region into disjoint child regions. A region
graph is the structure of an EiNet before it has a width, a layer kind or a single parameter.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from fedcircuits.errors import StructureError

Scope = tuple[int, ...]


@dataclass(frozen=True)
class Partition:
    """One way to split a region.

    Attributes:
        region: Index of the region that is split.
        children: Indices of the disjoint child regions, at least one (a single child only where
            the child is another region over the same variables, as in a chain of sums).
    """

    region: int
    children: tuple[int, ...]


@dataclass(frozen=True)
class RegionGraph:
    """An immutable region graph with one root; checked once, at construction.

    Attributes:
        n_variables: Variables are 0 .. n_variables - 1.
        scopes: Sorted variables of every region.
        partitions: Splits; a region without one is a leaf region.
        root: Index of the region over all variables.
        kind: The structure's name, for drawing and saving.
    """

    n_variables: int
    scopes: tuple[Scope, ...]
    partitions: tuple[Partition, ...]
    root: int
    kind: str = "custom"

    def __post_init__(self) -> None:
        n_regions = len(self.scopes)
        if not 0 <= self.root < n_regions:
            raise StructureError([f"root is region {self.root} of {n_regions} regions"])
        if self.scopes[self.root] != tuple(range(self.n_variables)):
            covered = len(self.scopes[self.root])
            raise StructureError([f"the root covers {covered} of {self.n_variables} variables"])
        faults = []
        for number, partition in enumerate(self.partitions):
            union: list[int] = []
            for child in partition.children:
                union.extend(self.scopes[child])
            if len(set(union)) != len(union):
                faults.append(f"partition {number}: children overlap, not decomposable")
            elif tuple(sorted(union)) != self.scopes[partition.region]:
                faults.append(f"partition {number}: children do not cover the region")
        if faults:
            raise StructureError(faults)
        if len(self.levels) != n_regions:
            raise StructureError(["the region graph has a region the root does not reach"])

    @cached_property
    def partitions_of(self) -> tuple[tuple[int, ...], ...]:
        """Partition indices of every region."""
        found: list[list[int]] = [[] for _ in self.scopes]
        for number, partition in enumerate(self.partitions):
            found[partition.region].append(number)
        return tuple(tuple(numbers) for numbers in found)

    @cached_property
    def levels(self) -> dict[int, int]:
        """Level of every region reachable from the root: 0 at leaves, else above all children."""
        level: dict[int, int] = {}
        stack = [self.root]
        on_path: set[int] = set()
        while stack:  # iterative: hidden trees are hundreds of regions deep
            region = stack[-1]
            children = {
                child
                for number in self.partitions_of[region]
                for child in self.partitions[number].children
            }
            waiting = [child for child in sorted(children) if child not in level]
            if waiting and region in on_path and any(child in on_path for child in waiting):
                raise StructureError([f"region {region} is its own descendant"])
            if waiting:
                on_path.add(region)
                stack.extend(waiting)
                continue
            stack.pop()
            on_path.discard(region)
            level[region] = 1 + max((level[child] for child in children), default=-1)
        return level

    @property
    def leaf_regions(self) -> tuple[int, ...]:
        """Regions without a partition, in index order."""
        return tuple(r for r, numbers in enumerate(self.partitions_of) if not numbers)

    def summary(self) -> str:
        """One line per level: how many regions, partitions and variables; for `inspect`."""
        by_level: dict[int, list[int]] = {}
        for region, level in self.levels.items():
            by_level.setdefault(level, []).append(region)
        lines = [
            f"{self.kind}: {self.n_variables} variables, {len(self.scopes)} regions, "
            f"{len(self.partitions)} partitions, {max(by_level)} levels"
        ]
        for level in sorted(by_level, reverse=True):
            regions = by_level[level]
            sizes = [len(self.scopes[r]) for r in regions]
            splits = sum(len(self.partitions_of[r]) for r in regions)
            span = f"{min(sizes)}" if min(sizes) == max(sizes) else f"{min(sizes)}-{max(sizes)}"
            lines.append(
                f"  level {level:3d}: {len(regions):6d} regions of {span} variables, "
                f"{splits:6d} partitions"
            )
        return "\n".join(lines)


class GraphBuilder:
    """Collects regions and partitions while a structure is being made.

    Regions are identified by a caller's key, so that a Poon-Domingos rectangle is one region
    however often it is met, while two repetitions of a random tree keep theirs apart.
    """

    def __init__(self, n_variables: int) -> None:
        self._n_variables = n_variables
        self._scopes: list[Scope] = []
        self._index: dict[object, int] = {}
        self._partitions: list[Partition] = []

    def region(self, key: object, variables: Iterable[int]) -> int:
        """Index of the region with this key, made if new."""
        if key not in self._index:
            self._index[key] = len(self._scopes)
            self._scopes.append(tuple(sorted(variables)))
        return self._index[key]

    def split(self, region: int, children: Sequence[int]) -> None:
        """Adds one partition of a region."""
        self._partitions.append(Partition(region, tuple(children)))

    def finish(self, root: int, kind: str) -> RegionGraph:
        """The checked region graph."""
        return RegionGraph(
            self._n_variables, tuple(self._scopes), tuple(self._partitions), root, kind
        )

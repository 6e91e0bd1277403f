"""The index arrays and launch shapes that all kernels of one network share."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedcircuits.learners.einet.network.layout import Layout

# Inputs of matrix products: float32, tf32, or bf16; sums are always float32.
IEEE, TF32, BF16 = 0, 1, 2
WIDE_TF32 = 256


@dataclass(frozen=True)
class Tuning:
    """Launch shapes; the defaults are the fastest of those tried on an H200.

    Attributes:
        rows: Rows of a tile, at most; None chooses by precision and width.
        wide: Columns of a CP tile, at most.
        forward: Warps and pipeline stages of the upward kernels.
        products: The same for the flows of products.
        update: The same for the update of weights; None chooses by size.
        slices: Slices of a Tucker partition's weights that one update program takes.
        update_rows: Rows a Tucker update keeps at once.
        fill: Programs a Tucker level should have; partitions are shared out until it does.
        leaf: Rows, columns and warps of the categorical update.
        trees: Whether the narrow part of a tree is walked subtree by subtree (`cp_tree`).
        walk: Warps of the kernels that do.
        beside: Whether CP weights are updated on a second stream, beside the leaves.
        update_wide: Rows and columns of a tile of weights that a CP update takes, at most.
    """

    rows: int | None = None
    wide: int = 64
    forward: tuple[int, int] = (4, 3)
    products: tuple[int, int] = (4, 3)
    update: tuple[int, int] | None = None
    slices: int = 8
    update_rows: int = 256
    fill: int = 264
    leaf: tuple[int, int, int] = (64, 64, 8)
    trees: bool = True
    walk: int = 8
    beside: bool = True
    update_wide: int = 64


@dataclass(frozen=True)
class Level:
    """Regions of one level: first and past-last region and partition."""

    regions: tuple[int, int]
    partitions: tuple[int, int]

    @property
    def n_regions(self) -> int:
        """Regions of the level."""
        return self.regions[1] - self.regions[0]

    @property
    def n_partitions(self) -> int:
        """Partitions of the level."""
        return self.partitions[1] - self.partitions[0]


def power_of_two(number: int, low: int, high: int) -> int:
    """The least power of two >= number, within low and high."""
    return max(low, min(high, 1 << (number - 1).bit_length()))


def levels_of(layout: Layout) -> tuple[Level, ...]:
    """The groups of a layout joined level by level: one launch covers regions of any shape."""
    merged: list[Level] = []
    seen = None
    for group in layout.groups:
        if group.level == seen:
            last = merged.pop()
            merged.append(
                Level(
                    (last.regions[0], group.regions[1]),
                    (last.partitions[0], group.partitions[1]),
                )
            )
        else:
            merged.append(Level(group.regions, group.partitions))
        seen = group.level
    return tuple(merged)


def slots_by_region(
    regions: NDArray[np.int64], slots: NDArray[np.int64], n_regions: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Flow slots grouped by the region they feed: offsets (n_regions + 1,) and slots.

    Args:
        regions: Region fed by each slot; `n_regions` is padding, (any,).
        slots: The slots, (any,).
        n_regions: Number of regions.
    """
    order = np.argsort(regions, kind="stable")
    order = order[regions[order] < n_regions]
    starts = np.searchsorted(regions[order], np.arange(n_regions + 1))
    return starts, slots[order]


class LaunchPlan:
    """Index arrays of a layout on a device, and sizes.

    Args:
        layout: The layout.
        width: Nodes per region.
        batch: Rows of every batch.
        precision: 0 float32, 1 tf32, 2 bf16 inputs of matrix products.
        tuning: Launch shapes.
        device: Where the kernels run.
    """

    def __init__(
        self,
        layout: Layout,
        width: int,
        batch: int,
        precision: int,
        tuning: Tuning,
        device: torch.device,
    ) -> None:
        self.layout, self.width, self.batch = layout, width, batch
        self.precision, self.tuning, self.device = precision, tuning, device
        self.n_inner = layout.n_regions - layout.n_leaves
        self.levels = levels_of(layout)
        first = np.searchsorted(layout.owner, np.arange(layout.n_regions + 1))
        self.first, self.owner = self.ints(first), self.ints(layout.owner)
        self.children = self.ints(layout.children)
        counts = (layout.children < layout.n_regions).sum(1)
        self.n_children = self.ints(counts)
        self.arity = layout.children.shape[1]
        self.uniform_arity = self.arity if bool((counts == self.arity).all()) else 0
        starts = np.searchsorted(layout.slot_region, np.arange(layout.n_leaves + 1))
        self.slot_start, self.slot_region = self.ints(starts), self.ints(layout.slot_region)
        self.slot_variable = self.ints(layout.slot_variable)
        self.block = power_of_two(width, 16, tuning.wide)
        # Wide CP tiles in tf32 need so many registers that half the rows are faster.
        most = tuning.rows or (32 if precision == TF32 and width >= WIDE_TF32 else 64)
        self.rows = power_of_two(batch, 16, most)
        self.n_tiles = -(-batch // self.rows)
        splits = np.diff(first)[layout.n_leaves :]
        self.n_splits = torch.as_tensor(splits, dtype=torch.float32, device=device).unsqueeze(1)

    def ints(self, array: NDArray[np.int64]) -> Tensor:
        """Indices on the device, int32."""
        return torch.as_tensor(np.ascontiguousarray(array, dtype=np.int32), device=self.device)

    def floats(self, *shape: int, kind: torch.dtype = torch.float32) -> Tensor:
        """A buffer of zeros on the device."""
        return torch.zeros(shape, dtype=kind, device=self.device)

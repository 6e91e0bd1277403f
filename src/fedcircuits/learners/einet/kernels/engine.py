"""Engine: one EM step, or one likelihood, of a fixed batch size as a fixed series of launches.

All buffers are allocated once, nothing depends on values on the host, so the whole step can be
captured in a CUDA graph. Weights are read in the upward pass, read again for the flows of the
products and read and written once by the update. With bf16 inputs a Tucker network keeps a bf16
copy of its weights: the first two reads take half the bytes and need no conversion.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from .. import inner
from ..em import EMSettings, Masses
from ..flows import Counts, class_flow, leaf_statistics
from ..forward import class_mixture, leaf_values, root_group
from ..leaves import Categorical, DiscretisedGaussian, Gaussian
from ..network import Network, Parameters
from . import cp, leaves, tucker

PRECISIONS = {"float32": cp.IEEE, "tf32": cp.TF32, "bf16": cp.BF16}


@dataclass(frozen=True)
class Tuning:
    """Launch shapes; the defaults are the fastest of those tried on an H200.

    Attributes:
        rows: Rows of a tile, at most.
        wide: Columns of a CP tile, at most.
        forward: Warps and pipeline stages of the upward kernels.
        products: The same for the flows of products.
        update: The same for the update of weights; None chooses by size.
        slices: Slices of a Tucker partition's weights that one update program takes.
        update_rows: Rows a Tucker update keeps at once.
        leaf: Rows, columns and warps of the categorical update.
    """

    rows: int = 64
    wide: int = 64
    forward: tuple[int, int] = (4, 3)
    products: tuple[int, int] = (4, 3)
    update: tuple[int, int] | None = None
    slices: int = 8
    update_rows: int = 256
    leaf: tuple[int, int, int] = (64, 64, 8)


@dataclass(frozen=True)
class Level:
    """Regions of one level: first and past-last region and partition."""

    regions: tuple[int, int]
    partitions: tuple[int, int]


def power_of_two(number: int, low: int, high: int) -> int:
    """The least power of two >= number, within low and high."""
    return max(low, min(high, 1 << (number - 1).bit_length()))


def _levels(network: Network) -> list[Level]:
    merged: list[Level] = []
    seen = None
    for group in network.layout.groups:
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
    return merged


class Engine:
    """Buffers and launches for one network and batch size; parameters are updated in place.

    Args:
        network: The network.
        params: Its float32 parameters on the device, owned by the engine from now on.
        batch: Rows of every batch.
        precision: "float32", "tf32" or "bf16" inputs of matrix products; sums are float32.
        masked: Whether batches come with a mask of known values.
        training: Whether to allocate what flows need.
        tuning: Launch shapes.
    """

    def __init__(
        self,
        network: Network,
        params: Parameters,
        batch: int,
        precision: str = "tf32",
        masked: bool = False,
        training: bool = True,
        tuning: Tuning | None = None,
    ) -> None:
        layout, device, width = network.layout, params.device, network.width
        self.network, self.params, self.batch = network, params, batch
        self.masked = masked
        self.tuning = tuning = tuning or Tuning()
        self._precision = PRECISIONS[precision]
        self._tucker = network.layer == "tucker"
        self._levels = _levels(network)

        def ints(array: np.ndarray) -> Tensor:
            return torch.as_tensor(np.ascontiguousarray(array, dtype=np.int32), device=device)

        def floats(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.float32, device=device)

        n_regions, n_inner = layout.n_regions, layout.n_regions - layout.n_leaves
        first = np.searchsorted(layout.owner, np.arange(n_regions + 1))
        self._first, self._owner = ints(first), ints(layout.owner)
        self._children = ints(layout.children)
        counts = (layout.children < layout.n_regions).sum(1)
        self._n_children = ints(counts)
        self._arity = layout.children.shape[1]
        self._uniform = self._arity if bool((counts == self._arity).all()) else 0
        starts = np.searchsorted(layout.slot_region, np.arange(layout.n_leaves + 1))
        self._slot_start, self._slot_region = ints(starts), ints(layout.slot_region)
        self._slot_variable = ints(layout.slot_variable)
        self._values = floats(n_regions + 1, batch, width)
        self._top = floats(n_regions + 1, batch)
        self._block = power_of_two(width, 16, tuning.wide)
        self._rows = power_of_two(batch, 16, tuning.rows)
        self._n_tiles = -(-batch // self._rows)
        if self._tucker:
            largest = max((lv.partitions[1] - lv.partitions[0] for lv in self._levels), default=0)
            self._parts = floats(largest, batch, width)
            self._leaf_logs = floats(layout.n_leaves, batch, width)
        self._low = None
        if self._tucker and precision == "bf16":
            self._low = params.weights.bfloat16()
        if training:
            sides = 2 if self._tucker else 1
            n_root = len(layout.root_children)
            self._flow_in = floats((layout.n_partitions + n_root) * sides, batch, width)
            self._ratio = floats(n_inner, batch, width)
            self._flow_sums = floats(n_regions, self._n_tiles, width)
            starts, slots = self._parents()
            self._parent_start, self._parent_slot = ints(starts), ints(slots)
            splits = np.diff(first)[layout.n_leaves :]
            self._n_edges = torch.as_tensor(
                splits * network.edges, dtype=torch.float32, device=device
            ).unsqueeze(1)
            self._coefficients = [floats(n_inner, width) for _ in range(3)]
            self.masses = Masses.zeros(network, params)
            # On the device, so that a captured graph can be replayed with another step size.
            self.step_size = torch.ones((), dtype=torch.float32, device=device)

    def _parents(self) -> tuple[np.ndarray, np.ndarray]:
        """Rows of the product-flow buffer that feed each region, the root's partitions last."""
        layout = self.network.layout
        everything = [layout.children, layout.root_children]
        regions, slots = [], []
        base = 0
        for table in everything:
            partition = np.repeat(np.arange(len(table)), table.shape[1])
            side = np.tile(np.arange(table.shape[1]), len(table))
            slots.append(base + (2 * partition + side if self._tucker else partition))
            regions.append(table.ravel())
            base += len(table) * (2 if self._tucker else 1)
        region, slot = np.concatenate(regions), np.concatenate(slots)
        order = np.argsort(region, kind="stable")
        order = order[region[order] < layout.n_regions]
        starts = np.searchsorted(region[order], np.arange(layout.n_regions + 1))
        return starts, slot[order]

    # upward ---------------------------------------------------------------------------------

    def _leaf_forward(self, x: Tensor, known: Tensor | None) -> None:
        network, layout = self.network, self.network.layout
        target = self._leaf_logs if self._tucker else self._values
        family = network.blocks[0].family
        block, rows = self._block, self._rows
        grid = (layout.n_leaves, self._n_tiles, -(-network.width // block))
        params = self.params.leaves[0]
        mask = x if known is None else known
        sizes = (self.batch, x.shape[1], network.width)
        if len(network.blocks) == 1 and type(family) is Gaussian:
            leaves.gaussian_forward_kernel[grid](
                x, mask, params["mean"], params["variance"], target, self._slot_start,
                self._slot_variable, family.scale, *sizes, known is not None, rows, block,
            )  # fmt: skip
        elif len(network.blocks) == 1 and type(family) is Categorical:
            leaves.categorical_forward_kernel[grid](
                x, mask, params["probs"], target, self._slot_start, self._slot_variable, *sizes,
                family.n_categories, known is not None, rows, block,
            )  # fmt: skip
        else:
            target[: layout.n_leaves] = leaf_values(network, self.params, x, known)

    def forward(self, x: Tensor, known: Tensor | None = None) -> Tensor:
        """Log-values of the roots, (batch, classes), of rows (batch, variables)."""
        self._leaf_forward(x, known)
        if self._tucker:
            self._tucker_forward()
        else:
            self._cp_forward()
        step = inner.tucker_forward if self._tucker else inner.cp_forward
        values, children = self._root_inputs()
        return step(values, self.params.root, children, root_group(self.network))[0]

    def _cp_forward(self) -> None:
        width = self.network.width
        warps, stages = self.tuning.forward
        for level in self._levels:
            n_here = level.regions[1] - level.regions[0]
            rows, outs = self._tile(n_here, power_of_two(width, 16, 128))
            cp.cp_forward_kernel[(n_here, -(-self.batch // rows), -(-width // outs))](
                self._values, self._top, self.params.weights, self._children, self._n_children,
                self._arity, self._first, level.regions[0], self.batch, width, self._uniform,
                rows, outs, self._block, self._precision, num_warps=warps, num_stages=stages,
            )  # fmt: skip

    def _tile(self, n_programs: int, columns: int) -> tuple[int, int]:
        """Rows and columns of a tile, fewer where a level is too narrow to fill the device."""
        rows, width = self._rows, self.network.width
        while columns > 32 and n_programs * self._n_tiles * -(-width // columns) < 132:
            columns //= 2
        while rows > 16 and n_programs * -(-self.batch // rows) * -(-width // columns) < 132:
            rows //= 2
        return rows, columns

    def _tucker_forward(self) -> None:
        layout, width, batch = self.network.layout, self.network.width, self.batch
        wide = power_of_two(width, 16, 256)
        warps, stages = self.tuning.forward
        tucker.scale_kernel[(layout.n_leaves, self._n_tiles)](
            self._leaf_logs, self._values, self._top, batch, width, self._rows, wide
        )
        for level in self._levels:
            first, last = level.partitions
            tucker.tucker_forward_kernel[(self._n_tiles, last - first)](
                self._values, self._read_weights, self._parts, self._children, first, batch,
                width, self._rows, wide, self._precision, num_warps=warps, num_stages=stages,
            )  # fmt: skip
            tucker.tucker_combine_kernel[(level.regions[1] - level.regions[0], self._n_tiles)](
                self._parts, self._values, self._top, self._children, self._first,
                level.regions[0], first, batch, width, self._rows, wide,
            )  # fmt: skip

    def _root_inputs(self) -> tuple[Tensor, Tensor]:
        """Log-values and child indices for the root's own layer, which is small."""
        children = self.network.index("root_children", self._values.device)
        if not self._tucker:
            return self._values, children
        flat = children.reshape(-1)
        logs = torch.log(self._values[flat]) + self._top[flat].unsqueeze(2)
        return logs, torch.arange(len(flat), device=flat.device).view_as(children)

    # downward -------------------------------------------------------------------------------

    def _root_flows(self, root: Tensor, labels: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Flows below the root into the buffer; log-likelihoods, class flows, root counts."""
        total = class_mixture(root, self.params.prior, labels)
        classes = class_flow(root, self.params.prior, labels, total)
        values, children = self._root_inputs()
        counts = torch.empty_like(self.params.root)
        given = (
            root.unsqueeze(0), classes.unsqueeze(0), self.params.root, children,
            root_group(self.network), counts,
        )  # fmt: skip
        n_inner = self.network.layout.n_partitions
        if self._tucker:
            left, right = inner.tucker_product_flows(inner.Scaled.of(values), *given)
            self._flow_in[2 * n_inner :: 2] = left
            self._flow_in[2 * n_inner + 1 :: 2] = right
        else:
            products = inner.cp_product_flows(values, *given)
            self._flow_in[n_inner:] = products
        return total, classes, counts

    def _gather(self, start: int, stop: int, mode: int) -> None:
        """Flows of some regions: ratios of inner ones, plain flows of leaves over their values."""
        width = self.network.width
        into, skip = (self._ratio, self.network.layout.n_leaves) if mode else (self._values, 0)
        if stop > start:
            block = self._block if (stop - start) * self._n_tiles > 264 else min(self._block, 32)
            grid = (stop - start, self._n_tiles, -(-width // block))
            cp.gather_flow_kernel[grid](
                self._flow_in, self._values, self._top, into, self._flow_sums,
                self._parent_start, self._parent_slot, start, skip, self.batch, width,
                self._n_tiles,
                mode, 1, self._rows, block,
            )  # fmt: skip

    def _downward(self) -> None:
        """Flows of all inner regions."""
        width, n_leaves = self.network.width, self.network.layout.n_leaves
        wide = power_of_two(width, 16, 256)
        warps, stages = self.tuning.products
        for level in reversed(self._levels):
            self._gather(*level.regions, 2 if self._tucker else 1)
            first, last = level.partitions
            if self._tucker:
                tucker.tucker_product_flow_kernel[(self._n_tiles, last - first)](
                    self._values, self._top, self._read_weights, self._ratio, self._flow_in,
                    self._children, self._owner, first, self.batch, n_leaves, width, self._rows,
                    wide, self._precision, num_warps=warps, num_stages=stages,
                )  # fmt: skip
            else:
                rows, block = self._tile(last - first, self._block)
                grid = (last - first, -(-self.batch // rows), -(-width // block))
                cp.cp_product_flow_kernel[grid](
                    self._values, self._top, self.params.weights, self._ratio, self._flow_in,
                    self._children, self._n_children, self._arity, self._owner, first, self.batch,
                    n_leaves, width, self._uniform, rows, self._block, block, self._precision,
                    num_warps=warps, num_stages=stages,
                )  # fmt: skip

    @property
    def _read_weights(self) -> Tensor:
        return self.params.weights if self._low is None else self._low

    def _edges(self, counts: Tensor, accumulate: bool) -> None:
        layout, width = self.network.layout, self.network.width
        if not layout.n_partitions:
            return
        large = self.batch > 64 if self._tucker else width >= 128
        chosen = (8, 2 if self._tucker else 3) if large else (4, 3)
        warps, stages = self.tuning.update or chosen
        common = (self._ratio, counts, *self._coefficients, self._children)
        if self._tucker:
            wide, slices = power_of_two(width, 16, 256), min(self.tuning.slices, width)
            rows = power_of_two(self.batch, 16, self.tuning.update_rows)
            tucker.tucker_update_kernel[(-(-width // slices), layout.n_partitions)](
                self._values, self._top, self.params.weights, self._read_weights, *common,
                self._owner, self.batch, layout.n_leaves, width, rows, wide, slices,
                self._precision, accumulate, rows >= self.batch, self._low is not None,
                num_warps=warps, num_stages=stages,
            )  # fmt: skip
        else:
            tiles = -(-width // self._block)
            cp.cp_update_kernel[(layout.n_partitions, tiles, tiles)](
                self._values, self._top, self.params.weights, *common, self._n_children,
                self._arity, self._owner, self.batch, layout.n_leaves, width, self._uniform,
                self._rows, self._block, self._block, self._precision, accumulate,
                num_warps=warps, num_stages=stages,
            )  # fmt: skip

    def step(
        self,
        x: Tensor,
        known: Tensor | None,
        labels: Tensor | None,
        settings: EMSettings,
    ) -> Tensor:
        """One EM step on one batch, parameters updated in place; `step_size` sets the step.

        Returns:
            Log-likelihoods before the update, (batch,).
        """
        root = self.forward(x, known)
        total, classes, root_counts = self._root_flows(root, labels)
        self._downward()
        layout, step, add = (
            self.network.layout,
            self.step_size,
            settings.pseudo_count * settings.share,
        )
        if layout.n_partitions:
            flow = self._flow_sums[layout.n_leaves :].sum(1)  # (inner regions, K)
            rate = self._rate(flow, self.masses.sums if settings.by_mass else None)
            safe = torch.where(flow > 0, flow + add, torch.ones_like(flow))
            keep, gain, extra = self._coefficients
            torch.sub(1.0, rate, out=keep)
            torch.div(rate, safe, out=gain)
            torch.mul(gain, add / self._n_edges, out=extra)
            self._edges(self.params.weights, False)
        flow = root_counts.flatten(2).sum(2).sum(0)  # (C,)
        rate = self._rate(flow, self.masses.root if settings.by_mass else None)
        safe = torch.where(flow > 0, flow + add, torch.ones_like(flow))
        shape = (1, -1, *([1] * (root_counts.dim() - 2)))
        n_root = root_counts.shape[0] * self.network.edges
        new = (root_counts + add / n_root) * (rate / safe).view(shape)
        new += (1 - rate).view(shape) * self.params.root
        new /= new.flatten(2).sum(2).sum(0).view(shape)
        self.params.root.copy_(new)
        share = classes.sum(0)
        share = share / share.sum().clamp(min=1e-30)
        self.params.prior.copy_((1 - step) * self.params.prior + step * share)
        self._gather(0, layout.n_leaves, 0)
        self._update_leaves(x, known, settings)
        return total

    def _rate(self, flow: Tensor, mass: Tensor | None) -> Tensor:
        """Step size of every node, 0 for a dead one; updates the running mass in place."""
        alive = flow > 0
        if mass is None:
            return torch.where(alive, self.step_size, torch.zeros_like(flow))
        share = self.step_size * flow / self.batch
        mass.mul_(1 - self.step_size).add_(share)
        rate = share / torch.where(mass > 0, mass, torch.ones_like(mass))
        return torch.where(alive & (mass > 0), rate, torch.zeros_like(rate))

    def _update_leaves(self, x: Tensor, known: Tensor | None, settings: EMSettings) -> None:
        network, layout, width = self.network, self.network.layout, self.network.width
        family, params = network.blocks[0].family, self.params.leaves[0]
        n_slots, mask = len(layout.slot_variable), x if known is None else known
        sizes = (self.batch, x.shape[1], width)
        single = len(network.blocks) == 1
        if single and type(family) is Categorical and family.n_categories <= 1024:
            codes = power_of_two(family.n_categories, 16, 1024)
            rows, block, warps = self.tuning.leaf
            block = power_of_two(width, 16, min(block, max(16, 16384 // codes)))
            leaves.categorical_update_kernel[(n_slots, -(-width // block))](
                x, mask, self._values, params["probs"], params["prior"], self.masses.leaves[0],
                self._slot_region, self._slot_variable, self.step_size,
                family.pseudo_count * settings.share, family.blur, self.batch, *sizes,
                family.n_categories, known is not None, settings.by_mass, family.blur > 0,
                min(self._rows, rows), codes, block, self._precision, num_warps=warps,
            )  # fmt: skip
            return
        plain = type(family) is Gaussian
        plain |= isinstance(family, DiscretisedGaussian) and not family.exact
        if single and plain and isinstance(family, Gaussian):
            centre = params["mean"].mean(1)
            sums = [torch.empty_like(params["mean"]) for _ in range(3)]
            leaves.gaussian_statistics_kernel[(n_slots, -(-width // self._block))](
                x, mask, self._values, centre, *sums, self._slot_region, self._slot_variable,
                family.scale, *sizes, known is not None, self._rows, self._block,
            )  # fmt: skip
            all_stats = [{"n": sums[0], "first": sums[1], "second": sums[2]}]
        else:
            flow = self._values[: layout.n_leaves]
            all_stats = leaf_statistics(network, self.params, x, known, flow)
        for number, stats in enumerate(all_stats):
            mass = self.masses.leaves[number] if settings.by_mass else None
            rate = self._rate(stats["n"], mass)
            moved = network.blocks[number].family.update(
                self.params.leaves[number], stats, rate, settings.share
            )
            for name, tensor in moved.items():
                self.params.leaves[number][name].copy_(tensor)

    def accumulate(
        self, x: Tensor, known: Tensor | None, labels: Tensor | None, into: Counts
    ) -> Tensor:
        """E-step of one batch, added to `into`; parameters stay. Log-likelihoods, (batch,)."""
        root = self.forward(x, known)
        total, classes, root_counts = self._root_flows(root, labels)
        self._downward()
        self._edges(into.weights, True)
        self._gather(0, self.network.layout.n_leaves, 0)
        into.root += root_counts
        into.prior += classes.sum(0)
        flow = self._values[: self.network.layout.n_leaves]
        found = leaf_statistics(self.network, self.params, x, known, flow)
        for mine, theirs in zip(into.leaves, found, strict=True):
            for name in mine:
                mine[name] += theirs[name]
        into.log_likelihood += total.double().sum()
        into.n_rows += torch.isfinite(total).sum()
        return total

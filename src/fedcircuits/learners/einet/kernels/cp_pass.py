"""The CP layers of a network as launches of the kernels in `cp`, level by level."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedcircuits.learners.einet.kernels import cp, cp_tree
from fedcircuits.learners.einet.kernels.launch_plan import (
    BF16,
    LaunchPlan,
    Level,
    power_of_two,
    slots_by_region,
)
from fedcircuits.learners.einet.kernels.rates import Rates
from fedcircuits.learners.einet.kernels.subtrees import PROGRAMS, is_tree, upper_part
from fedcircuits.learners.einet.network.network import Network, Parameters
from fedcircuits.learners.einet.passes import inner

# Fewest rows of a tile: matrix units take no fewer.
LEAST_ROWS = 16


@cache
def side_stream(device: int) -> torch.cuda.Stream:
    """The stream of work beside the main one; one a device."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


class CpPass:
    """Buffers and launches of the CP layers.

    Args:
        network: The network.
        params: Its parameters; sum weights are updated in place.
        plan: Index arrays and sizes.
        training: Whether to allocate what flows need.
    """

    def __init__(
        self, network: Network, params: Parameters, plan: LaunchPlan, training: bool
    ) -> None:
        layout, batch, width = plan.layout, plan.batch, plan.width
        self._network, self._params, self._plan = network, params, plan
        self.values = plan.floats(layout.n_regions + 1, batch, width)
        self.leaf_logs = self.values
        self._top = plan.floats(layout.n_regions + 1, batch)
        self._is_tree = is_tree(layout) and plan.tuning.trees
        self._levels, self._upper = plan.levels, 0
        if self._is_tree:
            found = upper_part(layout, plan.levels, -(-batch // LEAST_ROWS))
            self._levels, self._upper = plan.levels[: found.below], len(found.starts) - 1
            self._order, self._starts = plan.ints(found.order), plan.ints(found.starts)
        device = plan.device
        self._side = (
            side_stream(device.index or 0) if device.type == "cuda" and plan.tuning.beside else None
        )
        if not training:
            return
        tables = (layout.children, layout.root_children)
        numbers = np.arange(layout.n_partitions + len(layout.root_children))
        starts, slots = slots_by_region(
            np.concatenate([table.ravel() for table in tables]),
            np.repeat(numbers, np.repeat([t.shape[1] for t in tables], [len(t) for t in tables])),
            layout.n_regions,
        )
        self._parent_start, self._parent_slot = plan.ints(starts), plan.ints(slots)
        self._flow = plan.floats(len(numbers), batch, width)
        # Tiles of a tree's narrow levels have fewer rows: what has no tile stays zero.
        self._n_tiles = -(-batch // LEAST_ROWS) if self._is_tree else plan.n_tiles
        self._sums = plan.floats(layout.n_regions, self._n_tiles, width)
        self._leaf_slot = None
        used = np.diff(starts)
        if (used[: layout.n_leaves] == 1).all():
            self._leaf_slot = plan.ints(slots[starts[layout.slot_region]])
        if self._is_tree:
            self._parent = plan.ints(slots[starts[:-1]])
        # The products that read ratios take them in bf16 anyway, if that is the precision.
        kind = torch.bfloat16 if plan.precision == BF16 else torch.float32
        self._ratio = plan.floats(plan.n_inner, batch, width, kind=kind)

    # upward ---------------------------------------------------------------------------------

    def _tile(self, n_programs: int, columns: int) -> tuple[int, int]:
        """Rows and columns of a tile, fewer where a level is too narrow to fill the device."""
        plan = self._plan
        rows, width = plan.rows, plan.width
        while columns > 32 and n_programs * plan.n_tiles * -(-width // columns) < PROGRAMS:
            columns //= 2
        while rows > 16 and n_programs * -(-plan.batch // rows) * -(-width // columns) < PROGRAMS:
            rows //= 2
        return rows, columns

    def upward(self) -> None:
        """Log-values of all inner regions from those of the leaves."""
        plan, width = self._plan, self._plan.width
        warps, stages = plan.tuning.forward
        for level in self._levels:
            rows, outs = self._tile(level.n_regions, power_of_two(width, 16, 128))
            cp.cp_forward_kernel[(level.n_regions, -(-plan.batch // rows), -(-width // outs))](
                self.values, self._top, self._params.weights, plan.children, plan.n_children,
                plan.arity, plan.first, level.regions[0], plan.batch, width, plan.uniform_arity,
                rows, outs, plan.block, plan.precision, num_warps=warps, num_stages=stages,
            )  # fmt: skip
        if self._upper:
            outs = power_of_two(width, 16, 128)
            cp_tree.tree_up_kernel[(self._upper, -(-plan.batch // LEAST_ROWS))](
                self.values, self._top, self._params.weights, plan.children, plan.n_children,
                plan.arity, self._order, self._starts, plan.layout.n_leaves, plan.batch, width,
                plan.uniform_arity, LEAST_ROWS, outs, plan.block, plan.precision,
                num_warps=plan.tuning.walk, num_stages=1,
            )  # fmt: skip

    def root_inputs(self) -> tuple[Tensor, Tensor]:
        """Log-values and child indices for the root's own layer, which is small."""
        return self.values, self._network.index("root_children", self.values.device)

    # downward -------------------------------------------------------------------------------

    def root_flows(self, values: Tensor, *given: Any) -> None:
        """Flows of the root's products, by the PyTorch twin; arguments as it takes them."""
        self._flow[self._plan.layout.n_partitions :] = inner.cp_product_flows(values, *given)

    def _gather(self, level: tuple[int, int], mode: int, into: Tensor, skip: int) -> None:
        """Flows of some regions from all their parents: as ratios of inner ones, or plain."""
        plan, n_here = self._plan, level[1] - level[0]
        if n_here:
            block = plan.block if n_here * plan.n_tiles > 2 * PROGRAMS else min(plan.block, 32)
            cp.gather_flow_kernel[(n_here, plan.n_tiles, -(-plan.width // block))](
                self._flow, self.values, self._top, into, self._sums, self._parent_start,
                self._parent_slot, level[0], skip, plan.batch, plan.width, self._n_tiles, mode,
                plan.rows, block,
            )  # fmt: skip

    def _product_flows(self, level: Level) -> None:
        plan, width = self._plan, self._plan.width
        warps, stages = plan.tuning.products
        rows, block = self._tile(level.n_partitions, plan.block)
        cp.cp_product_flow_kernel[(level.n_partitions, -(-plan.batch // rows), -(-width // block))](
            self.values, self._top, self._params.weights, self._ratio, self._flow, plan.children,
            plan.n_children, plan.arity, plan.owner, level.partitions[0], plan.batch,
            plan.layout.n_leaves, width, plan.uniform_arity, rows, plan.block, block,
            plan.precision, num_warps=warps, num_stages=stages,
        )  # fmt: skip

    def _walk_down(self) -> None:
        """Flows of the products of the upper part of a tree."""
        plan, width = self._plan, self._plan.width
        cp_tree.tree_down_kernel[(self._upper, -(-plan.batch // LEAST_ROWS))](
            self.values, self._top, self._params.weights, self._ratio, self._flow, self._sums,
            plan.children, plan.n_children, plan.arity, self._parent, self._order, self._starts,
            plan.layout.n_leaves, self._n_tiles, plan.batch, width, plan.uniform_arity,
            LEAST_ROWS, plan.block, power_of_two(width, 16, 128), plan.precision,
            num_warps=plan.tuning.walk, num_stages=1,
        )  # fmt: skip

    def downward(self, rates: Rates, mass: Tensor) -> None:
        """Flows of all regions from the root's, and the update of the weights.

        Args:
            rates: How far to move.
            mass: Running masses of the sums, updated in place, (inner regions, K).
        """
        plan, n_leaves = self._plan, self._plan.layout.n_leaves
        if self._upper:
            self._walk_down()
        for level in reversed(self._levels):
            self._gather(level.regions, 1, self._ratio, n_leaves)
            self._product_flows(level)
        if plan.levels:
            flow = self._sums[n_leaves:].sum(1)  # (inner regions, K)
            n_edges = plan.n_splits * self._network.edges
            self._held = rates.coefficients_(flow, mass, n_edges)
            with self._beside():
                self._update(self._held)

    def _beside(self) -> AbstractContextManager[Any]:
        """Work of a second stream, until `join`: on no device, in order."""
        if self._side is None:
            return nullcontext()
        self._side.wait_stream(torch.cuda.current_stream())
        return torch.cuda.stream(self._side)

    def join(self) -> None:
        """Waits for the update of weights, which runs beside that of leaves."""
        if self._side is not None:
            torch.cuda.current_stream().wait_stream(self._side)

    def _update(self, coefficients: tuple[Tensor, Tensor, Tensor]) -> None:
        plan, width = self._plan, self._plan.width
        block = power_of_two(width, 16, plan.tuning.update_wide)
        tiles = -(-width // block)
        warps, stages = plan.tuning.update or ((8, 3) if width >= 128 else (4, 3))
        cp.cp_update_kernel[(plan.layout.n_partitions, tiles, tiles)](
            self.values, self._top, self._params.weights, self._ratio, *coefficients,
            plan.children, plan.n_children, plan.arity, plan.owner, plan.batch,
            plan.layout.n_leaves, width, plan.uniform_arity, plan.rows, block, block,
            plan.precision, num_warps=warps, num_stages=stages,
        )  # fmt: skip

    def leaf_flows(self) -> tuple[Tensor, Tensor]:
        """Flows (any, B, K) and which of them each leaf slot has, (slots,); after `downward`."""
        if self._leaf_slot is not None:  # each is used once, and has the flow of that product
            return self._flow, self._leaf_slot
        # Nothing reads the leaves' values after the update: their flows take the place.
        self.join()
        self._gather((0, self._plan.layout.n_leaves), 0, self.values, 0)
        return self.values, self._plan.slot_region

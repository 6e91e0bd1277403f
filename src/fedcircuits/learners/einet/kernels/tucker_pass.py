"""The Tucker layers of a network as launches of the kernels in `tucker`, level by level."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedcircuits.learners.einet.kernels import cp, tucker
from fedcircuits.learners.einet.kernels.launch_plan import (
    BF16,
    LaunchPlan,
    Level,
    power_of_two,
    slots_by_region,
)
from fedcircuits.learners.einet.kernels.rates import Rates
from fedcircuits.learners.einet.network.network import Network, Parameters
from fedcircuits.learners.einet.passes import inner


class TuckerPass:
    """Buffers and launches of the Tucker layers.

    With bf16 inputs a copy of the weights in bf16 is kept: the upward pass reads half the bytes and
    converts nothing.

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
        self._wide = power_of_two(width, 16, 256)
        self._shares = [self._shares_of(level) for level in plan.levels]
        sizes = [
            level.n_partitions * shares
            for level, shares in zip(plan.levels, self._shares, strict=True)
        ]
        self.leaf_logs = plan.floats(layout.n_leaves, batch, width)
        self.values = plan.floats(layout.n_regions + 1, batch, width)  # exp(value - maximum)
        self._top = plan.floats(layout.n_regions + 1, batch)
        self._parts = plan.floats(max(sizes, default=0), batch, width)
        self._low = params.weights.bfloat16() if plan.precision == BF16 else None
        if not training:
            return
        # Slots of flows: left children by partition, right ones by level, then the root's.
        self._right0 = layout.n_partitions + np.cumsum([0, *sizes])
        n_root = len(layout.root_children)
        self._root0 = int(self._right0[-1])
        self._flow = plan.floats(self._root0 + 2 * n_root, batch, width)
        starts, slots = slots_by_region(*self._feeds(), layout.n_regions)
        self._parent_start, self._parent_slot = plan.ints(starts), plan.ints(slots)
        self._sums = plan.floats(layout.n_regions, plan.n_tiles, width)
        self._ratio = plan.floats(plan.n_inner, batch, width)

    def _shares_of(self, level: Level) -> int:
        """Programs a partition: one, or more where a level would not fill the device."""
        plan, shares = self._plan, 1
        while shares < 8 and level.n_partitions * plan.n_tiles * shares < plan.tuning.fill:
            shares *= 2
        return min(shares, plan.width)

    def _feeds(self) -> tuple[np.ndarray, np.ndarray]:
        """Region that every slot of flows feeds, and the slot."""
        layout = self._plan.layout
        regions = [layout.children[:, 0]]
        for level, shares in zip(self._plan.levels, self._shares, strict=True):
            regions.append(np.repeat(layout.children[slice(*level.partitions), 1], shares))
        regions.append(layout.root_children.T.ravel())
        fed = np.concatenate(regions)
        return fed, np.arange(len(fed))

    # upward ---------------------------------------------------------------------------------

    def upward(self) -> None:
        """Scaled values and maxima of all inner regions from the leaves' log-values."""
        plan, batch, width = self._plan, self._plan.batch, self._plan.width
        warps, stages = plan.tuning.forward
        tucker.scale_kernel[(plan.layout.n_leaves, plan.n_tiles)](
            self.leaf_logs, self.values, self._top, batch, width, plan.rows, self._wide
        )
        for level, shares in zip(plan.levels, self._shares, strict=True):
            first = level.partitions[0]
            tucker.tucker_forward_kernel[(plan.n_tiles, level.n_partitions, shares)](
                self.values, self._read_weights, self._parts, plan.children, first, batch, width,
                plan.rows, self._wide, shares, plan.precision, num_warps=warps, num_stages=stages,
            )  # fmt: skip
            tucker.tucker_combine_kernel[(level.n_regions, plan.n_tiles)](
                self._parts, self.values, self._top, plan.children, plan.first, level.regions[0],
                first, batch, width, plan.rows, self._wide, shares,
            )  # fmt: skip

    @property
    def _read_weights(self) -> Tensor:
        return self._params.weights if self._low is None else self._low

    def root_inputs(self) -> tuple[Tensor, Tensor]:
        """Log-values and child indices for the root's own layer, which is small."""
        children = self._network.index("root_children", self.values.device)
        flat = children.reshape(-1)
        logs = torch.log(self.values[flat]) + self._top[flat].unsqueeze(2)
        return logs, torch.arange(len(flat), device=flat.device).view_as(children)

    # downward -------------------------------------------------------------------------------

    def root_flows(self, values: Tensor, *given: Any) -> None:
        """Flows of the root's products, by the PyTorch twin; arguments as it takes them."""
        left, right = inner.tucker_product_flows(inner.Scaled.of(values), *given)
        self._flow[self._root0 : self._root0 + len(left)] = left
        self._flow[self._root0 + len(left) :] = right

    def _gather(self, level: tuple[int, int], mode: int, into: Tensor, skip: int) -> None:
        """Flows of some regions from all their parents: as ratios of inner ones, or plain."""
        plan, n_here = self._plan, level[1] - level[0]
        if n_here:
            block = min(power_of_two(plan.width, 16, 64), 64 if n_here > 264 else 32)
            cp.gather_flow_kernel[(n_here, plan.n_tiles, -(-plan.width // block))](
                self._flow, self.values, self._top, into, self._sums, self._parent_start,
                self._parent_slot, level[0], skip, plan.batch, plan.width, plan.n_tiles, mode,
                plan.rows, block,
            )  # fmt: skip

    def downward(self, rates: Rates, mass: Tensor) -> None:
        """Flows of all regions from the root's, and the update of the weights.

        Args:
            rates: How far to move.
            mass: Running masses of the sums, updated in place, (inner regions, K).
        """
        plan, n_leaves = self._plan, self._plan.layout.n_leaves
        for number in reversed(range(len(plan.levels))):
            self._gather(plan.levels[number].regions, 2, self._ratio, n_leaves)
            self._product_flows(number)
        if plan.levels:
            flow = self._sums[n_leaves:].sum(1)  # (inner regions, K)
            self._update(rates.coefficients_(flow, mass, plan.n_splits * self._network.edges))

    def _product_flows(self, number: int) -> None:
        plan, level, shares = self._plan, self._plan.levels[number], self._shares[number]
        warps, stages = plan.tuning.products
        tucker.tucker_product_flow_kernel[(plan.n_tiles, level.n_partitions, shares)](
            self.values, self._top, self._read_weights, self._ratio, self._flow, plan.children,
            plan.owner, level.partitions[0], int(self._right0[number]), plan.batch,
            plan.layout.n_leaves, plan.width, plan.rows, self._wide, shares, plan.precision,
            num_warps=warps, num_stages=stages,
        )  # fmt: skip

    def _update(self, coefficients: tuple[Tensor, Tensor, Tensor]) -> None:
        plan, width = self._plan, self._plan.width
        # A small batch leaves little to compute between weights: more programs hide more of the
        # wait for them than a pipeline does.
        warps, stages = plan.tuning.update or ((4, 1) if plan.batch <= 64 else (8, 3))
        slices = min(plan.tuning.slices, width)
        rows = power_of_two(plan.batch, 16, plan.tuning.update_rows)
        tucker.tucker_update_kernel[(-(-width // slices), plan.layout.n_partitions)](
            self.values, self._top, self._params.weights, self._read_weights, self._ratio,
            *coefficients, plan.children, plan.owner, plan.batch, plan.layout.n_leaves, width,
            rows, self._wide, slices, plan.precision, rows >= plan.batch, self._low is not None,
            stages, num_warps=warps, num_stages=2,
        )  # fmt: skip

    def leaf_flows(self) -> tuple[Tensor, Tensor]:
        """Flows (any, B, K) and which of them each leaf slot has, (slots,); after `downward`."""
        # Nothing reads the leaves' values any more: their flows take the place.
        self._gather((0, self._plan.layout.n_leaves), 0, self.values, 0)
        return self.values, self._plan.slot_region

    def join(self) -> None:
        """Nothing runs beside these layers."""

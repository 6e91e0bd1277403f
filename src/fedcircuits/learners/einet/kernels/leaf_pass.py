"""The leaf layer of a network: launches of `leaf_kernels.py`, or the PyTorch twins."""

from __future__ import annotations

from torch import Tensor

from fedcircuits.learners.einet.kernels import leaf_kernels
from fedcircuits.learners.einet.kernels.launch_plan import LaunchPlan, power_of_two
from fedcircuits.learners.einet.kernels.rates import Rates
from fedcircuits.learners.einet.leaves import Categorical, DiscretisedGaussian, Gaussian
from fedcircuits.learners.einet.leaves.blurring import blurring
from fedcircuits.learners.einet.network.network import Network, Parameters
from fedcircuits.learners.einet.passes.downward import leaf_statistics
from fedcircuits.learners.einet.passes.forward import leaf_values


class LeafPass:
    """Launches of the leaf layer; families without kernels go through their own methods.

    Args:
        network: The network.
        params: Its parameters; those of leaves are updated in place.
        plan: Index arrays and sizes.
    """

    def __init__(self, network: Network, params: Parameters, plan: LaunchPlan) -> None:
        self._network, self._params, self._plan = network, params, plan
        self._family = network.blocks[0].family if len(network.blocks) == 1 else None
        leaves = params.leaves[0]
        self._spread = leaves.get("prior")  # read only where there is a blur
        if type(self._family) is Categorical and self._family.blur > 0:
            self._spread = blurring(leaves["prior"], self._family.blur).float()

    def forward(self, x: Tensor, known: Tensor | None, target: Tensor) -> None:
        """Log-values of the leaf regions into `target` (at least leaf regions, B, K)."""
        plan, family, params = self._plan, self._family, self._params.leaves[0]
        n_leaves, block = plan.layout.n_leaves, plan.block
        grid = (n_leaves, plan.n_tiles, -(-plan.width // block))
        mask = x if known is None else known
        sizes = (plan.batch, x.shape[1], plan.width)
        if type(family) is Gaussian:
            leaf_kernels.gaussian_forward_kernel[grid](
                x, mask, params["mean"], params["variance"], target, plan.slot_start,
                plan.slot_variable, family.scale, *sizes, known is not None, plan.rows, block,
            )  # fmt: skip
        elif type(family) is Categorical:
            leaf_kernels.categorical_forward_kernel[grid](
                x, mask, params["probs"], target, plan.slot_start, plan.slot_variable, *sizes,
                family.n_categories, known is not None, plan.rows, block,
            )  # fmt: skip
        else:
            target[:n_leaves] = leaf_values(self._network, self._params, x, known)

    def update(
        self,
        x: Tensor,
        known: Tensor | None,
        flows: tuple[Tensor, Tensor],
        rates: Rates,
        masses: list[Tensor],
        share: float,
    ) -> None:
        """Moves the leaf parameters.

        Args:
            x: The batch, (B, variables).
            known: Where values are known; None for everywhere.
            flows: Flows (any, B, K) and which of them each leaf slot has, (slots,).
            rates: How far to move.
            masses: Running masses of every block, updated in place, each (slots, K).
            share: Share of all rows that the batch is.
        """
        plan, family, params = self._plan, self._family, self._params.leaves[0]
        width, n_slots = plan.width, len(plan.layout.slot_variable)
        mask = x if known is None else known
        sizes = (plan.batch, x.shape[1], width)
        if type(family) is Categorical and family.n_categories <= 1024:
            codes = power_of_two(family.n_categories, 16, 1024)
            rows, block, warps = plan.tuning.leaf
            rows = min(rows, max(16, 16384 // codes))
            block = power_of_two(width, 16, min(block, max(16, 16384 // codes)))
            leaf_kernels.categorical_update_kernel[(n_slots, -(-width // block))](
                x, mask, flows[0], params["probs"], params["prior"], masses[0], flows[1],
                plan.slot_variable, rates.step, family.pseudo_count * share, self._spread,
                plan.batch, *sizes, family.n_categories, known is not None, rates.by_mass,
                family.blur > 0, min(plan.rows, rows), codes, block, plan.precision,
                num_warps=warps,
                # Rows of the spread are staged too: three of them do not fit into shared memory.
                num_stages=2 if family.blur > 0 else 3,
            )  # fmt: skip
            return
        plain = isinstance(family, DiscretisedGaussian) and not family.exact
        if isinstance(family, Gaussian) and (plain or type(family) is Gaussian):
            centre = params["mean"].mean(1)
            n, first, second = (params["mean"].new_empty((n_slots, width)) for _ in range(3))
            leaf_kernels.gaussian_statistics_kernel[(n_slots, -(-width // plan.block))](
                x, mask, flows[0], centre, n, first, second, flows[1], plan.slot_variable,
                family.scale, *sizes, known is not None, plan.rows, plan.block,
            )  # fmt: skip
            found = [{"n": n, "first": first, "second": second}]
        else:
            found = leaf_statistics(self._network, self._params, x, known, self._by_region(flows))
        for number, stats in enumerate(found):
            rate = rates.of_(stats["n"], masses[number])
            own = self._params.leaves[number]
            moved = self._network.blocks[number].family.update(own, stats, rate, share)
            for name, tensor in moved.items():
                own[name].copy_(rates.moved(own[name], tensor))

    def _by_region(self, flows: tuple[Tensor, Tensor]) -> Tensor:
        """Flows of the leaf regions, (leaf regions, B, K)."""
        first_slots = flows[1].index_select(0, self._plan.slot_start[:-1])
        return flows[0].index_select(0, first_slots)

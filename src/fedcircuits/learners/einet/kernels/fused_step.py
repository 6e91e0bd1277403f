"""One EM step, or one likelihood, of a fixed batch size as a fixed series of GPU launches.

All buffers are allocated once and nothing depends on values on the host, so the whole step can be
captured in a CUDA graph. Weights are read in the upward pass, read again for the flows of the
products and read and written once by the update. (One kernel for the last two would save a pass
over the weights; for Tucker layers on an H200 it was slower, as fewer programs fit at a time.)
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedcircuits.learners.einet.kernels.cp_pass import CpPass
from fedcircuits.learners.einet.kernels.launch_plan import BF16, IEEE, TF32, LaunchPlan, Tuning
from fedcircuits.learners.einet.kernels.leaf_pass import LeafPass
from fedcircuits.learners.einet.kernels.rates import Rates
from fedcircuits.learners.einet.kernels.tucker_pass import TuckerPass
from fedcircuits.learners.einet.network.network import Network, Parameters
from fedcircuits.learners.einet.passes import inner
from fedcircuits.learners.einet.passes.downward import class_flow
from fedcircuits.learners.einet.passes.forward import class_mixture, root_group
from fedcircuits.learners.einet.passes.m_step import EMSettings, Masses

PRECISIONS = {"float32": IEEE, "tf32": TF32, "bf16": BF16}


class Engine:
    """Buffers and launches for one network and batch size; parameters are updated in place.

    Args:
        network: The network.
        params: Its float32 parameters on the device, owned by the engine from now on.
        batch: Rows of every batch.
        precision: "float32", "tf32" or "bf16" inputs of matrix products; sums are float32.
        training: Whether to allocate what flows need.
        tuning: Launch shapes.
    """

    def __init__(
        self,
        network: Network,
        params: Parameters,
        batch: int,
        precision: str = "tf32",
        training: bool = True,
        tuning: Tuning | None = None,
    ) -> None:
        self.network, self.params, self.batch = network, params, batch
        plan = LaunchPlan(
            network.layout, network.width, batch, PRECISIONS[precision], tuning or Tuning(),
            params.device,
        )  # fmt: skip
        self._leaves = LeafPass(network, params, plan)
        made = TuckerPass if network.layer == "tucker" else CpPass
        self._layers = made(network, params, plan, training)
        if training:
            self.masses = Masses.zeros(network, params)
            # On the device, so that a captured graph can be replayed with another step size.
            self.step_size = torch.ones((), dtype=torch.float32, device=params.device)

    def forward(self, x: Tensor, known: Tensor | None = None) -> Tensor:
        """Log-values of the roots, (batch, classes), of rows (batch, variables)."""
        return self._forward(x, known)[0]

    def _forward(self, x: Tensor, known: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Log-values of the roots, and what the root's own layer read: values and children."""
        self._leaves.forward(x, known, self._layers.leaf_logs)
        self._layers.upward()
        step = inner.tucker_forward if self.network.layer == "tucker" else inner.cp_forward
        values, children = self._layers.root_inputs()
        root = step(values, self.params.root, children, root_group(self.network))[0]
        return root, values, children

    def step(
        self,
        x: Tensor,
        known: Tensor | None,
        labels: Tensor | None,
        settings: EMSettings,
    ) -> Tensor:
        """One EM step on one batch, parameters updated in place; `step_size` sets the step.

        Args:
            x: Rows, (batch, variables).
            known: Where values are known; None for everywhere.
            labels: Classes, -1 where unknown; None for all unknown.
            settings: Smoothing; its own step size is not read.

        Returns:
            Log-likelihoods before the update, (batch,).
        """
        root, values, children = self._forward(x, known)
        total = class_mixture(root, self.params.prior, labels)
        classes = class_flow(root, self.params.prior, labels, total)
        counts = torch.empty_like(self.params.root)
        self._layers.root_flows(
            values, root.unsqueeze(0), classes.unsqueeze(0), self.params.root, children,
            root_group(self.network), counts,
        )  # fmt: skip
        add = settings.pseudo_count * settings.share
        rates = Rates(self.step_size, self.batch, add, settings.by_mass)
        self._layers.downward(rates, self.masses.sums)
        self._update_root(counts, classes, rates)
        flows = self._layers.leaf_flows()
        self._leaves.update(x, known, flows, rates, self.masses.leaves, settings.share)
        self._layers.join()
        return total

    def _update_root(self, counts: Tensor, classes: Tensor, rates: Rates) -> None:
        """Moves root weights and class prior; counts shaped as the weights, classes (batch, C)."""
        flow = counts.flatten(2).sum(2).sum(0)  # (C,)
        n_edges = torch.full_like(flow, float(counts.shape[0] * self.network.edges))
        shape = (1, -1, *([1] * (counts.dim() - 2)))
        keep, gain, extra = rates.coefficients_(flow, self.masses.root, n_edges)
        new = self.params.root * keep.view(shape) + counts * gain.view(shape) + extra.view(shape)
        new /= new.flatten(2).sum(2).sum(0).view(shape)
        self.params.root.copy_(rates.moved(self.params.root, new))
        share = classes.sum(0)
        share = share / share.sum().clamp(min=1e-30)
        self.params.prior.mul_(1 - rates.step).add_(rates.step * share)

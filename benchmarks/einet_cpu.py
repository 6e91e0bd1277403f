"""EM steps on one CPU thread: ours against an einsum-and-autograd EiNet, in one run.

    OMP_NUM_THREADS=1 python benchmarks/einet_cpu.py

The peer is a stand-in for EinsumNetworks, written from the paper's formulas: per level one einsum
over all pairs of children's nodes in log-einsum-exp form, a mixing layer over the partitions of a
region, expected counts from the gradient tape (weight times gradient), Gaussian leaves from their
sufficient statistics. Figures of EinsumNetworks itself (measured earlier on such a machine):
229 ms and 1525 ms a step.
"""

from __future__ import annotations

import time
from functools import partial

import numpy as np
import torch
from torch import Tensor

from fedcircuits.learners.einet import em, flows, forward
from fedcircuits.learners.einet.layout import Layout, lay_out
from fedcircuits.learners.einet.leaves import Gaussian
from fedcircuits.learners.einet.network import Network, Parameters, initial_parameters, make_network
from fedcircuits.learners.einet.poon_domingos import poon_domingos
from fedcircuits.learners.einet.random_trees import random_trees

WIDTH, BATCH = 10, 64


class Peer:
    """Einsum layers, mixing layers and automatic differentiation."""

    def __init__(self, layout: Layout, start: Parameters) -> None:
        self.layout = layout
        leaf = start.leaves[0]
        self.mean, self.variance = leaf["mean"].clone(), leaf["variance"].clone()
        self.spans = [(g.regions, g.partitions, g.n_splits) for g in layout.groups]
        self.weights, self.mixing = [], []
        for _, (first, last), n_splits in self.spans:
            block = start.weights[first:last]
            share = block.sum((2, 3))  # (P, O): a partition's share of its region
            self.weights.append((block / share[..., None, None]).requires_grad_())
            self.mixing.append(share.view(-1, n_splits, WIDTH).clone().requires_grad_())
        share = start.root.sum((2, 3))
        self.root = (start.root / share[..., None, None]).requires_grad_()
        self.root_mixing = share.clone().requires_grad_()
        self.children = torch.as_tensor(layout.children)
        self.root_children = torch.as_tensor(layout.root_children)

    def _einsum(self, values: Tensor, children: Tensor, weights: Tensor) -> Tensor:
        left, right = values[children[:, 0]], values[children[:, 1]]
        a, b = left.amax(2, keepdim=True), right.amax(2, keepdim=True)
        out = torch.einsum("pbi,pbj,poij->pbo", (left - a).exp(), (right - b).exp(), weights)
        return out.log() + a + b

    def _mix(self, logs: Tensor, mixing: Tensor) -> Tensor:
        top = logs.amax(1, keepdim=True)
        return (torch.einsum("rpbo,rpo->rbo", (logs - top).exp(), mixing)).log() + top.squeeze(1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        z = x.T[self.layout.slot_variable].unsqueeze(2)
        logs = -0.5 * ((z - self.mean[:, None]) ** 2 / self.variance[:, None])
        logs = logs - 0.5 * torch.log(2 * np.pi * self.variance[:, None])
        shape = (self.layout.n_leaves, len(x), WIDTH)
        regions = torch.as_tensor(self.layout.slot_region)
        leaves = torch.zeros(shape).index_add(0, regions, logs)
        leaves = leaves.detach().requires_grad_()
        values = leaves
        for number, (_, (first, last), n_splits) in enumerate(self.spans):
            out = self._einsum(values, self.children[first:last], self.weights[number])
            if n_splits > 1:
                out = self._mix(out.view(-1, n_splits, *out.shape[1:]), self.mixing[number])
            values = torch.cat([values, out])
        out = self._einsum(values, self.root_children, self.root)
        return self._mix(out.unsqueeze(0), self.root_mixing.unsqueeze(0))[0, :, 0], leaves

    def step(self, x: Tensor) -> float:
        total, leaves = self.forward(x)
        total.sum().backward()
        with torch.no_grad():
            for weight in [*self.weights, self.root]:
                assert weight.grad is not None
                count = weight * weight.grad
                weight.copy_(count / count.sum((2, 3), keepdim=True).clamp(min=1e-12))
                weight.grad = None
            for mixing in [*self.mixing, self.root_mixing]:
                if mixing.grad is not None:
                    axis = 0 if mixing is self.root_mixing else 1
                    count = mixing * mixing.grad
                    mixing.copy_(count / count.sum(axis, keepdim=True).clamp(min=1e-12))
                    mixing.grad = None
            flow = leaves.grad[torch.as_tensor(self.layout.slot_region)]  # (S, B, K)
            z = x.T[self.layout.slot_variable].unsqueeze(2)
            n = flow.sum(1).clamp(min=1e-12)
            self.mean = (flow * z).sum(1) / n
            self.variance = ((flow * z**2).sum(1) / n - self.mean**2).clamp(1e-3, 0.25)
        return float(total.detach().mean())


class Ours:
    """The library's plain PyTorch path."""

    def __init__(self, network: Network, start: Parameters) -> None:
        self.network, self.params = network, start.clone()

    def forward(self, x: Tensor) -> Tensor:
        return forward.log_likelihood(self.network, self.params, x)

    def step(self, x: Tensor) -> float:
        counts = flows.expected_counts(self.network, self.params, x)
        self.params = em.m_step_(self.network, self.params, counts, em.EMSettings())
        return float(counts.log_likelihood) / len(x)


def median_cpu_ms(function, repeats: int = 5) -> float:
    function()
    times = []
    for _ in range(repeats):
        start = time.process_time()
        function()
        times.append(time.process_time() - start)
    return 1e3 * float(np.median(times))


def main() -> None:
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    x = torch.as_tensor(rng.random((BATCH, 784)), dtype=torch.float32)
    cases = {
        "random binary trees (depth 4, 10 repetitions)": (random_trees(784, 4, 10, rng), 229, 139),
        "Poon-Domingos, 8 pieces": (poon_domingos(28, 28, 8), 1525, 543),
    }
    for name, (graph, step_ms, forward_ms) in cases.items():
        network = make_network(lay_out(graph), [Gaussian()] * 784, WIDTH, "tucker")
        known = torch.ones_like(x, dtype=torch.bool)
        start = initial_parameters(network, x, known, torch.Generator().manual_seed(0))
        peer, ours = Peer(network.layout, start), Ours(network, start)
        models = (peer, ours)
        with torch.no_grad():
            first = float(peer.forward(x)[0].mean()), float(ours.forward(x).mean())
            ahead = [median_cpu_ms(partial(model.forward, x)) for model in models]
        after = [model.step(x) for model in models]
        step = [median_cpu_ms(partial(model.step, x)) for model in models]
        print(f"{name}: {network.n_weights:,} weights, K={WIDTH}, batch {BATCH}, 1 thread")
        print(
            f"  same log-likelihood: {first[0]:.3f} and {first[1]:.3f}, "
            f"{after[0]:.3f} and {after[1]:.3f}"
        )
        print(f"  step: stand-in {step[0]:.0f} ms CPU, ours {step[1]:.0f} ms: "
              f"{step[0] / step[1]:.1f}x; EinsumNetworks {step_ms} ms: "
              f"{step_ms / step[1]:.1f}x")  # fmt: skip
        print(f"  forward: stand-in {ahead[0]:.0f} ms, ours {ahead[1]:.0f} ms: "
              f"{ahead[0] / ahead[1]:.1f}x; EinsumNetworks {forward_ms} ms: "
              f"{forward_ms / ahead[1]:.1f}x", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()

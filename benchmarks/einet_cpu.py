"""EM steps of EiNets on one CPU thread against plain einsum-and-autograd twins, in one run.

    OMP_NUM_THREADS=1 python benchmarks/einet_cpu.py

Writes docs/benchmarks/einet_cpu.md. Two stand-ins for EinsumNetworks, both written from the
paper's formulas: `peers/einet_twin.py` in that implementation's own organisation (its step times
come out near the recorded ones of the real thing), and `Lean` below, which keeps einsums and
the gradient tape but puts partitions first, so that an einsum is a batched matrix product, and
adds up leaves without the dense indicator.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

import tables
from fedcircuits.learners.einet.leaves import Gaussian
from fedcircuits.learners.einet.network.layout import Layout, lay_out
from fedcircuits.learners.einet.network.network import (
    Network,
    Parameters,
    initial_parameters,
    make_network,
)
from fedcircuits.learners.einet.passes import downward, forward, m_step
from fedcircuits.learners.einet.structures.poon_domingos import poon_domingos
from fedcircuits.learners.einet.structures.random_trees import random_trees
from peers.einet_twin import Twin

WIDTH, BATCH, REPEATS = 10, 64, 5


class Lean:
    """Einsum layers, mixing layers and automatic differentiation, partitions first."""

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

    def _pass(self, x: Tensor) -> tuple[Tensor, Tensor]:
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

    def forward(self, x: Tensor) -> Tensor:
        return self._pass(x)[0]

    def step(self, x: Tensor) -> float:
        total, leaves = self._pass(x)
        total.sum().backward()
        with torch.no_grad():
            for weight in [*self.weights, self.root]:
                assert weight.grad is not None
                count = (weight * weight.grad).clamp(min=1e-16)
                weight.copy_(count / count.sum((2, 3), keepdim=True))
                weight.grad = None
            for mixing in [*self.mixing, self.root_mixing]:
                if mixing.grad is not None:
                    axis = 0 if mixing is self.root_mixing else 1
                    count = (mixing * mixing.grad).clamp(min=1e-16)
                    mixing.copy_(count / count.sum(axis, keepdim=True))
                    mixing.grad = None
            flow = leaves.grad[torch.as_tensor(self.layout.slot_region)]  # (S, B, K)
            z = x.T[self.layout.slot_variable].unsqueeze(2)
            n = flow.sum(1).clamp(min=1e-12)
            self.mean = (flow * z).sum(1) / n
            self.variance = ((flow * z**2).sum(1) / n - self.mean**2).clamp(1e-3, 0.25)
        return float(total.detach().mean())


class Ours:
    """The library's plain PyTorch path, as training runs it."""

    def __init__(self, network: Network, start: Parameters) -> None:
        self.network, self.params = network, start.clone()
        self.counts: downward.ExpectedCounts | None = None

    def forward(self, x: Tensor) -> Tensor:
        return forward.log_likelihood(self.network, self.params, x)

    def step(self, x: Tensor) -> float:
        counts = downward.expected_counts(self.network, self.params, x, spare=self.counts)
        self.params = m_step.m_step_(self.network, self.params, counts, m_step.EMSettings())
        self.counts = counts
        return float(counts.log_likelihood) / len(x)


def cpu_ms(functions: Sequence[Callable[[], Any]]) -> list[float]:
    """Median CPU milliseconds of each, taken in turns so that a busy machine is so for all.

    A turn is three calls, the first of them not counted: training is one step after another.
    """
    times: list[list[float]] = [[] for _ in functions]
    for _ in range(REPEATS):
        for found, function in zip(times, functions, strict=True):
            function()
            for _ in range(2):
                start = time.process_time()
                function()
                found.append(time.process_time() - start)
    return [1e3 * float(np.median(found)) for found in times]


def images(rng: np.random.Generator) -> Tensor:
    """Noisy copies of a few prototypes in [0, 1], (batch, 784)."""
    prototypes = rng.random((12, 784))
    noisy = prototypes[rng.integers(12, size=BATCH)] + 0.1 * rng.normal(size=(BATCH, 784))
    return torch.as_tensor(noisy.clip(0, 1), dtype=torch.float32)


def main() -> None:
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    x = images(rng)
    cases = {
        "random binary trees, depth 4, 10 repetitions": (random_trees(784, 4, 10, rng), 229, 139),
        "Poon-Domingos, 8 pieces": (poon_domingos(28, 28, 8), 1525, 543),
    }
    rows, notes = [], []
    for name, (graph, *recorded) in cases.items():
        network = make_network(lay_out(graph), [Gaussian()] * 784, WIDTH, "tucker")
        known = torch.ones_like(x, dtype=torch.bool)
        start = initial_parameters(network, x, known, torch.Generator().manual_seed(0))
        models = [Ours(network, start), Twin(network.layout, start), Lean(network.layout, start)]
        path = np.array([[model.step(x) for model in models] for _ in range(2)])
        apart = float(np.abs(path - path[:, :1]).max() / 784)
        notes.append(
            f"{name}: log-density {path[0, 0]:.2f} nats, after an EM step {path[1, 0]:.2f}; all "
            f"three implementations agree within {apart:.1e} nats per dimension."
        )
        with torch.no_grad():
            ahead = cpu_ms([lambda m=m: m.forward(x) for m in models])
        step = cpu_ms([lambda m=m: m.step(x) for m in models])
        for what, ms, peer in (("EM step", step, recorded[0]), ("forward", ahead, recorded[1])):
            rows.append(
                [name, what, f"{ms[0]:.1f}", f"{ms[1]:.0f}", f"{ms[1] / ms[0]:.1f}x",
                 f"{ms[2]:.0f}", f"{ms[2] / ms[0]:.1f}x", str(peer), f"{peer / ms[0]:.1f}x"]
            )  # fmt: skip
    tables.write(
        "einet_cpu",
        "EiNets on one CPU thread: 28x28, Tucker, K = 10, Gaussian leaves, batch 64",
        ["structure", "what", "ours, CPU ms", "twin, ms", "ratio", "lean twin, ms", "ratio",
         "EinsumNetworks recorded, ms", "ratio"],
        rows,
        "OMP_NUM_THREADS=1 python benchmarks/einet_cpu.py",
        [
            f"Medians of {2 * REPEATS} in turns, one process, one thread, float32. A step is "
            "forward, expected counts and parameter update.",
            "twin: einsums and the gradient tape in EinsumNetworks' own organisation, written from "
            "the paper's formulas. lean twin: the same with partitions first, which turns its "
            "einsums into batched matrix products.",
            "recorded: EinsumNetworks itself, measured earlier on such a machine (MNIST); not in "
            "this run.",
            *notes,
        ],
    )  # fmt: skip


if __name__ == "__main__":
    main()

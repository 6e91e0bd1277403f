"""Networks for tables in PyTorch: TabNet (the package pytorch-tabnet) and a plain one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from pytorch_tabnet.tab_network import TabNet
from torch import Tensor, nn

from fedcircuits.baselines.prepare import Features


@dataclass(frozen=True)
class NetworkOptions:
    """Sizes and training of a network; one setting of a search.

    Attributes:
        kind: "tabnet" or "plain".
        width: n_d = n_a of a TabNet; the first hidden layer of a plain network.
        steps: decision steps of a TabNet.
        rate: learning rate of Adam.
        batch: rows of a step.
        decay: weight decay.
    """

    kind: str = "tabnet"
    width: int = 16
    steps: int = 3
    rate: float = 0.02
    batch: int = 512
    decay: float = 0.0


class Network(nn.Module):
    """A network with a penalty of its own, which is added to the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.penalty: Tensor = torch.zeros(())


def make_network(features: Features, n_outputs: int, options: NetworkOptions) -> Network:
    """Return an untrained network from prepared columns to numbers (n, n_outputs)."""
    if options.kind == "tabnet":
        return _TabNet(features, n_outputs, options)
    return _Plain(features, n_outputs, options.width)


class _TabNet(Network):
    """The attentive network of Arik and Pfister; its sparsity term is added to the loss."""

    def __init__(self, features: Features, n_outputs: int, options: NetworkOptions) -> None:
        super().__init__()
        n_numbers, sizes = len(features.medians), features.sizes
        n_columns = n_numbers + len(sizes)
        self.inner: Any = TabNet(
            n_columns,
            n_outputs,
            n_d=options.width,
            n_a=options.width,
            n_steps=options.steps,
            cat_idxs=list(range(n_numbers, n_columns)),
            cat_dims=sizes,
            cat_emb_dim=[2] * len(sizes),
            virtual_batch_size=options.batch,
            group_attention_matrix=torch.eye(n_columns),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return outputs (n, n_outputs) of rows (n, d)."""
        out, sparsity = self.inner(x)
        self.penalty = 1e-3 * sparsity
        return torch.as_tensor(out)


class _Plain(Network):
    """Embedded categories beside numbers, two hidden layers."""

    def __init__(self, features: Features, n_outputs: int, width: int) -> None:
        super().__init__()
        self.n_numbers = len(features.medians)
        self.embeddings = nn.ModuleList(
            nn.Embedding(size, min(16, 1 + size // 2)) for size in features.sizes
        )
        n_inputs = self.n_numbers + sum(min(16, 1 + size // 2) for size in features.sizes)
        self.layers = nn.Sequential(
            nn.Linear(n_inputs, width), nn.ReLU(), nn.Dropout(0.1),
            nn.Linear(width, width // 2), nn.ReLU(), nn.Linear(width // 2, n_outputs),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        """Return outputs (n, n_outputs) of rows (n, d)."""
        codes = x[:, self.n_numbers :].long()
        parts = [embed(codes[:, at]) for at, embed in enumerate(self.embeddings)]
        return torch.as_tensor(self.layers(torch.cat([x[:, : self.n_numbers], *parts], dim=1)))

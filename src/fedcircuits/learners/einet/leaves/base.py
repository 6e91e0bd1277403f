"""What a leaf family is: K univariate distributions for each leaf slot, and their EM update."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

Params = Mapping[str, Tensor]
Stats = dict[str, Tensor]


class Family(ABC):
    """A kind of leaf distribution; a value object that holds settings, never parameters.

    Shapes: S slots (a variable in a leaf region), B rows, K distributions per slot. Values come
    as numbers: codes for categories, levels for pixels. Implementations never see a missing
    value: the caller fills it with a legal one and masks the answer.
    """

    name: ClassVar[str]

    @abstractmethod
    def settings(self) -> dict[str, float | int | bool]:
        """Constructor arguments, for saving."""

    @abstractmethod
    def initial(
        self, x: Tensor, observed: Tensor, width: int, generator: torch.Generator
    ) -> dict[str, Tensor]:
        """Float64 parameters near the data: x and observed (S, B); each parameter (S, ..., K)."""

    @abstractmethod
    def log_prob(self, params: Params, x: Tensor) -> Tensor:
        """Log-probabilities (S, B, K) of values (S, B)."""

    @abstractmethod
    def statistics(self, params: Params, x: Tensor, flow: Tensor) -> Stats:
        """Sums over the batch that an M-step needs, "n" (S, K) among them; flow (S, B, K)."""

    @abstractmethod
    def update(
        self, params: Params, stats: Stats, step: Tensor, share: float = 1.0
    ) -> dict[str, Tensor]:
        """Parameters moved by `step` (S, K) towards the M-step; unchanged where "n" is 0.

        `share` is the share of all rows that the statistics count; pseudo-counts, which are meant
        for all rows, are scaled by it.
        """

    @abstractmethod
    def gradient(self, params: Params, stats: Stats, share: float = 1.0) -> dict[str, Tensor]:
        """Gradient of the log-likelihood that `statistics` were taken of, smoothing included.

        With respect to the family's unconstrained coordinates; `moved` moves along them.
        """

    @abstractmethod
    def moved(self, params: Params, by: Params) -> dict[str, Tensor]:
        """Parameters after a move of the unconstrained coordinates."""

    @abstractmethod
    def sample(
        self, params: Params, slots: Tensor, states: Tensor, generator: torch.Generator
    ) -> Tensor:
        """One draw (N,) for each pair of a slot (N,) and a state (N,)."""

    @abstractmethod
    def mode(self, params: Params) -> Tensor:
        """Most probable value of every distribution, (S, K)."""

    @property
    @abstractmethod
    def n_values(self) -> int | None:
        """Values 0 .. n - 1 of a discrete family, None for a continuum."""

    def masses(self, params: Params) -> Tensor:
        """Probabilities of all values of a discrete family, (S, values, K)."""
        assert self.n_values is not None
        first = next(iter(params.values()))
        values = torch.arange(self.n_values, device=first.device).expand(first.shape[0], -1)
        return torch.exp(self.log_prob(params, values))

    def n_parameters(self, params: Params) -> int:
        """Number of free parameters."""
        return sum(tensor.numel() for tensor in params.values())


def weighted(x: Tensor, flow: Tensor) -> Tensor:
    """Sums over the batch of x (S, B) times flow (S, B, K): (S, K)."""
    return torch.bmm(x.to(flow.dtype).unsqueeze(1), flow).squeeze(1)


def uniform(
    shape: tuple[int, ...], generator: torch.Generator, device: torch.device, dtype: torch.dtype
) -> Tensor:
    """Uniform draws in [0, 1) on a device; large ones must not be drawn elsewhere and copied.

    The generator is on the CPU; another device gets one of its own, seeded from it.
    """
    if device.type == "cpu":
        return torch.rand(shape, generator=generator, dtype=dtype)
    seed = int(torch.randint(2**62, (), generator=generator))
    own = torch.Generator(device).manual_seed(seed)
    return torch.rand(shape, generator=own, dtype=dtype, device=device)


def pick_rows(observed: Tensor, width: int, generator: torch.Generator) -> Tensor:
    """For every state k one row of the batch, the same in all slots: (K,).

    Using one row for a state in every slot keeps what belongs together together, and is what
    starts EM far above random parameters.
    """
    n_rows = observed.shape[1]
    chosen = torch.randperm(n_rows, generator=generator)
    while len(chosen) < width:
        chosen = torch.cat([chosen, torch.randperm(n_rows, generator=generator)])
    return chosen[:width].to(observed.device)

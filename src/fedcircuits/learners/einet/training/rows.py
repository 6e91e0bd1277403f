"""Rows: where training batches come from; only one batch is ever on the device."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Batch:
    """Some rows on a device.

    Attributes:
        x: Values, any legal number where missing, (rows, variables).
        observed: Where values are known, or None for everywhere, (rows, variables).
        labels: Classes, -1 where unknown, or None for all unknown, (rows,).
        weights: How often each row counts, or None for once, (rows,).
    """

    x: Tensor
    observed: Tensor | None = None
    labels: Tensor | None = None
    weights: Tensor | None = None


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows in host memory or in a memory-mapped file, read batch by batch.

    Attributes:
        x: Values, (rows, variables); may be a `numpy.memmap`.
        observed: Where values are known, or None, (rows, variables).
        labels: Classes, or None, (rows,).
        weights: Row weights, or None, (rows,).
    """

    x: NDArray[np.generic]
    observed: NDArray[np.bool_] | None = None
    labels: NDArray[np.int64] | None = None
    weights: NDArray[np.float64] | None = None

    def __len__(self) -> int:
        return len(self.x)

    def chosen(self, rows: NDArray[np.int64]) -> Rows:
        """Some of the rows, in host memory."""

        def some(array: Any) -> Any:
            return None if array is None else array[rows]

        return Rows(self.x[rows], some(self.observed), some(self.labels), some(self.weights))

    def take(self, rows: NDArray[np.int64] | slice, device: torch.device) -> Batch:
        """Some rows, copied to the device."""

        def place(array: NDArray[np.generic] | None) -> Tensor | None:
            if array is None:
                return None
            part = torch.from_numpy(np.ascontiguousarray(array[rows]))
            return part.pin_memory().to(device, non_blocking=True) if cuda else part

        cuda = device.type == "cuda"
        x = place(self.x)
        assert x is not None
        return Batch(x, place(self.observed), place(self.labels), place(self.weights))

    def epoch(self, batch: int, seed: tuple[int, ...], device: torch.device) -> Iterator[Batch]:
        """All rows once in an order drawn from the seed, in batches of exactly `batch` rows.

        The rows that do not fill a last batch sit this epoch out; another order comes next time.
        """
        for chosen in self.batches(batch, seed):
            yield self.take(chosen, device)

    def batches(self, batch: int, seed: tuple[int, ...]) -> Iterator[NDArray[np.int64]]:
        """The rows of each batch of an `epoch`, (batch,), sorted: a memory map is read forwards."""
        order = np.random.default_rng(seed).permutation(len(self))
        for start in range(0, len(order) - batch + 1, batch):
            yield np.sort(order[start : start + batch])

    def in_order(self, batch: int, device: torch.device) -> Iterator[Batch]:
        """All rows once in their own order; the last batch may be short."""
        for start in range(0, len(self), batch):
            yield self.take(slice(start, start + batch), device)

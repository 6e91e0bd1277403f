"""Staging: batches on their way to the device, gathered while it works on the one before."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedcircuits.learners.einet.training.rows import Batch, Rows


class Staging:
    """Two sets of page-locked host buffers, used in turn.

    A copy from page-locked memory runs beside the host, and locking pages takes longer than
    gathering a batch: so they are locked once. A buffer is filled again when its last copy is over.
    """

    def __init__(self) -> None:
        self._buffers: dict[tuple[int, str], Tensor] = {}
        self._copied: list[torch.cuda.Event | None] = [None, None]

    def _gathered(
        self, turn: int, name: str, array: NDArray[np.generic], rows: NDArray[np.int64]
    ) -> Tensor:
        key = (turn, name)
        if key not in self._buffers:
            like = torch.from_numpy(np.empty((len(rows), *array.shape[1:]), array.dtype))
            self._buffers[key] = like.pin_memory()
        np.take(array, rows, axis=0, out=self._buffers[key].numpy(), mode="clip")
        return self._buffers[key]

    def batches(self, rows: Rows, order: Iterable[NDArray[np.int64]]) -> Iterator[Batch]:
        """Batches of equal size in page-locked memory; each is valid until the next but one.

        The caller must have started the copy to the device before it asks for the next.
        """
        for number, chosen in enumerate(order):
            turn = number % 2
            before = self._copied[turn]
            if before is not None:
                before.synchronize()
            x = self._gathered(turn, "x", rows.x, chosen)
            observed, labels = (
                None if array is None else self._gathered(turn, name, array, chosen)
                for name, array in (("observed", rows.observed), ("labels", rows.labels))
            )
            yield Batch(x, observed, labels)
            done = torch.cuda.Event()  # type: ignore[no-untyped-call]
            done.record()
            self._copied[turn] = done

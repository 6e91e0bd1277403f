"""CUDA graphs: a captured EM step or likelihood, replayed with one launch."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor


@cache
def _side_stream(device: int) -> torch.cuda.Stream:
    """The stream captures run on; one a device, as libraries keep a workspace for every stream."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


class Captured:
    """A function of fixed-shape tensors captured once and replayed.

    Args:
        function: Called with the static inputs; must do nothing that depends on host values.
        inputs: Example inputs; their shapes, types and device are the only ones accepted.
        restore: Called after the warm-up calls, to undo what they changed in place.
    """

    def __init__(
        self,
        function: Callable[..., Tensor],
        inputs: tuple[Tensor | None, ...],
        restore: Callable[[], None] | None = None,
    ) -> None:
        self._inputs = tuple(None if tensor is None else tensor.clone() for tensor in inputs)
        side = _side_stream(torch.cuda.current_device())
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):  # kernels compile and workspaces are made outside the capture
                function(*self._inputs)
        torch.cuda.current_stream().wait_stream(side)
        if restore is not None:
            restore()
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, stream=side):
            self._output = function(*self._inputs)

    def __call__(self, *inputs: Tensor | None) -> Tensor:
        """Copies the inputs in and replays; the result is overwritten by the next call."""
        for static, given in zip(self._inputs, inputs, strict=True):
            if static is not None and given is not None:
                static.copy_(given, non_blocking=True)
        self._graph.replay()
        return self._output

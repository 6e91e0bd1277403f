"""Where questions are answered, apart from where parameters are kept.

A mixture of many EiNets may be larger than a GPU. Its members then stay in host memory, and

    with answering_on("cuda"):
        mixture.log_prob(images)

copies each to the device for as long as it answers: the device holds one model at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch

from fedcircuits.learners.einet.network.network import Parameters

_DEVICE: ContextVar[torch.device | None] = ContextVar("device", default=None)


@contextmanager
def answering_on(device: torch.device | str) -> Iterator[None]:
    """Within the block, likelihoods are computed on this device, wherever parameters are kept."""
    token = _DEVICE.set(torch.device(device))
    try:
        yield
    finally:
        _DEVICE.reset(token)


def placed(params: Parameters) -> Parameters:
    """The parameters where the question is to be answered: themselves, or a copy that goes."""
    device = _DEVICE.get()
    return params if device is None else params.to(device)

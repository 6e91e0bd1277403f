"""Triton kernels for CUDA; every one has a PyTorch twin, and results agree with it."""

from __future__ import annotations

import importlib.util

import torch


def available(device: torch.device | str) -> bool:
    """Whether the kernels can run on a device."""
    found = importlib.util.find_spec("triton") is not None
    return found and torch.device(device).type == "cuda"

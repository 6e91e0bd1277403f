"""Checkpoints: everything a training run needs to go on to the same bits."""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from fedcircuits.errors import StorageError
from fedcircuits.learners.einet.network.network import Network, Parameters
from fedcircuits.learners.einet.passes.m_step import Masses
from fedcircuits.learners.einet.training.ascent import Moments

VERSION = 1


@dataclass(eq=False)
class State:
    """Where a training run stands after whole epochs.

    Attributes:
        params: Parameters.
        masses: Running masses of stepwise EM.
        epoch: Epochs done.
        updates: Updates done.
        history: Mean training log-likelihood of each epoch, nats per row.
        moments: Moments of gradient ascent; empty for EM.
    """

    params: Parameters
    masses: Masses
    epoch: int = 0
    updates: int = 0
    history: tuple[float, ...] = ()
    moments: Moments = field(default_factory=Moments)


def _named(state: State) -> dict[str, Tensor]:
    tensors = {f"params.{name}": tensor for name, tensor in state.params.tensors().items()}
    tensors |= {"mass.sums": state.masses.sums, "mass.root": state.masses.root}
    tensors |= {f"mass.leaf{n}": tensor for n, tensor in enumerate(state.masses.leaves)}
    tensors |= {f"first.{name}": tensor for name, tensor in state.moments.first.items()}
    tensors |= {f"second.{name}": tensor for name, tensor in state.moments.second.items()}
    return {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}


def save_state(path: Path, state: State) -> None:
    """Writes a checkpoint; the old one stays until the new one is whole."""
    note = {
        "version": VERSION,
        "epoch": state.epoch,
        "updates": state.updates,
        "mass_steps": state.masses.steps,
        "moment_steps": state.moments.steps,
        "history": list(state.history),
    }
    half = path.with_suffix(path.suffix + ".part")
    try:
        save_file(_named(state), half, metadata={"einet": json.dumps(note)})
        os.replace(half, path)
    except (OSError, SafetensorError) as error:
        with contextlib.suppress(OSError):
            half.unlink(missing_ok=True)
        raise StorageError(f"cannot write {path}: {error}") from None


def load_state(path: Path, network: Network, device: torch.device | str) -> State:
    """Reads a checkpoint and checks that it belongs to the network.

    Raises:
        StorageError: If the file is no checkpoint, or one of another network.
    """
    try:
        with safe_open(path, framework="pt", device="cpu") as file:  # type: ignore[no-untyped-call]
            note = json.loads((file.metadata() or {})["einet"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except Exception as error:
        raise StorageError(f"{path} is not an EiNet checkpoint: {error}") from error
    if note.get("version") != VERSION:
        raise StorageError(f"{path}: checkpoint version {note.get('version')}, expected {VERSION}")
    tensors = {name: tensor.to(device) for name, tensor in tensors.items()}
    params = Parameters.from_tensors(
        {name[7:]: tensor for name, tensor in tensors.items() if name.startswith("params.")}
    )
    edges = (network.width,) * (1 if network.layer == "cp" else 2)
    expected = (network.layout.n_partitions, network.width, *edges)
    if tuple(params.weights.shape) != expected or len(params.leaves) != len(network.blocks):
        raise StorageError(
            f"{path}: weights {tuple(params.weights.shape)}, the network needs {expected}"
        )
    leaves = [tensors[f"mass.leaf{number}"] for number in range(len(network.blocks))]
    masses = Masses(tensors["mass.sums"], tensors["mass.root"], leaves, note["mass_steps"])
    first, second = (
        {name.removeprefix(lead): t for name, t in tensors.items() if name.startswith(lead)}
        for lead in ("first.", "second.")
    )
    moments = Moments(first, second, note.get("moment_steps", 0))
    return State(params, masses, note["epoch"], note["updates"], tuple(note["history"]), moments)

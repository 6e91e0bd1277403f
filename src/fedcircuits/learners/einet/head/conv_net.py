"""A small convolutional network that predicts the label of complete images."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedcircuits.arrays import FloatArray, IntArray
from fedcircuits.errors import StorageError

# Filters of the two convolutions, units of the layer behind them, and shares dropped in training.
FILTERS, UNITS, DROPPED = (24, 48), 128, 0.4
BATCH, RATE, DECAY = 64, 2e-3, 1e-2
# Steps of training: so many passes over the images, within bounds.
PASSES, LEAST_STEPS, MOST_STEPS = 20, 600, 4000
SMALLEST_SIDE = 4
_ROWS_AT_ONCE = 1024


@dataclass(frozen=True)
class Canvas:
    """Where the variables of an image lie.

    Attributes:
        shape: channels, height and width.
        cells: (D,) place of every variable among the channels x height x width values.
    """

    shape: tuple[int, int, int]
    cells: IntArray

    @staticmethod
    def of(places: list[tuple[int, int, str]]) -> Canvas:
        """The canvas of variables at (row, column, channel); pixels no variable has stay empty."""
        top, left = min(p[0] for p in places), min(p[1] for p in places)
        height = max(p[0] for p in places) - top + 1
        width = max(p[1] for p in places) - left + 1
        channels = sorted({p[2] for p in places})
        cells = [
            (channels.index(k) * height + row - top) * width + column - left
            for row, column, k in places
        ]
        return Canvas((len(channels), height, width), np.array(cells, dtype=np.int64))

    def images(self, values: FloatArray) -> NDArray[np.float32]:
        """(n, channels, height, width) images of values (n, D) of the variables."""
        flat = np.zeros((len(values), math.prod(self.shape)), dtype=np.float32)
        flat[:, self.cells] = values
        return flat.reshape(-1, *self.shape)


@dataclass(frozen=True, eq=False)
class ConvNet:
    """Weights of the network and of what goes before and after it.

    Attributes:
        canvas: where the variables lie on the image.
        n_classes: of the label.
        weights: by name of the layers' parameters.
        centre: (D,) what is subtracted from the variables.
        scale: what they are divided by then.
        temperature: what the outputs are divided by, fitted on held-out images.
    """

    canvas: Canvas
    n_classes: int
    weights: dict[str, FloatArray]
    centre: FloatArray
    scale: float
    temperature: float = 1.0

    @cached_property
    def _module(self) -> nn.Sequential:
        module = _layers(self.canvas.shape, self.n_classes)
        module.load_state_dict({k: torch.as_tensor(v) for k, v in self.weights.items()})
        return module.eval()

    @property
    def n_parameters(self) -> int:
        """Number of weights."""
        return sum(array.size for array in self.weights.values())

    def log_posterior(self, values: FloatArray, device: str | torch.device = "cpu") -> FloatArray:
        """(n, Y) log q(y | x) of complete rows (n, D)."""
        module = self._module.to(device)
        found = []
        with torch.no_grad():
            for start in range(0, len(values), _ROWS_AT_ONCE):
                x = self._inputs(values[start : start + _ROWS_AT_ONCE]).to(device)
                found.append(module(x).double().cpu())
        outputs = torch.cat(found) if found else torch.zeros((0, self.n_classes))
        return np.asarray(torch.log_softmax(outputs.double() / self.temperature, dim=1).numpy())

    def _inputs(self, values: FloatArray) -> Tensor:
        return torch.from_numpy(self.canvas.images((values - self.centre) / self.scale))

    def arrays(self) -> dict[str, Any]:
        """Return the weights as named arrays, which `from_arrays` reads."""
        layout = np.array([*self.canvas.shape, self.n_classes], dtype=np.int64)
        numbers = np.array([self.scale, self.temperature])
        return {
            "layout": layout, "cells": self.canvas.cells, "centre": self.centre,
            "numbers": numbers, **{f"weights.{k}": v for k, v in self.weights.items()},
        }  # fmt: skip

    @staticmethod
    def from_arrays(arrays: dict[str, Any], n_variables: int, n_classes: int) -> ConvNet:
        """Inverse of `arrays`; what does not fit the variables and classes is a `StorageError`."""
        channels, height, width, classes = (int(v) for v in arrays["layout"])
        cells, numbers = arrays["cells"].astype(np.int64), arrays["numbers"].astype(float)
        shape, side = (channels, height, width), 1 << 14
        if (
            classes != n_classes
            or not all(0 < v < side for v in shape)
            or cells.shape != (n_variables,)
            or np.unique(cells).size != n_variables
            or cells.min() < 0
            or cells.max() >= math.prod(shape) <= 4 * n_variables + 16
            or numbers.shape != (2,)
            or not (np.isfinite(numbers) & (numbers > 0)).all()
        ):
            raise StorageError("the network in the file does not fit the image and its label")
        weights = {k[8:]: v for k, v in arrays.items() if k.startswith("weights.")}
        with torch.device("meta"):
            expected = _layers(shape, n_classes).state_dict()
        if {k: tuple(v.shape) for k, v in expected.items()} != {
            k: v.shape for k, v in weights.items()
        } or not all(np.isfinite(v).all() for v in weights.values()):
            raise StorageError("the weights of the network in the file are not those of its layers")
        centre = arrays["centre"].astype(float)
        if centre.shape != (n_variables,) or not np.isfinite(centre).all():
            raise StorageError("the network in the file does not fit the image and its label")
        return ConvNet(Canvas(shape, cells), n_classes, weights, centre, *map(float, numbers))


def _layers(shape: tuple[int, int, int], n_classes: int) -> nn.Sequential:
    """The untrained network: two convolutions with maxima of 2 x 2, and two dense layers."""
    channels, height, width = shape
    first, second = FILTERS
    side = 5 if min(height, width) >= 16 else 3
    return nn.Sequential(
        nn.Conv2d(channels, first, side, padding="same"), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(first, second, 3, padding="same"), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Dropout(DROPPED),
        nn.Linear(second * (height // 4) * (width // 4), UNITS), nn.ReLU(), nn.Dropout(DROPPED),
        nn.Linear(UNITS, n_classes),
    )  # fmt: skip


def fit_conv_net(
    canvas: Canvas,
    values: FloatArray,
    labels: IntArray,
    weights: FloatArray,
    n_classes: int,
    *,
    seed: int,
    device: torch.device,
) -> ConvNet:
    """A network trained on complete images, each moved by a few pixels at random in every pass.

    Args:
        canvas: where the variables lie.
        values: (n, D) of the variables.
        labels: (n,) classes.
        weights: (n,) of the rows.
        n_classes: of the label.
        seed: of the start, the order of the images, their moves and what is dropped.
        device: where it is trained.
    """
    centre = values.mean(axis=0)
    scale = float(np.sqrt(((values - centre) ** 2).mean())) or 1.0
    untrained = ConvNet(canvas, n_classes, {}, centre, scale)
    shares = torch.as_tensor(weights / weights.mean(), dtype=torch.float32)
    steps = int(np.clip(PASSES * len(values) / BATCH, LEAST_STEPS, MOST_STEPS))
    most = min(canvas.shape[1:]) // 12
    cuda = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=cuda):
        torch.manual_seed(seed)
        module = _layers(canvas.shape, n_classes).to(device)
        optimiser = torch.optim.AdamW(module.parameters(), lr=RATE, weight_decay=DECAY)
        rate = torch.optim.lr_scheduler.OneCycleLR(optimiser, RATE, total_steps=steps)
        order, at = torch.randperm(len(values)), 0
        for _ in range(steps):
            if at + BATCH > len(order):
                order, at = torch.randperm(len(values)), 0
            batch = order[at : at + BATCH]
            at += BATCH
            x = _moved(untrained._inputs(values[batch.numpy()]), most).to(device)
            y = torch.as_tensor(labels[batch.numpy()], device=device)
            lost = nn.functional.cross_entropy(module(x), y, reduction="none")
            optimiser.zero_grad()
            (lost * shares[batch].to(device)).mean().backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            rate.step()
    state = {k: v.detach().cpu().numpy() for k, v in module.state_dict().items()}
    return replace(untrained, weights=state)


def _moved(images: Tensor, most: int) -> Tensor:
    """Images (n, c, h, w), each moved by up to `most` pixels; edges are repeated."""
    if most == 0:
        return images
    n, _, height, width = images.shape
    wide = nn.functional.pad(images, (most,) * 4, mode="replicate")
    rows = torch.randint(0, 2 * most + 1, (n, 1)) + torch.arange(height)  # (n, h)
    columns = torch.randint(0, 2 * most + 1, (n, 1)) + torch.arange(width)  # (n, w)
    every = torch.arange(n)[:, None, None]
    return wide[every, :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


def fitted_temperature(log_posterior: FloatArray, labels: IntArray) -> float:
    """The temperature that gives held-out labels (n,) most probability, from .5 to 4."""
    outputs = torch.as_tensor(log_posterior)
    truth = torch.as_tensor(labels)
    tried = np.geomspace(0.5, 4.0, 61)
    losses = [float(nn.functional.cross_entropy(outputs / t, truth)) for t in tried]
    return float(tried[int(np.argmin(losses))])

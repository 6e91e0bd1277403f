"""Fitting the head of an EiNet of images, and the choice on held-out images whether it is kept."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from fedcircuits.arrays import FloatArray, IntArray
from fedcircuits.learners.einet.density.einet_density import EiNetDensity
from fedcircuits.learners.einet.head.classified_einet import ClassifiedEiNet
from fedcircuits.learners.einet.head.conv_net import (
    SMALLEST_SIDE,
    Canvas,
    fit_conv_net,
    fitted_temperature,
)
from fedcircuits.schema import Table
from fedcircuits.schema.images import pixel_places

# Complete images with a label that a network needs; a tenth of them, at most so many, is held out.
LEAST_IMAGES, HELD_OUT, MOST_HELD_OUT = 200, 0.1, 2000
# A head is kept where it gains more than so many standard errors.
ERRORS = 2.0


def with_head(
    density: EiNetDensity, table: Table, rng: np.random.Generator, device: torch.device
) -> ClassifiedEiNet | EiNetDensity:
    """The EiNet with a network for its label where held-out images say that it pays, else as it is.

    It pays where it predicts them better than the frequencies of the classes do, by more than the
    noise. The EiNet's own posterior is no yardstick: it has seen the held-out images, so that its
    density is of all of them.

    Args:
        density: an EiNet with a label.
        table: the rows it was trained on.
        rng: source of all randomness.
        device: where the network is trained.
    """
    assert density.label is not None
    at, pixels = density.schema.position(density.label), density.inner_columns
    canvas = _canvas(density)
    known = np.flatnonzero(table.observed.all(axis=1))
    labels = table.values[:, at].astype(np.int64)
    if canvas is None or known.size < LEAST_IMAGES or np.unique(labels[known]).size < 2:
        return density
    order = rng.permutation(known)
    held, rest = np.split(order, [min(round(HELD_OUT * known.size), MOST_HELD_OUT)])
    net = fit_conv_net(
        canvas, table.values[rest][:, pixels], labels[rest], table.row_weights[rest],
        density.network.n_classes, seed=int(rng.integers(2**31)), device=device,
    )  # fmt: skip
    truth, images = labels[held], table.values[held][:, pixels]
    temperature = fitted_temperature(net.log_posterior(images, device), truth)
    net = replace(net, temperature=temperature)
    ours = _losses(net.log_posterior(images, device), truth)
    shares = np.bincount(labels[rest], minlength=density.network.n_classes) + 1.0
    gain = _losses(np.log(shares / shares.sum())[None].repeat(held.size, axis=0), truth) - ours
    error = float(gain.std(ddof=1) / np.sqrt(held.size))
    kept = bool(gain.mean() > ERRORS * error)
    says: dict[str, Any] = {
        "kept": kept, "gain": float(gain.mean()), "standard error": error,
        "held-out log-loss": float(ours.mean()), "images": int(held.size),
    }  # fmt: skip
    report = density.fit_report
    if report is not None:
        found = {**report.kept, "head (convolutional network)": says}
        report = replace(report, kept=found)
    if not kept:
        return replace(density, fit_report=report)
    return ClassifiedEiNet(density, net, report)


def _canvas(density: EiNetDensity) -> Canvas | None:
    """Where the pixels lie; None where the variables are not those of an image, or it is tiny."""
    assert density.label is not None
    names = [name for name in density.schema.names if name != density.label]
    places = pixel_places(density.schema.select(names))
    if places is None or density.schema[density.label].missing_state:
        return None
    canvas = Canvas.of(places)
    small = min(canvas.shape[1:]) < SMALLEST_SIDE or np.prod(canvas.shape) > 4 * len(names)
    return None if small else canvas


def _losses(log_posterior: FloatArray, labels: IntArray) -> FloatArray:
    """(n,) -log-probability of the labels; at most 30, since one image must not decide."""
    return np.minimum(-log_posterior[np.arange(len(labels)), labels], 30.0)

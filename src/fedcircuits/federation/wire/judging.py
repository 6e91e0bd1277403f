"""Messages that let the label's owner judge and calibrate, so that its label need not travel."""

from __future__ import annotations

from dataclasses import dataclass

from fedcircuits.arrays import Array
from fedcircuits.federation.wire.message import Message


@dataclass(frozen=True)
class Judge(Message):
    """Server, to the label's owner: (n, Y) log p(x, y) of named rows; how well is y told?"""

    rows: str
    log_joint: Array


@dataclass(frozen=True)
class Judged(Message):
    """Owner: the mean of -log p(y | x), and rows behind it. The label itself stays here."""

    log_loss: float
    n_rows: int


@dataclass(frozen=True)
class Calibrate(Message):
    """Server, to the label's owner: (n, S, Y) log p(x_S | y) of named rows, and log q(y)."""

    rows: str
    log_probs: Array
    log_prior: Array


@dataclass(frozen=True)
class Calibrated(Message):
    """Owner: weights (S,) and biases (Y,), and the fall in log-loss; 0 where none is kept."""

    weights: Array
    bias: Array
    gain: float

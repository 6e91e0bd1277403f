"""Training: epochs of online EM, or full-batch EM, streamed from host memory."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor

from fedcircuits.errors import LearningError
from fedcircuits.learners.einet import kernels
from fedcircuits.learners.einet.network.answering_device import placed
from fedcircuits.learners.einet.network.network import Network, Parameters, normalise_
from fedcircuits.learners.einet.passes.downward import ExpectedCounts, expected_counts
from fedcircuits.learners.einet.passes.forward import log_likelihood
from fedcircuits.learners.einet.passes.m_step import EMSettings, Masses, m_step_
from fedcircuits.learners.einet.training.ascent import ascend_
from fedcircuits.learners.einet.training.checkpoint import State, load_state, save_state
from fedcircuits.learners.einet.training.finite import check_finite
from fedcircuits.learners.einet.training.rows import Batch, Rows
from fedcircuits.learners.einet.training.staging import Staging

Method = Literal["em", "adam"]


@dataclass(frozen=True)
class Schedule:
    """How long and in what steps to train.

    Attributes:
        epochs: Passes over the rows.
        batch: Rows per batch.
        step: Step size at the start; it falls to `last_step` along half a cosine.
        last_step: Step size at the end.
        frequency: Batches between updates; 0 for one update per epoch, over all rows: full-batch
            EM, whose likelihood never falls if `step` and `last_step` are 1 and nothing smooths.
        pseudo_count: Rows' worth of uniform flow added to every sum node, for all rows together.
        by_mass: Stepwise EM: nodes move in proportion to the flow they saw.
        precision: Inputs of matrix products on CUDA: "float32", "tf32" or "bf16".
        method: "em", or "adam": gradient ascent, whose learning rate is the step size.
    """

    epochs: int = 10
    batch: int = 256
    step: float = 0.2
    last_step: float = 0.02
    frequency: int = 1
    pseudo_count: float = 0.01
    by_mass: bool = True
    precision: str = "tf32"
    method: Method = "em"

    def __post_init__(self) -> None:
        if self.method not in get_args(Method):
            raise LearningError(f"EiNet: method {self.method!r}; expected 'em' or 'adam'")
        if self.epochs < 1 or self.batch < 1 or self.frequency < 0:
            raise LearningError(
                f"EiNet: epochs {self.epochs}, batch {self.batch}, frequency {self.frequency}; "
                "expected at least 1, 1 and 0"
            )
        if not 0 < self.last_step <= self.step <= 1:
            raise LearningError(
                f"EiNet: steps {self.step} to {self.last_step}; expected 0 < last <= first <= 1"
            )

    def step_at(self, done: float) -> float:
        """Step size when a share `done` of the updates is over."""
        fall = 0.5 * (1 + math.cos(math.pi * min(1.0, done)))
        return self.last_step + (self.step - self.last_step) * fall


def out_of_memory(network: Network, batch: int, error: BaseException) -> LearningError:
    """The device's refusal in the user's terms."""
    layout = network.layout
    values = layout.n_regions * batch * network.width * 4 / 2**30
    return LearningError(
        f"EiNet: the device ran out of memory. {network.n_weights:,} sum weights take "
        f"{network.n_weights * 4 / 2**30:.2f} GiB, and a batch of {batch} rows about "
        f"{values:.2f} GiB for each of three arrays ({layout.n_regions:,} regions, width "
        f"{network.width}). Reduce the batch, then the width; the last checkpoint is kept. "
        f"({error})"
    )


def train(
    network: Network,
    start: Parameters | State,
    rows: Rows,
    schedule: Schedule,
    seed: int,
    checkpoint: Path | None = None,
    report: Callable[[State], bool | None] | None = None,
) -> State:
    """Trains parameters; they are copied, not changed.

    Args:
        network: The network.
        start: Parameters, or the state of an earlier run to go on from.
        rows: The data.
        schedule: How.
        seed: Orders the rows of every epoch; with the same seed a resumed run gives the same
            bits as one that was never interrupted (on CUDA as well: no kernel uses atomics).
        checkpoint: Where to write the state after every epoch; read first if it exists.
        report: Called after every epoch; returning True ends the training.

    Returns:
        The final state, its weights normalised.

    Raises:
        LearningError: Where a number leaves the finite range; the last checkpoint stays.
    """
    if not len(rows):
        raise LearningError("EiNet: there are no rows to train on")
    if isinstance(start, State):
        masses = Masses(
            start.masses.sums.clone(),
            start.masses.root.clone(),
            [tensor.clone() for tensor in start.masses.leaves],
            start.masses.steps,
        )
        state = replace(
            start, params=start.params.clone(), masses=masses, moments=start.moments.clone()
        )
    else:
        state = State(start.clone(), Masses.zeros(network, start))
    if checkpoint is not None and checkpoint.exists():
        state = load_state(checkpoint, network, state.params.device)
    batch = min(schedule.batch, len(rows))
    try:
        runner = _runner(network, state, batch, schedule, rows)
        while state.epoch < schedule.epochs:
            total, n_rows = runner.epoch(state, rows, seed)
            state.epoch += 1
            state.history = (*state.history, total / max(n_rows, 1))
            kept = None if checkpoint is None else str(checkpoint)
            check_finite(network, state, state.history[-1], kept)
            if checkpoint is not None:
                save_state(checkpoint, state)
            if report is not None and report(state):
                break
    except torch.OutOfMemoryError as error:
        raise out_of_memory(network, batch, error) from error
    normalise_(network, state.params.weights, state.params.root)
    return state


@contextmanager
def _same_bits(device: torch.device) -> Iterator[None]:
    """Has PyTorch add up in a fixed order on CUDA, where it would not by itself."""
    if device.type != "cuda":
        yield
        return
    before = torch.are_deterministic_algorithms_enabled()
    only_warn = torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        with warnings.catch_warnings():
            # Matrix products are the same every time on one stream, whatever the variable says.
            warnings.filterwarnings("ignore", message=".*CUBLAS_WORKSPACE_CONFIG")
            yield
    finally:
        torch.use_deterministic_algorithms(before, warn_only=only_warn)


class _Plain:
    """Epochs by the PyTorch passes, on any device and in any precision."""

    def __init__(self, network: Network, batch: int, schedule: Schedule) -> None:
        self._network, self._batch, self._schedule = network, batch, schedule

    def epoch(self, state: State, rows: Rows, seed: int) -> tuple[float, int]:
        with _same_bits(state.params.device):
            return self._epoch(state, rows, seed)

    def _epoch(self, state: State, rows: Rows, seed: int) -> tuple[float, int]:
        schedule, device = self._schedule, state.params.device
        every = schedule.frequency
        if every == 0:
            batches = rows.in_order(self._batch, device)
        else:
            batches = rows.epoch(self._batch, (seed, state.epoch), device)
        per_epoch = len(rows) // self._batch
        total, n_rows, waiting = 0.0, 0, 0
        counts: ExpectedCounts | None = None
        spare: ExpectedCounts | None = None
        for number, part in enumerate(batches):
            found = expected_counts(
                self._network, state.params, part.x, part.observed, part.labels, part.weights,
                spare,
            )  # fmt: skip
            spare = None
            total += float(found.log_likelihood)
            n_rows += len(part.x)
            if counts is None:
                counts = found
            else:
                counts, spare = counts.add_(found), found
            waiting += 1
            if every and waiting == every:
                done = (state.epoch + number / per_epoch) / schedule.epochs
                self._update(state, counts, done, waiting, len(rows))
                counts, spare, waiting = None, counts, 0
        if counts is not None:
            self._update(state, counts, state.epoch / schedule.epochs, waiting, len(rows))
        return total, n_rows

    def _update(
        self, state: State, counts: ExpectedCounts, done: float, n_batches: int, n_rows: int
    ) -> None:
        schedule = self._schedule
        share = min(1.0, n_batches * self._batch / n_rows)
        step, add = schedule.step_at(done), schedule.pseudo_count
        if schedule.method == "adam":
            state.params = ascend_(
                self._network, state.params, counts, step, state.moments, add, share
            )
        else:
            settings = EMSettings(step, add, schedule.by_mass, share)
            state.params = m_step_(self._network, state.params, counts, settings, state.masses)
        state.updates += 1


class _Fused:
    """Epochs of captured CUDA steps: parameters updated in place after every batch."""

    def __init__(
        self,
        network: Network,
        state: State,
        batch: int,
        schedule: Schedule,
        example: Batch,
        n_rows: int,
    ) -> None:
        from fedcircuits.learners.einet.kernels.fused_step import Engine  # needs Triton
        from fedcircuits.learners.einet.training.cuda_graph import Captured

        self._batch, self._schedule = batch, schedule
        self._engine = Engine(network, state.params, batch, schedule.precision)
        engine = self._engine
        engine.masses = state.masses
        share = min(1.0, batch / n_rows)
        settings = EMSettings(1.0, schedule.pseudo_count, schedule.by_mass, share)
        # The warm-up must leave no trace: a step of size 0 changes neither parameters nor masses.
        engine.step_size.zero_()

        def step(x: Tensor, observed: Tensor | None, labels: Tensor | None) -> Tensor:
            return engine.step(x, observed, labels, settings)

        self._step = Captured(step, (example.x, example.observed, example.labels))
        self._staging = Staging()

    def epoch(self, state: State, rows: Rows, seed: int) -> tuple[float, int]:
        schedule, device = self._schedule, state.params.device
        per_epoch = max(1, len(rows) // self._batch)
        total = torch.zeros((), dtype=torch.float64, device=device)
        n_rows = 0
        order = rows.batches(self._batch, (seed, state.epoch))
        for number, part in enumerate(self._staging.batches(rows, order)):
            step = schedule.step_at((state.epoch + number / per_epoch) / schedule.epochs)
            if schedule.by_mass:
                state.masses.steps += 1
                step = max(step, 1.0 / state.masses.steps)
            self._engine.step_size.fill_(step)
            total += self._step(part.x, part.observed, part.labels).double().sum()
            n_rows += self._batch
            state.updates += 1
        return float(total), n_rows


def _runner(
    network: Network, state: State, batch: int, schedule: Schedule, rows: Rows
) -> _Plain | _Fused:
    params = state.params
    fits = network.layer == "cp" or network.width <= 128
    if (
        kernels.available(params.device)
        and params.weights.dtype == torch.float32
        and schedule.frequency == 1
        and schedule.method == "em"
        and rows.weights is None
        and fits
    ):
        example = rows.take(slice(0, batch), params.device)
        return _Fused(network, state, batch, schedule, example, len(rows))
    return _Plain(network, batch, schedule)


def evaluate(
    network: Network, params: Parameters, rows: Rows, batch: int = 256
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Log-likelihood of every row, nats, float64, shape (rows,); see also `placement`."""
    if not len(rows):
        return np.zeros(0)
    params = placed(params)
    found = []
    try:
        # Products in plain float32: cuBLAS is far faster at them than the kernels would be.
        for part in rows.in_order(min(batch, len(rows)), params.device):
            each = log_likelihood(network, params, part.x, part.observed, part.labels)
            found.append(each.double().cpu())
    except torch.OutOfMemoryError as error:
        raise out_of_memory(network, batch, error) from error
    return torch.cat(found).numpy()

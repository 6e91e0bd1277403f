"""An EiNet of images with a convolutional network for the label: p(x, y) = m(x) q(y | x).

m(x) is the EiNet's own density of the pixels, q the network's posterior of complete images.
Whatever q is, p has mass one and the EiNet's density of x, and every answer about complete images
is exact. Where pixels are missing, what is asked of or given the label is a mean over completions
(`completions.py`) that carries its standard error; anything else stays the EiNet's, exact.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import torch

from fedcircuits.arrays import BoolArray, FloatArray, IntArray
from fedcircuits.density import Density, outcome_codes, powers
from fedcircuits.density.conditioned import Conditioned
from fedcircuits.density.fit_report import FitReport
from fedcircuits.encoding import Record
from fedcircuits.errors import StorageError
from fedcircuits.learners.einet.density.einet_density import EiNetDensity
from fedcircuits.learners.einet.head.completions import Completed, Completer
from fedcircuits.learners.einet.head.conv_net import ConvNet
from fedcircuits.learners.einet.structures.regions import RegionGraph
from fedcircuits.schema import Schema, Table
from fedcircuits.schema.events import CodeSet, Region

KIND = "classified_einet"
# Proposals of a sample given a label: so many at a time, and at most so many times.
_TRIES, _ROUNDS = 16, 64
_COVARIANCE = 2048


@dataclass(frozen=True, eq=False, repr=False)
class ClassifiedEiNet(Density):
    """An EiNet whose label is predicted by a convolutional network.

    Attributes:
        base: the EiNet with the label; its density of the pixels is m.
        net: q(label | all pixels).
        fit_report: account of the fit.
    """

    base: EiNetDensity
    net: ConvNet
    fit_report: FitReport | None = None

    @cached_property
    def schema(self) -> Schema:  # type: ignore[override]
        return self.base.schema

    @property
    def label(self) -> str:
        """Name of the label."""
        assert self.base.label is not None
        return self.base.label

    @cached_property
    def _at(self) -> int:
        return int(self.schema.position(self.label))

    @cached_property
    def _completer(self) -> Completer:
        return Completer(self.base, self.net, self._at, self.base.inner_columns)

    @property
    def region_graph(self) -> RegionGraph:
        """Structure of the EiNet."""
        return self.base.region_graph

    def draw(self, path: str | Path) -> None:
        """Write a picture of the EiNet's region graph."""
        self.base.draw(path)

    def to(self, device: torch.device | str) -> ClassifiedEiNet:
        """The same density with its parameters on another device."""
        return replace(self, base=self.base.to(device))

    @property
    def n_parameters(self) -> int:
        """Number of parameters of the EiNet and the network."""
        return self.base.n_parameters + self.net.n_parameters

    @property
    def mpe_is_exact(self) -> bool:
        """False: completions are decodings."""
        return False

    @property
    def is_exact(self) -> bool:
        """False: with missing pixels, what is asked about or given the label is an estimate."""
        return False

    @property
    def exact_part(self) -> EiNetDensity:
        """The EiNet, which is exact throughout."""
        return self.base

    @property
    def answers_events(self) -> bool:
        return self.base.answers_events

    # --- what is known of a row -------------------------------------------------------------------

    def _allowed(self, table: Table) -> BoolArray:
        """(n, Y) the classes that what is known of the label leaves to each row."""
        n_classes = self.net.n_classes
        answer = np.ones((len(table), n_classes), dtype=bool)
        known = table.observed[:, self._at]
        answer[known] = table.values[known, self._at][:, None] == np.arange(n_classes)
        for region, rows in table.regions_at(self._at):
            assert isinstance(region, CodeSet)
            answer[rows] = region.mask[:n_classes]
        return answer

    def _free(self, table: Table) -> Table:
        """The table with nothing known of the label."""
        free = table.hide(self._at)
        if free.events is not None and (free.events.which < 0).all():
            return replace(free, events=None)
        return free

    def _is_open(self, table: Table) -> BoolArray:
        """(n,) whether a pixel is missing."""
        return np.asarray(~table.observed[:, self.base.inner_columns].all(axis=1))

    def _gaps(
        self, table: Table, rows: IntArray, allowed: BoolArray | None = None
    ) -> Iterator[tuple[IntArray, Completed]]:
        """Completions of some rows, with the numbers of those rows, chunk by chunk."""
        free = self._free(table).rows(rows)
        every = np.ones((rows.size, self.net.n_classes), dtype=bool)
        for part, found in self._completer.completed(free, every if allowed is None else allowed):
            yield rows[part], found

    def _given_label(self, table: Table) -> Iterator[tuple[IntArray, Completed]]:
        """Completions of rows with gaps of whose label something is known."""
        allowed = self._allowed(table)
        rows = np.flatnonzero(~allowed.all(axis=1) & self._is_open(table))
        return self._gaps(table, rows, allowed[rows])

    def _classes(self, table: Table, with_error: bool = False) -> tuple[FloatArray, FloatArray]:
        """(n, Y) p(y | known pixels) whatever is known of y, and its standard error."""
        answer, error = np.zeros((2, len(table), self.net.n_classes))
        is_open = self._is_open(table)
        whole = np.flatnonzero(~is_open)
        answer[whole] = np.exp(self._completer.log_head(table.values[whole]))
        for rows, found in self._gaps(table, np.flatnonzero(is_open)):
            q = np.exp(found.log_head)
            answer[rows] = mean = found.mean(q)
            if with_error:
                error[rows] = found.error(q, mean, mean * (1 - mean))
        return answer, error

    # --- hooks ------------------------------------------------------------------------------------

    def log_prob_table(self, table: Table) -> FloatArray:
        answer = self.base.log_prob_table(self._free(table))
        allowed = self._allowed(table)
        rows = np.flatnonzero(~allowed.all(axis=1) & (answer > -np.inf))
        if rows.size:
            mass = (self._classes(table.rows(rows))[0] * allowed[rows]).sum(axis=1)
            with np.errstate(divide="ignore"):
                answer[rows] += np.log(mass)
        return answer

    def posterior_table(self, table: Table, column: int) -> FloatArray:
        return self._posterior(table, column, False)[0]

    def posterior_with_error(self, table: Table, column: int) -> tuple[FloatArray, FloatArray]:
        return self._posterior(table, column, True)

    def _posterior(
        self, table: Table, column: int, with_error: bool
    ) -> tuple[FloatArray, FloatArray]:
        if column == self._at:
            answer, error = self._classes(table, with_error)
            answer[self.base.log_prob_table(self._free(table)) == -np.inf] = np.nan
            return answer, error
        codes = outcome_codes(self.schema.variables[column])
        answer = self.base.posterior_table(self._free(table), column)
        error = np.zeros(answer.shape)
        for rows, found in self._given_label(table.hide(column)):
            here = (found.values[:, [column]] == codes).astype(float)  # (N, k)
            answer[rows] = mean = found.mean(here)
            error[rows] = found.error(here, mean, mean * (1 - mean))
        return answer, error

    def masses_table(self, table: Table, column: int, regions: list[Region]) -> FloatArray:
        if column == self._at:
            codes = np.arange(self.net.n_classes, dtype=float)
            inside = np.stack([region.contains(codes) for region in regions], axis=1)
            return self.posterior_table(table, column) @ inside
        answer = self.base.masses_table(self._free(table), column, regions)
        for rows, found in self._given_label(table.hide(column)):
            hits = [region.contains(found.values[:, column]) for region in regions]
            answer[rows] = found.mean(np.stack(hits, axis=1).astype(float))
        return answer

    def _numbers(self, values: FloatArray, order: int) -> FloatArray:
        """(N, D) encoded values as numbers to a power."""
        columns = [powers(v, values[:, at], order) for at, v in enumerate(self.schema)]
        return np.stack(columns, axis=1)

    def _of_label(self, order: int) -> FloatArray:
        """(Y,) the label's classes as numbers to a power."""
        codes = np.arange(self.net.n_classes, dtype=float)
        return powers(self.schema.variables[self._at], codes, order)

    def _label_mass(self, table: Table) -> FloatArray:
        """(n, Y) p(y | everything known)."""
        mass = np.nan_to_num(self._classes(table)[0]) * self._allowed(table)
        total = mass.sum(axis=1, keepdims=True)
        return np.asarray(mass / np.where(total > 0, total, 1.0))

    def moment_table(self, table: Table, order: int) -> FloatArray:
        answer = self.base.moment_table(self._free(table), order)
        answer[:, self._at] = self._label_mass(table) @ self._of_label(order)
        return self._replaced(table, answer, lambda found: self._mean(found, order))

    def _mean(self, found: Completed, order: int) -> FloatArray:
        return found.mean(self._numbers(found.values, order))

    def _replaced(
        self, table: Table, answer: FloatArray, of: Callable[[Completed], FloatArray]
    ) -> FloatArray:
        """The answer (n, D) with `of` in missing pixels of rows whose label is known."""
        for rows, found in self._given_label(table):
            there = table.observed[rows]
            there[:, self._at] = True
            answer[rows] = np.where(there, answer[rows], of(found))
        return answer

    def moment_error(self, table: Table, column: int, order: int) -> FloatArray:
        answer = np.zeros((len(table), 1))
        if column == self._at:
            numbers = self._of_label(order)
            gaps = np.flatnonzero(self._is_open(table) & ~table.observed[:, column])
            for rows, found in self._gaps(table, gaps, self._allowed(table)[gaps]):
                of = (np.exp(found.log_head) @ numbers)[:, None]
                answer[rows] = found.error(of, found.mean(of), numbers.var())
        else:
            for rows, found in self._given_label(table):
                of = self._numbers(found.values, order)[:, [column]]
                mean = found.mean(of)
                error = found.error(of, mean, found.mean(of**2) - mean**2)
                answer[rows] = np.where(table.observed[rows][:, [column]], 0.0, error)
        return answer[:, 0]

    def variance_table(self, table: Table) -> FloatArray:
        answer = self.base.variance_table(self._free(table))
        mass, numbers = self._label_mass(table), self._of_label(1)
        away = numbers - (mass @ numbers)[:, None]
        answer[:, self._at] = (mass * away**2).sum(axis=1)

        def of(found: Completed) -> FloatArray:
            x = self._numbers(found.values, 1)
            return found.mean((x - found.mean(x)[found.row]) ** 2)

        return self._replaced(table, answer, of)

    def covariance_table(self, evidence: Table, columns: list[int]) -> FloatArray:
        allowed, free = self._allowed(evidence), self._free(evidence)
        answer = self.base.covariance_table(free, columns)
        limited = not allowed.all()
        if self._at not in columns and not limited:
            return answer
        if not self._is_open(evidence)[0]:
            answer[:] = 0.0
            if self._at in columns:
                place = columns.index(self._at)
                answer[place, place] = self.variance_table(evidence)[0, self._at]
            return answer
        ((_, found),) = self._completer.completed(free, allowed, _COVARIANCE)
        x = self._numbers(found.values, 1)
        mass = np.exp(found.log_head) * allowed[0]
        mass /= np.maximum(mass.sum(axis=1, keepdims=True), 1e-300)
        numbers = self._of_label(1)
        x[:, self._at] = mass @ numbers
        x = (x - found.mean(x))[:, columns]  # (N, d)
        drawn = (found.weight[:, None] * x).T @ x
        if limited:
            answer = drawn
        if self._at in columns:
            place = columns.index(self._at)
            answer[place], answer[:, place] = drawn[place], drawn[:, place]
            answer[place, place] = self.variance_table(evidence)[0, self._at]
        return answer

    def sample_table(self, table: Table, rng: np.random.Generator) -> FloatArray:
        """Pixels from m and the label from q; given a label, by rejection.

        An image given a label so unlikely that about a thousand proposals are all rejected is one
        of the last of these, drawn by its weight.
        """
        allowed, free = self._allowed(table), self._free(table)
        answer = self.base.sample_table(free, rng)
        bound = np.flatnonzero(~allowed.all(axis=1) & self._is_open(table))
        for number in range(_ROUNDS):
            if not bound.size:
                break
            tries = np.repeat(bound, _TRIES)
            drawn = self.base.sample_table(free.rows(tries), rng)
            q = (np.exp(self._completer.log_head(drawn)) * allowed[tries]).sum(axis=1)
            chance = rng.random(tries.size)
            if number == _ROUNDS - 1:
                chance = 1 - chance ** (1 / np.maximum(q, 1e-300))  # the first is drawn by weight
                best = chance.reshape(-1, _TRIES).argmin(axis=1)
                hit = np.ones(bound.size, dtype=bool)
            else:
                taken = (chance < q).reshape(-1, _TRIES)
                hit, best = taken.any(axis=1), taken.argmax(axis=1)
            first = best + _TRIES * np.arange(bound.size)
            answer[bound[hit]] = drawn[first[hit]]
            bound = bound[~hit]
        mass = np.exp(self._completer.log_head(answer)) * allowed
        rising = np.cumsum(mass, axis=1)
        chosen = (rising <= rng.random((len(table), 1)) * rising[:, -1:]).sum(axis=1)
        answer[:, self._at] = np.minimum(chosen, self.net.n_classes - 1)
        return np.where(table.observed, table.values, answer)

    def mpe_table(self, table: Table) -> FloatArray:
        """The EiNet's completion of the pixels, then the likeliest label: a decoding."""
        answer = self.base.mpe_table(table)
        mass = np.exp(self._completer.log_head(answer)) * self._allowed(table)
        best = mass.argmax(axis=1)
        answer[:, self._at] = np.where(table.observed[:, self._at], answer[:, self._at], best)
        return answer

    def restrict(self, keep: tuple[str, ...], evidence: Table) -> Density:
        if self.label not in keep and not evidence.known[0, self._at]:
            return self.base.restrict(keep, evidence)
        return Conditioned(self, keep, evidence)

    # --- storage ----------------------------------------------------------------------------------

    def to_record(self) -> Record:
        arrays = {f"net.{name}": array for name, array in self.net.arrays().items()}
        header = self.base.to_record().put_into(arrays, "base.")
        report = None if self.fit_report is None else self.fit_report.to_json()
        return Record(KIND, header | {"head_report": report}, arrays)

    @staticmethod
    def from_record(record: Record) -> ClassifiedEiNet:
        """Inverse of `to_record`; anything that is not as it should be is a `StorageError`."""
        try:
            base = EiNetDensity.from_record(record.inner("base.", record.header))
            if base.label is None:
                raise StorageError("the EiNet in the file has no label for its network to predict")
            arrays = {k[4:]: v for k, v in record.arrays.items() if k.startswith("net.")}
            n_pixels = len(base.schema) - 1
            net = ConvNet.from_arrays(arrays, n_pixels, base.network.n_classes)
            report = record.header["head_report"]
            return ClassifiedEiNet(
                base, net, None if report is None else FitReport.from_json(report)
            )
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            raise StorageError(f"the EiNet with a head in the file is not valid: {error}") from None

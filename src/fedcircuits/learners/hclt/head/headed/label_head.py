"""The parts of a circuit with a head, the posterior of its label, and completions given it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from fedcircuits.arrays import FloatArray, IntArray
from fedcircuits.circuits import Circuit
from fedcircuits.density import Density, outcome_codes
from fedcircuits.density.fit_report import FitReport
from fedcircuits.learners.hclt.head.headed.class_pass import ClassPass
from fedcircuits.learners.hclt.head.headed.completions import Completer, Outputs
from fedcircuits.learners.hclt.head.headed.estimates import error_given_label, estimate
from fedcircuits.learners.hclt.head.headed.label_states import LabelStates
from fedcircuits.learners.hclt.head.pool import Pool
from fedcircuits.learners.hclt.tree.class_tree import ClassTree
from fedcircuits.learners.hclt.tree.to_circuit import to_circuit
from fedcircuits.schema import Schema, Table

# Completions behind answers given the label; given one that the circuit holds to be less likely
# than `UNLIKELY` more, since few of the circuit's draws then say most of what the head does.
GIVEN_LABEL, GIVEN_UNLIKELY, UNLIKELY = 64, 512, 0.05


@dataclass(frozen=True, eq=False, repr=False)
class LabelHead(Density):
    """A tilted circuit and boosted trees pooled into the posterior of its label.

    Attributes:
        tree: the tilted circuit's tables, over the columns of the schema without the label.
        schema: of the rows.
        label: name of y.
        trees: boosted trees over the columns without the label; their outputs are about its states.
        pool: how the two posteriors are pooled.
        fit_report: what the learner reports.
    """

    tree: ClassTree
    schema: Schema
    label: str
    trees: Outputs
    pool: Pool
    fit_report: FitReport | None = None

    @cached_property
    def base(self) -> Circuit:
        """The tilted circuit: the density of x, and the posterior t."""
        return to_circuit(self.tree, self.schema, self.label, None)

    @property
    def exact_part(self) -> Circuit:
        """The tilted circuit without the trees."""
        return self.base

    @cached_property
    def _at(self) -> int:
        at: int = self.schema.position(self.label)
        return at

    @cached_property
    def _states(self) -> LabelStates:
        return LabelStates(self.schema.variables[self._at])

    @cached_property
    def _completer(self) -> Completer:
        return Completer(ClassPass(self.tree), self.trees, self.pool, self.schema, self.label)

    @property
    def n_parameters(self) -> int:
        """Number of parameters of the circuit, the trees and the pool."""
        return self.base.n_parameters + self.trees.n_numbers + 2 + self.pool.shift.size

    @property
    def mpe_is_exact(self) -> bool:
        """Return False: the trees of a head may move the most probable value."""
        return False

    @property
    def is_exact(self) -> bool:
        """False: with missing cells, what is asked about or given the label is an estimate."""
        return False

    def _is_open(self, table: Table) -> Any:
        """(n,) whether a cell besides the label is missing."""
        return ~np.delete(table.observed, self._at, axis=1).all(axis=1)

    def _label_posterior(
        self, table: Table, with_error: bool = False
    ) -> tuple[FloatArray, FloatArray]:
        """(n, Y) p(y | observed cells of x), NaN where those have probability zero, and its error.

        The error is the standard error, widened for the few draws so that 1.96 of them cover as
        a normal 95 % interval should; NaN for estimates unless it is asked for.
        """
        answer = np.empty((len(table), self._completer.passes.n_classes))
        error = np.zeros(answer.shape)
        is_open = self._is_open(table)
        if not is_open.all():
            answer[~is_open] = np.exp(self._completer.complete(table.rows(~is_open))[1])
        gaps = np.flatnonzero(is_open)
        completer = self._completer
        typical = completer.typical if with_error and gaps.size else None
        for part, log_tilt, found in completer.completed(table.rows(gaps)):
            answer[gaps[part]], error[gaps[part]] = estimate(
                np.exp(log_tilt), found, self.pool.limit, completer.n_drawn, typical
            )
        return answer, error

    def _label_codes(self, table: Table) -> IntArray:
        """(n,) states of the labels of rows that have one."""
        return self._states.codes(table.values[:, self._at])

    def _hidden(self, table: Table) -> Table:
        observed = table.observed.copy()
        observed[:, self._at] = False
        return replace(table, observed=observed)

    def _given_label(self, table: Table, n_drawn: int = GIVEN_LABEL) -> Any:
        """Groups of rows with a label: places, completions, two weights (N,) of each, and (n,).

        The first are the shares of the completions under the head, the second under the circuit;
        both sum to one in a row. A mean under the head is the circuit's own, which is exact, plus
        the sum of the weights' difference times the function. Last, what share one more completion
        with the largest ratio possible would have under the head (0 where all are listed): q / t
        is at most exp(limit), and as q is at most one its mean over m is at most 1 / t(y).
        """
        labels = self._label_codes(table)
        unlikely = self._completer.log_tilt(table)[np.arange(len(table)), labels] < np.log(UNLIKELY)
        more = max(n_drawn, GIVEN_UNLIKELY)
        for places, n in (
            (np.flatnonzero(~unlikely), n_drawn),
            (np.flatnonzero(unlikely), more),
        ):
            label = labels[places]
            for part, log_tilt, found in self._completer.completed(table.rows(places), label, n):
                y = label[part][found.row]
                every = np.arange(found.row.size)
                listed = found.listed[found.row]
                tilt = found.weight * np.where(listed, np.exp(found.log_tilt[every, y]), 1.0)
                with np.errstate(invalid="ignore"):
                    ratio = np.exp(found.log_head[every, y] - found.log_tilt[every, y])
                head = tilt * np.nan_to_num(ratio, nan=1.0)
                size = len(log_tilt)
                mean = np.bincount(found.row, head, minlength=size)  # of q / t
                own = log_tilt[np.arange(size), label[part]]
                largest = np.exp(np.minimum(self.pool.limit, -own)) / n
                with np.errstate(invalid="ignore", divide="ignore"):
                    unseen = np.where(found.listed, 0.0, largest / (largest + mean))
                for weight in (head, tilt):
                    total = np.bincount(found.row, weight, minlength=size)[found.row]
                    weight /= np.where(total > 0, total, 1.0)
                yield places[part], found, head, tilt, unseen

    def _change_given_label(self, table: Table, column: int) -> tuple[FloatArray, FloatArray]:
        """(n, k) what the head adds to a column's posterior given the label, and its error."""
        codes = outcome_codes(self.schema.variables[column])
        observed = table.observed.copy()
        observed[:, column] = False
        table = replace(table, observed=observed)
        answer, error = np.zeros((2, len(table), codes.size))
        j = self._completer.columns.index(column)
        own = self.base.posterior_table(table, column)
        for part, found, head, tilt, unseen in self._given_label(table):
            here = (self._completer.numbers(found, j)[:, None] == codes).astype(float)
            np.add.at(answer, part[found.row], (head - tilt)[:, None] * here)
            mean = np.clip(own[part] + answer[part], 0.0, 1.0)
            # What no draw has met may still be as likely as the circuit says.
            spread = np.maximum(mean * (1 - mean), own[part] * (1 - own[part]))
            error[part] = error_given_label(found, head, tilt, here, spread, unseen)
        return answer, error

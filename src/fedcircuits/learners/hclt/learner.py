"""The default table learners: `Hclt` (hidden Chow-Liu tree) and `Mixture` (factorised components)."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedcircuits.circuits import Circuit
from fedcircuits.fit_report import FitReport
from fedcircuits.learners.hclt.em import Smoothing
from fedcircuits.learners.hclt.fit import FitOptions, FittedTree, fit_hclt, fit_mixture
from fedcircuits.learners.hclt.renormalise import ClassTree, class_tree_of
from fedcircuits.learners.hclt.to_circuit import to_circuit
from fedcircuits.learners.prepare import Coded, Missing, in_canonical_order, prepare
from fedcircuits.schema import Table
from fedcircuits.schema.grid import IntArray

# Pseudo-rows of a class that the training rows do not have.
ABSENT_ROWS = 0.1


@dataclass(frozen=True)
class Hclt:
    """Hidden Chow-Liu tree by EM; with a label, the tilted circuit.

    Everything left at None is chosen from rows and columns (see `sizes.py`).

    Attributes:
        label: column to be predicted well, None for a density alone.
        missing: "state" models frequent missingness as a state, "marginalise" leaves it out.
        n_states: states of every latent.
        n_bins: quantile bins of continuous columns.
        n_iterations: most EM steps.
        smoothing: pseudo-count of EM.
        class_transitions: whether transitions may depend on the class; None tries it on
            validation rows and keeps it where it helps.
        validation_share: share of the rows held out for choices.
        progress: called with the fraction done and a few words.
    """

    label: str | None = None
    missing: Missing = "state"
    n_states: int | None = None
    n_bins: int | None = None
    n_iterations: int | None = None
    smoothing: float | None = None
    class_transitions: bool | None = None
    validation_share: float = 0.1
    progress: Callable[[float, str], None] | None = field(default=None, repr=False, compare=False)

    @property
    def name(self) -> str:
        """Name of the learner in reports."""
        return "hclt"

    def fit(self, table: Table, rng: np.random.Generator) -> Circuit:
        """Learn a circuit of the table's variables."""
        start = time.perf_counter()
        table = in_canonical_order(table)
        coded = prepare(table, label=self.label, missing=self.missing, n_bins=self.n_bins)
        model, report = self._fit_coded(coded, rng)
        sizes = {"states": report["n_states"], "bins": max(coded.cards)}
        fit_report = FitReport(
            self.name,
            time.perf_counter() - start,
            sizes,
            tuple(report["train_log_likelihood"]),
            {k: v for k, v in report.items() if isinstance(v, (bool, int, float, str))},
            coded.warnings,
        )
        return to_circuit(model, coded.table.schema, self.label, fit_report)

    def _fit_coded(self, coded: Coded, rng: np.random.Generator) -> tuple[ClassTree, Any]:
        schema = coded.table.schema
        columns = [at for at, name in enumerate(schema.names) if name != self.label]
        codes = np.ascontiguousarray(coded.codes[:, columns])
        labels, present, n_codes = None, np.zeros(1, dtype=np.int64), 1
        if self.label is not None:
            at = schema.position(self.label)
            n_codes = coded.cards[at]
            present, labels = np.unique(coded.codes[:, at], return_inverse=True)
            if present.size == 1:
                labels = None  # one class: nothing to tell apart
        fit = fit_mixture if self.name == "mixture" else fit_hclt
        found = fit(
            codes,
            tuple(coded.cards[c] for c in columns),
            np.array([coded.ordered[c] for c in columns], dtype=bool),
            labels,
            int(present.size),
            coded.table.weights,
            rng=rng,
            options=self._options(),
            progress=self.progress,
        )
        model = _with_absent_classes(found, present, n_codes, float(len(codes)))
        return model, found.report

    def _options(self) -> FitOptions:
        smoothing = None
        if self.smoothing is not None:
            smoothing = Smoothing(self.smoothing, self.smoothing, self.smoothing)
        return FitOptions(
            n_states=self.n_states,
            n_iterations=self.n_iterations,
            smoothing=smoothing,
            class_transitions=self.class_transitions,
            validation_share=self.validation_share,
        )


@dataclass(frozen=True)
class Mixture(Hclt):
    """Mixture of factorised components by EM; with a label, tilted. Cheaper than `Hclt`."""

    @property
    def name(self) -> str:
        """Name of the learner in reports."""
        return "mixture"


def _with_absent_classes(
    found: FittedTree, present: IntArray, n_codes: int, n_rows: float
) -> ClassTree:
    """The model over all codes of the label; a class without rows looks like all rows together."""
    model = found.model
    if present.size == n_codes:
        return model
    shared = class_tree_of(found.tree)
    source = np.full(n_codes, -1)
    source[present] = np.arange(present.size)
    absent = source < 0
    log_prior = np.empty(n_codes)
    log_prior[present] = model.log_prior + np.log(n_rows)
    log_prior[absent] = np.log(ABSENT_ROWS)

    def all_codes(of_class: Any, of_all: Any) -> Any:
        return np.stack([of_class[s] if s >= 0 else of_all[0] for s in source])

    return ClassTree(
        parent=model.parent,
        order=model.order,
        latent_of=model.latent_of,
        log_prior=log_prior - np.logaddexp.reduce(log_prior),
        root=all_codes(model.root, shared.root),
        transitions=all_codes(model.transitions, shared.transitions),
        emissions=tuple(
            all_codes(a, b) for a, b in zip(model.emissions, shared.emissions, strict=True)
        ),
    )

"""`Auto`: compare several learners on validation rows and return the model of the best."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Self

import numpy as np

from fedcircuits.density import Density, Learner
from fedcircuits.density.fit_report import FitReport
from fedcircuits.errors import FedcircuitsError, LearningError
from fedcircuits.learners.factorised import Factorised
from fedcircuits.learners.hclt.learner import Hclt, Mixture
from fedcircuits.learners.learnspn import LearnSPN
from fedcircuits.learners.prepare import without_ids
from fedcircuits.schema import Table

VALIDATION_SHARE = 0.2
LEAST_ROWS = 20  # with fewer there is nothing to validate on


@dataclass(frozen=True)
class Auto:
    """Fits several learners and keeps the one with the best validation score.

    Attributes:
        label: column to be predicted well; then the log-loss of the label decides, else the
            likelihood.
        agreed_schema: whether the schema was agreed with other clients and stays as it is.
        progress: called with the fraction done and a few words.
    """

    label: str | None = None
    agreed_schema: bool = False
    progress: Callable[[float, str], None] | None = field(default=None, repr=False, compare=False)

    def for_agreed_schema(self) -> Self:
        """Return the learner that leaves columns, categories and grids as they were agreed."""
        return replace(self, agreed_schema=True)

    def candidates(self) -> dict[str, Learner]:
        """Learners by name; LearnSPN and the factorised one do not look at the label."""
        return {
            "hclt": Hclt(label=self.label, agreed_schema=self.agreed_schema),
            "mixture": Mixture(label=self.label, agreed_schema=self.agreed_schema),
            "learnspn": LearnSPN(agreed_schema=self.agreed_schema),
            "factorised": Factorised(agreed_schema=self.agreed_schema),
        }

    def fit(self, table: Table, rng: np.random.Generator) -> Density:
        """Fit every candidate on some rows, judge on the others, refit the winner on all."""
        # One set of columns for all, or their likelihoods could not be compared.
        table, left_out = (table, []) if self.agreed_schema else without_ids(table, self.label)
        if len(table) < LEAST_ROWS:
            name = "factorised" if self.label is None else "hclt"
            reason = f"only {len(table)} rows: too few to choose a learner on, {name} by default"
            only = self.candidates()[name].fit(table, rng)
            return _with_scores(only, {}, [name], (*left_out, reason))
        held = np.zeros(len(table), dtype=bool)
        held[rng.permutation(len(table))[: int(VALIDATION_SHARE * len(table))]] = True
        train, judge = table.rows(~held), table.rows(held)
        scores: dict[str, float] = {}
        failed: dict[str, str] = {}
        seeds = rng.integers(2**31, size=len(self.candidates()) + 1)
        for at, (name, learner) in enumerate(self.candidates().items()):
            if self.progress is not None:
                self.progress(at / (len(self.candidates()) + 1), f"trying {name}")
            try:
                model = learner.fit(train, np.random.default_rng(seeds[at]))
                scores[name] = self._score(model, judge)
            except FedcircuitsError as error:
                failed[name] = str(error)
        if not scores:
            raise LearningError(f"no learner could be fitted: {failed}")
        order = sorted(scores, key=lambda name: scores[name], reverse=True)
        best = self.candidates()[order[0]].fit(table, np.random.default_rng(seeds[-1]))
        lost = [f"{name} could not be fitted: {why}" for name, why in failed.items()]
        return _with_scores(best, scores, order, (*left_out, *lost))

    def _score(self, model: Density, judge: Table) -> float:
        """Mean log p(label | rest) or mean log-density of the judging rows; -inf counts as is."""
        rows = judge.columns(list(model.schema.names))
        rows = replace(rows, schema=model.schema)
        weights = rows.row_weights
        if self.label is None:
            return float(np.average(model.log_prob_table(rows), weights=weights))
        at = model.schema.position(self.label)
        known = rows.observed[:, at]
        codes = rows.values[known, at].astype(np.int64)
        posterior = model.posterior_table(rows.rows(known), at)
        with np.errstate(divide="ignore"):
            log_loss = np.log(posterior[np.arange(codes.size), codes])
        return float(np.average(log_loss, weights=weights[known]))


def _with_scores(
    best: Density, scores: dict[str, float], order: list[str], warnings: tuple[str, ...]
) -> Density:
    """Return the best model with all validation scores in its report; `order` is best first."""
    report = best.fit_report or FitReport(order[0], 0.0)
    kept = {**report.kept, "auto chose": order[0]}
    if len(order) > 1:
        kept["auto chose before"] = order[1]
        kept["ahead by, nats a row"] = scores[order[0]] - scores[order[1]]
    kept |= {f"validation score of {name}": score for name, score in scores.items()}
    report = replace(report, kept=kept, warnings=(*report.warnings, *warnings))
    return replace(best, fit_report=report)  # type: ignore[type-var]

"""Entries of a fit report: chosen sizes, and choices with their gain on validation rows."""

from __future__ import annotations

from typing import Any

from fedcircuits.learners.hclt.fitted import FittedTree
from fedcircuits.learners.hclt.head.choose_head import HeadTrial


def sizes(found: FittedTree, n_bins: int) -> dict[str, Any]:
    """Return the chosen sizes by name."""
    answer = {
        "states": found.report["n_states"],
        "bins": n_bins,
        "training rows": found.report["n_rows"],
        "validation rows": found.report["n_validation_rows"],
        "validation rows of the label": found.report.get("n_label_validation_rows", 0),
        "EM steps": found.report["em_steps"],
        "smoothing": found.report["smoothing"],
    }
    if found.forest is not None:
        answer["trees"] = int(found.forest.roots.size)
        answer["leaves of trees"] = found.forest.n_leaves
    return answer


def choices(found: FittedTree, names: list[str], within: float) -> dict[str, Any]:
    """Return what was tried on validation rows, whether it was kept, and what it gained.

    Args:
        found: the fit.
        names: of the columns, the label apart.
        within: mean log-density of a row given its states, which turns the likelihood of states
            into that of values, on the scale of `mean_log_prob`.
    """
    report: dict[str, Any] = found.report
    answer: dict[str, Any] = {}
    tried = report.get("validation_by_n_states") or {}
    for n_states, log_likelihood in tried.items():
        answer[f"validation log-likelihood with {n_states} states"] = float(log_likelihood) + within
    transitions = report.get("class_transitions")
    if transitions is not None:
        kept, sweeps = transitions["kept_sweeps"], transitions["sweeps"]
        best = min(kept or len(sweeps) - 1, len(sweeps) - 1)
        answer["class transitions kept"] = kept > 0
        for key, name, sign in (("auc", "AUC", 1.0), ("cross_entropy", "log-loss", -1.0)):
            if sweeps[0][key] is not None:
                gain = sign * (sweeps[best][key] - sweeps[0][key])
                answer[f"class transitions, gain in validation {name}"] = float(gain)
    trial = report.get("head")
    if isinstance(trial, HeadTrial):
        answer["head of trees kept"] = trial.plan is not None
        answer["head of trees, gain in validation AUC"] = trial.auc_gain
        answer["head of trees, gain in validation log-loss"] = trial.log_loss_gain
        answer["head and class transitions, gain in validation AUC"] = trial.auc_gain_in_all
        if trial.plan is not None:
            answer["head of trees"] = trial.plan.in_words(names)
    return answer

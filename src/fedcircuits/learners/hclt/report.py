"""Entries of a fit report: chosen sizes, and choices with their gain on validation rows."""

from __future__ import annotations

from typing import Any

from fedcircuits.learners.hclt.fitted import FittedTree
from fedcircuits.learners.hclt.head.fit_head import HeadTrial


def sizes(found: FittedTree, n_bins: int) -> dict[str, Any]:
    """Return the chosen sizes by name."""
    answer = {
        "states": found.report["n_states"],
        "trees averaged": found.report["n_trees"],
        "bins": n_bins,
        "training rows": found.report["n_rows"],
        "validation rows": found.report["n_validation_rows"],
        "validation rows of the label": found.report.get("n_label_validation_rows", 0),
        "EM steps": found.report["em_steps"],
        "smoothing": found.report["smoothing"],
    }
    if "n_rows_in_memory" in found.report:
        answer["rows that choices and the label were fitted to"] = found.report["n_rows_in_memory"]
    if found.head is not None:
        answer["trees"] = int(found.head.trees.roots.size)
        answer["leaves of trees"] = found.head.trees.n_leaves
    return answer


def choices(found: FittedTree, within: float, column: str | None = None) -> dict[str, Any]:
    """Return what was tried on validation rows, whether it was kept, and what it gained.

    Args:
        found: the fit.
        within: mean log-density of a row given its states, which turns the likelihood of states
            into that of values, on the scale of `mean_log_prob`.
        column: a label that is a column of the tree, if there is one.
    """
    report: dict[str, Any] = found.report
    answer: dict[str, Any] = {}
    if column is not None:
        answer["label"] = "a column like any other: it has too many classes for a tree each"
    tried = report.get("validation_by_n_states") or {}
    for n_states, log_likelihood in tried.items():
        answer[f"validation log-likelihood with {n_states} states"] = float(log_likelihood) + within
    for n_trees, log_likelihood in (report.get("validation_by_n_trees") or {}).items():
        answer[f"validation log-likelihood of {n_trees} trees averaged"] = (
            float(log_likelihood) + within
        )
    if "sharpness" in report:
        answer["tilt multiplied by"] = report["sharpness"]["factor"]
        answer["tilt multiplied, gain in held-out objective"] = report["sharpness"]["gain"]
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
        answer["head of trees kept"] = trial.kept
        answer["head of trees, held-out rows"] = trial.n_rows
        answer["head of trees, held-out log-loss of the circuit alone"] = trial.log_loss
        answer["head of trees, gain in held-out log-loss"] = trial.gain
        answer["head of trees, standard error of the gain"] = trial.error
        if trial.kept:
            pool = trial.pool
            answer["head of trees"] = (
                f"log-odds {pool.tilt:.2f} of the circuit's + {pool.trees:.2f} of the trees'"
            )
    return answer

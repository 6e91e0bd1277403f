"""The part of a report about held-out rows: scores beside baselines, ROC curve, calibration."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from fedcircuits.arrays import FloatArray
from fedcircuits.report import figures, scores
from fedcircuits.report.section import Section
from fedcircuits.schema import Variable
from fedcircuits.schema.times import DAY, to_numbers

CURVES_SHOWN = 10  # classes that have a ROC curve
MOST_SINGLE = 100  # columns that are compared each by its own


def section(model: Any, rows: pd.DataFrame, label: str | None, again: bool) -> Section:
    """Scores of rows that the model was not trained on; `again` where it was learned for them."""
    whose = "rows the model was not trained on"
    if again:
        whose = "held-out rows, by a model that was learned in the same way without them"
    known = [name for name in model.schema.names if name in rows.columns]
    facts = [
        ("rows", f"{len(rows):,}"),
        ("mean log-density", _density(model, rows, known)),
        ("columns of the model in these rows", f"{len(known)} of {len(model.schema)}"),
    ]
    if label is None or label not in rows.columns:
        return Section("Held-out rows", f"Scores of {whose}.", facts)
    given = rows[rows[label].notna()]
    text = f"How well {label} is predicted in {whose}."
    facts.append((f"rows with {label}", f"{len(given):,}"))
    if model.schema[label].outcomes is None:
        more, pictures = _number_scores(model, given, label)
        return Section("Held-out rows", text, facts + more, pictures=pictures)
    proba = model.predict_proba(given.drop(columns=label), label, unknown="missing")
    found = scores.label_scores(proba, given[label])
    facts += [
        (
            "accuracy",
            f"{found.accuracy:.3f} (always the commonest class: {found.baseline_accuracy:.3f})",
        ),
        ("AUC", f"{found.auc:.4f} (guessing: 0.5)"),
        (
            "log-loss",
            f"{found.log_loss:.4f} (shares of these rows alone: {found.baseline_log_loss:.4f})",
        ),
    ]
    return Section("Held-out rows", text, facts, pictures=_label_pictures(proba, given[label]))


def _density(model: Any, rows: pd.DataFrame, known: list[str]) -> str:
    """Mean log-density of rows, beside that of the model's columns each by its own."""
    text = f"{model.mean_log_prob(rows, unknown='missing'):.3f} nats a row"
    if len(known) > MOST_SINGLE:
        return text
    alone = [model.marginal([k]).mean_log_prob(rows[[k]], unknown="missing") for k in known]
    return f"{text} (every column by its own: {sum(alone):.3f})"


def _number_scores(
    model: Any, rows: pd.DataFrame, label: str
) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Facts and pictures of a label that is a number: its mean and its 90 % interval."""
    evidence = rows.drop(columns=label)
    truth = numbers(model.schema[label], rows[label])
    mean = numbers(model.schema[label], model.predict(evidence, label, unknown="missing"))
    ends = model.interval(label, 0.9, evidence, unknown="missing")
    low, high = (numbers(model.schema[label], ends[end]) for end in ("low", "high"))
    error = float(np.sqrt(np.mean((mean - truth) ** 2)))
    inside = float(((low <= truth) & (truth <= high)).mean())
    facts = [
        ("root mean square error", f"{error:.4g} (the mean alone: {truth.std():.4g})"),
        ("rows within their 90 % interval", f"{inside:.1%}"),
    ]
    title = f"predicted mean over true {label}"
    return facts, [(title, figures.scatter(truth, mean, title, f"true {label}", "predicted"))]


def _label_pictures(proba: pd.DataFrame, truth: pd.Series[Any]) -> list[tuple[str, str]]:
    shown = list(proba.columns) if proba.shape[1] > 2 else [rarer(proba.columns, truth)]
    curves = {}
    for value in shown[:CURVES_SHOWN]:
        score, hit = proba[value].to_numpy(), (truth.astype(str) == str(value)).to_numpy()
        if 0 < hit.sum() < len(hit):
            area = scores.area_under_curve(score, hit)
            curves[str(value)] = (*scores.roc_curve(score, hit), area)
    if not curves:
        return []
    if len(shown) > 1:  # several classes: the probability of the class that was chosen
        score = proba.to_numpy().max(axis=1)
        hit = (proba.idxmax(axis=1).astype(str) == truth.astype(str)).to_numpy()
        words = "calibration of the chosen class"
    else:
        chosen = shown[0]
        score, hit = proba[chosen].to_numpy(), (truth.astype(str) == str(chosen)).to_numpy()
        words = f"calibration of {chosen}"
    table = scores.calibration_curve(score, hit)
    return [
        ("ROC curve", figures.roc(curves, "ROC curve of the held-out rows")),
        (words, figures.calibration(table, words)),
    ]


def rarer(classes: Any, values: pd.Series[Any]) -> Any:
    """Of two classes the one that fewer rows have: what is asked about, as a rule."""
    counts = values.astype(str).value_counts()
    return min(reversed(list(classes)), key=lambda value: counts.get(str(value), 0))


def numbers(variable: Variable, values: pd.Series[Any]) -> FloatArray:
    """Values of a numeric variable as numbers; dates as days, with a time of day too."""
    if variable.time is not None:
        numbers = np.asarray(to_numbers(values, variable.time), dtype=np.float64)
        return numbers / DAY if variable.time.startswith("datetime") else numbers
    return np.asarray(pd.to_numeric(values), dtype=np.float64)

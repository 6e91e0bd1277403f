"""Held-out scores of a model's label: accuracy, AUC, log-loss, calibration, and a baseline."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from fedcircuits.arrays import FloatArray

LEAST_PROBABILITY = 1e-12  # a probability of zero would make the mean log-loss infinite
CALIBRATION_BINS = 10


@dataclass(frozen=True)
class LabelScores:
    """How well held-out rows' labels are predicted.

    Attributes:
        n_rows: rows whose label is known.
        accuracy: share of rows whose most probable class is the true one.
        log_loss: mean of -log p(true class), in nats.
        auc: area under the ROC curve; one against the rest, averaged, for several classes.
        baseline_accuracy: accuracy of always answering the commonest class of these rows.
        baseline_log_loss: log-loss of answering the class shares of these rows.
    """

    n_rows: int
    accuracy: float
    log_loss: float
    auc: float
    baseline_accuracy: float
    baseline_log_loss: float


def label_scores(proba: pd.DataFrame, truth: pd.Series[Any]) -> LabelScores:
    """Returns the scores of predicted class probabilities.

    Args:
        proba: (n, Y) probabilities, one column a class.
        truth: (n,) true classes; rows of a class without a column are left out.
    """
    P, codes = _aligned(proba, truth)
    n = len(codes)
    shares = np.bincount(codes, minlength=P.shape[1]) / max(n, 1)
    seen = shares[shares > 0]
    return LabelScores(
        n_rows=n,
        accuracy=float((P.argmax(axis=1) == codes).mean()),
        log_loss=float(-np.log(np.maximum(P[np.arange(n), codes], LEAST_PROBABILITY)).mean()) + 0.0,
        auc=mean_auc(P, codes),
        baseline_accuracy=float(shares.max()),
        baseline_log_loss=float(-(seen * np.log(seen)).sum()) + 0.0,  # no -0
    )


def _aligned(proba: pd.DataFrame, truth: pd.Series[Any]) -> tuple[FloatArray, Any]:
    """Probabilities (n, Y) and class codes (n,) of the rows whose class the model knows."""
    place = {str(value): at for at, value in enumerate(proba.columns)}
    codes = np.array([place.get(str(value), -1) for value in truth])
    known = codes >= 0
    return proba.to_numpy(dtype=float)[known], codes[known]


def mean_auc(P: FloatArray, codes: Any) -> float:
    """Area under the ROC curve; with several classes the mean of one against the rest."""
    found = [
        area_under_curve(P[:, y], codes == y)
        for y in (range(P.shape[1]) if P.shape[1] > 2 else [P.shape[1] - 1])
    ]
    known = [value for value in found if not np.isnan(value)]
    return float(np.mean(known)) if known else float("nan")


def area_under_curve(score: FloatArray, positive: Any) -> float:
    """Probability that a positive row scores above a negative one, ties counted half."""
    n_positive = int(positive.sum())
    n_negative = len(positive) - n_positive
    if n_positive == 0 or n_negative == 0:
        return float("nan")
    ranks = pd.Series(score).rank().to_numpy()
    return float(ranks[positive].sum() - n_positive * (n_positive + 1) / 2) / (
        n_positive * n_negative
    )


def roc_curve(score: FloatArray, positive: Any) -> tuple[FloatArray, FloatArray]:
    """False-positive and true-positive rates (k,) at every threshold, from (0, 0) to (1, 1)."""
    order = np.argsort(-score, kind="stable")
    hit = positive[order].astype(float)
    last = np.append(np.diff(score[order]) != 0, True)  # one point for rows of equal score
    true = np.cumsum(hit)[last] / max(hit.sum(), 1.0)
    false = np.cumsum(1 - hit)[last] / max((1 - hit).sum(), 1.0)
    return np.append(0.0, false), np.append(0.0, true)


def calibration_curve(score: FloatArray, positive: Any) -> pd.DataFrame:
    """Mean prediction, observed share, rows and standard error in bins of equal numbers of rows."""
    order = np.argsort(score, kind="stable")
    rows = []
    for part in np.array_split(order, min(CALIBRATION_BINS, max(len(order), 1))):
        if part.size:
            share = float(positive[part].mean())
            spread = float(np.sqrt(max(share * (1 - share), 1e-4) / part.size))
            rows.append((float(score[part].mean()), share, part.size, spread))
    return pd.DataFrame(rows, columns=["predicted", "observed", "rows", "error"])

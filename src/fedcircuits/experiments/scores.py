"""Scores of a cell on held-out rows."""

from __future__ import annotations

import numpy as np
import pandas as pd
from sklearn.metrics import accuracy_score, f1_score, roc_auc_score

from fedcircuits.api.datasets import Split
from fedcircuits.arrays import FloatArray


def classification(proba: FloatArray, classes: list[object], split: Split) -> dict[str, float]:
    """Return accuracy, macro-F1, AUC and log-loss of probabilities (n, classes) of test rows."""
    labels = pd.Index(split.test[split.label])
    truth = np.asarray(pd.Index(classes).get_indexer(labels), dtype=np.int64)
    proba = np.clip(proba, 1e-12, None)
    proba = proba / proba.sum(axis=1, keepdims=True)
    predicted = proba.argmax(axis=1)
    if len(classes) == 2:
        auc = roc_auc_score(truth, proba[:, 1])
    else:
        auc = roc_auc_score(truth, proba, multi_class="ovr", labels=range(len(classes)))
    return {
        "accuracy": float(accuracy_score(truth, predicted)),
        "macro_f1": float(f1_score(truth, predicted, average="macro")),
        "auc": float(auc),
        "log_loss": float(-np.log(proba[np.arange(truth.size), truth]).mean()),
    }


def likelihood(log_probs: FloatArray) -> dict[str, float]:
    """Return the mean of log-likelihoods of test rows and its sampling error."""
    values = np.asarray(log_probs, dtype=float)
    return {
        "log_likelihood": float(values.mean()),
        "log_likelihood_se": float(values.std(ddof=1) / np.sqrt(values.size)),
    }

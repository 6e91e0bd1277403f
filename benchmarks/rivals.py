"""Rivals of the table learners: tuned LightGBM, LightGBM on masked copies, random forest."""

from __future__ import annotations

from typing import Any

import lightgbm
import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss, roc_auc_score
from sklearn.model_selection import StratifiedKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from fedcircuits.api.datasets import Split

N_SETTINGS, N_FOLDS, N_BINS = 20, 3, 15


class Prepared:
    """A split as LightGBM takes it: declared categories, classes by number."""

    def __init__(self, split: Split) -> None:
        self._split = split
        self.classes = sorted(split.train[split.label].unique())
        self.labels, self.test_labels = self.codes(split.train), self.codes(split.test)

    def codes(self, rows: pd.DataFrame) -> NDArray[np.int64]:
        return np.array([self.classes.index(v) for v in rows[self._split.label]])

    def features(self, rows: pd.DataFrame) -> pd.DataFrame:
        train = self._split.train.drop(columns=self._split.label)
        rows = rows.drop(columns=self._split.label).copy()
        for name in rows.columns:
            if not pd.api.types.is_numeric_dtype(train[name]):
                rows[name] = pd.Categorical(rows[name], sorted(train[name].dropna().unique()))
        rows.columns = pd.Index([f"c{at}" for at in range(rows.shape[1])])
        return rows


def _lightgbm(seed: int, **settings: Any) -> lightgbm.LGBMClassifier:
    return lightgbm.LGBMClassifier(random_state=seed, verbose=-1, n_jobs=1, **settings)


def tuned_lightgbm(
    data: Prepared, train: pd.DataFrame, seed: int, n_settings: int = N_SETTINGS
) -> lightgbm.LGBMClassifier:
    """The best of random settings by cross-validated log-loss, fitted again on all rows."""
    rng = np.random.default_rng(seed)
    rows, labels = data.features(train), data.codes(train)
    best: tuple[float, dict[str, Any]] | None = None
    for _ in range(n_settings):
        settings = {
            "num_leaves": int(rng.integers(7, 128)),
            "learning_rate": float(np.exp(rng.uniform(np.log(0.02), np.log(0.2)))),
            "min_child_samples": int(rng.integers(5, 101)),
            "subsample": float(rng.uniform(0.5, 1.0)),
            "subsample_freq": 1,
            "colsample_bytree": float(rng.uniform(0.5, 1.0)),
            "reg_lambda": float(rng.uniform(0.0, 10.0)),
        }
        losses, steps = [], []
        for fit, held in StratifiedKFold(N_FOLDS, shuffle=True, random_state=seed).split(
            rows, labels
        ):
            model = _lightgbm(seed, n_estimators=1000, **settings)
            stop = lightgbm.early_stopping(30, verbose=False)
            model.fit(
                rows.iloc[fit],
                labels[fit],
                eval_set=[(rows.iloc[held], labels[held])],
                callbacks=[stop],
            )
            found = model.predict_proba(rows.iloc[held])
            losses.append(log_loss(labels[held], found, labels=range(len(data.classes))))
            steps.append(model.best_iteration_)
        if best is None or float(np.mean(losses)) < best[0]:
            settings["n_estimators"] = int(np.mean(steps)) + 1
            best = float(np.mean(losses)), settings
    assert best is not None
    return _lightgbm(seed, **best[1]).fit(rows, labels)


def masked(rows: pd.DataFrame, label: str, share: float, rng: np.random.Generator) -> pd.DataFrame:
    """Rows with a share of the cells missing at random, the label apart."""
    hidden = rng.random(rows.shape) < share
    hidden[:, rows.columns.get_loc(label)] = False
    return rows.mask(hidden)


def lightgbm_on_masked_copies(
    data: Prepared, train: pd.DataFrame, label: str, seed: int
) -> lightgbm.LGBMClassifier:
    """Default settings, the rows and three copies with 10, 30 and 50 % of the cells missing."""
    rng = np.random.default_rng(seed)
    copies = pd.concat([train, *(masked(train, label, s, rng) for s in (0.1, 0.3, 0.5))])
    return _lightgbm(seed).fit(data.features(copies), data.codes(copies))


def plain(data: Prepared, rows: pd.DataFrame) -> pd.DataFrame:
    """Features as numbers without gaps, for rivals that take no others."""
    train = data.features(data._split.train)
    rows = data.features(rows)
    for name in rows.columns:
        if rows[name].dtype == "category":
            rows[name], train[name] = rows[name].cat.codes, train[name].cat.codes
        rows[name] = rows[name].fillna(train[name].median())
    return rows


def random_forest(data: Prepared, train: pd.DataFrame, seed: int) -> RandomForestClassifier:
    model = RandomForestClassifier(300, min_samples_leaf=2, random_state=seed, n_jobs=1)
    return model.fit(plain(data, train), data.labels)


def logistic_regression(data: Prepared, train: pd.DataFrame) -> Any:
    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=2000))
    return model.fit(plain(data, train), data.labels)


def auc(labels: Any, proba: Any) -> float:
    """Area under the ROC curve; one against rest with several classes."""
    if proba.shape[1] == 2:
        return float(roc_auc_score(labels, proba[:, 1]))
    return float(roc_auc_score(labels, proba, multi_class="ovr"))


def calibration_error(proba: Any, hit: Any, seed: int = 0) -> float:
    """Expected calibration error in equal-mass bins, less what perfect calibration would show."""

    def error(hits: Any) -> float:
        return float(
            sum(abs(hits[part].mean() - proba[part].mean()) * part.size for part in bins)
            / proba.size
        )

    bins = np.array_split(np.argsort(proba, kind="stable"), N_BINS)
    rng = np.random.default_rng(seed)
    chance = np.mean([error((rng.random(proba.size) < proba).astype(float)) for _ in range(50)])
    return error(hit.astype(float)) - float(chance)


def confidence(labels: Any, proba: Any) -> tuple[Any, Any]:
    """Probability of the second of two classes, or of the likeliest, and whether it is so."""
    if proba.shape[1] == 2:
        return proba[:, 1], labels == 1
    return proba.max(axis=1), labels == proba.argmax(axis=1)

"""scikit-learn estimators: the same learners in pipelines, grid searches and cross-validation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
import pandas as pd
from sklearn.base import BaseEstimator, ClassifierMixin, DensityMixin, RegressorMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import (
    _check_sample_weight,
    check_array,
    check_is_fitted,
    column_or_1d,
    validate_data,
)

from fedcircuits.api.learn import DEFAULT_LEARNER, learn
from fedcircuits.arrays import Array
from fedcircuits.density import Density, Learner


class _CircuitEstimator(BaseEstimator):  # type: ignore[misc]
    """The base of the estimators: takes rows in every form that scikit-learn passes."""

    model_: Density

    def __init__(
        self,
        learner: str | Learner = DEFAULT_LEARNER,
        options: dict[str, Any] | None = None,
        seed: int = 0,
    ) -> None:
        self.learner = learner
        self.options = options
        self.seed = seed

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.string = True
        tags.input_tags.categorical = True
        return tags

    def _frame(self, X: Any, *, reset: bool) -> pd.DataFrame:
        """Return X as a DataFrame with string names; strings, categories and NaN are accepted."""
        if isinstance(X, pd.DataFrame):
            validate_data(self, X, reset=reset, skip_check_array=True)
            if len(X) == 0:
                raise ValueError("Found array with 0 sample(s) while a minimum of 1 is required.")
            return X.rename(columns=str)
        array = validate_data(
            self, X, reset=reset, dtype=None, ensure_all_finite="allow-nan", ensure_min_samples=1
        )
        names = [f"x{j}" for j in range(array.shape[1])]
        return pd.DataFrame(array, columns=names).infer_objects()


class CircuitClassifier(ClassifierMixin, _CircuitEstimator):  # type: ignore[misc]
    """A classifier by p(y | x) of one joint distribution; any cells of x may be missing.

    Args:
        learner: name of a learner (or a Learner whose label is "label").
        options: options of the named learner.
        seed: the same seed gives the same model.
    """

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Learn the joint distribution of X and y."""
        if y is None:
            raise ValueError("requires y to be passed, but the target y is None")
        frame = self._frame(X, reset=True)
        target = column_or_1d(y, warn=True)
        if target.shape != (len(frame),):
            raise ValueError(
                f"y has shape {target.shape}, expected one label for {len(frame)} rows"
            )
        check_classification_targets(target)
        self.classes_: Array = np.unique(target)
        if self.classes_.size < 2:
            raise ValueError(
                f"classification needs two classes, the data has one class: "
                f"{self.classes_.tolist()[0]!r}"
            )
        if sample_weight is not None:
            sample_weight = _check_sample_weight(sample_weight, X, ensure_non_negative=True)
        codes = np.searchsorted(self.classes_, target)
        self.label_ = _free_name(frame)
        domains = {self.label_: list(range(self.classes_.size))}
        self.model_ = learn(
            frame.assign(**{self.label_: codes}),
            label=self.label_,
            learner=self.learner,
            kinds={self.label_: "categorical"},
            domains=domains,
            weights=sample_weight,
            seed=self.seed,
            **(self.options or {}),
        )
        return self

    def predict_proba(self, X: Any) -> Array:
        """Return p(y | x) (n, k), classes in the order of `classes_`."""
        check_is_fitted(self)
        frame = self._frame(X, reset=False)
        return self.model_.predict_proba(frame, self.label_).to_numpy()

    def predict(self, X: Any) -> Array:
        """Return the most probable class of each row (n,)."""
        proba = self.predict_proba(X)
        return np.asarray(self.classes_[proba.argmax(axis=1)])


class CircuitRegressor(RegressorMixin, _CircuitEstimator):  # type: ignore[misc]
    """A regressor by p(y | x) of one joint distribution; any cells of x may be missing.

    Args:
        learner: name of a learner that takes a numeric label (or a Learner whose label is "label").
        options: options of the named learner.
        seed: the same seed gives the same model.
    """

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Learn the joint distribution of X and y."""
        if y is None:
            raise ValueError("requires y to be passed, but the target y is None")
        frame = self._frame(X, reset=True)
        target = check_array(
            column_or_1d(y, warn=True), ensure_2d=False, dtype=float, input_name="y"
        )
        if target.shape != (len(frame),):
            raise ValueError(
                f"y has shape {target.shape}, expected one number for {len(frame)} rows"
            )
        if sample_weight is not None:
            sample_weight = _check_sample_weight(sample_weight, X, ensure_non_negative=True)
        self.label_ = _free_name(frame)
        self.model_ = learn(
            frame.assign(**{self.label_: target}),
            label=self.label_,
            learner=self.learner,
            kinds={self.label_: "continuous"},
            weights=sample_weight,
            seed=self.seed,
            **(self.options or {}),
        )
        return self

    def predict(self, X: Any) -> Array:
        """Return the mean of y in each row (n,)."""
        check_is_fitted(self)
        found = self.model_.predict(self._frame(X, reset=False), self.label_)
        return np.asarray(found.to_numpy())

    def predict_interval(self, X: Any, level: float = 0.9) -> Array:
        """Return the ends (n, 2) of the central interval that holds y with that probability."""
        check_is_fitted(self)
        found = self.model_.interval(self.label_, level, self._frame(X, reset=False))
        return np.asarray(found.to_numpy())

    def predict_quantiles(self, X: Any, quantiles: Sequence[float] = (0.1, 0.5, 0.9)) -> Array:
        """Return quantiles of y in each row (n, k), for shares strictly between 0 and 1."""
        check_is_fitted(self)
        found = self.model_.quantile(self.label_, list(quantiles), self._frame(X, reset=False))
        return np.asarray(found.to_numpy())


class CircuitDensity(DensityMixin, _CircuitEstimator):  # type: ignore[misc]
    """A density estimator: the joint distribution of all columns of X.

    Args:
        learner: name of a learner, or a Learner.
        options: options of the named learner.
        seed: the same seed gives the same model.
    """

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Learn the joint distribution of X; y is ignored."""
        del y
        frame = self._frame(X, reset=True)
        if sample_weight is not None:
            sample_weight = _check_sample_weight(sample_weight, X, ensure_non_negative=True)
        self.model_ = learn(
            frame,
            learner=self.learner,
            weights=sample_weight,
            seed=self.seed,
            **(self.options or {}),
        )
        return self

    def score_samples(self, X: Any) -> Array:
        """Return the log-density of each row (n,), in nats."""
        check_is_fitted(self)
        return self.model_.log_prob(self._frame(X, reset=False)).to_numpy()

    def score(self, X: Any, y: Any = None) -> float:
        """Return the mean log-density, in nats per row."""
        del y
        return float(self.score_samples(X).mean())

    def sample(self, n_samples: int = 1, random_state: int | None = None) -> pd.DataFrame:
        """Return rows drawn from the model."""
        check_is_fitted(self)
        return self.model_.sample(n_samples, seed=random_state)


def _free_name(frame: pd.DataFrame) -> str:
    """Return a name for the label that no column has."""
    name = "label"
    while name in frame.columns:
        name += "_"
    return name

"""scikit-learn estimators: the same learners in pipelines, grid searches and cross-validation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Self, TypeVar

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

from fedcircuits.api.federate import federate
from fedcircuits.api.learn import DEFAULT_LEARNER, learn, option_names
from fedcircuits.arrays import Array
from fedcircuits.density import Density, Learner
from fedcircuits.errors import UnknownCategoryError, unknown_name, warn
from fedcircuits.learners.prepare import gaps_tell
from fedcircuits.schema.cells import UNKNOWN_HINT
from fedcircuits.schema.table import Unknown

T = TypeVar("T")


class _CircuitEstimator(BaseEstimator):  # type: ignore[misc]
    """The base of the estimators: takes rows in every form that scikit-learn passes."""

    model_: Density
    telling_gaps_: list[str]

    def __init__(
        self,
        learner: str | Learner = DEFAULT_LEARNER,
        options: dict[str, Any] | None = None,
        seed: int = 0,
        **tuned: Any,
    ) -> None:
        self.learner = learner
        self.options = options
        self.seed = seed
        for name, value in tuned.items():
            setattr(self, name, value)

    # Options of the named learner are parameters of their own, so that a grid search can set them;
    # those that were set are attributes. As scikit-learn wants it, `fit` checks them.

    def _tuned(self) -> dict[str, Any]:
        """Return the parameters that were set beside those of the constructor's signature."""
        own = set(self._get_param_names())
        return {
            name: value
            for name, value in vars(self).items()
            if name not in own and not name.startswith("_") and not name.endswith("_")
        }

    def _chosen(self) -> dict[str, Any]:
        """Return the options of the learner that were set; unknown ones are an error."""
        known = option_names(self.learner) if isinstance(self.learner, str) else []
        tuned = self._tuned()
        for name in tuned:
            if name not in known:
                every = [*self._get_param_names(), *known]
                raise ValueError(unknown_name("parameter", name, every))
        return {**(self.options or {}), **tuned}

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the parameters, options of the learner that were set among them."""
        return {**super().get_params(deep), **self._tuned()}

    def set_params(self, **params: Any) -> Self:
        """Set parameters, and options of the learner."""
        own = {name for name in params if name.partition("__")[0] in self._get_param_names()}
        super().set_params(**{name: params[name] for name in own})
        for name in params.keys() - own:
            setattr(self, name, params[name])
        return self

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.string = True
        tags.input_tags.categorical = True
        return tags

    def _frame(self, X: Any, *, reset: bool) -> pd.DataFrame:
        """Return X as a DataFrame with string names; strings, categories and NaN are accepted.

        A column of the training rows that a DataFrame lacks is missing, so it is summed out.
        """
        if isinstance(X, pd.DataFrame):
            if not reset:
                X = self._with_missing(X)
            validate_data(self, X, reset=reset, skip_check_array=True)
            if len(X) == 0:
                raise ValueError("Found array with 0 sample(s) while a minimum of 1 is required.")
            named: pd.DataFrame = X.rename(columns=str)
            return named if reset else self._learned(named)
        array = validate_data(
            self, X, reset=reset, dtype=None, ensure_all_finite="allow-nan", ensure_min_samples=1
        )
        # Rows of a model that was fitted to a DataFrame go by position, as elsewhere.
        names = getattr(self, "feature_names_in_", [f"x{j}" for j in range(array.shape[1])])
        frame = pd.DataFrame(array, columns=list(map(str, names))).infer_objects()
        return frame if reset else self._learned(frame)

    def _find_telling_gaps(self, frame: pd.DataFrame, labels: Array, weights: Any = None) -> None:
        """Note the columns where it says something about the label (n,) that a value lacks."""
        weights = np.ones(len(labels)) if weights is None else weights
        names = [v.name for v in self.model_.schema if v.missing_state and v.name in frame.columns]
        self.telling_gaps_ = [
            name
            for name in names
            if gaps_tell(frame[name].isna().to_numpy(), labels, weights, len(names))
        ]

    def _learned(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Return the columns that the model has; `fit` has warned of those that it left out."""
        return frame[[name for name in frame.columns if name in self.model_.schema.names]]

    def _asked(self, X: Any, ask: Callable[[pd.DataFrame, Unknown], T]) -> T:
        """Return an answer about rows; categories that were not learned count as missing.

        Cross-validation meets some wherever a category is rare.
        """
        check_is_fitted(self)
        frame = self._frame(X, reset=False)
        given = set(map(str, X.columns if isinstance(X, pd.DataFrame) else frame.columns))
        told = [name for name in frame.columns if name in self.telling_gaps_ and name in given]
        frame = frame.assign(**self.model_.schema.mark_missing(frame[told]))
        try:
            return ask(frame, "error")
        except UnknownCategoryError as error:
            found = str(error).replace(UNKNOWN_HINT, "")
            warn(f"taken as missing: {found}")
            return ask(frame, "missing")

    def _with_missing(self, X: pd.DataFrame) -> pd.DataFrame:
        """Return X with the columns seen in training in their order, absent ones missing."""
        seen = getattr(self, "feature_names_in_", None)
        if seen is None or not set(X.columns) < set(seen):
            return X
        return X.reindex(columns=list(seen))


class _Classifier(ClassifierMixin, _CircuitEstimator):  # type: ignore[misc]
    """The base of classifiers: classes as codes, and predictions."""

    classes_: Array
    label_: str

    def _coded(self, frame: pd.DataFrame, y: Any) -> pd.DataFrame:
        """Return the rows with the codes of the classes as a column more."""
        if y is None:
            raise ValueError("requires y to be passed, but the target y is None")
        target = column_or_1d(y, warn=True)
        if target.shape != (len(frame),):
            raise ValueError(
                f"y has shape {target.shape}, expected one label for {len(frame)} rows"
            )
        check_classification_targets(target)
        self.classes_ = np.unique(target)
        if self.classes_.size < 2:
            raise ValueError(
                f"classification needs two classes, the data has one class: "
                f"{self.classes_.tolist()[0]!r}"
            )
        self.label_ = _free_name(frame)
        return frame.assign(**{self.label_: np.searchsorted(self.classes_, target)})

    def predict_proba(self, X: Any) -> Array:
        """Return p(y | x) (n, k), classes in the order of `classes_`."""
        proba = self._asked(
            X, lambda rows, unknown: self.model_.predict_proba(rows, self.label_, unknown=unknown)
        )
        return proba.reindex(columns=range(self.classes_.size), fill_value=0.0).to_numpy()

    def predict(self, X: Any) -> Array:
        """Return the most probable class of each row (n,)."""
        proba = self.predict_proba(X)
        return np.asarray(self.classes_[proba.argmax(axis=1)])


class CircuitClassifier(_Classifier):
    """A classifier by p(y | x) of one joint distribution; any cells of x may be missing.

    An empty cell is summed out, but for columns whose gaps said something about y in `fit`
    (`telling_gaps_`): there it is evidence that a value lacks, unless `missing="marginalise"`.

    Args:
        learner: name of a learner (or a Learner whose label is "label").
        options: options of the named learner.
        seed: the same seed gives the same model.
        **tuned: options of the named learner as parameters of their own (`n_states=8`), which a
            grid search can set.
    """

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Learn the joint distribution of X and y."""
        if y is None:
            raise ValueError("requires y to be passed, but the target y is None")
        coded = self._coded(self._frame(X, reset=True), y)
        if sample_weight is not None:
            sample_weight = _check_sample_weight(sample_weight, X, ensure_non_negative=True)
        self.model_ = learn(
            coded,
            label=self.label_,
            learner=self.learner,
            kinds={self.label_: "categorical"},
            domains={self.label_: list(range(self.classes_.size))},
            weights=sample_weight,
            seed=self.seed,
            **self._chosen(),
        )
        self._find_telling_gaps(coded, coded[self.label_].to_numpy(), sample_weight)
        return self


class FederatedClassifier(_Classifier):
    """A classifier by the federated model of rows that lie at several clients.

    Every client fits a model of its own rows, and the models become one, as `federate` does it. The
    column that names the client is no variable: rows to be predicted need not have it.

    Args:
        clients: the column of X (a DataFrame) that names the client of each row.
        learner: name of a learner, or a Learner.
        agreement: name of an agreement rule, or "auto".
        options: options of the agreement rule.
        seed: the same seed gives the same model.
    """

    def __init__(
        self,
        clients: str = "client",
        learner: str | Learner = DEFAULT_LEARNER,
        agreement: str = "auto",
        options: dict[str, Any] | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(learner, options, seed)
        self.clients = clients
        self.agreement = agreement

    def fit(self, X: Any, y: Any) -> Self:
        """Learn the joint distribution of X and y from the rows of each client."""
        if not isinstance(X, pd.DataFrame):
            raise ValueError(
                f"X is a DataFrame with a column {self.clients!r} that names the client of each "
                f"row, found {type(X).__name__}"
            )
        if self.clients not in X.columns:
            names = map(str, X.columns)
            raise ValueError(f"clients: {unknown_name('column', self.clients, names, 'X')}")
        for name in self._tuned():
            raise ValueError(unknown_name("parameter", name, self._get_param_names()))
        coded = self._coded(self._frame(X, reset=True), y)
        owner = coded[self.clients]
        if owner.isna().any():
            raise ValueError(f"{int(owner.isna().sum())} rows name no client in {self.clients!r}")
        rows = coded.drop(columns=self.clients)
        made: Any = federate(
            {str(name): rows[owner == name] for name in owner.unique()},
            label=self.label_,
            learner=self.learner,
            agreement=self.agreement,
            kinds={self.label_: "categorical"},
            seed=self.seed,
            **(self.options or {}),
        )
        self.model_ = made
        self._find_telling_gaps(rows, rows[self.label_].to_numpy())
        return self


class CircuitRegressor(RegressorMixin, _CircuitEstimator):  # type: ignore[misc]
    """A regressor by p(y | x) of one joint distribution; any cells of x may be missing.

    An empty cell is summed out, but for columns whose gaps said something about y in `fit`
    (`telling_gaps_`): there it is evidence that a value lacks, unless `missing="marginalise"`.

    Args:
        learner: name of a learner that takes a numeric label (or a Learner whose label is "label").
        options: options of the named learner.
        seed: the same seed gives the same model.
        **tuned: options of the named learner as parameters of their own (`n_states=8`), which a
            grid search can set.
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
            **self._chosen(),
        )
        eighths = np.quantile(target, np.arange(1, 8) / 8)
        self._find_telling_gaps(frame, np.searchsorted(eighths, target), sample_weight)
        return self

    def predict(self, X: Any) -> Array:
        """Return the mean of y in each row (n,)."""
        found = self._asked(
            X, lambda rows, unknown: self.model_.predict(rows, self.label_, unknown=unknown)
        )
        return np.asarray(found.to_numpy())

    def predict_interval(self, X: Any, level: float = 0.9) -> Array:
        """Return the ends (n, 2) of the central interval that holds y with that probability."""
        found = self._asked(
            X, lambda rows, unknown: self.model_.interval(self.label_, level, rows, unknown=unknown)
        )
        return np.asarray(found.to_numpy())

    def predict_quantiles(self, X: Any, quantiles: Sequence[float] = (0.1, 0.5, 0.9)) -> Array:
        """Return quantiles of y in each row (n, k), for shares strictly between 0 and 1."""
        found = self._asked(
            X,
            lambda rows, unknown: self.model_.quantile(
                self.label_, list(quantiles), rows, unknown=unknown
            ),
        )
        return np.asarray(found.to_numpy())


class CircuitDensity(DensityMixin, _CircuitEstimator):  # type: ignore[misc]
    """A density estimator: the joint distribution of all columns of X.

    Args:
        learner: name of a learner, or a Learner.
        options: options of the named learner.
        seed: the same seed gives the same model.
        **tuned: options of the named learner as parameters of their own (`n_states=8`), which a
            grid search can set.
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
            **self._chosen(),
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

"""Estimates of the head's predictions for rows with missing cells, and their standard errors.

An estimate is the circuit's exact answer plus the mean of a change over a few completions. A few
draws may all agree although a rare completion changes much, so their own variance alone states
errors that are too small. It is therefore averaged with what is typical of the model: the variance
of the change relative to that of the answer itself, over rows drawn from the model. Quantiles of
Student's t take care of the rest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy import special

from fedcircuits.arrays import FloatArray

if TYPE_CHECKING:
    from fedcircuits.learners.hclt.head.headed.completions import Completions

# How many draws the typical variance counts for beside a row's own.
TYPICAL_DRAWS = 12.0
_NORMAL = 1.959963984540054


@dataclass(frozen=True)
class TypicalChange:
    """How much the posterior of the head varies between completions of rows drawn from the model.

    Attributes:
        away: (N, Y) q - t less its mean over the completions of the same row.
        weight: (N,) share of a completion in its row.
        posterior: (n, Y) t(y | observed cells) of the rows.
    """

    away: FloatArray
    weight: FloatArray
    posterior: FloatArray

    def of_masses(self) -> float:
        """Variance of the change of a class's mass, over p (1 - p)."""
        changed = float((self.weight[:, None] * self.away**2).sum())
        return _over(changed, float((self.posterior * (1 - self.posterior)).sum()))

    def of_mean(self, values: FloatArray) -> float:
        """Variance of the change of the mean of values (Y,) of the states, over their variance."""
        changed = float(self.weight @ (self.away @ values) ** 2)
        return _over(changed, float(variance_of(self.posterior, values).sum()))


def _over(changed: float, spread: float) -> float:
    return changed / spread if spread > 0 else 0.0


def variance_of(posterior: FloatArray, values: FloatArray) -> FloatArray:
    """(n,) variances of values (Y,) under posteriors (n, Y)."""
    mean = posterior @ values
    return np.asarray((posterior * (values - mean[:, None]) ** 2).sum(axis=1))


def by_row(found: Completions, values: FloatArray, n: int) -> FloatArray:
    """(n, k) weighted sums of values (N, k) over the completions of each of n rows."""
    columns = [np.bincount(found.row, found.weight * v, minlength=n) for v in values.T]
    return np.stack(columns, axis=1)


def widened(own: FloatArray, typical: FloatArray, n_drawn: int) -> FloatArray:
    """Standard errors of means over draws, such that 1.96 of them cover 95 %.

    Args:
        own: variance of the draws, with n - 1 below it.
        typical: variance that is typical of the model, of the same shape.
        n_drawn: how many draws there are.
    """
    degrees = n_drawn - 1
    variance = (degrees * own + TYPICAL_DRAWS * typical) / (degrees + TYPICAL_DRAWS)
    few = float(special.stdtrit(degrees, 0.975)) / _NORMAL
    return np.asarray(few * np.sqrt(variance / n_drawn))


def estimate(
    tilt: FloatArray,
    found: Completions,
    limit: float,
    n_drawn: int,
    typical: TypicalChange | None = None,
) -> tuple[FloatArray, FloatArray]:
    """(n, Y) the estimate of a chunk of rows with missing cells, and its error.

    Args:
        tilt: (n, Y) t(y | observed cells).
        found: completions drawn by t.
        limit: log of the largest q / t.
        n_drawn: how many completions of a row were drawn.
        typical: of the model; without it errors are NaN.
    """
    n = len(tilt)
    change = np.exp(found.log_head) - np.exp(found.log_tilt)  # (N, Y)
    mean = by_row(found, change, n)
    # q / t stays within a factor everywhere, so its mean does.
    bound = np.exp(limit)
    answer = np.clip(tilt + mean, tilt / bound, np.minimum(tilt * bound, 1.0))
    with np.errstate(invalid="ignore"):
        answer /= answer.sum(axis=1, keepdims=True)
    if typical is None:
        return answer, np.full(answer.shape, np.nan)
    own = by_row(found, (change - mean[found.row]) ** 2, n) * n_drawn / (n_drawn - 1)
    error = widened(own, typical.of_masses() * answer * (1 - answer), n_drawn)
    return answer, np.where(found.listed[:, None], 0.0, error)


def mean_error(
    tilt: FloatArray,
    found: Completions,
    values: FloatArray,
    n_drawn: int,
    typical: TypicalChange,
) -> FloatArray:
    """(n,) standard errors of estimated means of values (Y,) of the label's states.

    Args:
        tilt: (n, Y) t(y | observed cells).
        found: completions drawn by t.
        values: (Y,) what the mean is of.
        n_drawn: how many completions of a row were drawn.
        typical: of the model.
    """
    change = ((np.exp(found.log_head) - np.exp(found.log_tilt)) @ values)[:, None]  # (N, 1)
    mean = by_row(found, change, len(tilt))
    own = by_row(found, (change - mean[found.row]) ** 2, len(tilt))[:, 0] * n_drawn / (n_drawn - 1)
    error = widened(own, typical.of_mean(values) * variance_of(tilt, values), n_drawn)
    return np.where(found.listed, 0.0, error)


def variance_by_row(
    found: Completions, weights: FloatArray, values: FloatArray, n: int
) -> FloatArray:
    """(n, k) variances of values (N, k) under weights (N,) that are one in all in a row."""
    mean = _summed(found, weights, values, n)
    return _summed(found, weights, (values - mean[found.row]) ** 2, n)


def _summed(found: Completions, weights: FloatArray, of: FloatArray, n: int) -> FloatArray:
    """(n, k) sums of weights (N,) times values (N, k) over the completions of each of n rows."""
    columns = [np.bincount(found.row, weights * v, minlength=n) for v in of.T]
    return np.stack(columns, axis=1)


def error_given_label(
    found: Completions,
    head: FloatArray,
    tilt: FloatArray,
    values: FloatArray,
    spread: FloatArray,
    unseen: FloatArray,
) -> FloatArray:
    """(n, k) standard errors of means of values (N, k) given the label.

    Such a mean is the circuit's own plus the difference of two weighted means over completions. Its
    error is not less than the weights make it for values that do not depend on them, and includes
    one completion that was not drawn and has the largest ratio possible.

    Args:
        found: completions drawn given the label.
        head: (N,) shares of the completions under the head, one in all in a row.
        tilt: (N,) shares under the circuit.
        values: (N, k) of the completions.
        spread: (n, k) variances of the values, in doubt the larger one.
        unseen: (n,) share under the head of that completion.
    """
    n, row = len(spread), found.row
    drawn = np.bincount(row, minlength=n)
    n_drawn = int(drawn[~found.listed].max(initial=2))
    # What each draw adds to the difference, to first order, times the number of draws.
    away = head[:, None] * (values - _summed(found, head, values, n)[row])
    away -= tilt[:, None] * (values - _summed(found, tilt, values, n)[row])
    own = _summed(found, np.ones(row.size), away**2, n) * n_drawn**2 / (n_drawn - 1)
    ratio = np.bincount(row, (head - tilt) ** 2, minlength=n) * n_drawn
    typical = np.maximum(own, ratio[:, None] * spread)
    error = np.hypot(widened(typical, typical, n_drawn), unseen[:, None] * np.sqrt(spread))
    return np.where(found.listed[:, None], 0.0, error)

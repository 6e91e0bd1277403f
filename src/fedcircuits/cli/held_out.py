"""Scores of a model on rows that it has not seen, beside what ignores the other columns."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from fedcircuits.api.learn import learn
from fedcircuits.cli.output import Output
from fedcircuits.density import Density
from fedcircuits.errors import FedcircuitsError
from fedcircuits.report.scores import label_scores
from fedcircuits.schema.shown import some

FEWEST_ROWS = 50  # with fewer, a fifth of the rows says nothing


def check_share(share: float) -> None:
    """Refuse a share of held-out rows that is none."""
    if not 0 <= share < 1:
        raise FedcircuitsError(f"--holdout is a share from 0 to below 1, found {share}")


def split(rows: pd.DataFrame, share: float, seed: int) -> tuple[pd.DataFrame, pd.DataFrame] | None:
    """Return rows to learn from and rows to score on; None where none are to be held out.

    Args:
        rows: all rows.
        share: of the rows that are held out.
        seed: of the random choice.
    """
    check_share(share)
    if share == 0 or len(rows) < FEWEST_ROWS:
        return None
    held = np.random.default_rng(seed).permutation(len(rows)) < round(share * len(rows))
    return rows[~held], rows[held]


def scores(
    model: Density, test: pd.DataFrame, label: str | None, prior: pd.DataFrame | None = None
) -> dict[str, Any]:
    """Return scores by name, each as [model, baseline].

    Args:
        model: the model.
        test: rows that it has not seen.
        label: the column to be predicted, or None.
        prior: rows that it was learned from, for the baselines; without them these are the
            model's own single columns.
    """
    known = [name for name in model.schema.names if name in test.columns]
    if not known:
        raise FedcircuitsError(
            f"the rows to score on have none of the model's columns ({some(model.schema.names)}); "
            f"they have {some(map(str, test.columns))}"
        )
    rows = test[known]
    if prior is None:
        single: dict[str, Density] = {name: model.marginal([name]) for name in known}
    else:
        # A value has the probability that there is one, as in the model.
        columns = model.schema.mark_missing(prior[list(model.schema.names)])
        single = dict.fromkeys(known, learn(columns, learner="factorised", schema=model.schema))
    alone = [single[name].mean_log_prob(rows[[name]], unknown="missing") for name in known]
    found: dict[str, Any] = {
        "mean log-density, nats per row": [model.mean_log_prob(rows, unknown="missing"), sum(alone)]
    }
    if label is None or label not in test.columns:
        return found
    rows = rows[rows[label].notna()]
    if model.schema[label].outcomes is None:
        truth = rows[label].to_numpy(dtype=float)
        error = model.predict(rows, label, unknown="missing").to_numpy(dtype=float) - truth
        mean = single[label].expectation(label) if prior is None else prior[label].mean()
        found["root mean square error"] = [
            float(np.sqrt(np.mean(error**2))),
            float(np.sqrt(np.mean((truth - mean) ** 2))),
        ]
        return found
    made = label_scores(model.predict_proba(rows, label, unknown="missing"), rows[label])
    shares = single[label].predict_proba(rows[[label]], label, unknown="missing")
    plain = label_scores(shares, rows[label])
    found["accuracy"] = [made.accuracy, plain.accuracy]
    found["AUC"] = [made.auc, 0.5]
    found["log-loss"] = [made.log_loss, plain.log_loss]
    return found


def show(out: Output, found: dict[str, Any], n_rows: int, how: str) -> None:
    """Print the scores beside the baseline.

    Args:
        out: where they are printed.
        found: from `scores`.
        n_rows: number of rows they are of.
        how: where the rows come from.
    """
    out.table(
        f"on {n_rows} rows that were not learned from ({how})",
        ["", "model", "baseline"],
        [[name, *map(_shown, values)] for name, values in found.items()],
    )
    out.say(
        "(baseline: every column by its own, so the commonest class or the mean of the label, and "
        "its share as probability)"
    )


def _shown(score: float) -> str:
    """A score in four digits; a dash for the AUC of rows that are all of one class."""
    return "-" if math.isnan(score) else f"{score:.4g}"


@dataclass(frozen=True)
class HeldOut:
    """Scores of a model on rows that it has not seen.

    Attributes:
        scores: from `scores`.
        rows: the rows.
        model: the model that was scored.
    """

    scores: dict[str, Any]
    rows: pd.DataFrame
    model: Density


def scored(
    learn_from: Callable[[pd.DataFrame], Density],
    rows: pd.DataFrame,
    label: str | None,
    share: float,
    seed: int,
) -> HeldOut | None:
    """Return scores of a model of most rows on the others; None without any.

    Args:
        learn_from: rows to a model.
        rows: all rows.
        label: the column to be predicted, or None.
        share: of the rows that are held out.
        seed: of the random choice.
    """
    parts = split(rows, share, seed)
    if parts is None:
        return None
    prior, test = parts
    model = learn_from(prior)
    return HeldOut(scores(model, test, label, prior), test, model)

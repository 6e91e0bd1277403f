"""Figures (SVG) of an experiment, from its records alone."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedcircuits.experiments.experiment import Experiment

MARKERS = "osD^vP*X<>"
PER_ROW = 3
PAPER = "the paper's (hollow)"


def write_figure(experiment: Experiment, mine: pd.DataFrame, path: Path) -> list[Path]:
    """Write the first metric, a panel for each data set, and return the paths that were written.

    Against the settings, or against the metric that the experiment's `figure` names; the paper's
    figures, where their scale is ours, in hollow marks.

    Args:
        experiment: whose figure it is.
        mine: its records.
        path: of the SVG file.
    """
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot as plt

    metric, words = next(iter(experiment.metrics.items()))
    if metric not in mine.columns:
        return []
    mine = mine.dropna(subset=[metric])
    shown = [data for data in experiment.data if (mine["data"] == data).any()]
    if not shown:
        return []
    most = max(mine[mine["data"] == data]["setting"].nunique() for data in shown)
    width = max(3.4, 0.5 + 0.09 * most * (2 + mine["model"].nunique()))
    columns = min(len(shown), PER_ROW if width < 4.5 else 1)
    rows = math.ceil(len(shown) / columns)
    with mpl.rc_context({"svg.hashsalt": path.stem, "font.size": 9}):
        figure, axes = plt.subplots(
            rows, columns, figsize=(width * columns, 3.3 * rows + 0.7), squeeze=False,
            layout="constrained",
        )  # fmt: skip
        for axis in axes.flat[len(shown) :]:
            axis.set_axis_off()
        for axis, data in zip(axes.flat, shown, strict=False):
            _panel(axis, experiment, mine[mine["data"] == data], metric)
            axis.set_title(data)
        figure.supylabel(words, fontsize=9)
        found: dict[str, Any] = {}
        for axis in axes.flat:
            found |= {k: v for v, k in zip(*axis.get_legend_handles_labels(), strict=True)}
        named = {model: found[model] for model in experiment.models if model in found}
        named |= {label: mark for label, mark in found.items() if label == PAPER}
        figure.legend(
            list(named.values()), list(named), loc="outside lower center", frameon=False,
            ncols=max(1, min(len(named), int(width * columns / 1.6))),
        )  # fmt: skip
        figure.savefig(path, metadata={"Date": None})
        plt.close(figure)
    return [path]


def _panel(axis: Any, experiment: Experiment, mine: pd.DataFrame, metric: str) -> None:
    """Draw means and standard deviations of one data set's models."""
    settings = [name for name in experiment.settings if (mine["setting"] == name).any()]
    models = [name for name in experiment.models if (mine["model"] == name).any()]
    across = experiment.figure.get("across")
    counted = all(name.isdigit() for name in settings)
    step = 0.8 / max(1, len(models))
    for at, model in enumerate(models):
        chosen = mine[mine["model"] == model].groupby("setting")
        spread = chosen[metric].agg(["mean", "std"]).reindex(settings)
        places: Any = np.arange(len(settings)) + step * (at - (len(models) - 1) / 2)
        if across is not None:
            places = chosen[across].mean().reindex(settings).to_numpy()
        elif counted:
            places = np.array([int(name) for name in settings])
        order = experiment.models.index(model)
        axis.errorbar(
            places, spread["mean"], yerr=spread["std"].fillna(0.0), ms=4.5, capsize=2, lw=1,
            fmt=MARKERS[order % len(MARKERS)] + ("-" if counted else ""), color=f"C{order % 10}",
            label=model,
        )  # fmt: skip
        published = [_published(experiment, mine, name, model, metric) for name in settings]
        if across is None and not counted and any(value is not None for value in published):
            axis.plot(
                places, [np.nan if value is None else value for value in published],
                MARKERS[order % len(MARKERS)], ms=4.5, mfc="none", color=f"C{order % 10}",
            )  # fmt: skip
            axis.plot([], [], "o", ms=4.5, mfc="none", color="0.4", label=PAPER)
    axis.grid(axis="y", alpha=0.3)
    axis.margins(y=0.12)
    if experiment.figure.get("log"):
        axis.set_yscale("log")
    if across is not None or counted:
        axis.set_xscale("log")
        axis.set_xlabel(experiment.metrics.get(across, across) if across else "clients")
        if across is None:
            axis.set_xticks([int(name) for name in settings], settings)
            axis.minorticks_off()
    else:
        axis.set_xticks(range(len(settings)), settings, rotation=30, ha="right")
        axis.set_xlim(-0.6, len(settings) - 0.4)
        for edge in range(1, len(settings)):
            axis.axvline(edge - 0.5, color="0.9", lw=0.8, zorder=0)


def _published(
    experiment: Experiment, mine: pd.DataFrame, setting: str, model: str, metric: str
) -> float | None:
    """Return the paper's mean where its scale is ours, which `figure.paper` says."""
    if not experiment.figure.get("paper"):
        return None
    found = experiment.paper.get(mine["data"].iloc[0], {}).get(setting, {}).get(model, {})
    return float(found[metric][0]) if metric in found else None

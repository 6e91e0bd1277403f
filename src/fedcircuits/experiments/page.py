"""Tables and figures of an experiment, from its records alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedcircuits.experiments.experiment import Experiment
from fedcircuits.federation.wire import ledger

CENTRALISED = "centralised"
DIGITS = {
    "log_likelihood": 2, "relative_seconds": 2, "seconds": 1, "seconds_slowest": 1, "bytes": 0,
    "bytes_formula": 0, "bytes_a_row": 1, "parameters": 0, "nats_a_value": 3,
}  # fmt: skip


def write_page(experiment: Experiment, frame: pd.DataFrame, folder: Path, command: str) -> Path:
    """Write NAME.md and its figures, and return the page's path.

    Args:
        experiment: whose page it is.
        frame: the records.
        folder: where to write.
        command: that made the records.
    """
    folder.mkdir(parents=True, exist_ok=True)
    name = experiment.name + (".quick" if experiment.quick else "")
    figures = write_figures(experiment, frame, folder, name)
    path = folder / f"{name}.md"
    path.write_text("\n".join(lines(experiment, frame, command, figures)) + "\n")
    return path


def lines(
    experiment: Experiment, frame: pd.DataFrame, command: str, figures: list[Path]
) -> Iterator[str]:
    """Return the lines of the page."""
    mine = rows_of(experiment, frame)
    seeds = sorted({int(seed) for seed in mine["seed"]})
    yield f"# {experiment.title}"
    yield ""
    yield experiment.text.strip()
    yield ""
    yield f"`{command}`, {', '.join(sorted(set(mine['date'])))}."
    yield f"Machine: {'; '.join(sorted(set(mine['machine'])))}."
    yield f"Versions: {'; '.join(sorted(set(mine['versions'])))}."
    yield f"Seeds {', '.join(map(str, seeds))}; mean ± standard deviation over seeds (n - 1),"
    yield "the number of seeds in brackets where it is smaller. In italics: the paper's figures."
    for figure in figures:
        yield ""
        yield f"![{experiment.title}]({figure.name})"
    for metric, words in experiment.metrics.items():
        if metric in mine.columns and mine[metric].notna().any():
            yield ""
            yield f"## {words[0].upper()}{words[1:]}"
            yield ""
            yield from table(experiment, mine, metric, len(seeds))
    sizes = experiment.options.get("extrapolate")
    if sizes:
        yield ""
        yield from extrapolation(sizes)


def rows_of(experiment: Experiment, frame: pd.DataFrame) -> pd.DataFrame:
    """Return the records of an experiment, with what is derived from several of them."""
    chosen = (frame["experiment"] == experiment.name) & (frame["quick"] == experiment.quick)
    mine = frame[chosen].copy()
    if "seconds_slowest" in mine.columns:
        whole = mine[mine["setting"] == CENTRALISED].set_index(["data", "model", "seed"])
        base = whole["seconds_slowest"].to_dict()
        keys = zip(mine["data"], mine["model"], mine["seed"], strict=True)
        mine["relative_seconds"] = [
            value / base[key] if base.get(key) else np.nan
            for key, value in zip(keys, mine["seconds_slowest"], strict=True)
        ]
    if "bytes" in mine.columns:
        mine["bytes_a_row"] = mine["bytes"] / mine["rows"]
    return mine


def table(experiment: Experiment, mine: pd.DataFrame, metric: str, n_seeds: int) -> Iterator[str]:
    """Return the lines of one table: a row for each data set and setting, a column a model."""
    models = [model for model in experiment.models if (mine["model"] == model).any()]
    yield f"| data | setting | {' | '.join(models)} |"
    yield "|---" * (2 + len(models)) + "|"
    for data in experiment.data:
        for setting in experiment.settings:
            cells = []
            for model in models:
                chosen = mine[
                    (mine["data"] == data) & (mine["setting"] == setting) & (mine["model"] == model)
                ]
                values = chosen[metric].dropna().to_numpy(dtype=float)
                published = _published(experiment, data, setting, model, metric)
                cells.append(" ".join(filter(None, [in_cell(values, metric, n_seeds), published])))
            if any(cells):
                yield f"| {data} | {setting} | {' | '.join(cell or '-' for cell in cells)} |"


def in_cell(values: Any, metric: str, n_seeds: int) -> str:
    """Return mean, standard deviation (n - 1) and number of seeds as the tables show them."""
    if not values.size:
        return ""
    digits = DIGITS.get(metric, 4)
    text = f"{values.mean():,.{digits}f}"
    if values.size > 1:
        text += f" ± {values.std(ddof=1):,.{digits}f}"
    return text if values.size == n_seeds else f"{text} ({values.size})"


def _published(experiment: Experiment, data: str, setting: str, model: str, metric: str) -> str:
    found: Any = experiment.paper
    for key in (data, setting, model, metric):
        if not isinstance(found, Mapping) or key not in found:
            return ""
        found = found[key]
    mean, spread = found
    return f"*{mean:g} ± {spread:g}*"


def extrapolation(sizes: Mapping[str, Any]) -> Iterator[str]:
    """Return the formulas of section 3.4 for sizes that were not run, and say so."""
    yield "## Extrapolated by the formulas of section 3.4, not measured"
    yield ""
    yield "Megabytes; numbers in float64 for circuits, in float32 for networks."
    yield ""
    yield "| parameters | rows | clients | FedPC, rows split | FedAvg | SplitNN |"
    yield "|---|---|---|---|---|---|"
    n, rounds = int(sizes["clients"]), int(sizes["rounds"])
    for parameters in sizes["parameters"]:
        for rows in sizes["rows"]:
            circuit = 8 * ledger.fed_pc_horizontal(parameters, n) / 1e6
            average = 4 * ledger.fed_avg(parameters, n, rounds) / 1e6
            split = 4 * ledger.split_nn(rows, 64, n, rounds) / 1e6
            yield (
                f"| {parameters:,} | {rows:,} | {n} | {circuit:,.0f} | {average:,.0f} "
                f"| {split:,.0f} |"
            )


def write_figures(
    experiment: Experiment, frame: pd.DataFrame, folder: Path, name: str
) -> list[Path]:
    """Write one SVG figure: the first metric, a panel for each data set."""
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot as plt

    mine = rows_of(experiment, frame)
    metric, words = next(iter(experiment.metrics.items()))
    shown = [data for data in experiment.data if (mine["data"] == data).any()]
    if metric not in mine.columns or not shown:
        return []
    with mpl.rc_context({"svg.hashsalt": name, "font.size": 9}):
        figure, axes = plt.subplots(
            1, len(shown), figsize=(3.2 * len(shown), 3.4), squeeze=False, layout="constrained"
        )
        for axis, data in zip(axes[0], shown, strict=True):
            _panel(axis, experiment, mine[mine["data"] == data], metric)
            axis.set_title(data)
        axes[0][0].set_ylabel(words)
        handles, labels = axes[0][0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
        path = folder / f"{name}.svg"
        figure.savefig(path, metadata={"Date": None})
        plt.close(figure)
    return [path]


def _panel(axis: Any, experiment: Experiment, mine: pd.DataFrame, metric: str) -> None:
    settings = list(experiment.settings)
    for at, model in enumerate(experiment.models):
        chosen = mine[mine["model"] == model]
        if chosen.empty:
            continue
        spread = chosen.groupby("setting")[metric].agg(["mean", "std"]).reindex(settings)
        places = np.arange(len(settings)) + 0.12 * (at - len(experiment.models) / 2)
        axis.errorbar(
            places, spread["mean"], yerr=spread["std"].fillna(0.0), fmt="o", ms=4, capsize=2,
            label=model,
        )  # fmt: skip
    axis.set_xticks(range(len(settings)), settings, rotation=40, ha="right")
    axis.grid(axis="y", alpha=0.3)

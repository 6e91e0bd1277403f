"""Tables and figures of an experiment, from its records alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedcircuits.experiments.experiment import Experiment
from fedcircuits.experiments.figure import write_figure
from fedcircuits.experiments.prose import DIGITS, filled, mean_of, reasons
from fedcircuits.experiments.records import KEY
from fedcircuits.federation.wire import ledger

CENTRALISED = "centralised"


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
    figures = write_figure(experiment, rows_of(experiment, frame), folder / f"{name}.svg")
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
    yield "A cell is empty where a model does not exist in a setting."
    planned = {cell.key for cell in experiment.cells()}
    absent = len(planned - set(mine[list(KEY)].itertuples(index=False, name=None)))
    if absent:
        yield f"Of {len(planned)} trainings {absent} have not been run."
    missing = list(reasons(experiment, mine))
    for figure in figures:
        yield ""
        yield f"![{experiment.title}]({figure.name})"
    for metric, words in experiment.metrics.items():
        if metric in mine.columns and mine[metric].notna().any():
            yield ""
            yield f"## {words[0].upper()}{words[1:]}"
            yield ""
            yield from table(experiment, mine, metric, len(seeds))
    for rule in experiment.compare:
        found = list(comparison(experiment, mine, rule))
        if found:
            yield from ["", f"## {rule['title']}", "", *found]
    sizes = experiment.options.get("extrapolate")
    if sizes:
        yield ""
        yield from extrapolation(sizes)
    if experiment.reading and not experiment.quick:
        yield from ["", "## What the tables show", "", filled(experiment.reading, mine)]
    if missing:
        yield from ["", "## Not run", "", *missing]


def rows_of(experiment: Experiment, frame: pd.DataFrame) -> pd.DataFrame:
    """Return the records of an experiment, with what is derived from several of them."""
    chosen = (frame["experiment"] == experiment.name) & (frame["quick"] == experiment.quick)
    mine = frame[chosen].copy()
    if "seconds_slowest" in mine.columns:
        mine["relative_seconds"] = mine["seconds_slowest"] / _centralised(
            experiment, mine, "seconds_slowest"
        )
    if "log_likelihood" in mine.columns:
        mine["nats_to_centralised"] = mine["log_likelihood"] - _centralised(
            experiment, mine, "log_likelihood"
        )
    if "bytes" in mine.columns:
        mine["bytes_a_row"] = mine["bytes"] / mine["rows"]
    return mine


def _centralised(experiment: Experiment, mine: pd.DataFrame, metric: str) -> Any:
    """Return, for every row, the metric of the same model and seed on one table, (n,).

    Rules that exist in federations alone are held against the model that `centralised_of` names.
    """
    whole = mine[mine["setting"] == CENTRALISED].set_index(["data", "model", "seed"])
    base = whole[metric].to_dict()
    models = mine["model"].replace(experiment.options.get("centralised_of", {}))
    keys = zip(mine["data"], models, mine["seed"], strict=True)
    return np.array([base.get(key, np.nan) for key in keys], dtype=float)


def comparison(
    experiment: Experiment, mine: pd.DataFrame, rule: Mapping[str, Any]
) -> Iterator[str]:
    """Return the lines of a table of our model beside others, paired by seed, losses included."""
    metric, rows = rule["metric"], []
    index = mine.set_index(["data", "setting", "model", "seed"])[metric].dropna()
    for data in experiment.data:
        for setting in experiment.settings:
            for rival in rule["against"]:
                pairs = [
                    (index[data, setting, rule["ours"], seed], index[data, setting, rival, seed])
                    for seed in range(experiment.seeds)
                    if (data, setting, rule["ours"], seed) in index
                    and (data, setting, rival, seed) in index
                ]
                if pairs:
                    rows.append((data, setting, rival, *_verdict(np.array(pairs), metric, rule)))
    if rows:
        yield f"| data | setting | {rule['ours']} | beside | its {metric} | difference | |"
        yield "|---" * 7 + "|"
        for data, setting, rival, own, other, gap, verdict in rows:
            yield f"| {data} | {setting} | {own} | {rival} | {other} | {gap} | {verdict} |"
        counted = [row for row in rows if row[1] not in rule.get("excepted", ())]
        kept = sum(not row[-1].startswith("below") for row in counted)
        aside = len(rows) - len(counted)
        yield ""
        yield f"{kept} of {len(counted)} rows hold{f'; {aside} excepted' if aside else ''}."


def _verdict(pairs: Any, metric: str, rule: Mapping[str, Any]) -> tuple[str, str, str, str]:
    """Return both means, their difference and what it is called, of pairs (seeds, 2)."""
    digits = DIGITS.get(metric, 4)
    gaps = pairs[:, 0] - pairs[:, 1]
    spread = pairs[:, 0].std(ddof=1) if len(pairs) > 1 else 0.0
    room = rule.get("within", max(spread, pairs[:, 1].std(ddof=1) if len(pairs) > 1 else 0.0))
    words = "above" if gaps.mean() > room else "holds" if gaps.mean() >= -room else "below"
    own, other = (in_cell(values, metric, len(pairs)) for values in pairs.T)
    seeds = "1 seed" if len(pairs) == 1 else f"{len(pairs)} seeds"
    return own, other, f"{gaps.mean():+,.{digits}f}", f"{words} ({seeds})"


def table(experiment: Experiment, mine: pd.DataFrame, metric: str, n_seeds: int) -> Iterator[str]:
    """Return the lines of one table: a row for each data set and setting, a column a model."""
    planned = {(cell.data, cell.setting, cell.model) for cell in experiment.cells()}
    run = set(zip(mine["data"], mine["setting"], mine["model"], strict=True))
    models = [model for model in experiment.models if any(model == cell[2] for cell in planned)]
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
                own = in_cell(values, metric, n_seeds)
                if (data, setting, model) in planned and not own:
                    own = "-" if (data, setting, model) in run else "not run"
                published = _published(experiment, data, setting, model, metric)
                cells.append(" ".join(filter(None, [own, published])))
            if any(cells):
                yield f"| {data} | {setting} | {' | '.join(cells)} |"


def in_cell(values: Any, metric: str, n_seeds: int) -> str:
    """Return mean, standard deviation (n - 1) and number of seeds as the tables show them."""
    if not values.size:
        return ""
    text = mean_of(values, metric)
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

"""Figures in the text of a page, and what has not been run, from the records alone."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd

from fedcircuits.experiments.experiment import Experiment, ExperimentError

WIDTH = 118  # of a line of a page
PLACE = re.compile(r"\{([^{}]+)\}")
DIGITS = {
    "log_likelihood": 2, "nats_to_centralised": 2, "relative_seconds": 2, "seconds": 1,
    "seconds_slowest": 2, "bytes": 0, "device_gib": 2,
    "bytes_formula": 0, "bytes_a_row": 1, "parameters": 0, "nats_a_value": 3,
}  # fmt: skip


def filled(text: str, mine: pd.DataFrame) -> str:
    """Return a text with the records' figures in the places of `{metric: DATA / SETTING / MODEL}`.

    A place shows the mean over seeds. `{metric: A - B}` shows how much A is above B, with its
    sign, over the seeds that both have.

    Args:
        text: with such places.
        mine: records of the experiment.
    """
    found = PLACE.sub(lambda place: _figure(" ".join(place[1].split()), mine), text.strip())
    blocks = [re.split(r"\n(?=- )", block) for block in re.split(r"\n\s*\n", found)]
    return "\n\n".join("\n".join(_wrapped(item) for item in block) for block in blocks)


def _wrapped(item: str) -> str:
    text, indent = " ".join(item.split()), "  " * item.startswith("- ")
    return textwrap.fill(text, WIDTH, subsequent_indent=indent)


def _figure(place: str, mine: pd.DataFrame) -> str:
    metric, _, cells = place.partition(": ")
    values = [_by_seed(cell.split(" / "), metric, mine) for cell in cells.split(" - ")]
    digits = DIGITS.get(metric, 4)
    if len(values) == 1:
        return f"{values[0].mean():,.{digits}f}"
    gaps = (values[0] - values[1]).dropna()
    if gaps.empty:
        raise ExperimentError(f"no seed has both figures of {{{place}}}")
    return f"{gaps.mean():+,.{digits}f}"


def _by_seed(cell: list[str], metric: str, mine: pd.DataFrame) -> Any:
    data, setting, model = cell
    chosen = mine[
        (mine["data"] == data) & (mine["setting"] == setting) & (mine["model"] == model)
    ].set_index("seed")
    if metric not in chosen or chosen[metric].dropna().empty:
        raise ExperimentError(f"no record has {metric} of {' / '.join(cell)}")
    return chosen[metric].dropna()


def unrun(experiment: Experiment, mine: pd.DataFrame) -> Mapping[tuple[str, str, str], str]:
    """Return data set, setting and model of all cells without any run, and why there is none."""
    run = set(zip(mine["data"], mine["setting"], mine["model"], strict=True))
    wanted = {(cell.data, cell.setting, cell.model) for cell in experiment.cells()}
    return {
        cell: next((rule["why"] for rule in experiment.left_out if _covers(rule, cell)), "")
        for cell in wanted - run
    }


def _covers(rule: Mapping[str, Any], cell: tuple[str, str, str]) -> bool:
    named = dict(zip(("data", "setting", "model"), cell, strict=True))
    return all(value in rule[key] for key, value in named.items() if key in rule)


def reasons(experiment: Experiment, mine: pd.DataFrame) -> Iterator[str]:
    """Return the lines that name cells without any run, with the reason of each."""
    found = unrun(experiment, mine)
    for data in experiment.data:
        for model in experiment.models:
            groups: dict[str, list[str]] = {}
            for setting in experiment.settings:
                if (data, setting, model) in found:
                    groups.setdefault(found[data, setting, model], []).append(setting)
            for why, settings in groups.items():
                text = f"- {data}, {model} ({'; '.join(settings)}){': ' if why else ''}{why}"
                yield from textwrap.wrap(text, WIDTH, subsequent_indent="  ")


def mean_of(values: Any, metric: str) -> str:
    """Return mean and standard deviation (n - 1) of an array as the tables show them."""
    digits = DIGITS.get(metric, 4)
    text = f"{np.mean(values):,.{digits}f}"
    return text if values.size < 2 else f"{text} ± {values.std(ddof=1):,.{digits}f}"

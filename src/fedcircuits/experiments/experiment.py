"""An experiment as its TOML file describes it, and the cells that are to be run."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.resources import files
from pathlib import Path
from typing import Any, Self

from fedcircuits.errors import FedcircuitsError, unknown_name

NAMES = ("density", "scaling", "classification", "one-pass", "communication", "clients")


class ExperimentError(FedcircuitsError):
    """An experiment cannot be run as it was asked for."""


@dataclass(frozen=True)
class Cell:
    """One training: a data set, a setting, a model and a seed.

    Attributes:
        experiment: its name.
        data: name of the data set.
        setting: how the data are split.
        model: what is trained.
        seed: of data, split and training.
        quick: whether it is the small variant.
    """

    experiment: str
    data: str
    setting: str
    model: str
    seed: int
    quick: bool

    @property
    def key(self) -> tuple[str, str, str, str, int, bool]:
        """What tells it from other cells in the records."""
        return (self.experiment, self.data, self.setting, self.model, self.seed, self.quick)


@dataclass(frozen=True)
class Experiment:
    """What is run and how it is shown.

    Attributes:
        name: of the experiment.
        title: of its page.
        text: what the page says before its tables.
        seeds: how many.
        data: names of data sets.
        settings: by name, how data are split.
        models: names.
        metrics: columns of the tables: name of the metric and what it is called.
        reading: what the page says after its tables: what they show, and why; `{...}` stands for a
            figure of the records (see `prose.py`).
        left_out: cells that no seed of is run: names of `data`, `setting` and `model`, and `why`.
        compare: tables of one model beside others: `title`, `metric`, `ours`, `against`, and
            `within`, how far below them it may be; without it one standard deviation is a tie;
            settings that are `excepted` are shown and not counted.
        figure: `across`, a metric that the first one is drawn against, by default the settings;
            `log` for a logarithmic axis; `paper` where the paper's figures are on the same scale.
        skip: combinations that do not exist, each a mapping from `setting` and `model` to names.
        most_rows: training rows of the quick variant; None for all.
        paper: the published figures, by data set, setting, model and metric: mean and spread.
        options: further numbers that the cells of this experiment read.
        quick: whether it is the small variant.
    """

    name: str
    title: str
    text: str
    seeds: int
    data: tuple[str, ...]
    settings: Mapping[str, Mapping[str, Any]]
    models: tuple[str, ...]
    metrics: Mapping[str, str]
    reading: str = ""
    left_out: tuple[Mapping[str, Any], ...] = ()
    compare: tuple[Mapping[str, Any], ...] = ()
    figure: Mapping[str, Any] = field(default_factory=dict)
    skip: tuple[Mapping[str, Any], ...] = ()
    most_rows: int | None = None
    paper: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    quick: bool = False

    @classmethod
    def named(cls, name: str, *, quick: bool = False, seeds: int | None = None) -> Self:
        """Return a built-in experiment, or its small variant."""
        if name not in NAMES:
            raise ExperimentError(unknown_name("experiment", name, NAMES))
        return cls.read(name, _built_in(name), quick=quick, seeds=seeds)

    def only(self, names: Sequence[str]) -> Self:
        """Return the experiment on some of its data sets, settings or models.

        Args:
            names: of any of the three; where none of a kind is named all of the kind stay.
        """
        known = [*self.data, *self.settings, *self.models]
        for name in names:
            if name not in known:
                raise ExperimentError(unknown_name("data set, setting or model", name, known))
        return replace(
            self,
            data=_named_or_all(self.data, names),
            settings={key: self.settings[key] for key in _named_or_all(self.settings, names)},
            models=_named_or_all(self.models, names),
        )

    @classmethod
    def read(
        cls, name: str, found: Mapping[str, Any], *, quick: bool = False, seeds: int | None = None
    ) -> Self:
        """Return the experiment that a mapping, as TOML gives it, describes."""
        small = dict(found.get("quick", {})) if quick else {}
        settings = dict(found["settings"])
        kept = small.get("settings", list(settings))
        options = {**found.get("options", {}), **small.get("options", {})}
        return cls(
            name=name,
            title=found["title"],
            text=found["text"],
            seeds=seeds or small.get("seeds", found["seeds"]),
            data=tuple(small.get("data", found["data"])),
            settings={key: settings[key] for key in kept},
            models=tuple(small.get("models", found["models"])),
            metrics=found["metrics"],
            reading=found.get("reading", ""),
            left_out=tuple(found.get("left_out", ())),
            compare=tuple(found.get("compare", ())),
            figure=found.get("figure", {}),
            skip=tuple(found.get("skip", ())),
            most_rows=small.get("most_rows"),
            paper=found.get("paper", {}),
            options=options,
            quick=quick,
        )

    def cells(self) -> Iterator[Cell]:
        """Every cell, seed by seed, so that a run that is stopped has whole seeds."""
        for seed in range(self.seeds):
            for data in self.data:
                for setting in self.settings:
                    for model in self.models:
                        if not any(_matches(rule, data, setting, model) for rule in self.skip):
                            yield Cell(self.name, data, setting, model, seed, self.quick)


def published(split: str, data: str) -> Mapping[str, Any]:
    """Return the appendix's parameters of LearnSPN for a split of a data set."""
    found = _built_in("published")["rows" if split in ("none", "alone") else split]
    chosen: Mapping[str, Any] = found.get(data, found["other"])
    return chosen


def _built_in(name: str) -> dict[str, Any]:
    return tomllib.loads((files("fedcircuits.experiments") / f"{name}.toml").read_text())


def _named_or_all(known: Iterable[str], names: Sequence[str]) -> tuple[str, ...]:
    return tuple(one for one in known if one in names) or tuple(known)


def _matches(rule: Mapping[str, Any], data: str, setting: str, model: str) -> bool:
    named = {"data": data, "setting": setting, "model": model}
    return all(named[key] in values for key, values in rule.items())


@dataclass(frozen=True)
class Context:
    """Where and how the cells of a run are run.

    Attributes:
        folder: that holds the data sets, or None.
        engine: that federations are trained with.
        device: of networks: "cpu" or "cuda".
    """

    folder: Path | None = None
    engine: str = "local"
    device: str = "cpu"

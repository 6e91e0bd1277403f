"""What the explorer's page asks: every variable's distribution given evidence, as histograms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd

from fedcircuits.errors import QueryError
from fedcircuits.jsonable import plain_json
from fedcircuits.report.page import trained_for
from fedcircuits.schema import Variable
from fedcircuits.schema.events import Event, as_event, between
from fedcircuits.schema.events.event import AllOf
from fedcircuits.schema.times import from_numbers, to_numbers
from fedcircuits.serving.questions import Answer, Questions, Row, events_of

BINS, MOST_VALUES = 24, 40
SAMPLES = 5
COVERED = (0.005, 0.995)  # quantiles between which the bins of a number lie


@dataclass(frozen=True)
class Bin:
    """One bar of a histogram.

    Attributes:
        text: how it is shown.
        value: the value, of a variable with few values.
        low: lower end, of a range of numbers.
        high: upper end.
    """

    text: str
    value: Any = None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Explorer(Questions):
    """Questions of the explorer, beside those of the service."""

    _bins: dict[str, list[Bin]] = field(default_factory=dict, repr=False, compare=False)
    _without: dict[tuple[str, ...], Any] = field(default_factory=dict, repr=False, compare=False)

    def explore_variables(self) -> Answer:
        """Returns the variables with their bins, and the clients that can be switched off."""
        variables, label = [], trained_for(self.model)
        for variable in self.model.schema:
            bins = self._bins_of(variable)
            entry: Answer = {
                "name": variable.name,
                "unit": variable.unit,
                "values": bins[0].low is None,
                "whole": variable.kind == "count",
                "date": _stamps(variable),
                "label": variable.name == label,
                "bins": [vars(b) for b in bins],
            }
            if bins[0].low is not None:
                entry |= {"low": bins[0].low, "high": bins[-1].high}
            variables.append(entry)
        clients = list(getattr(self.model, "clients", ()))
        answer: Answer = plain_json({"variables": variables, "clients": clients})
        return answer

    def explore_answer(self, given: Row, without: Sequence[str]) -> Answer:
        """Returns the probability of the evidence and every variable's shares given it."""
        model, evidence = self._asked(given, without)
        probability = model.probability(evidence) if evidence else 1.0
        if not probability > 0:
            raise QueryError("the evidence has probability zero: clear one of its values")
        numbers = [
            v.name
            for v in model.schema
            if not v.is_coded and v.time is None and v.name not in evidence
        ]
        means = {name: model.expectation(name, evidence or None) for name in numbers}
        shares = self._shares(model, evidence)
        found = {"probability": probability, "variables": shares, "means": means}
        answer: Answer = plain_json(found)
        return answer

    def explore_complete(self, given: Row, without: Sequence[str]) -> Answer:
        """Returns a most probable completion of the evidence, and whether it is surely that."""
        model, evidence = self._asked(given, without)
        exact = bool(getattr(model, "mpe_is_exact", False))
        return {**self._rows_of(model.mpe(evidence or None)), "exact": exact}

    def explore_sample(self, given: Row, without: Sequence[str]) -> Answer:
        """Returns samples given the evidence."""
        model, evidence = self._asked(given, without)
        return self._rows_of(model.sample(SAMPLES, evidence or None))

    # --- helpers ----------------------------------------------------------------------------------

    def _rows_of(self, frame: pd.DataFrame) -> Answer:
        answer: Answer = plain_json({"rows": frame.to_dict("records")})
        return answer

    def _asked(self, given: Row, without: Sequence[str]) -> tuple[Any, dict[str, Any]]:
        """The model without some clients, and the evidence about what it still knows."""
        key = tuple(sorted(set(without)))
        if key not in self._without:
            model = self.model
            for client in key:
                if client not in getattr(model, "clients", ()):
                    raise QueryError(f"no client {client!r} to switch off")
                model = model.without(client)
            self._without[key] = model
        model = self._without[key]
        for name in given:
            self.model.schema.position(name)
        known = {
            name: _event(model.schema[name], value)
            for name, value in given.items()
            if name in model.schema
        }
        return model, events_of(known)

    def _bins_of(self, variable: Variable) -> list[Bin]:
        if variable.name not in self._bins:
            self._bins[variable.name] = self._made_bins(variable)
        return self._bins[variable.name]

    def _made_bins(self, variable: Variable) -> list[Bin]:
        values = variable.outcomes
        if values is not None and (variable.is_coded or len(values) <= MOST_VALUES):
            return [Bin(str(value), value) for value in values]
        low, high = self._ends_of(variable)
        if not high > low:
            high = low + 1.0
        edges = np.linspace(low, high, BINS + 1)
        if variable.kind == "count":  # every bin holds as many whole numbers
            low, high = np.floor(low), np.ceil(high)
            step = max(1.0, np.ceil((high - low) / BINS))
            edges = np.arange(low, high + step, step)
        pairs = zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)
        return [Bin(f"{_text(variable, a)} to {_text(variable, b)}", None, a, b) for a, b in pairs]

    def _ends_of(self, variable: Variable) -> tuple[float, float]:
        """Where the bins of a number begin and end: points about its grid, else quantiles."""
        name = variable.name
        edges = np.array([]) if variable.grid is None else variable.grid.edges
        if len(edges) > 1:  # one batch of events, where a quantile takes a dozen
            beyond = np.arange(1, BINS + 1) * np.ptp(edges) / BINS
            points = np.concatenate([edges[0] - beyond[::-1], edges, edges[-1] + beyond])
            points = np.unique(np.round(points) if variable.kind == "count" else points)
            ends = [*(_value(variable, float(point)) for point in points), None]
            below = [between(None, end, closed="right") for end in ends]
            logs = self.model.log_prob(pd.DataFrame({name: pd.Series(below, dtype=object)}))
            shares = np.exp(logs.to_numpy() - logs.iloc[-1])[:-1]
            low = np.flatnonzero(shares <= COVERED[0])
            high = np.flatnonzero(shares >= COVERED[1])
            return (
                float(points[low[-1] if low.size else 0]),
                float(points[high[0] if high.size else -1]),
            )
        found = pd.Series([self.model.quantile(name, p) for p in COVERED])
        if variable.time is not None:
            found = pd.Series(to_numbers(found, variable.time))
        return float(found.iloc[0]), float(found.iloc[1])

    def _shares(self, model: Any, evidence: Mapping[str, Any]) -> dict[str, list[float]]:
        """Probabilities of every variable's bins given the evidence, from one batch of events."""
        rows: list[dict[str, Any]] = []
        owners: list[str] = []
        for variable in model.schema:
            for piece in self._pieces(variable):
                own = evidence.get(variable.name)
                event = piece if own is None else AllOf((as_event(own), piece))
                rows.append({**evidence, variable.name: event})
                owners.append(variable.name)
        names = [name for name in model.schema.names if any(name in row for row in rows)]
        cells = {n: pd.Series([row.get(n) for row in rows], dtype=object) for n in names}
        logs = model.log_prob(pd.DataFrame(cells)).to_numpy()
        answer: dict[str, list[float]] = {}
        for name in model.schema.names:
            mine = logs[[at for at, owner in enumerate(owners) if owner == name]]
            weights = np.exp(mine - mine.max())
            answer[name] = [float(w) for w in weights / weights.sum()]
        return answer

    def _pieces(self, variable: Variable) -> list[Event]:
        """The bins as events; the first and the last hold the tails too, so they add up to one."""
        bins = self._bins_of(variable)
        if bins[0].low is None:
            return [as_event(b.value) for b in bins]
        ends = [None, *(_value(variable, float(b.high or 0.0)) for b in bins[:-1]), None]
        return [between(low, high, closed="right") for low, high in pairwise(ends)]


def _stamps(variable: Variable) -> str:
    """What the numbers of the page stand for: "date" (days), "datetime" (seconds) or ""."""
    kind = (variable.time or "").partition(" ")[0]
    return kind if kind in ("date", "datetime") else ""


def _value(variable: Variable, number: float) -> Any:
    """A number of the page as the variable has it: a date where it stands for one."""
    if variable.time is None:
        return number
    return pd.Series(from_numbers(np.array([number]), variable.time)).iloc[0]


def _text(variable: Variable, number: float) -> str:
    if variable.time is None:
        return f"{number:.6g}"
    return str(_value(variable, number))[: 10 if _stamps(variable) == "date" else 16]


def _event(variable: Variable, value: Any) -> Any:
    """Evidence of the page, the ends of a range of dates as dates."""
    if variable.time is None or not isinstance(value, dict) or "between" not in value:
        return value
    ends = [
        _value(variable, end) if isinstance(end, int | float) else end for end in value["between"]
    ]
    return {"between": [str(end) for end in ends]}

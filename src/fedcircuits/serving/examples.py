"""Example questions with the variables of one model, each of which the service answers."""

from __future__ import annotations

from typing import Any

import pandas as pd

from fedcircuits.density import Density
from fedcircuits.jsonable import plain_json
from fedcircuits.report.page import trained_for
from fedcircuits.schema import Schema, Variable


def examples(model: Any) -> dict[str, Any]:
    """Returns the body of an example request for every question that the model can answer."""
    schema: Schema = model.schema
    if not isinstance(model, Density):  # a classifier
        others = [v for v in schema if v.name != model.label]
        row = {v.name: _plain(v) for v in others[:2]}
        return {"predict_proba": plain_json({"rows": [row], "target": model.label})}
    typical = _typical(model)
    named = [v.name for v in schema if v.outcomes is not None]
    numbers = [v.name for v in schema if not v.is_coded and v.time is None]
    target = trained_for(model) or (named[-1] if named else None)
    given = {name: typical[name] for name in typical if name != target}
    some = dict(list(given.items())[:2]) or typical
    rows = [{**some}]
    found: dict[str, Any] = {
        "log_prob": {"rows": rows}, "mpe": {"rows": rows}, "impute": {"rows": rows},
        "sample": {"n": 3, "given": some, "seed": 1}, "marginals": {"given": some},
    }  # fmt: skip
    if target is not None and target in named:
        found["predict_proba"] = {"rows": rows, "target": target}
        found["probability"] = {"event": {target: typical[target]}, "given": some}
    if named:
        found["entropy"] = {"names": named[:1]}
    if len(schema) > 1:
        found["mutual_information"] = {"names": list(schema.names[:2])}
    if numbers:
        name, at = numbers[0], typical[numbers[0]]
        rest = {other: value for other, value in some.items() if other != name}
        found |= {
            "moment": {"name": name, "order": 1, "given": rest},
            "variance": {"name": name, "given": rest},
            "cdf": {"name": name, "x": [at], "given": rest},
            "quantile": {"name": name, "p": [0.1, 0.5, 0.9], "given": rest},
            "interval": {"name": name, "level": 0.9, "given": rest},
            "covariance": {"names": numbers[:2]},
        }
        found.setdefault("probability", {"event": {name: {"above": at}}, "given": rest})
    answer: dict[str, Any] = plain_json(found)
    return answer


def _typical(model: Any) -> dict[str, Any]:
    """A value of every variable that a reader of JSON understands: a likely row, medians."""
    row = model.mpe().iloc[0]
    shown = {}
    for variable in model.schema:
        value = row[variable.name] if variable.is_coded else model.quantile(variable.name, 0.5)
        if not pd.isna(value):
            shown[variable.name] = _short(variable, value)
    return shown


def _short(variable: Variable, value: Any) -> Any:
    if variable.is_coded:
        return value
    if variable.time is not None:
        return str(value)[: 10 if variable.time == "date" else 19]
    return float(f"{float(value):.4g}") if variable.kind == "continuous" else int(value)


def _plain(variable: Variable) -> Any:
    """A value of a variable that is not asked for its distribution."""
    if variable.is_coded:
        return variable.categories[0]
    low, high = variable.domain or (0.0, 0.0)
    return _short(variable, (low + high) / 2) if variable.time is None else None

"""The questions of the service: JSON values in, JSON values out, the library's own answers between.

No web framework here. A row is an object from names to values; a name that is absent, or null, is
missing and summed out, as everywhere in the library.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from fedcircuits.density import Density
from fedcircuits.errors import QueryError
from fedcircuits.jsonable import plain_json
from fedcircuits.schema import Schema, Variable
from fedcircuits.schema.events import Event
from fedcircuits.schema.events.parse import from_json
from fedcircuits.schema.shown import values_of
from fedcircuits.serving.examples import examples

Row = Mapping[str, Any]
Rows = Sequence[Row]
Answer = dict[str, Any]
STRANGE_NAMES = 100  # most names in a request that the model does not know


@dataclass(frozen=True)
class Limits:
    """The most that one request may ask for.

    Attributes:
        body_bytes: of a request.
        rows: in a request.
        samples: in an answer.
        seconds: from a request's head to the answer, its body and waiting for others included.
        workers: questions that are worked on at once.
    """

    body_bytes: int = 10 * 2**20
    rows: int = 10_000
    samples: int = 10_000
    seconds: float = 30.0
    workers: int = 4


class TooMuchError(QueryError):
    """A request beyond a limit of the service."""


@dataclass(frozen=True)
class Questions:
    """Questions to one model.

    Attributes:
        model: a density, or a classifier that answers `predict_proba` alone.
        limits: of a request.
    """

    model: Any
    limits: Limits

    def schema(self) -> Answer:
        """What the model is about."""
        variables = [_variable(v) for v in self.model.schema]
        facts = {"model": type(self.model).__name__, "variables": variables}
        for name in ("n_parameters", "mpe_is_exact"):
            if hasattr(self.model, name):
                facts[name] = getattr(self.model, name)
        return _answer(facts)

    def examples(self) -> Answer:
        """Example requests with the model's own variables, by question."""
        return {"examples": examples(self.model)}

    def log_prob(self, rows: Rows, unknown: str) -> Answer:
        """Log-density of every row, in nats."""
        frame = self._frame(rows)
        values = self._method("log_prob")(frame, unknown=unknown)
        return _answer({"log_prob": values.tolist()})

    def predict_proba(self, rows: Rows, target: str, unknown: str, impossible: str) -> Answer:
        """p(target | row) of every row."""
        frame = self._frame(rows)
        how = {"unknown": unknown}
        if isinstance(self.model, Density):  # a classifier knows no impossible evidence
            how["impossible"] = impossible
        proba = self._method("predict_proba")(frame, target, **how)
        return _answer(
            {
                "target": target,
                "outcomes": proba.columns.tolist(),
                "probabilities": proba.to_numpy().tolist(),
            }
        )

    def mpe(self, rows: Rows, unknown: str) -> Answer:
        """Every row with its gaps filled by a most probable completion."""
        frame = self._frame(rows)
        filled = self._method("mpe")(frame, unknown=unknown)
        return _answer({"rows": _records(filled), **filled.attrs})

    def sample(
        self, n: int, given: Row | None, rows: Rows | None, seed: int | None, unknown: str
    ) -> Answer:
        """Rows drawn, n for each row of evidence."""
        evidence = self._evidence(given, rows)
        total = n * (1 if rows is None else len(rows))
        if total > self.limits.samples:
            raise TooMuchError(f"at most {self.limits.samples} samples a request, found {total}")
        drawn = self._method("sample")(n, evidence, seed=seed, unknown=unknown)
        return _answer({"rows": _records(drawn)})

    def moment(
        self,
        name: str,
        order: int,
        given: Row | None,
        rows: Rows | None,
        impossible: str,
        unknown: str,
    ) -> Answer:
        """E[name**order | evidence], one value for each row of evidence."""
        evidence = self._evidence(given, rows)
        found = self._method("moment")(
            name, order, evidence, impossible=impossible, unknown=unknown
        )
        return _answer({"values": _listed(found)})

    def variance(
        self, name: str, given: Row | None, rows: Rows | None, impossible: str, unknown: str
    ) -> Answer:
        """Var[name | evidence], one value for each row of evidence."""
        evidence = self._evidence(given, rows)
        found = self._method("variance")(name, evidence, impossible=impossible, unknown=unknown)
        return _answer({"values": _listed(found)})

    def probability(
        self, event: Row, given: Row | None, rows: Rows | None, impossible: str, unknown: str
    ) -> Answer:
        """P(event | evidence), one value for each row of evidence."""
        evidence = self._evidence(given, rows)
        found = self._method("probability")(
            events_of(event), evidence, impossible=impossible, unknown=unknown
        )
        return _answer({"values": _listed(found)})

    def cdf(self, name: str, x: Sequence[float | str], **how: Any) -> Answer:
        """P(name <= x | evidence): a list over x for each row of evidence."""
        return self._at_points("cdf", name, x, **how)

    def quantile(self, name: str, p: Sequence[float], **how: Any) -> Answer:
        """Quantiles of one variable: a list over p for each row of evidence."""
        return self._at_points("quantile", name, p, **how)

    def interval(self, name: str, level: float, **how: Any) -> Answer:
        """Ends of the central interval with that probability, for each row of evidence."""
        return self._at_points("quantile", name, [(1 - level) / 2, (1 + level) / 2], **how)

    def _at_points(
        self,
        what: str,
        name: str,
        points: Sequence[float | str],
        given: Row | None,
        rows: Rows | None,
        impossible: str,
        unknown: str,
    ) -> Answer:
        """Distribution function or quantiles at some points: a list for each row of evidence."""
        evidence = self._evidence(given, rows)
        found = self._method(what)(
            name, list(points), evidence, impossible=impossible, unknown=unknown
        )
        values = found.to_numpy()
        return _answer({"values": values.tolist() if rows is not None else [values.tolist()]})

    def impute(self, rows: Rows, unknown: str) -> Answer:
        """Every row with its gaps filled: means of numbers, likeliest values of categories."""
        return _answer(
            {"rows": _records(self._method("impute")(self._frame(rows), unknown=unknown))}
        )

    def mutual_information(self, names: Sequence[str] | None, given: Row | None) -> Answer:
        """Mutual information of all pairs of some variables, in nats."""
        found = self._method("mutual_information_matrix")(names, self._evidence(given, None))
        return _answer(
            {"names": found.columns.tolist(), "mutual_information": found.to_numpy().tolist()}
        )

    def entropy(self, names: Sequence[str], given: Row | None) -> Answer:
        """Entropy of some discrete variables together, in nats."""
        return _answer({"entropy": self._method("entropy")(names, self._evidence(given, None))})

    def covariance(self, names: Sequence[str] | None, given: Row | None) -> Answer:
        """Covariance matrix of numeric variables given some values."""
        found = self._method("covariance")(names, events_of(given) if given else None)
        return _answer({"names": found.columns.tolist(), "covariance": found.to_numpy().tolist()})

    def marginals(self, names: Sequence[str] | None, given: Row | None) -> Answer:
        """The distribution of single variables given some values.

        Probabilities where a variable has outcomes, mean and standard deviation where it is a
        continuum.
        """
        self._method("marginal")  # a classifier has none
        known = events_of(given or {})
        schema: Schema = self.model.schema
        fixed = {n for n, value in known.items() if not isinstance(value, Event)}
        chosen = [n for n in schema.names if n not in fixed] if names is None else list(names)
        if len(set(chosen)) < len(chosen):
            raise QueryError("marginals of different names: a name is listed twice")
        for name in chosen:
            schema.position(name)
        evidence = pd.DataFrame({n: pd.Series([v]) for n, v in known.items()}, index=[0])
        answer: Answer = {}
        for name in chosen:
            if name in fixed:
                raise QueryError(f"variable {name!r} is given; its value is {known[name]!r}")
            if name in known and schema[name].outcomes is not None:
                limited = self.model.condition({name: known[name]})
                proba = limited.predict_proba(evidence.drop(columns=name), name)
                answer[name] = _outcomes(proba)
            elif schema[name].outcomes is None:
                mean = self._method("expectation")(name, known)
                answer[name] = {"mean": mean, "sd": self.model.variance(name, known) ** 0.5}
            else:
                answer[name] = _outcomes(self._method("predict_proba")(evidence, name))
        return _answer({"marginals": answer})

    # --- helpers ----------------------------------------------------------------------------------

    def _method(self, name: str) -> Any:
        found = getattr(self.model, name, None)
        if found is None:
            raise QueryError(f"a {type(self.model).__name__} does not answer {name}")
        return found

    def _frame(self, rows: Rows) -> pd.DataFrame:
        if len(rows) > self.limits.rows:
            raise TooMuchError(f"at most {self.limits.rows} rows a request, found {len(rows)}")
        known, strange = self.model.schema.names, set[str]()
        for row in rows:
            strange.update(name for name in row if name not in self.model.schema)
            if len(strange) > STRANGE_NAMES:
                raise TooMuchError(
                    f"more than {STRANGE_NAMES} names that the model does not know, "
                    f"{min(strange)!r} among them; it knows {', '.join(known[:8])}, ..."
                )
        cells = [events_of({n: v for n, v in row.items() if n not in strange}) for row in rows]
        # Only known names make columns: a table of unknown ones could be as large as a request.
        names = [name for name in known if any(name in row for row in cells)]
        frame = pd.DataFrame(
            {name: pd.Series([row.get(name) for row in cells]) for name in names},
            index=range(len(rows)),
        )
        return frame.assign(**dict.fromkeys(sorted(strange)))

    def _evidence(self, given: Row | None, rows: Rows | None) -> Any:
        if given is not None and rows is not None:
            raise QueryError("evidence is `given` (one object) or `rows` (a list), found both")
        if rows is not None:
            return self._frame(rows)
        return None if given is None else events_of(given)


def events_of(row: Row) -> dict[str, Any]:
    """A row whose objects are events; an error for a number that no cell can hold."""
    for name, value in row.items():
        if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 2**63:
            raise QueryError(f"variable {name!r}: expected a number below 2**63, found one beyond")
    return {name: from_json(value) for name, value in row.items()}


def _variable(variable: Variable) -> Answer:
    return {
        "name": variable.name,
        "kind": variable.kind,
        "time": variable.time,
        "values": values_of(variable),
        "outcomes": None if variable.outcomes is None else list(variable.outcomes),
        "domain": None if variable.domain is None else list(variable.domain),
        "unit": variable.unit,
    }


def _outcomes(proba: pd.DataFrame) -> Answer:
    return {
        "outcomes": proba.columns.tolist(),
        "probabilities": proba.to_numpy()[0].tolist(),
    }


def _records(frame: pd.DataFrame) -> list[dict[Any, Any]]:
    return frame.to_dict("records")


def _listed(found: Any) -> list[float]:
    return found.tolist() if isinstance(found, pd.Series) else [float(found)]


def _answer(values: Answer) -> Answer:
    answer: Answer = plain_json(values)
    return answer

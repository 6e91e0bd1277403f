"""A client: one table, its learner, and an answer to every message. Rows never leave it.

`handle(verb, payload) -> payload` is all an engine needs to know.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pandas as pd
from threadpoolctl import threadpool_limits

from fedcircuits import encoding
from fedcircuits.density import Density, Learner
from fedcircuits.errors import FedcircuitsError
from fedcircuits.federation import messages as m
from fedcircuits.federation.clusters import cluster_rows, features, nearest_centres
from fedcircuits.federation.seeds import named_rng
from fedcircuits.schema import Kind, Schema, Sketch, Table, Variable
from fedcircuits.schema.grid import IntArray

MakeLearner = Callable[[str | None], Learner]
VERBS: dict[str, type[m.Message]] = {
    "describe": m.Describe, "agree": m.Agree, "digests": m.AskDigests, "align": m.Align,
    "tell_label": m.AskLabel, "take_label": m.Label, "cluster": m.Cluster, "assign": m.Assign,
    "start": m.AskStart, "centres": m.AskCentres, "table_of": m.AskTable, "fit": m.Fit,
    "ask": m.Ask,
}  # fmt: skip


class Client:
    """One member of a federation.

    Args:
        name: the same everywhere.
        frame: its rows.
        make_learner: the learner for a job, given the label's name or None.
        id: column that only aligns rows; never a variable.
        kinds: kinds of columns, where a guess would be wrong.
        missing_values: spellings of a missing value besides those pandas knows.
    """

    def __init__(
        self,
        name: str,
        frame: pd.DataFrame,
        make_learner: MakeLearner,
        *,
        id: str | None = None,
        kinds: dict[str, Any] | None = None,
        missing_values: tuple[object, ...] = (),
    ) -> None:
        self.name = name
        self._ids = None if id is None or id not in frame.columns else frame[id]
        self._frame = frame if self._ids is None else frame.drop(columns=id)
        self._make_learner = make_learner
        self._kinds = {k: v for k, v in (kinds or {}).items() if k in self._frame.columns}
        self._missing_values = missing_values
        self._label: str | None = None
        self._seed = 0
        self._table: Table | None = None
        self._rows = np.zeros(0, dtype=np.int64)  # aligned rows of mine ...
        self._numbers = np.zeros(0, dtype=np.int64)  # ... and their numbers in the federation
        self._groups: dict[str, IntArray] = {}  # cluster or latent class of every row, by job
        self._models: dict[str, Density] = {}
        self._done: dict[str, bytes] = {}

    def handle(self, verb: str, payload: bytes) -> bytes:
        """Answer one message; an error of ours travels as a message, not as an exception."""
        key = hashlib.sha256(verb.encode() + payload).hexdigest()
        if key in self._done:  # the same request again gives the same reply
            return self._done[key]
        try:
            request = VERBS[verb].from_bytes(payload)
            reply: m.Message = getattr(self, f"_{verb}")(request)
        except (FedcircuitsError, ValueError, KeyError, AttributeError) as error:
            return m.Failed(f"{type(error).__name__}: {error}").to_bytes()
        answer = reply.to_bytes()
        if verb in ("fit", "cluster"):  # what is costly, or random
            self._done[key] = answer
        return answer

    # --- handshake --------------------------------------------------------------------------------

    def _describe(self, request: m.Describe) -> m.Description:
        schema = Schema.infer(self._frame, self._kinds, missing_values=self._missing_values)
        table = schema.encode(self._frame, missing_values=self._missing_values)
        sketches: m.Arrays = {}
        exact: dict[str, bool] = {}
        for at, variable in enumerate(schema):
            if not variable.is_coded:
                seen = table.observed[:, at]
                sketch = Sketch.of(table.values[seen, at], min_rows=request.min_rows)
                exact[variable.name] = sketch.exact
                sketches |= {
                    f"{variable.name}\x1f{part}": getattr(sketch, part) for part in SKETCH_PARTS
                }
        missing = {v.name: int((~table.observed[:, i]).sum()) for i, v in enumerate(schema)}
        return m.Description(schema.to_json(), len(table), missing, exact, sketches)

    def _agree(self, request: m.Agree) -> m.Ready:
        schema = Schema.from_json(request.schema)
        mine = schema.select([n for n in schema.names if n in self._frame.columns])
        self._label, self._seed = request.label, request.seed
        table = mine.encode(self._frame, missing_values=self._missing_values, missing_as_state=True)
        self._table = replace(table, agreed=True)
        return m.Ready(len(table), self._label_counts())

    def _label_counts(self) -> list[float]:
        table = self._have()
        if self._label is None or self._label not in table.schema:
            return []
        at = table.schema.position(self._label)
        codes = table.values[table.observed[:, at], at].astype(np.int64)
        n = table.schema.variables[at].n_codes
        return [float(c) for c in np.bincount(codes, minlength=n)]

    # --- alignment --------------------------------------------------------------------------------

    def _digests(self, request: m.AskDigests) -> m.Digests:
        if self._ids is None:
            raise FedcircuitsError(f"client {self.name!r} has no id column to align by")
        twice = self._ids[self._ids.duplicated()]
        if len(twice):
            raise FedcircuitsError(
                f"client {self.name!r}: {len(twice)} id(s) appear more than once, first "
                f"in row {twice.index[0]!r}"
            )
        salt = request.salt.encode()
        digests = [
            np.frombuffer(hashlib.sha256(salt + str(i).encode()).digest()[:12], dtype=np.uint8)
            for i in self._ids
        ]
        return m.Digests(np.stack(digests))

    def _align(self, request: m.Align) -> m.Ready:
        self._rows = request.rows.astype(np.int64)
        self._numbers = request.numbers.astype(np.int64)
        return m.Ready(len(self._have()), [])

    def _tell_label(self, request: m.AskLabel) -> m.Label:
        del request
        table = self._have()
        if self._label is None or self._label not in table.schema:
            raise FedcircuitsError(f"client {self.name!r} does not hold the label")
        at = table.schema.position(self._label)
        variable = table.schema.variables[at]
        known = table.observed[self._rows, at]
        codes = table.values[self._rows[known], at].astype(np.int32)
        return m.Label(self._numbers[known], codes, list(variable.categories), variable.kind)

    def _take_label(self, request: m.Label) -> m.Ready:
        """Add the shared label to my table: known for aligned rows, missing for the others."""
        table = self._have()
        assert self._label is not None
        position = pd.Index(self._numbers).get_indexer(pd.Index(request.numbers))
        mine = position >= 0
        values, observed = np.zeros(len(table)), np.zeros(len(table), dtype=bool)
        rows = self._rows[position[mine]]
        values[rows], observed[rows] = request.codes[mine], True
        label = Variable(
            self._label,
            cast(Kind, request.kind),
            tuple(request.categories),
            closed=True,
            declared=True,
        )
        self._table = replace(
            table,
            schema=Schema((*table.schema.variables, label)),
            values=np.column_stack([table.values, values]),
            observed=np.column_stack([table.observed, observed]),
        )
        return m.Ready(len(table), self._label_counts())

    # --- agreement --------------------------------------------------------------------------------

    def _codes_of_label(self) -> IntArray:
        """(n,) label code of every row, 0 where there is no label."""
        table = self._have()
        if self._label is None or self._label not in table.schema:
            return np.zeros(len(table), dtype=np.int64)
        at = table.schema.position(self._label)
        return np.where(table.observed[:, at], table.values[:, at], 0).astype(np.int64)

    def _cluster(self, request: m.Cluster) -> m.Clustered:
        table = self._have()
        columns = [c for c in request.columns if c in table.schema and c != self._label]
        strata = self._codes_of_label() if request.within_label else np.zeros(len(table), int)
        rng = named_rng(self._seed, self.name, request.job)
        with threadpool_limits(1):
            index, stratum_of = cluster_rows(
                table.columns(columns) if columns else table, strata, request.n_clusters, rng
            )
        self._groups[request.job] = index
        rows = np.bincount(index, minlength=stratum_of.size).astype(float)
        told = request.tell_rows
        numbers = self._numbers if told else np.zeros(0, dtype=np.int64)
        indices = index[self._rows] if told else np.zeros(0, dtype=np.int64)
        small = np.uint8 if stratum_of.size <= 256 else np.uint16
        return m.Clustered(
            rows,
            _unnamed(stratum_of),
            numbers.astype(np.int32),
            indices.astype(small).view(np.uint8),
        )

    def _assign(self, request: m.Assign) -> m.Ready:
        """Latent classes: told for aligned rows, mapped through r(l | k) for the others."""
        source = request.job.rsplit("/", 1)[0]
        by_cluster = request.table.argmax(axis=1)  # (K,) the likeliest class of a cluster
        classes = by_cluster[self._groups[source]].astype(np.int64)
        position = pd.Index(self._numbers).get_indexer(pd.Index(request.numbers))
        mine = position >= 0
        classes[self._rows[position[mine]]] = request.classes[mine]
        self._groups[request.job] = classes
        counts = np.bincount(classes, minlength=request.table.shape[1])
        return m.Ready(len(classes), [float(c) for c in counts])

    def _start(self, request: m.AskStart) -> m.Start:
        """Centres of my own clusters: means of at least min_rows rows each."""
        table = self._have().columns([c for c in request.columns if c != self._label])
        strata = self._codes_of_label() if request.within_label else np.zeros(len(table), int)
        rng = named_rng(self._seed, self.name, "start")
        with threadpool_limits(1):
            index, stratum_of = cluster_rows(table, strata, request.n_clusters, rng)
        X = features(table)
        rows = np.bincount(index, minlength=stratum_of.size).astype(float)
        sums = np.zeros((stratum_of.size, X.shape[1]))
        np.add.at(sums, index, X)
        enough = rows >= request.min_rows
        centres = np.column_stack([stratum_of[enough], sums[enough] / rows[enough, None]])
        return m.Start(centres, rows[enough])

    def _centres(self, request: m.AskCentres) -> m.CentreSums:
        """One round of federated k-means on the shared columns."""
        table = self._have()
        X = features(table.columns([c for c in request.columns if c != self._label]))
        strata = self._codes_of_label() if request.within_label else np.zeros(len(table), int)
        index, distance = nearest_centres(X, strata, request.centres)
        k = request.centres.shape[0]
        sums = np.zeros((k, X.shape[1]))
        np.add.at(sums, index, X)
        self._groups[request.job] = index
        return m.CentreSums(
            sums, np.bincount(index, minlength=k).astype(float), float(distance.sum())
        )

    def _table_of(self, request: m.AskTable) -> m.JointTable:
        """How often my private clusters meet the anchors."""
        a, k = self._groups[request.anchor], self._groups[request.job]
        counts = np.zeros((request.n_anchors, request.n_clusters))
        np.add.at(counts, (a, k), 1.0)
        return m.JointTable(counts)

    # --- training ---------------------------------------------------------------------------------

    def _fit(self, request: m.Fit) -> m.Fitted:
        start = time.process_time()
        rows: dict[str, float] = {}
        parameters: dict[str, int] = {}
        models: m.Arrays = {}
        with threadpool_limits(1):
            for job in request.jobs:
                for key, (model, count) in self._fit_job(job).items():
                    rows[key], parameters[key] = count, model.n_parameters
                    self._models[key] = model
                    if not request.keep:
                        models[key] = m.model_array(encoding.pack(model.to_record()))
        return m.Fitted(rows, parameters, time.process_time() - start, models)

    def _fit_job(self, job: dict[str, Any]) -> dict[str, tuple[Density, float]]:
        """The models of one job: one, or one for each class of the label (p_c(x | y))."""
        table = self._have().columns(job["columns"])
        if job["group"] is not None:
            table = table.rows(np.flatnonzero(self._groups[job["group"]] == job["value"]))
        label = self._label if self._label in table.schema else None
        rng = named_rng(self._seed, self.name, job["job"])
        if label is None or not job["per_label"]:
            if len(table) == 0:
                return {}
            return {job["job"]: (self._learn(table, label, rng), float(len(table)))}
        at = table.schema.position(label)
        table = table.rows(table.observed[:, at])
        codes = table.values[:, at].astype(np.int64)
        counts = np.bincount(codes, minlength=table.schema.variables[at].n_codes)
        others = [name for name in table.schema.names if name != label]
        if (counts > 0).sum() == 1:  # one class: there is nothing to condition on
            only = self._learn(table.columns(others), None, rng)
            return {f"{job['job']}|{codes[0]}": (only, float(len(table)))}
        joint = self._learn(table, label, rng) if len(table) else None
        answer: dict[str, tuple[Density, float]] = {}
        for y in np.flatnonzero(counts):
            assert joint is not None
            evidence = Table.empty(joint.schema, 1)
            evidence.values[0, at], evidence.observed[0, at] = y, True
            answer[f"{job['job']}|{y}"] = (
                joint.restrict(tuple(others), evidence),
                float(counts[y]),
            )
        return answer

    def _learn(self, table: Table, label: str | None, rng: np.random.Generator) -> Density:
        return self._make_learner(label).fit(table, rng)

    # --- queries on models that stay --------------------------------------------------------------

    def _ask(self, request: m.Ask) -> m.Answer:
        """Answer a hook of a model that stayed here; rows are sent along or looked up by number."""
        model = self._models[request.model]
        table = self._asked_rows(model, request)
        if request.what == "log_prob":
            return m.Answer(model.log_prob_table(table))
        if request.what == "sample":
            rng = np.random.default_rng(request.seed)
            return m.Answer(model.sample_table(table, rng))
        if request.what == "mpe":
            return m.Answer(model.mpe_table(table))
        if request.what == "moment":
            return m.Answer(model.moment_table(table, request.order))
        if request.what == "posterior":
            return m.Answer(model.posterior_table(table, request.order))
        if request.what == "covariance":
            return m.Answer(model.covariance_table(table, list(range(len(model.schema)))))
        raise FedcircuitsError(f"no question {request.what!r}")

    def _asked_rows(self, model: Density, request: m.Ask) -> Table:
        if request.numbers.size:
            position = pd.Index(self._numbers).get_indexer(pd.Index(request.numbers))
            if (position < 0).any():
                raise FedcircuitsError(f"client {self.name!r} does not hold every row asked for")
            rows = self._have().columns(list(model.schema.names)).rows(self._rows[position])
            return replace(rows, schema=model.schema)
        values, observed = request.values, request.observed
        return Table(model.schema, values, observed.astype(bool), pd.RangeIndex(len(values)))

    def _have(self) -> Table:
        if self._table is None:
            raise FedcircuitsError(f"client {self.name!r} was not told the agreed schema yet")
        return self._table


SKETCH_PARTS = ("heavy", "heavy_rows", "points", "point_rows")


def _unnamed(strata: IntArray) -> IntArray:
    """Strata numbered by size of code only: which clusters belong together, not to which label."""
    return np.unique(strata, return_inverse=True)[1].astype(np.int64)

"""A client: one table, its learner, and an answer to every message. Rows never leave it.

`handle(verb, payload) -> payload` is all an engine needs to know.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from fedcircuits.density import Density
from fedcircuits.density.contracts import Rounds
from fedcircuits.errors import ClientError, FedcircuitsError
from fedcircuits.federation.client.answer import Answering
from fedcircuits.federation.client.branches import Branch, Branches, branch_of
from fedcircuits.federation.client.classifiers import train_classifier
from fedcircuits.federation.client.clustering import (
    cluster_rows,
    drawn_classes,
    unnamed,
)
from fedcircuits.federation.client.dispatch import HANDLERS, KeptReplies, handles, seconds_since
from fedcircuits.federation.client.federated_kmeans import Cells, KMeans
from fedcircuits.federation.client.jobs import (
    CLASS,
    Models,
    fit_job,
    fitted_model,
    for_job,
    label_counts,
)
from fedcircuits.federation.client.label.coding import Coding
from fedcircuits.federation.client.label.head_scores import ScoresHeads
from fedcircuits.federation.client.label.heads import Heads
from fedcircuits.federation.client.label.heads_across import HeadsAcross
from fedcircuits.federation.client.label.validation import Validation
from fedcircuits.federation.client.mailbox import Mailbox
from fedcircuits.federation.client.memory import Memory
from fedcircuits.federation.client.own_learner import MakeLearner, OwnLearner
from fedcircuits.federation.client.rounds import Sessions, rounds_of
from fedcircuits.federation.client.rows.aligned_rows import AlignedRows
from fedcircuits.federation.client.rows.aligning import Aligning
from fedcircuits.federation.client.rows.parts import Parts
from fedcircuits.federation.client.rows.rare_states import without_few_values, without_rare_states
from fedcircuits.federation.wire import requests as m
from fedcircuits.federation.wire.ids import check_secret
from fedcircuits.federation.wire.names import (
    CLASSIFIER,
    LATENT_CLASSES,
    Job,
    JobId,
    ModelName,
)
from fedcircuits.federation.wire.noise import KeyedNoise
from fedcircuits.federation.wire.packing import pack_codes
from fedcircuits.federation.wire.randomised_response import randomise
from fedcircuits.federation.wire.sealing import SealingKey
from fedcircuits.federation.wire.seeds import named_rng
from fedcircuits.native.threads import one_thread
from fedcircuits.schema import Schema, Table


class Client(Aligning, KMeans, Heads, ScoresHeads, HeadsAcross, Validation, Coding):
    """One member of a federation.

    Args:
        name: the same everywhere.
        frame: its rows.
        make_learner: the learner for a job, given the label's name or None.
        id: column that only aligns rows; never a variable.
        kinds: kinds of columns, where a guess would be wrong.
        missing_values: spellings of a missing value besides those pandas knows.
        id_secret: mixed into digests of ids; the clients know it and the server does not.
        min_rows: smallest group of rows that its policy lets replies be about: smaller clusters
            are merged, smaller counts and models left out. Sums of k-means are about five rows at
            least, also without a policy.
        key: secret that its sealing key follows from; by default a new one.
        pins: fingerprints of the keys of the other clients (`sealing.key_fingerprint`), by name;
            None where any key is taken.
        memory: of what it answered, where it outlives the client.
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
        id_secret: str = "",
        min_rows: int = 0,
        key: bytes | None = None,
        pins: Mapping[str, str] | None = None,
        memory: Memory | None = None,
    ) -> None:
        self.name = name
        if id is not None and id not in frame.columns:
            # Going on would make a variable of the ids that the misspelt name meant to set aside.
            shown = ", ".join(map(repr, frame.columns[:8]))
            raise ClientError(name, f"has no id column {id!r}; its columns are {shown}")
        self._ids = None if id is None else frame[id]
        self._frame = frame if self._ids is None else frame.drop(columns=id)
        check_secret(id_secret)
        self._secret = id_secret
        self._answering = Answering(name, self._ids, id_secret)
        self._learner = OwnLearner(make_learner, name)
        self._kinds = {k: v for k, v in (kinds or {}).items() if k in self._frame.columns}
        self._missing_values = missing_values
        self._label = None
        self._label_was_sent = False
        self._seed = 0
        self._table = None
        self._aligned = AlignedRows(name)
        self._mail = Mailbox(name, SealingKey(key), pins, memory)
        self._noise = KeyedNoise(self._mail.key.own("noise"))
        self._least = min_rows
        self._parts = Parts(min_rows, memory)
        self._cells = Cells(min_rows, self._parts)
        self._use = None
        self._trial_clusters = {}
        self._groups, self._models, self._tilts, self._tilted = {}, {}, {}, {}
        self._normalisers_of = {}
        self._counted = {}
        self._sessions, self._branches = Sessions(name), Branches(name)
        self._replies = KeptReplies()

    def handle(self, verb: str, payload: bytes) -> bytes:
        """Answer one message; an error travels as a message, not as an exception."""
        try:
            if verb not in m.VERBS or verb not in HANDLERS:
                raise FedcircuitsError(f"no request {verb!r}")
            declared = m.VERBS[verb]
            request = declared.request.from_bytes(payload)
            kept = self._replies.find(declared, request, payload)
            if kept is not None:
                return kept
            self._mail.note(verb, payload, changes=declared.changes_state)
            with one_thread() if declared.costly else nullcontext():
                reply = HANDLERS[verb](self, request)
            answer = reply.to_bytes(answers=m.request_name(self.name, verb, payload))
        except Exception as error:  # whatever a learner raises is reported, and the others go on
            return m.Failed(f"{type(error).__name__}: {error}").to_bytes()
        self._replies.add(declared, request, payload, answer)
        return answer

    # --- handshake --------------------------------------------------------------------------------

    @handles(m.DESCRIBE)
    def _describe(self, request: m.Describe) -> m.Description:
        return self._described(request.min_rows)

    @handles(m.PROPOSE)
    def _propose(self, request: m.Plan) -> m.Consent:
        """Consent without a policy; a policy's guard answers in place of the client."""
        return m.without_policy(request)

    @handles(m.AGREE)
    def _agree(self, request: m.Agree) -> m.Ready:
        schema = Schema.from_json(request.schema)
        mine = schema.select([n for n in schema.names if n in self._frame.columns])
        self._label, self._seed, self._label_was_sent = request.label, request.seed, False
        self._trial_clusters = {}
        names = list(mine.names)
        self._table = mine.encode(
            self._frame if names == list(self._frame.columns) else self._frame[names],
            missing_values=self._missing_values,
            missing_as_state=True,
        )
        if self._least > 1:
            self._table = without_rare_states(self._table, self._least)
        self._parts.begin(request.to_bytes(), self._revealed_classes())
        cells = (np.ascontiguousarray(x).data for x in (self._table.values, self._table.observed))
        self._mail.begin(request.to_bytes(), self._learner.name.encode(), *cells)
        return m.Ready(len(self._table), label_counts(self._have(), self._label))

    # --- agreement --------------------------------------------------------------------------------

    @handles(m.CLUSTER)
    def _cluster(self, request: m.Cluster) -> m.Clustered:
        table = self._have()
        columns = [c for c in request.columns if c in table.schema and c != self._label]
        # Rows whose label was sent and those whose label was not must be able to share a cluster.
        within = request.within_label and not self._label_was_sent
        strata = self._strata(within, unknown=True)
        rng = named_rng(self._seed, self.name, request.group)
        # Without a column besides the label there is one cluster (in each class) and no more.
        n_clusters = request.n_clusters if columns else 1
        shown = self._to_cluster(columns) if columns else table
        # Within the label, rows left out of fits would show their class by the centres. What a
        # trial was told holds for the run: clusters of all rows would reveal as many bits again.
        asked = request.to_bytes()
        found = self._trial_clusters.get(asked)
        if found is None:
            use = self._use if within else None
            found = cluster_rows(shown, strata, n_clusters, rng, self._least, use)
            if use is not None:
                self._trial_clusters[asked] = found
        index, stratum_of = found
        kept, index = np.unique(self._parts.grouped(index), return_inverse=True)
        index, stratum_of = index.reshape(-1), stratum_of[kept]
        self._groups[request.group] = index
        rows = np.bincount(index, minlength=stratum_of.size).astype(np.int32)
        sent = index[self._aligned.rows] if request.send_rows else index[:0]
        if request.epsilon > 0:
            # Drawn by what is sent, whatever the request is called: asking again averages nothing.
            draws = self._noise.uniforms((2, sent.size), sent.astype("<i8").tobytes())
            sent = randomise(sent, stratum_of.size, request.epsilon, draws)
        return m.Clustered(rows, unnamed(stratum_of), pack_codes(sent, stratum_of.size))

    @handles(m.ASSIGN)
    def _assign(self, request: m.Assign) -> m.Ready:
        """Latent classes: sent for aligned rows, drawn from r(l | k) for the others."""
        clusters = None if request.source is None else self._groups[request.source]
        rng = named_rng(self._seed, self.name, request.group)
        classes = drawn_classes(request.table, clusters, len(self._have()), rng)
        rows = self._aligned.chosen(request.choice)
        n_classes = request.table.shape[1]
        index = np.zeros(len(classes), dtype=np.int64) if clusters is None else clusters
        classes[rows] = request.classes_of(index[rows])
        counts = np.bincount(classes[classes >= 0], minlength=n_classes)
        classes[(classes >= 0) & (counts[classes] < self._least)] = -1
        classes = self._parts.grouped(classes)
        self._groups[request.group] = classes
        counts = np.bincount(classes[classes >= 0], minlength=n_classes)
        return m.Ready(len(classes), [float(c) for c in counts])

    # --- training ---------------------------------------------------------------------------------

    @handles(m.FIT)
    def _fit(self, request: m.Fit) -> m.Fitted:
        start = time.process_time()
        models: list[m.FittedModel] = []
        reports: list[m.JobReports] = []
        for job in request.jobs:
            lines: list[Any] = []
            for name, (model, rows) in self._fit_job(job, lines).items():
                self._models[name] = model
                models.append(fitted_model(name, model, rows, keep=request.keep))
            reports.append(m.JobReports(job.id, lines))
        seconds = seconds_since(start)
        return m.Fitted(tuple(models), seconds, tuple(reports))

    def _fit_job(self, job: Job, reports: list[Any]) -> Models:
        """The models of one job: one, or one for each class (`jobs.py`)."""
        table, groups = self._have(), self._groups
        if self._use is not None:
            table = table.rows(self._use)
            groups = {name: group[self._use] for name, group in groups.items()}
        label = self._label if self._label in table.schema else None
        rng = named_rng(self._seed, self.name, job.id)

        def learn(part: Table, label: str | None, rng: np.random.Generator) -> Density:
            if self._least > 1:  # a group of enough rows may have few values of a column
                part = without_few_values(part, self._least)
            own = self._learner.of_densities(label)
            made = for_job(own, part, label, job.mixed).fit(part, rng)
            said = {repr(CLASS): repr(self._label) if self._label else "the label"}
            reports.extend(m.report_of(made, brief=self._least > 1, said=said))
            return made

        knows = self._learner.knows_classes
        made = fit_job(job, table, label, groups, learn, rng, knows_classes=knows)
        if job.group is None and job.classes is None:
            return made
        return {name: each for name, each in made.items() if each[1] >= self._least}

    @handles(m.ROUND)
    def _round(self, request: m.Round) -> m.RoundDone:
        """One round of learning by sums: all clients take the same step."""
        table = self._have().columns(request.columns)

        def begin() -> Rounds:
            label = self._label if self._label in request.columns else None
            rng = named_rng(self._seed, "rounds", request.job)  # no name of mine: all draw alike
            return rounds_of(self._learner.of_densities(label), table, rng, self.name)

        reply, model, after = self._sessions.answer(request, begin, len(table))
        if request.masked_with and reply.sums:
            asked = replace(request, send=False)
            sums = self._mail.mask(reply.sums, asked, request.masked_with, after)
            reply = replace(reply, sums=sums)
        if model is not None:
            self._models[ModelName(request.job)] = model
        return reply

    @handles(m.USE_ROWS)
    def _use_rows(self, request: m.UseRows) -> m.Ready:
        """Leave rows out of the fits that follow: validation rows, or a trial on few rows."""
        self._use = None
        if request.share < 1 or request.rows:
            self._trial_clusters = {}
            rng = named_rng(self._seed, self.name, "use rows")
            use = rng.random(len(self._have())) < request.share
            use[self._aligned.rows] = False
            aligned = self._aligned
            use[aligned.named(request.rows) if request.rows else aligned.rows] = True
            self._use = self._parts.chosen(use)
        return m.Ready(len(self._have()), [])

    @handles(m.BRANCH)
    def _branch(self, request: m.Branch) -> m.BranchDone:
        """One step of federated EM: shares of rows in, evidence or models out."""

        def begin(job: JobId, table: Table, shares: Any) -> Branch:
            label = self._label if self._label in table.schema else None
            rng = named_rng(self._seed, self.name, job)
            return branch_of(
                self._learner.of_densities,
                label,
                table,
                shares,
                rng,
                label_in_evidence=request.label_in_evidence,
            )

        nowhere = np.full(len(self._have()), -1, dtype=np.int64)
        mapped = self._groups.get(LATENT_CLASSES, nowhere)
        reply, made = self._branches.answer(request, self._have(), self._aligned, mapped, begin)
        self._models |= made
        return reply

    # --- queries on models that stay --------------------------------------------------------------

    @handles(m.QUERY)
    def _query(self, request: m.Query) -> m.Answers:
        """Questions to models that stayed here, by id or with cells sent along."""
        tilted = {q.model: self._model(q.model) for q in request.questions if q.model.tilt}
        return self._answering.answer(request, self._models | tilted, self._have())

    @handles(m.FIT_CLASSIFIER)
    def _fit_classifier(self, request: m.FitClassifier) -> m.ClassifierFitted:
        assert self._label is not None
        learner = self._learner.of_any_kind(self._label)
        table = self._have().columns(request.columns)
        rng = named_rng(self._seed, self.name, CLASSIFIER)
        made, reply = train_classifier(learner, table, self._label, rng, request.keep)
        self._answering.classifiers[CLASSIFIER] = made
        return reply

"""The default table learners: `Hclt` (hidden Chow-Liu tree), `Mixture` (factorised components)."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, field, replace
from typing import Self, get_args

import numpy as np
from scipy import sparse

from fedcircuits.arrays import Arrays, FloatArray, IntArray
from fedcircuits.density import Density
from fedcircuits.density.fit_report import FitReport
from fedcircuits.density.tilt import Tilt
from fedcircuits.errors import LearningError
from fedcircuits.learners.hclt.beside import all_cores, n_threads
from fedcircuits.learners.hclt.columns import (
    Prepared,
    batches_like,
    label_is_a_column,
    rows_that_fit,
    split_columns,
)
from fedcircuits.learners.hclt.features import Features, as_features
from fedcircuits.learners.hclt.fit import fit_rows
from fedcircuits.learners.hclt.fitted import FittedTree
from fedcircuits.learners.hclt.head.fit_head import trees_for_mixing
from fedcircuits.learners.hclt.head.headed.headed_circuit import HeadedCircuit
from fedcircuits.learners.hclt.head.learning_across import LearningAcross
from fedcircuits.learners.hclt.options import AGREED_PSEUDO_ROWS, Aim, FitOptions, check_shares
from fedcircuits.learners.hclt.report import choices, sizes
from fedcircuits.learners.hclt.rounds.branch import fit_branch
from fedcircuits.learners.hclt.rounds.in_rounds import Sums, Task, fit_in_rounds
from fedcircuits.learners.hclt.sample import Sample
from fedcircuits.learners.hclt.tilt.additive import additive_tilt
from fedcircuits.learners.hclt.tree.class_tree import class_tree_of, with_absent_classes
from fedcircuits.learners.hclt.tree.to_circuit import to_circuit
from fedcircuits.learners.hclt.tree.tree_em import Smoothing
from fedcircuits.learners.prepare import (
    Coded,
    Missing,
    in_canonical_order,
    mean_log_within,
    prepare,
)
from fedcircuits.native.threads import one_thread
from fedcircuits.schema import Table
from fedcircuits.schema.reading.batches import RowBatches, TableBatches

# How much weaker the tilt's prior is in a model that will be averaged with others'.
MIXED_PRIOR = 0.2
# From how many classes on the copies of the tree are made smaller, and how small.
MANY_CLASSES, MOST_STATES_MANY_CLASSES = 10, 32


@dataclass(frozen=True)
class Hclt(LearningAcross):
    """Learns a hidden Chow-Liu tree by EM; with a label, a tilted circuit.

    Everything left at None is chosen from rows and columns (see `sizes.py`).

    Attributes:
        label: column to be predicted well, None for a density alone. One of very many classes
            (from about 700 on, see `sizes.py`) is a column like any other.
        missing: "state" models frequent missingness as a state, "marginalise" leaves it out.
        n_states: states of every latent.
        n_trees: trees of the same structure, from different starts, that are averaged; None tries
            whether that pays. A client of a federation has one unless it asks for more: its model
            is to stay small, and is mixed with others'.
        n_bins: quantile bins of continuous columns.
        n_iterations: most EM steps.
        smoothing: pseudo-count of EM.
        class_transitions: whether transitions may depend on the class; None tries it on
            validation rows and keeps it where log-loss plus NLL / columns falls for certain (by
            more than one standard error and 5e-4 nats a row). A client of a federation has none
            unless it asks for it: trying them takes longer than the rest of its fit, for less than
            .001 AUC.
        head: whether boosted trees are pooled into p(label | rest) (see `head/`); None tries it and
            keeps it where held-out log-loss falls for certain (by more than two paired standard
            errors, one below 1,000 rows, and one percent). A model with a head answers by estimates
            where cells are missing; False gives a circuit, exact throughout. A client of a
            federation has none unless it asks for one: its model is to stay an ordinary circuit.
        min_rows: least rows behind a leaf of a head's trees, for a model that leaves its owner;
            chosen by the number of rows (at most 20) if not given.
        validation_share: share of the rows held out for the stop of EM, and two and a half times
            as many for choices about the label (from 500 on); all are learned from in the end.
        prior_scale: what the strengths of the tilt's prior are multiplied by in the end, unless
            that is worse on validation rows by more than one standard error.
        aim: what the classes of the label are fitted for: "label" to be distinguished (the tilt),
            "density" to be described each as well as can be (see `class_em.py`; no head).
        n_jobs: threads at work at the same time; None takes all cores, one at a client of a
            federation. The model does not depend on it, bit for bit.
        rows_in_memory: rows that are looked at together, at most; None takes as many as have 2^24
            cells. Of more, choices and all about the label are made on so many drawn at random;
            the last steps of EM and the columns' distributions come from passes over all.
        agreed_schema: whether the schema was agreed with other clients and stays as it is.
        progress: called with the fraction done and a few words.
    """

    label: str | None = None
    missing: Missing = "state"
    n_states: int | None = None
    n_trees: int | None = None
    n_bins: int | None = None
    n_iterations: int | None = None
    smoothing: float | None = None
    class_transitions: bool | None = None
    head: bool | None = None
    min_rows: int | None = field(default=None, metadata={"least": 1})
    validation_share: float = 0.1
    prior_scale: float = 1.0
    aim: Aim = "label"
    n_jobs: int | None = None
    rows_in_memory: int | None = field(default=None, metadata={"least": 1})
    agreed_schema: bool = False
    progress: Callable[[float, str], None] | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_shares(self.name, self.validation_share, self.prior_scale)

    @property
    def name(self) -> str:
        """Name of the learner in reports."""
        return "hclt"

    def for_classes(self, n_rows: int, n_classes: int) -> Self:
        """Return the learner with settings for a label that stands for many latent classes.

        What counts is how well each of them is described. The circuit is copied once a class, so
        with many of them it has fewer states.
        """
        if n_classes <= MANY_CLASSES:
            return self
        n_states = int(np.clip(np.sqrt(n_rows / 4), 2, MOST_STATES_MANY_CLASSES))
        return replace(self, n_states=self.n_states or n_states, aim="density", head=False)

    def for_agreed_schema(self) -> Self:
        """Return the learner that leaves columns, categories and grids as they were agreed."""
        return replace(self, agreed_schema=True)

    def for_mixing(self) -> Self:
        """Return the learner with settings for a model that will be averaged with other clients'.

        Averaging takes care of variance, not of bias: each model should be smoothed as if it had
        seen all rows, so its prior is weaker than its own rows ask for, unless these clearly speak
        against it. The factor does not depend on how many clients there are, so that a client's
        model stays as it is when another leaves.
        """
        return replace(self, prior_scale=MIXED_PRIOR * self.prior_scale)

    def fit(self, table: Table, rng: np.random.Generator) -> Density:
        """Learn a circuit of the table's variables; with a head, a `HeadedCircuit`."""
        if self.aim not in get_args(Aim):
            raise LearningError(f"aim is 'label' or 'density', found {self.aim!r}")
        if self.aim == "density" and self.head:
            raise LearningError("a head of trees distinguishes labels: it goes with aim='label'")
        if len(table) > self.most_rows(len(table.schema)):
            return self.fit_batches(TableBatches(table), rng)
        prepared = self._prepared(table)
        del table  # `fc.learn` does not keep it either: its values are far more than what is left
        return self._fit(prepared, rng, None)

    def most_rows(self, n_columns: int) -> int:
        """Rows in memory at the same time, at most."""
        return rows_that_fit(self.rows_in_memory, n_columns)

    def fit_batches(self, rows: RowBatches, rng: np.random.Generator) -> Density:
        """Learn from rows that are more than memory may hold.

        Choices, and all about the label, are made on a random part of the rows; the last steps of
        EM and the distribution of every column come from passes over all of them.
        """
        most = self.most_rows(len(rows.schema))
        if len(rows) <= most:
            return self._fit(self._prepared(rows.take(np.arange(len(rows)))), rng, None)
        chosen = rng.choice(len(rows), size=most, replace=False)
        return self._fit(self._prepared(rows.take(np.sort(chosen))), rng, rows)

    def _prepared(self, table: Table) -> Prepared:
        """Return coded columns, values for boosted trees and weights of rows."""
        start = time.perf_counter()
        coded = self._prepare(
            in_canonical_order(table), self.label, numeric_label=not self.agreed_schema
        )
        label = self.label
        if label_is_a_column(coded, label):
            if self.head or self.class_transitions:
                raise LearningError(
                    f"the label {label!r} has too many classes for a head or for transitions of "
                    "their own: leave head= and class_transitions= open"
                )
            label = None
        split = split_columns(coded, label)
        may_have_head = self.head is not False and not (self.agreed_schema and self.head is None)
        values = None
        if split.labels is not None and may_have_head and self.aim == "label":
            values = Features.of(coded.table, split.at)
        within, weights = mean_log_within(coded.table), coded.table.weights
        return Prepared(coded.without_rows(), split, values, weights, within, start)

    def _fit(self, given: Prepared, rng: np.random.Generator, rows: RowBatches | None) -> Density:
        """The model of prepared rows; of all rows, where these are some of them."""
        coded, split, within = given.coded, given.split, given.within
        found = self._fit_tree(given, rng, rows)
        schema, n_rows = coded.table.schema, float(len(split.codes))
        fit_report = FitReport(
            self.name,
            time.perf_counter() - given.start,
            sizes(found, max(coded.cards)),
            tuple(value + within for value in found.report["train_log_likelihood"]),  # type: ignore[attr-defined]
            choices(found, within, self.label if len(split.at) == len(schema) else None),
            coded.warnings,
        )
        model = with_absent_classes(found.model, found.tree, split.present, split.n_codes, n_rows)
        label = self.label if len(split.at) < len(schema) else None
        circuit = to_circuit(model, schema, label, fit_report)
        if found.head is None or self.label is None:
            return circuit
        pool = replace(found.head.pool, classes=split.present)
        return HeadedCircuit(model, schema, self.label, found.head.trees, pool, fit_report)

    @property
    def tilts(self) -> bool:
        """Whether the label may come in by a tilt of all clients: not where more is asked for."""
        return not (self.class_transitions or self.head)

    def fit_tilt(
        self,
        table: Table,
        classes: IntArray,
        offset: FloatArray,
        min_rows: int = 1,
        n_columns: int | None = None,
    ) -> Tilt:
        """Fit what each state of each column adds to the log-odds of classes (see `LearnsTilt`)."""
        coded = prepare(table, label=None, missing="marginalise", agreed_schema=True)
        weights = table.row_weights
        sample = Sample(coded.codes, weights, classes)
        with one_thread():
            return additive_tilt(
                table.schema.names, sample, coded, offset, min_rows, self.prior_scale, n_columns
            )

    @property
    def heads(self) -> bool:
        """Whether trees may be pooled into the label of a federation."""
        return self.head is not False

    def fit_head(self, table: Table, classes: IntArray, min_rows: int, seed: int) -> Arrays:
        """Boost trees that will be averaged with others' (see `LearnsHead`)."""
        columns = list(range(len(table.schema)))
        n_codes = np.array([len(v.categories) if v.is_coded else 0 for v in table.schema])
        none, values = np.zeros((len(table), 0), dtype=np.int32), as_features(table, columns)
        rows = Sample(none, table.row_weights, classes, values)
        return trees_for_mixing(rows, n_codes, min_rows, seed).arrays()

    def in_rounds(self, table: Table, rng: np.random.Generator) -> Generator[Sums, Sums, Density]:
        """Learn together with others that hold other rows of the same columns (see `in_rounds.py`).

        Yields what these rows add to a sum and is sent the sum over everyone's. The model is the
        one of all rows under the same schedule: no head and no class transitions.

        Args:
            table: own rows, the schema and its grids agreed.
            rng: the same everywhere.
        """
        start = time.perf_counter()
        coded = self._prepare(table, self.label)
        split = split_columns(coded, self.label)
        labels = None
        if self.label is not None:
            labels = coded.codes[:, coded.table.schema.position(self.label)].astype(np.int64)
        task = Task(
            tuple(coded.cards[c] for c in split.at),
            np.array([coded.ordered[c] for c in split.at], dtype=bool),
            split.n_codes,
            self.name != "mixture",
            replace(self._options(), bins=coded.bins(split.at)),
        )
        sample = Sample(split.codes, coded.table.row_weights, labels)
        found = yield from fit_in_rounds(sample, task, rng)
        curve: tuple[float, ...] = tuple(found.report["train_log_likelihood"])  # type: ignore[arg-type]
        chosen = {"n_states": found.tree.n_states, "n_parameters": found.report["n_parameters"]}
        report = FitReport(
            self.name, time.perf_counter() - start, chosen, curve, {}, coded.warnings
        )
        return to_circuit(found.model, coded.table.schema, self.label, report)

    def branch(
        self,
        table: Table,
        shares: sparse.csr_matrix,
        rng: np.random.Generator,
        *,
        label_in_evidence: bool = True,
    ) -> Generator[FloatArray, sparse.csr_matrix | None, Density]:
        """Learn p(x | l) together with others that hold other columns (see `branch.py`).

        Every latent has as many states as there are classes. Yields (n, R) log p(x | l), is sent
        the next shares of rows or None; the circuit's root has one child for each class, in order.

        Args:
            table: own rows, the schema and its grids agreed.
            shares: (n, R) how much of each row belongs to each class.
            rng: of this branch.
            label_in_evidence: whether what is yielded may depend on the label.
        """
        start = time.perf_counter()
        coded = self._prepare(table, None)
        schema = coded.table.schema
        tree = yield from fit_branch(
            coded.codes,
            coded.cards,
            shares,
            label=None if self.label is None else schema.position(self.label),
            label_in_evidence=label_in_evidence,
            is_tree=self.name != "mixture",
            smoothing=self._options().smoothing,
            rng=rng,
        )
        chosen = {"n_states": tree.n_states, "n_parameters": tree.n_parameters}
        report = FitReport(self.name, time.perf_counter() - start, chosen, (), {}, coded.warnings)
        return to_circuit(class_tree_of(tree), schema, None, report)

    def _fit_tree(
        self, given: Prepared, rng: np.random.Generator, rows: RowBatches | None
    ) -> FittedTree:
        """The fit of prepared rows; with all rows, where these are some of them."""
        coded, split = given.coded, given.split
        variables = [coded.table.schema.variables[c] for c in split.at]
        n_codes_of = [len(v.categories) if v.is_coded else 0 for v in variables]
        options = replace(
            self._options(),
            bins=coded.bins(split.at),
            n_codes=np.array(n_codes_of, dtype=np.int64),
            label_cuts=split.cuts,
        )
        if split.cuts is not None and options.class_transitions is None:
            options = replace(options, class_transitions=False)  # one tree for all states of y
        if self.agreed_schema:
            # A client of a federation: see the attributes.
            options = replace(
                options,
                n_trees=options.n_trees or 1,
                head=bool(options.head),
                class_transitions=bool(options.class_transitions),
            )
        return fit_rows(
            split.codes,
            tuple(coded.cards[c] for c in split.at),
            np.array([coded.ordered[c] for c in split.at], dtype=bool),
            split.labels,
            int(split.present.size),
            given.weights,
            rng=rng,
            options=options,
            values=given.values,
            targets=split.targets,
            progress=self.progress,
            is_tree=self.name != "mixture",
            every=None if rows is None else batches_like(coded, self.label, split.at, rows),
        )

    def _prepare(self, table: Table, label: str | None, numeric_label: bool = False) -> Coded:
        return prepare(
            table,
            label=label,
            missing=self.missing,
            n_bins=self.n_bins,
            agreed_schema=self.agreed_schema,
            numeric_label=numeric_label,
        )

    def _options(self) -> FitOptions:
        smoothing = None
        if self.smoothing is not None:
            smoothing = Smoothing(self.smoothing, self.smoothing, self.smoothing)
        return FitOptions(
            n_states=self.n_states,
            n_trees=self.n_trees,
            n_iterations=self.n_iterations,
            smoothing=smoothing,
            pseudo_rows=AGREED_PSEUDO_ROWS if self.agreed_schema else 1.0,
            class_transitions=self.class_transitions,
            head=self.head,
            min_rows=self.min_rows,
            validation_share=self.validation_share,
            prior_scale=self.prior_scale,
            aim=self.aim,
            n_jobs=n_threads(self.n_jobs, 1 if self.agreed_schema else all_cores()),
        )


@dataclass(frozen=True)
class Mixture(Hclt):
    """Mixture of factorised components by EM; with a label, tilted. Cheaper than `Hclt`."""

    @property
    def name(self) -> str:
        """Name of the learner in reports."""
        return "mixture"

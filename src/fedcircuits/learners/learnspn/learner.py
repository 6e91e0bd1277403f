"""LearnSPN (Gens and Domingos 2013) on mixed tables (MSPN, Molina et al. 2018), as a task queue.

A task is a slice of the table: some columns, some rows, one node of the circuit. One named
operation is decided for it and done:

- `FACTORISE`: one column, too few rows, or rows that do not split: a product of leaves;
- `SPLIT_COLUMNS`: groups of columns that do not depend on each other become the factors of a
  product (a constant column depends on nothing);
- `SPLIT_ROWS`: otherwise clusters of rows become the components of a sum.

Random choices of a task come from a seed named by the task's path from the root, so they do not
depend on the order of the queue, nor on what happens elsewhere in the tree.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Literal, Self

import numpy as np

from fedcircuits.arrays import BoolArray, FloatArray, IntArray
from fedcircuits.circuits import Circuit
from fedcircuits.density.fit_report import FitReport
from fedcircuits.errors import LearningError
from fedcircuits.learners.learnspn.coded import Coded
from fedcircuits.learners.learnspn.draft import Draft
from fedcircuits.learners.learnspn.splits import (
    components,
    dependent_by_gtest,
    dependent_by_rdc,
    em_rows,
    kmeans_rows,
)
from fedcircuits.learners.prepare import column_warnings, without_ids
from fedcircuits.schema import Table

Progress = Callable[[float, str], None]


class Operation(Enum):
    """The ways to turn a slice into a node."""

    FACTORISE = "factorise"
    SPLIT_COLUMNS = "split columns"
    SPLIT_ROWS = "split rows"


class _Purpose(Enum):
    """What a random generator of a task is for; part of its seed."""

    COLUMNS = 0
    ROWS = 1


@dataclass(frozen=True, eq=False)
class Task:
    """A slice of rows and columns for which a node is still to be made.

    Attributes:
        node: number of the node in the draft.
        columns: (d,) columns of the table.
        rows: (n,) rows of the table.
        prior: (W,) masses of the columns' states in the slice above, side by side.
        path: numbers of the children on the way from the root.
        connected: whether the columns are known to depend on each other.
    """

    node: int
    columns: IntArray
    rows: IntArray
    prior: FloatArray
    path: tuple[int, ...] = ()
    connected: bool = False


@dataclass(frozen=True)
class LearnSPN:
    """Learns a circuit by splitting columns and rows in turn (LearnSPN, MSPN).

    Attributes:
        threshold: RDC above which two columns are dependent (columns="rdc").
        min_instances: a slice with fewer rows (total weight) is not split any more.
        columns: test of dependence: "rdc" for mixed data, "g-test" for discrete data.
        rows: clusters of rows: "kmeans", or "em" for a mixture of factorised tables (k-means where
            that finds one component).
        n_clusters: most children of a sum.
        significance: p-value below which two columns are dependent (columns="g-test"). A test of
            many pairs finds some by chance: the more columns, the smaller it should be.
        smoothing: rows' worth of the slice above that is mixed into a leaf; a leaf of few rows
            thereby falls back on the marginal of its surroundings, in the end of the whole column.
        floor: pseudo-count of every state of the whole column, so that none is impossible.
        n_bins: quantile bins of a continuous column without a grid (default: by rows).
        agreed_schema: whether the schema was agreed with other clients and stays as it is.
        progress: called with the fraction done (of the tasks known so far) and a few words.
    """

    threshold: float = 0.3
    min_instances: float = field(default=200, metadata={"least": 1})
    columns: Literal["rdc", "g-test"] = "rdc"
    rows: Literal["kmeans", "em"] = "kmeans"
    n_clusters: int = 2
    significance: float = 1e-4
    smoothing: float = 5.0
    floor: float = 0.1
    n_bins: int | None = None
    agreed_schema: bool = False
    progress: Progress | None = None

    def __post_init__(self) -> None:
        faults = []
        if not 0 <= self.threshold <= 1:
            faults.append(f"threshold is between 0 and 1, found {self.threshold!r}")
        if not 0 < self.significance < 1:
            faults.append(f"significance is between 0 and 1, found {self.significance!r}")
        if not self.min_instances >= 1:
            faults.append(f"min_instances is at least 1, found {self.min_instances!r}")
        if self.n_clusters < 2 or int(self.n_clusters) != self.n_clusters:
            faults.append(f"n_clusters is a whole number from 2, found {self.n_clusters!r}")
        if not self.smoothing >= 0:
            faults.append(f"smoothing is at least 0, found {self.smoothing!r}")
        if not self.floor > 0:
            faults.append(f"floor is greater than 0, found {self.floor!r}")
        if self.columns not in ("rdc", "g-test"):
            faults.append(f"columns is 'rdc' or 'g-test', found {self.columns!r}")
        if self.rows not in ("kmeans", "em"):
            faults.append(f"rows is 'kmeans' or 'em', found {self.rows!r}")
        if faults:
            raise LearningError("learnspn: " + "; ".join(faults))

    def for_agreed_schema(self) -> Self:
        """Return the learner that leaves columns, categories and grids as they were agreed."""
        return replace(self, agreed_schema=True)

    def fit(self, table: Table, rng: np.random.Generator) -> Circuit:
        """Learn structure and parameters from the observed cells of a table."""
        start, cpu_start = time.perf_counter(), time.process_time()
        if len(table) == 0:
            raise LearningError("cannot learn from a table without rows")
        table, left_out = (table, []) if self.agreed_schema else without_ids(table, None)
        for at, variable in enumerate(table.schema):
            if not table.observed[:, at].any():
                raise LearningError(f"variable {variable.name!r}: not one value is observed")
        schema = table.schema.with_grids(table, self.n_bins)
        data = Coded.of(table, schema)
        run = _Run(self, data, Draft(schema), int(rng.integers(2**63)))
        operations = run.work()
        assembler, root = run.draft.assemble()
        groups, structure = assembler.parts(root)
        report = FitReport(
            "learnspn",
            time.perf_counter() - start,
            {
                "rows": data.n_rows,
                "columns": data.n_columns,
                "sums": run.draft.n_sums,
                "products": run.draft.n_products,
                "leaves": run.draft.n_leaves,
                "depth": run.draft.depth,
                "cpu_seconds": time.process_time() - cpu_start,
                "operations": {op.value: n for op, n in operations.items()},
            },
            warnings=(*left_out, *column_warnings(table)),
        )
        return Circuit(schema, groups, structure, report)


class _Run:
    """One fit: the queue and what its operations share."""

    def __init__(self, settings: LearnSPN, data: Coded, draft: Draft, seed: int) -> None:
        self.settings = settings
        self.data = data
        self.draft = draft
        self.seed = seed
        every = np.arange(data.n_columns)
        self.tasks = [Task(0, every, np.arange(data.n_rows), self._root_prior())]

    def _root_prior(self) -> FloatArray:
        """(W,) masses of every column in the whole table, `floor` added to each state."""
        counts = self.data.counts + self.settings.floor
        total = np.add.reduceat(counts, self.data.offsets[:-1])
        return np.asarray(counts / np.repeat(total, self.data.cards))

    def _rng(self, task: Task, purpose: _Purpose) -> np.random.Generator:
        key = (*task.path, purpose.value)
        return np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=key))

    def work(self) -> dict[Operation, int]:
        """Empty the queue; returns how often each operation was done."""
        done = dict.fromkeys(Operation, 0)
        while self.tasks:
            # The task that was queued last comes first, so that few slices wait at any time.
            task = self.tasks.pop()
            part = self.data.take(task.columns, task.rows)
            operation = self._decide(task, part)
            if operation is Operation.SPLIT_COLUMNS:
                self._split_columns(task, part)
            elif operation is Operation.SPLIT_ROWS:
                self._split_rows(task, part)
            else:
                self._factorise(task, part)
            done[operation] += 1
            if self.settings.progress is not None:
                finished, waiting = sum(done.values()), len(self.tasks)
                self.settings.progress(
                    finished / (finished + waiting), f"{finished} slices done, {waiting} waiting"
                )
        return done

    def _decide(self, task: Task, part: Coded) -> Operation:
        few = part.weights.sum() < self.settings.min_instances or part.n_rows < 2
        if few or part.n_columns == 1 or not part.varies.any():
            return Operation.FACTORISE
        return Operation.SPLIT_ROWS if task.connected else Operation.SPLIT_COLUMNS

    # --- operations -------------------------------------------------------------------------------

    def _masses(self, task: Task, part: Coded) -> FloatArray:
        """(W,) masses of every column in a slice, smoothed toward the slice above."""
        a = self.settings.smoothing
        if not task.path:
            return task.prior  # the prior of the root is its own masses
        total = np.repeat(part.observed, part.cards) + a
        with np.errstate(invalid="ignore", divide="ignore"):
            masses = (part.counts + a * task.prior) / total
        # A column of which the slice has no cell is what it is above.
        return np.where(total > 0, masses, task.prior)

    def _factorise(self, task: Task, part: Coded) -> None:
        masses = self._masses(task, part)
        nodes = range(task.node, task.node + 1)
        if part.n_columns > 1:
            nodes = self.draft.product(task.node, part.n_columns)
        for at, node in enumerate(nodes):
            self._leaf(node, task, part, at, masses)

    def _leaf(self, node: int, task: Task, part: Coded, at: int, masses: FloatArray) -> None:
        here = masses[part.offsets[at] : part.offsets[at + 1]]
        self.draft.leaf(node, int(task.columns[at]), here / here.sum())

    def _split_columns(self, task: Task, part: Coded) -> None:
        varying = np.flatnonzero(part.varies)
        dependent = np.zeros((part.n_columns, part.n_columns), dtype=bool)
        if varying.size > 1:
            tested = part if varying.size == part.n_columns else _some_columns(part, varying)
            dependent[np.ix_(varying, varying)] = self._dependent(task, tested)
        group = components(dependent)
        n_groups = int(group.max()) + 1
        if n_groups == 1:
            self._queue(task, task.node, part, np.arange(part.n_columns), None)
            return
        masses = self._masses(task, part)
        children = self.draft.product(task.node, n_groups)
        for at, node in enumerate(children):
            members = np.flatnonzero(group == at)
            if members.size == 1:
                self._leaf(node, task, part, int(members[0]), masses)
            else:
                self._queue(task, node, part, members, at)

    def _dependent(self, task: Task, part: Coded) -> BoolArray:
        if self.settings.columns == "g-test":
            return dependent_by_gtest(part, self.settings.significance)
        return dependent_by_rdc(part, self.settings.threshold, self._rng(task, _Purpose.COLUMNS))

    def _queue(
        self, task: Task, node: int, part: Coded, members: IntArray, child: int | None
    ) -> None:
        """Queue some columns of a task whose dependence is settled."""
        inside = np.zeros(part.n_columns, dtype=bool)
        inside[members] = True
        prior = task.prior[np.repeat(inside, part.cards)]
        # A node that waits for its rows keeps its path: they draw from a seed of another purpose.
        path = task.path if child is None else (*task.path, child)
        self.tasks.append(Task(node, task.columns[members], task.rows, prior, path, True))

    def _clusters(self, task: Task, part: Coded) -> list[IntArray]:
        """Rows of every cluster; only one where the rows do not differ."""
        rng = self._rng(task, _Purpose.ROWS)
        labels = np.zeros(part.n_rows, dtype=np.int64)
        if self.settings.rows == "em":
            labels = em_rows(part, self.settings.n_clusters, rng)
        # Dependent columns whose likeliest mixture has one component are still better cut by
        # distance than taken as independent.
        if (labels == labels[0]).all():
            labels = kmeans_rows(part, self.settings.n_clusters, rng)
        return [np.flatnonzero(labels == k) for k in np.unique(labels)]

    def _split_rows(self, task: Task, part: Coded) -> None:
        clusters = self._clusters(task, part)
        if len(clusters) == 1:
            self._factorise(task, part)
            return
        masses = self._masses(task, part)
        weights = np.array([part.weights[rows].sum() for rows in clusters])
        children = self.draft.sum(task.node, weights / weights.sum())
        for at, (node, rows) in enumerate(zip(children, clusters, strict=True)):
            path = (*task.path, at)
            self.tasks.append(Task(node, task.columns, task.rows[rows], masses, path))


def _some_columns(part: Coded, columns: IntArray) -> Coded:
    return part.take(columns, np.arange(part.n_rows))

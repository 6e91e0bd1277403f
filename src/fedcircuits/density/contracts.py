"""What a learner must offer (`Learner`), and what it may offer besides (the other protocols).

`Learner` is enough for everything. A federation asks with `isinstance` for the rest: a learner that
has the method named by a protocol is used in the better way the protocol describes, any other is
used through `fit` alone. All learners of `fedcircuits.learners` are declared against these.

    protocol              method or attribute    used by
    Learner               fit                    everything
    LearnsBatches         fit_batches            files larger than memory
    LearnsLabel           label                  one joint fit serves all classes of a grouping
    LearnsClasses         for_classes            rules with latent classes
    LearnsAgreedSchema    for_agreed_schema      every client of a federation
    LearnsLevels          takes_levels           clients with images: no grid of pixels is agreed
    LearnsForMixing       for_mixing             rules that average models of different rows
    LearnsTilt            fit_tilt               rules with a label: one tilt over all clients
    LearnsHead            fit_head               the same by boosted trees, beside a tilt
    LearnsCodes           fit_code_trees ...     the same, across clients with different columns
    LearnsBranch          branch                 `joint` where columns are split
    LearnsInRounds        in_rounds              `joint` where rows are split
    LearnsClassifier      fit_classifier         federations of classifiers (section 3.2)
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, Self, runtime_checkable

import numpy as np

from fedcircuits.arrays import Arrays, BoolArray, FloatArray, IntArray
from fedcircuits.density.density import Density
from fedcircuits.density.tilt import Tilt
from fedcircuits.schema import Table
from fedcircuits.schema.reading.batches import RowBatches

if TYPE_CHECKING:
    from scipy import sparse  # for annotations: nothing here computes with it

# Yields arrays to be summed over clients, is sent the sums, returns the model.
Rounds = Generator[Arrays, Arrays, Density]


@runtime_checkable
class Learner(Protocol):
    """Makes a density from a table: the one method that every learner has.

    `fit` must not look at anything but the table and the generator, must treat cells that are not
    observed as missing, must honour `table.weights`, and returns a `Density` whose schema has the
    table's names in the table's order (it may add grids).
    """

    def fit(self, table: Table, rng: np.random.Generator) -> Density:
        """Return a density of the table's variables, learned from its rows."""
        ...


@runtime_checkable
class LearnsBatches(Learner, Protocol):
    """A learner that needs not have all rows in memory at the same time."""

    def most_rows(self, n_columns: int) -> int:
        """Rows of so many columns that it has in memory at the same time, at most."""
        ...

    def fit_batches(self, rows: RowBatches, rng: np.random.Generator) -> Density:
        """Return a density of the rows: the one of `fit` on a table of them."""
        ...


@runtime_checkable
class LearnsLabel(Learner, Protocol):
    """A learner with a setting for the column to be predicted."""

    @property
    def label(self) -> str | None:
        """Name of that column, None for a density alone."""
        ...


@runtime_checkable
class LearnsClasses(Learner, Protocol):
    """A learner with other settings where the label stands for many latent classes."""

    def for_classes(self, n_rows: int, n_classes: int) -> Self:
        """Return the learner with settings for a label of so many latent classes.

        Args:
            n_rows: rows that will be learned from.
            n_classes: latent classes, the values of the label.
        """
        ...


@runtime_checkable
class LearnsAgreedSchema(Learner, Protocol):
    """A learner that can leave columns, categories and grids of a schema as they are."""

    def for_agreed_schema(self) -> Self:
        """Return the learner for a table whose schema was agreed with other clients.

        It leaves out no column, adds no state for missing values and makes no grid of its own.
        """
        ...


@runtime_checkable
class LearnsLevels(Learner, Protocol):
    """A learner that takes pixels as levels 0 .. top, so that no grid of them is agreed."""

    @property
    def takes_levels(self) -> bool:
        """Always True; a learner that needs grids does not have the attribute."""
        ...


@runtime_checkable
class LearnsForMixing(Learner, Protocol):
    """A learner with other settings where its model will be averaged with other clients' models."""

    def for_mixing(self) -> Self:
        """Return the learner with settings for one of several models that will be averaged."""
        ...


@runtime_checkable
class LearnsTilt(Learner, Protocol):
    """A learner whose circuits have tables of agreed states for leaves, and that fits a tilt."""

    @property
    def tilts(self) -> bool:
        """Whether its settings ask for such trees."""
        ...

    def fit_tilt(
        self,
        table: Table,
        classes: IntArray,
        offset: FloatArray,
        min_rows: int = 1,
        n_columns: int | None = None,
    ) -> Tilt:
        """Return what each state of each column adds to the log-odds of classes.

        Args:
            table: rows over the columns to tilt; schema and grids are agreed.
            classes: (n,) class of every row, 0 .. Y - 1.
            offset: (n, Y) log-scores of each row from other clients' columns.
            min_rows: least rows behind an entry; states with fewer share one.
            n_columns: columns of all clients, if others hold some.
        """
        ...


@runtime_checkable
class LearnsHead(Learner, Protocol):
    """A learner that can boost trees for the classes of a label, beside its density."""

    @property
    def heads(self) -> bool:
        """Whether its settings ask for such trees."""
        ...

    def fit_head(
        self,
        table: Table,
        classes: IntArray,
        min_rows: int,
        seed: int,
    ) -> Arrays:
        """Return trees as arrays that will be averaged with those of clients with other rows.

        Args:
            table: rows over the columns the trees may ask about.
            classes: (n,) class of every row, all from 0 to the highest among them.
            min_rows: least rows behind a leaf.
            seed: of the boosting.
        """
        ...


@dataclass(frozen=True, eq=False)
class RowCodes:
    """Trees over a client's own columns, and their codes of its rows.

    Attributes:
        trees: of all rows, as arrays.
        leaf: one small tree whose output is the number of a leaf, as arrays.
        width: of a level.
        levels: (n, Y - 1) coarse scores, of trees that were not boosted on the row.
        leaves: (n,) leaf of every row.
        outputs: (n, K) what the scores are made of.
    """

    trees: Arrays
    leaf: Arrays
    width: float
    levels: FloatArray
    leaves: FloatArray
    outputs: FloatArray


@runtime_checkable
class LearnsCodes(LearnsHead, Protocol):
    """A learner of boosted trees that take codes from other clients' trees as inputs.

    How coarse codes are is in `row_codes.py`. Outputs are as if classes had the same size.
    """

    def fit_code_trees(
        self,
        table: Table,
        classes: IntArray,
        known: BoolArray,
        held: BoolArray,
        min_rows: int,
        seed: int,
        given: tuple[Arrays, float] | None,
    ) -> RowCodes:
        """Return trees over a client's own columns, and the codes of its rows.

        Args:
            table: rows over the columns the trees may ask about.
            classes: (n,) class of every row.
            known: (n,) whether it is known.
            held: (n,) rows left out of the trees that are scored.
            min_rows: least rows behind a leaf.
            seed: of the boosting.
            given: small tree and width of a level of a client with the same columns.
        """
        ...

    def fit_trees_on_codes(
        self,
        table: Table,
        codes: FloatArray,
        classes: IntArray,
        held: BoolArray,
        min_rows: int,
        seed: int,
    ) -> tuple[Arrays, FloatArray]:
        """Return trees of all rows as arrays, and (held, K) outputs of trees of the others.

        Args:
            table: rows over the columns the trees may ask about.
            codes: (n, senders * Y) scores and leaf of every sender, NaN where it has not the row.
            classes: (n,) class of every row, all from 0 to the highest among them.
            held: (n,) rows left out of the trees that are scored.
            min_rows: least rows behind a leaf.
            seed: of the boosting.
        """
        ...

    def trees_of_numbers(
        self, table: Table, numbers: FloatArray, min_rows: int, seed: int
    ) -> Arrays:
        """Return trees whose outputs are close to numbers (n, K) of a client's rows, as arrays.

        Args:
            table: rows over the columns the trees may ask about.
            numbers: functions of the rows.
            min_rows: least rows behind a leaf.
            seed: of the boosting.
        """
        ...


@runtime_checkable
class LearnsBranch(Learner, Protocol):
    """A learner of p(x | l) for all classes at once, from rows that belong to them in part."""

    def branch(
        self,
        table: Table,
        shares: sparse.csr_matrix,
        rng: np.random.Generator,
        *,
        label_in_evidence: bool = True,
    ) -> Generator[FloatArray, sparse.csr_matrix | None, Density]:
        """Yield (n, R) log p(x | l), be sent the next shares or None, return the model.

        The model is a circuit over the table's columns whose root is a sum with one child for each
        class, in order.

        Args:
            table: own rows; schema and grids are agreed.
            shares: (n, R) how much of each row belongs to each class.
            rng: of this branch.
            label_in_evidence: whether what is yielded may depend on the learner's label.
        """
        ...


@runtime_checkable
class LearnsInRounds(Learner, Protocol):
    """A learner whose model of all clients' rows follows from sums over rows."""

    def in_rounds(self, table: Table, rng: np.random.Generator) -> Rounds:
        """Yield arrays to be summed over all clients, be sent the sums, return the model.

        Args:
            table: own rows; schema and grids are agreed.
            rng: in the same state at every client.
        """
        ...


@runtime_checkable
class LearnsClassifier(Protocol):
    """Makes a classifier, which answers p(label | features) and no other query."""

    def fit_classifier(self, table: Table, label: str, rng: np.random.Generator) -> Any:
        """Return a classifier of the label, learned from the rows in which it is observed."""
        ...

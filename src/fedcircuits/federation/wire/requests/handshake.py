"""Messages of the handshake: what columns a client has, and the schema that all agree on.

What each reply reveals, and to whom, is in the declarations (`Verb`) at the end of this file.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from fedcircuits.arrays import Arrays
from fedcircuits.density.tilt import n_states_of
from fedcircuits.federation.wire.message import Message
from fedcircuits.federation.wire.verbs import Asked, Level, Reveals, Terms, Verb, declare
from fedcircuits.schema import Variable


@dataclass(frozen=True)
class Describe(Message):
    """Server: asks for the columns; sketches must leave out what fewer than min_rows rows share.

    A client with a policy takes the smallest group of its policy, whatever is asked.
    """

    min_rows: int


@dataclass(frozen=True)
class Description(Message):
    """Client: names, kinds, domains, row count, missing counts and sketches of numeric columns.

    `tilts` says whether its learner fits a tilt of the label (`LearnsTilt`), `min_rows` which
    groups of rows are too small for it, whatever is asked; 0 for a client without a policy.
    """

    schema: list[Any]
    n_rows: int
    n_missing: dict[str, int]
    exact: dict[str, bool]
    sketches: Arrays = field(default_factory=dict)
    tilts: bool = False
    min_rows: int = 0


class CountsClasses(Message):
    """A request whose reply has the rows of each class."""

    def n_classes_counted(self) -> int:
        """Return the number of classes that the request names."""
        raise NotImplementedError


@dataclass(frozen=True)
class Agree(CountsClasses):
    """Server: the agreed schema and grids of the client's columns, the seed, the label's name."""

    schema: list[Any]
    seed: int
    label: str | None

    def n_classes_counted(self) -> int:
        """Return the number of classes of the label, 0 where the client does not hold it."""
        held = [variable for variable in self.schema if variable["name"] == self.label]
        return sum(n_states_of(Variable.from_json(variable)) for variable in held)


@dataclass(frozen=True)
class Ready(Message):
    """Client: done; the rows it can train on, and rows of each class where it holds the label."""

    n_rows: int
    label_counts: list[float]

    def fault(self, request: Message) -> str | None:
        """Rows of the classes asked for."""
        asked = request.n_classes_counted() if isinstance(request, CountsClasses) else 0
        if len(self.label_counts) != asked:
            return f"rows of {len(self.label_counts)} classes, expected {asked}"
        return None


ROWS_AND_CLASSES = {
    "rows": lambda reply: [reply.n_rows],
    "rows of a class": lambda reply: reply.label_counts,
}


def _agree(request: Agree, terms: Terms, _: str | None) -> Asked:
    names = tuple(variable["name"] for variable in request.schema)
    if terms.label == "no" and request.label in names:
        return Asked(names, f"{request.label!r} as the label; no column here serves as one")
    return Asked(names)


DESCRIBE = declare(
    Verb(
        "describe",
        Describe,
        Description,
        "schema",
        (
            Reveals(
                "server",
                Level.AGGREGATES,
                "names, kinds and categories of columns, row and missing counts, sketches of "
                "numbers over `min_rows` rows or more",
            ),
            Reveals("other clients", Level.AGGREGATES, "agreed categories and grids"),
            Reveals("model", Level.AGGREGATES, "agreed categories and grids"),
        ),
        keeps_reply=False,
        groups={"rows": lambda reply: [reply.n_rows]},
    )
)
AGREE = declare(
    Verb(
        "agree",
        Agree,
        Ready,
        "schema",
        (Reveals("server", Level.AGGREGATES, "row count, rows of each class of the label"),),
        changes_state=True,
        most=1,
        asks=_agree,
        groups=ROWS_AND_CLASSES,
    )
)

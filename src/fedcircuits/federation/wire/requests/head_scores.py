"""Messages about clients' heads where rows are split: each scores the others' models on its rows.

Every client says how the others' tables and trees score its rows, and how tables and trees of one
half of its rows score the other half: means and covariances of the scores over groups of at least
`min_rows` rows of one class. They suffice to weigh the models of any set of clients.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedcircuits.arrays import Array, Arrays
from fedcircuits.federation.wire.message import Message
from fedcircuits.federation.wire.requests.rows import LABEL_ALLOWED
from fedcircuits.federation.wire.requests.tilts import TiltTables
from fedcircuits.federation.wire.verbs import Asked, Level, Reveals, Terms, Verb, declare

PARTS = 3  # scores of a model: its tables, its first trees, its later trees


@dataclass(frozen=True)
class HeadModel:
    """What another client has fitted.

    Attributes:
        client: whose.
        tables: its tilt.
        trees: as arrays.
    """

    client: str
    tables: TiltTables
    trees: Arrays


@dataclass(frozen=True)
class ScoreHeads(Message):
    """Server: score these models of other clients on your rows with a known class.

    Attributes:
        columns: of the models, without the label.
        n_classes: Y.
        own: the client's own tables, by which rows are put into groups.
        has_trees: whether the client has trees, and scores its own halves too.
        models: of others.
        min_rows: least rows of a group.
    """

    columns: list[str]
    n_classes: int
    own: TiltTables
    has_trees: bool
    models: tuple[HeadModel, ...]
    min_rows: int


@dataclass(frozen=True)
class HeadScores(Message):
    """Client: scores over groups of rows of one class.

    L logits: one for two classes (of the second against the first), else one a class. The scores
    of a model are those of its tables, first trees and later trees, class shares taken out.

    Attributes:
        clients: (M) whose models were scored, its own last where it has trees.
        classes: (G,) class of each group.
        n_rows: (G,) rows of each group.
        means: (G, L, 3 M) means of the scores.
        covariances: (G, L, 3 M, 3 M) of the scores within a group.
    """

    clients: list[str]
    classes: Array
    n_rows: Array
    means: Array
    covariances: Array

    def fault(self, request: Message) -> str | None:
        """Scores of the models asked for, over groups that fit together."""
        assert isinstance(request, ScoreHeads)
        asked = [model.client for model in request.models]
        if (
            self.clients[: len(asked)] != asked
            or len(self.clients) != len(asked) + request.has_trees
        ):
            return "scores of other models than asked for"
        return self.wrong(request.n_classes)

    def wrong(self, n_classes: int) -> str | None:
        """Return what is wrong with shapes and numbers, None where nothing is."""
        groups, width = self.classes.size, PARTS * len(self.clients)
        logits = 1 if n_classes == 2 else n_classes
        shapes = {
            "classes": (groups,),
            "n_rows": (groups,),
            "means": (groups, logits, width),
            "covariances": (groups, logits, width, width),
        }
        for name, shape in shapes.items():
            found = getattr(self, name)
            if found.shape != shape or not np.isfinite(found).all():
                return f"{name} of shape {found.shape}, expected {shape} of finite numbers"
        if groups and (self.classes.min() < 0 or self.classes.max() >= n_classes):
            return f"groups of a class beyond {n_classes}"
        return None


def _score_heads(request: ScoreHeads, terms: Terms, label: str | None) -> Asked:
    fault = None
    if terms.label == "no" and label is not None:
        fault = f"the label; {LABEL_ALLOWED['no']}"
    elif request.min_rows < terms.min_rows:
        fault = (
            f"scores over groups of {request.min_rows} row(s); the smallest group is "
            f"{terms.min_rows}"
        )
    return Asked(tuple(request.columns), fault)


SCORE_HEADS = declare(
    Verb(
        "score_heads",
        ScoreHeads,
        HeadScores,
        "training",
        (
            Reveals(
                "server",
                Level.AGGREGATES,
                "means and covariances of others' scores over groups of rows of one class",
            ),
            Reveals("model", Level.AGGREGATES, "the same"),
        ),
        costly=True,
        keeps_reply=False,
        asks=_score_heads,
        groups={"rows of a group": lambda reply: reply.n_rows},
    )
)

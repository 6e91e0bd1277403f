"""Messages about clients' heads where rows are split: each scores the others' models on its rows.

Every client returns how the loss of its rows depends on the weights of the others' tables and
trees: sums over all its rows of slopes and curvatures, taken where each of the models answers
alone, as sure as suits the rows. They suffice to weigh the models of any set of clients. A client
with trees returns the same for tables and trees of one half of its rows on the other half, for
where it outweighs the others.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedcircuits.arrays import Array, Arrays
from fedcircuits.federation.wire.message import Message
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
        counts: (Y,) the client's rows of each class, as it has sent them.
        halves: whether tables and trees of one half of its rows are scored on the other half too.
        models: of others.
        min_rows: least rows behind a sum.
    """

    columns: list[str]
    counts: Array
    halves: bool
    models: tuple[HeadModel, ...]
    min_rows: int


@dataclass(frozen=True)
class HeadScores(Message):
    """Client: how the loss of its rows depends on the weights of models.

    L logits: one for two classes (of the second against the first), else one a class. A row has
    d = 3 M + L numbers a logit: the scores of every model's tables, first trees and later trees,
    class shares taken out, and an indicator of the logit. At the logits of model m alone, weights w
    of the numbers have the loss  w' slopes[m] + w' curvatures[m] w / 2  up to a constant.

    Attributes:
        clients: (M) whose models were scored; its own alone, where `halves` was asked for, last.
        n_rows: (M,) rows behind the sums of each model; 0 where they are too few.
        losses: (M,) loss of the rows by a model's tables alone, in nats.
        slopes: (M, d).
        curvatures: (M, d, d).
    """

    clients: list[str]
    n_rows: Array
    losses: Array
    slopes: Array
    curvatures: Array

    def fault(self, request: Message) -> str | None:
        """Scores of the models asked for, in sums that fit together."""
        assert isinstance(request, ScoreHeads)
        asked = [model.client for model in request.models]
        if self.clients[: len(asked)] != asked or len(self.clients) != len(asked) + request.halves:
            return "scores of other models than asked for"
        return self.wrong(request.counts.size)

    def wrong(self, n_classes: int) -> str | None:
        """Return what is wrong with shapes and numbers, None where nothing is."""
        n_models = len(self.clients)
        width = PARTS * n_models + (1 if n_classes == 2 else n_classes)
        shapes = {
            "n_rows": (n_models,),
            "losses": (n_models,),
            "slopes": (n_models, width),
            "curvatures": (n_models, width, width),
        }
        for name, shape in shapes.items():
            found = getattr(self, name)
            if found.shape != shape or not np.isfinite(found).all():
                return f"{name} of shape {found.shape}, expected {shape} of finite numbers"
        return None


def _score_heads(request: ScoreHeads, terms: Terms, label: str | None) -> Asked:
    few = terms.too_few("sums over {} row(s)", request.min_rows)
    return Asked(tuple(request.columns), terms.label_unused(label) or few)


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
                "slopes and curvatures of the loss in others' scores, sums over all rows",
            ),
            Reveals("model", Level.AGGREGATES, "the same"),
        ),
        costly=True,
        keeps_reply=False,
        most=16,
        asks=_score_heads,
        groups={"rows of a sum": lambda reply: reply.n_rows},
    )
)

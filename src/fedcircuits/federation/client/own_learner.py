"""The learner of a client, made anew for each fit with the options that the fit needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, is_dataclass

from fedcircuits.density import (
    Learner,
    LearnsAgreedSchema,
    LearnsClassifier,
    LearnsForMixing,
    LearnsLabel,
    LearnsLevels,
    LearnsTilt,
)
from fedcircuits.errors import FedcircuitsError
from fedcircuits.federation.client.jobs import CLASS

MakeLearner = Callable[[str | None], Learner | LearnsClassifier]


@dataclass(frozen=True)
class OwnLearner:
    """What a client learns with.

    Attributes:
        make: the learner for a label's name or None.
        client: its name, for errors.
    """

    make: MakeLearner
    client: str

    def of_any_kind(self, label: str | None) -> Learner | LearnsClassifier:
        """Return the learner, which leaves the agreed schema as it is."""
        made = self.make(label)
        return made.for_agreed_schema() if isinstance(made, LearnsAgreedSchema) else made

    def of_densities(self, label: str | None, *, mixed: bool = False) -> Learner:
        """Return the learner of densities; an error where it only classifies.

        Args:
            label: to learn for, None for none.
            mixed: whether what it makes is averaged with what clients with other rows make.
        """
        made = self.of_any_kind(label)
        if not isinstance(made, Learner):
            raise FedcircuitsError(
                f"client {self.client!r}: {type(made).__name__} makes classifiers, and this "
                "federation needs a density; use another learner, or a rule that averages or votes"
            )
        return made.for_mixing() if mixed and isinstance(made, LearnsForMixing) else made

    @property
    def name(self) -> str:
        """With its options, where it has such: others make other terms of the same rows."""
        return described(self.make(None))

    @property
    def knows_classes(self) -> bool:
        """Whether it learns agreed classes as a label, so that one fit serves all of them."""
        learner = self.of_densities(CLASS)
        return isinstance(learner, LearnsLabel) and learner.label == CLASS

    @property
    def tilts(self) -> bool:
        """Whether it fits a tilt of the label, on tables of agreed states."""
        made = self.make(None)
        return isinstance(made, LearnsTilt) and made.tilts

    @property
    def takes_levels(self) -> bool:
        """Whether it learns pixels as levels, so that it needs no grid of them."""
        return isinstance(self.make(None), LearnsLevels)


def described(learner: Learner | LearnsClassifier) -> str:
    """Return a learner and its options in words, the same in all processes."""
    return repr(learner) if is_dataclass(learner) else type(learner).__name__

"""What every density answers (`Density`) and what learners offer (`Learner` and its extensions).

`hooks.py` is what the author of a density writes, `queries/` what it inherits from there,
`contracts.py` what learners offer.
"""

from fedcircuits.density.contracts import (
    Learner,
    LearnsAgreedSchema,
    LearnsBranch,
    LearnsClasses,
    LearnsClassifier,
    LearnsForMixing,
    LearnsInRounds,
    LearnsLabel,
    LearnsLevels,
    LearnsTilt,
)
from fedcircuits.density.density import Density, outcome_codes, powers
from fedcircuits.density.evidence import Given

__all__ = [
    "Density",
    "Given",
    "Learner",
    "LearnsAgreedSchema",
    "LearnsBranch",
    "LearnsClasses",
    "LearnsClassifier",
    "LearnsForMixing",
    "LearnsInRounds",
    "LearnsLabel",
    "LearnsLevels",
    "LearnsTilt",
    "outcome_codes",
    "powers",
]

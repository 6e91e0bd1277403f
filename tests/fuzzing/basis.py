"""What all targets of fuzzing use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from contracts.engine import table
from contracts.federations import ID

Rng = np.random.Generator
ROWS = table().drop(columns=ID)


class WrongError(AssertionError):
    """A wrong outcome."""


def pick(options: Sequence[Any], rng: Rng) -> Any:
    """One of several."""
    return options[int(rng.integers(len(options)))]

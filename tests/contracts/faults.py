"""What tests of faults have in common: fits that last, and something that happens during them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd


def rows_to_fit(n: int = 2_000) -> pd.DataFrame:
    """Rows of four groups, for the default learner; the label is `y`."""
    rng = np.random.default_rng(0)
    hidden = rng.integers(4, size=n)
    X = {f"x{at}": rng.normal(hidden * (at % 3), 1.0) for at in range(8)}
    return pd.DataFrame({**X, "y": np.where(hidden > 1, "high", "low")})


class During:
    """Progress that does something once, when clients of `contracts.faulty` are at a request.

    Args:
        verb: of the request.
        act: what is done.
        told: of the clients, the files that say what they do at it.
    """

    def __init__(self, verb: str, act: Callable[[], None], *told: Path) -> None:
        self._verb, self._act, self.done = verb, act, False
        self._begun = [path.with_name(f"{path.name}.begun") for path in told]

    def __call__(self, part: float, words: str) -> None:
        del part
        at_it = words.startswith(f"{self._verb}: ") and all(path.exists() for path in self._begun)
        if at_it and not self.done:
            self.done = True
            self._act()


def model_bytes(fed: Any, path: Path) -> bytes:
    """A model as it is saved."""
    fed.save(path)
    return path.read_bytes()

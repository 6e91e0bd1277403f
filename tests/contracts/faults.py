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
    """Progress that does something once, when clients have been at a request for half a second."""

    def __init__(self, verb: str, act: Callable[[], None]) -> None:
        self.verb, self.act, self.seen = verb, act, 0

    def __call__(self, part: float, words: str) -> None:
        self.seen += part == 0.0 and words.startswith(f"{self.verb}: 0 of")
        if self.seen == 2:
            self.seen += 1
            self.act()

    @property
    def done(self) -> bool:
        return self.seen > 2


def model_bytes(fed: Any, path: Path) -> bytes:
    """A model as it is saved."""
    fed.save(path)
    return path.read_bytes()

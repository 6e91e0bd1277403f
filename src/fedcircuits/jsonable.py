"""Values as JSON has them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd


def plain_json(value: Any) -> Any:
    """Return a value as JSON has it: NaN and pd.NA as null, infinities and other things as text."""
    if isinstance(value, np.generic | np.ndarray):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {str(key): plain_json(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain_json(entry) for entry in value]
    if isinstance(value, float):
        return value if np.isfinite(value) else None if np.isnan(value) else str(value)
    if value is None or value is pd.NA:
        return None
    return value if isinstance(value, bool | int | str) else str(value)

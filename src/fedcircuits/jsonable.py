"""Values as JSON has them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd


def plain_json(value: Any) -> Any:
    """JSON values: NumPy scalars unpacked, NaN and pd.NA as null, infinities as text."""
    if isinstance(value, dict):
        return {str(key): plain_json(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain_json(entry) for entry in value]
    if isinstance(value, np.generic):
        return plain_json(value.item())
    if isinstance(value, float) and not np.isfinite(value):
        return None if np.isnan(value) else str(value)
    return None if value is pd.NA else value
